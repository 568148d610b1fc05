// ModuleTensors on several ranks, and with added parameters.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "torch/net.h"

namespace pride {
namespace {

TEST(ModuleTensors, BroadcastGivesAllRanksTheModuleOfRank0) {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
    std::vector<torch::Tensor> weights(3);
    run_world(3, [&](Communicator& comm) {
      Net net;
      net.to(dtype);
      {
        const torch::NoGradGuard no_grad;
        net.first->weight.fill_(1 + comm.rank());
      }
      ModuleTensors tensors(named(net));
      Optimizer optimizer(comm, tensors.layout(), {.method = "lion", .groups = {{.lr = 1e-2}}});
      tensors.zero_grad();
      EXPECT_THROW(tensors.step(optimizer), InvalidArgument) << "the ranks' modules differ";
      tensors.broadcast(optimizer);
      EXPECT_EQ(net.first->weight[0][0].item<float>(), 1);
      net.forward(batch(comm.rank()).to(dtype)).square().mean().backward();
      tensors.step(optimizer);
      weights[static_cast<std::size_t>(comm.rank())] = net.first->weight.detach().clone();
    });
    EXPECT_TRUE(torch::equal(weights[1], weights[0]));
    EXPECT_TRUE(torch::equal(weights[2], weights[0]));
  }
}

// A module that one rank refuses is refused on all, at once.
TEST(ModuleTensors, AnAdditionThatOneRankRefusesIsRefusedOnAll) {
  std::vector<int> refused(3, 0);
  run_world(3, [&](Communicator& comm) {
    Net net;
    ModuleTensors tensors({{"first.weight", net.first->weight, 0}});
    Optimizer optimizer(comm, tensors.layout(), {.method = "lion"});
    tensors.broadcast(optimizer);
    const auto& more = comm.rank() == 1 ? net.first->weight : net.last->weight;
    try {
      tensors.add(optimizer, {{"more", more, 0}});
    } catch (const InvalidArgument&) {
      refused[static_cast<std::size_t>(comm.rank())] = 1;
    }
    EXPECT_EQ(tensors.layout().tensors().size(), 1u);
    tensors.zero_grad();
    net.forward(batch(0)).square().mean().backward();
    tensors.step(optimizer);  // the world still works
  });
  EXPECT_EQ(refused, (std::vector<int>{1, 1, 1}));
}

// As tensors without a gradient so far: the state is zero, the weights are unchanged.
TEST(ModuleTensors, AddedParametersTrainFromThenOn) {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
    Net net;
    net.to(dtype);
    const auto twin = twin_of(net);
    twin->to(dtype);
    run_world(1, [&](Communicator& comm) {
      const std::vector<ParamGroup> groups = {{.lr = 1e-2, .weight_decay = 0.0},
                                              {.lr = 1e-3, .weight_decay = 0.0}};
      const auto list_of = [](const Net& from, bool first, bool rest) {
        std::vector<NamedParameter> list;
        if (first) list.push_back({"first.weight", from.first->weight, 0});
        if (rest) list.push_back({"first.bias", from.first->bias, 0});
        if (rest) list.push_back({"last.weight", from.last->weight, 1});
        return list;
      };
      ModuleTensors tensors(list_of(net, true, false)), whole(list_of(*twin, true, true));
      Optimizer optimizer(comm, tensors.layout(), {.method = "lion", .groups = {groups[0]}});
      Optimizer all(comm, whole.layout(), {.method = "lion", .groups = groups});
      const auto train = [&](Net& model, ModuleTensors& tensors_of, Optimizer& with, int from,
                             int to) {
        for (int step = from; step < to; ++step) {
          tensors_of.zero_grad();
          model.forward(batch(step).to(dtype)).square().mean().backward();
          tensors_of.step(with);
        }
      };
      const auto freeze = [](Net& model, bool frozen) {
        model.first->bias.set_requires_grad(!frozen);
        model.last->weight.set_requires_grad(!frozen);
      };
      freeze(*twin, true);
      train(net, tensors, optimizer, 0, 3);
      train(*twin, whole, all, 0, 3);
      freeze(*twin, false);

      EXPECT_THROW(tensors.add(optimizer, list_of(net, true, false)), InvalidArgument)
          << "it is there already";
      EXPECT_EQ(tensors.layout().tensors().size(), 1u);
      tensors.add(optimizer, list_of(net, false, true), {groups[1]});
      EXPECT_EQ(tensors.layout().digest(), whole.layout().digest());
      train(net, tensors, optimizer, 3, 6);
      train(*twin, whole, all, 3, 6);
      EXPECT_EQ(optimizer.hash(tensors.parameters()), all.hash(whole.parameters()));
      EXPECT_TRUE(torch::equal(net.last->weight, twin->last->weight));
    });
  }
}

}  // namespace
}  // namespace pride

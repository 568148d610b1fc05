// States of all ranks, loaded on another number of ranks, with other buckets: local state by the
// policy, shared state unchanged, server state on the new servers.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the saved states, assembled by tensor name.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "pride/error.h"
#include "pride/registry.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::resharding_test {
namespace {

const Layout kLayout({{"w", {130, 70}}, {"b", {9}}, {"v", {4200}}});

void train(Optimizer& optimizer, Communicator& comm, FlatBuffer& x, int from, int to) {
  FlatBuffer g(kLayout.flat_size());
  for (int step = from; step < to; ++step) {
    testing::fill(kLayout, g, [&](std::size_t t, std::size_t i) {
      return testing::gradient(comm.rank(), step, t, i);
    });
    optimizer.step(x.span(), g.span());
  }
}

// Three steps of a method on `world` ranks.
std::vector<StateDict> states_of(const std::string& method, int world, std::size_t bucket) {
  std::vector<StateDict> states(static_cast<std::size_t>(world));
  run_world(world, [&](Communicator& comm) {
    Optimizer optimizer(comm, kLayout, {.method = method, .bucket_coords = bucket});
    FlatBuffer x(kLayout.flat_size());
    train(optimizer, comm, x, 0, 3);
    states[static_cast<std::size_t>(comm.rank())] = optimizer.save();
  });
  return states;
}

std::string kind_of(const StateDict& state, const std::string& key) {
  return state.scalars.at("kind." + key.substr(0, key.find('/')));
}

// A coordinate of the servers' state lies with one rank; the others have zeros.
std::vector<float> together(const std::vector<StateDict>& states, const std::string& key) {
  std::vector<float> values = states[0].tensors.at(key).values;
  for (std::size_t r = 1; r < states.size(); ++r) {
    const auto& more = states[r].tensors.at(key).values;
    for (std::size_t i = 0; i < more.size(); ++i) {
      if (more[i] == 0) continue;
      EXPECT_EQ(values[i], 0) << key << ": two ranks serve coordinate " << i;
      values[i] = more[i];
    }
  }
  return values;
}

std::vector<StateDict> loaded(const std::vector<StateDict>& saved, int world, std::size_t bucket,
                              LocalState local) {
  std::vector<StateDict> states(static_cast<std::size_t>(world));
  std::vector<std::uint64_t> hashes(states.size());
  const std::string method = saved[0].scalars.at("method");
  run_world(world, [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    Optimizer optimizer(comm, kLayout, {.method = method, .bucket_coords = bucket});
    optimizer.load(saved, local);
    EXPECT_EQ(optimizer.steps_done(), 3);
    states[r] = optimizer.save();
    FlatBuffer x(kLayout.flat_size());
    train(optimizer, comm, x, 3, 5);
    optimizer.to_common(x.span());
    hashes[r] = param_hash(kLayout, x.span());
  });
  for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]) << method;
  return states;
}

class Resharding : public ::testing::TestWithParam<std::string> {};

TEST_P(Resharding, KeepsSharedAndServersStateOnAnyNumberOfRanks) {
  const auto saved = states_of(GetParam(), 4, 4096);
  for (const int world : {1, 2, 3, 8}) {
    for (const LocalState local : {LocalState::kKeep, LocalState::kAverage, LocalState::kReset}) {
      const auto now = loaded(saved, world, 8192, local);
      for (const auto& [key, tensor] : saved[0].tensors) {
        const std::string kind = kind_of(saved[0], key);
        if (kind == "server") {
          EXPECT_EQ(together(now, key), together(saved, key)) << key;
        }
        for (std::size_t r = 0; r < now.size(); ++r) {
          const auto& values = now[r].tensors.at(key).values;
          if (kind == "shared") {
            EXPECT_EQ(values, tensor.values) << key;
          }
          if (kind != "local") continue;
          if (local == LocalState::kKeep) {
            EXPECT_EQ(values, saved[r % 4].tensors.at(key).values) << key << ", rank " << r;
          }
          for (std::size_t i = 0; i < values.size(); ++i) {
            double mean = 0;
            for (const StateDict& s : saved) mean += s.tensors.at(key).values[i] / 4.0;
            if (local == LocalState::kAverage) {
              ASSERT_NEAR(values[i], mean, 1e-6) << key;
            } else if (local == LocalState::kReset) {
              ASSERT_EQ(values[i], 0) << key;
            }
          }
        }
      }
    }
  }
}

TEST_P(Resharding, OnAsManyRanksGoesOnBitForBit) {
  for (const std::size_t bucket : {std::size_t{4096}, std::size_t{8192}}) {
    run_world(3, [&](Communicator& comm) {
      FlatBuffer x(kLayout.flat_size()), y(kLayout.flat_size());
      Optimizer whole(comm, kLayout, {.method = GetParam(), .bucket_coords = 4096});
      train(whole, comm, x, 0, 6);
      Optimizer first(comm, kLayout, {.method = GetParam(), .bucket_coords = 4096});
      train(first, comm, y, 0, 3);
      static std::mutex mutex;
      static std::map<std::size_t, std::vector<StateDict>> all;  // by bucket size
      {
        const std::lock_guard lock(mutex);
        all[bucket].push_back(first.save());  // in any order
      }
      comm.barrier();
      Optimizer second(comm, kLayout, {.method = GetParam(), .bucket_coords = bucket});
      second.load(all[bucket]);
      comm.barrier();
      if (comm.rank() == 0) all.clear();
      comm.barrier();
      train(second, comm, y, 3, 6);
      EXPECT_EQ(param_hash(kLayout, x.span()), param_hash(kLayout, y.span()));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, Resharding, ::testing::ValuesIn(method_names()),
                         [](const auto& info) { return testing::test_name(info.param); });

// One rank's state is damaged: all refuse at once, nothing changes, and the next step works.
TEST(ReshardingErrors, AStateThatOneRankRefusesIsRefusedOnAll) {
  const auto good = states_of("signsgd-ef", 3, 4096);
  run_world(3, [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    Optimizer optimizer(comm, kLayout, {.method = "signsgd-ef", .bucket_coords = 8192});
    const StateDict before = optimizer.save();
    StateDict mine = good[r];
    if (r == 1) mine.tensors["error/w"].values[3] = INFINITY;
    EXPECT_THROW(optimizer.load(mine), InvalidArgument);
    mine = good[r];
    if (r == 1) mine.scalars["bucket size"] = "64";
    EXPECT_THROW(optimizer.load(mine), InvalidArgument);
    EXPECT_EQ(optimizer.save().scalars, before.scalars);
    EXPECT_EQ(optimizer.save().tensors.at("error/w").values, before.tensors.at("error/w").values);
    FlatBuffer x(kLayout.flat_size());
    train(optimizer, comm, x, 0, 1);
    optimizer.load(good[r]);
    EXPECT_EQ(optimizer.steps_done(), 3);
  });
}

TEST(ReshardingErrors, NameWhatIsWrongAndChangeNothing) {
  const auto good = states_of("signsgd-ef", 3, 4096);
  const auto dense = states_of("lion", 3, 4096);
  const auto refuses = [](std::vector<StateDict> states, const std::string& names,
                          const std::function<void(std::vector<StateDict>&)>& change) {
    change(states);
    run_world(1, [&](Communicator& comm) {
      Optimizer optimizer(comm, kLayout, {.method = states[0].scalars.at("method")});
      const StateDict before = optimizer.save();
      texts::expect_error<InvalidArgument>([&] { optimizer.load(states); }, {names});
      EXPECT_EQ(optimizer.save().scalars, before.scalars);
      for (const auto& [key, tensor] : before.tensors) {
        EXPECT_EQ(optimizer.save().tensors.at(key).values, tensor.values);
      }
    });
  };
  refuses(good, "states of 2 ranks given", [](auto& s) { s.pop_back(); });
  refuses(good, "a state of rank 1 given; each rank from 0 to 2 must have exactly one",
          [](auto& s) { s[2] = s[1]; });
  refuses(good, "differ in step", [](auto& s) { s[2].scalars["step"] = "4"; });
  refuses(good, "differ in bucket size", [](auto& s) { s[1].scalars["bucket size"] = "64"; });
  refuses(good, "bucket size of 0", [](auto& s) {
    for (StateDict& state : s) state.scalars["bucket size"] = "0";
  });
  refuses(good, "'error/b'", [](auto& s) { s[2].tensors.erase("error/b"); });
  refuses(good, "of rank 1 has 3 values",
          [](auto& s) { s[1].tensors["server_error/v"].values.resize(3); });
  refuses(good, "the state's 'error' is shared", [](auto& s) {
    for (StateDict& state : s) state.scalars["kind.error"] = "shared";
  });
  refuses(dense, "'m/w' must be equal on all ranks, but differs",
          [](auto& s) { s[2].tensors["m/w"].values[5] += 1; });
  refuses(dense, "not finite", [](auto& s) {
    for (StateDict& state : s) state.tensors["m/w"].values[5] = INFINITY;
  });
  refuses(dense, "group starts", [](auto& s) {
    for (StateDict& state : s) state.scalars["group starts"] = "9";
  });
  run_world(1, [](Communicator& comm) {
    Optimizer optimizer(comm, kLayout, {});
    EXPECT_THROW(optimizer.load(std::vector<StateDict>{}), InvalidArgument);
  });
  run_world(2, [&](Communicator& comm) {
    Optimizer optimizer(comm, kLayout, {.method = "lion"});
    texts::expect_error<InvalidArgument>(
        [&] { optimizer.load(dense[static_cast<std::size_t>(comm.rank())]); },
        {"load the states of all ranks"});
  });
}

}  // namespace
}  // namespace pride::resharding_test

// A server in its own process gives the same bytes as in training, for every method and route.
// Oracle: the exchange of a step between threads.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include "pride/comm/thread_comm.h"
#include "support/one_exchange.h"
#include "support/serve_case.h"
#include "support/training.h"

namespace pride::serve_test {
namespace {

using testing::ServeCase;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Served {
  ServeCase call;
  std::string result;
  Route route;
};

// Serves as the method does, and writes down what came in and went out.
class Witness final : public Server {
 public:
  Witness(const Server& server, ServeCase base, std::vector<Served>& seen)
      : server_(server), base_(std::move(base)), seen_(seen) {}

  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    Served served{base_, {}, part.route};
    ServeCase& call = served.call;
    call.bucket = part.bucket;
    call.shard = static_cast<int>(&shard - part.shards.data());
    call.from_partial = voters.role == FrameRole::kPartial;
    call.partial = reply.role == FrameRole::kPartial;
    for (const Frame& f : voters.frames) {
      call.heads.push_back(text_of(f.head));
      call.bodies.push_back(text_of(f.body));
    }
    if (part.route == Route::kNative) {
      call.heads = {""};
      call.bodies = {text_of(reply.body)};
    }
    server_.serve(part, shard, voters, shared, reply);
    served.result = text_of(reply.head.subspan(std::min(reply.head.size(), kHeaderBytes))) +
                    text_of(reply.body) + text_of(reply.pending.span());
    seen_.push_back(std::move(served));
  }

  void of_part(std::size_t k) { base_.part = static_cast<int>(k); }

 private:
  const Server& server_;
  ServeCase base_;
  std::vector<Served>& seen_;
};

// A step on one rank, from state zero and without apply.
void step_of(Communicator& comm, const ServeCase& base, std::vector<Served>& seen) {
  const Layout layout = testing::serve_layout();
  const Nodes nodes = testing::nodes_of(base);
  const auto method = make_method(
      base.method, {layout, base.voters, complete_options(base.method, base.options), nodes});
  method->state().allocate(layout.flat_size());
  FlatBuffer grads(layout.flat_size());
  testing::fill(layout, grads, [&](std::size_t t, std::size_t i) {
    return testing::gradient(comm.rank(), 0, t, i);
  });
  // tensor 1 is unused on rank 1
  const std::vector<char> unused = {0, static_cast<char>(comm.rank() == 1), 0};
  const std::vector<StepScalars> scalars = testing::serve_scalars(base);
  StepContext ctx = testing::context(comm, unused);
  ctx.groups = scalars;
  FlatBuffer x(layout.flat_size());
  testing::fill(layout, x, testing::initial);
  ctx.x = {.flat = ConstFloats(std::as_const(x).span())};
  ctx.step = base.step;
  ctx.seed = base.seed;
  ctx.scalars_digest = base.scalars;
  const GradientView grad{.flat = grads.data()};
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    if (!ctx.is_unused(t)) method->tensor_ready(t, ctx, grad);
  }
  Scratch scratch;
  if (const Protocol protocol = method->protocol(ctx); protocol.whole_gradient) {
    Wire before;
    if (protocol.preliminary) size_frames(*protocol.preliminary, ctx, before);
    method->encode_preliminary(ctx, grad, before);
    if (protocol.preliminary) {
      exchange(comm, *method, *protocol.preliminary, ctx, {}, scratch, before);
      method->take_preliminary(ctx, before);
    }
  }
  Witness witness(*method, base, seen);
  for (const Bucket& bucket :
       make_buckets(layout, testing::kServeBucket, base.voters, method->protocol(ctx).alignment)) {
    Flight flight;
    flight.grad = grad;
    flight.parts = method->parts(bucket, ctx);
    flight.wires.resize(flight.parts.size());
    for (std::size_t k = 0; k < flight.parts.size(); ++k) {
      size_frames(flight.parts[k], ctx, flight.wires[k]);
    }
    method->encode(bucket, ctx, flight);
    if (flight.pack) flight.pack(flight);
    for (std::size_t k = 0; k < flight.parts.size(); ++k) {
      witness.of_part(k);
      exchange(comm, witness, flight.parts[k], ctx, nodes, scratch, flight.wires[k]);
      ASSERT_FALSE(flight.wires[k].non_finite);
    }
  }
}

std::string result_of_process(const ServeCase& call) {
  const auto folder = std::filesystem::path(::testing::TempDir());
  const auto in = folder / "serve_case.in", out = folder / "serve_case.out";
  {
    std::ofstream file(in, std::ios::binary);
    testing::write(file, call);
  }
  const std::string command =
      std::string(PRIDE_SERVE_PROCESS) + " < " + in.string() + " > " + out.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream file(out, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<ServeCase> cases() {
  std::vector<ServeCase> all;
  for (const std::string& name : testing::method_variants()) {
    OptimizerOptions options;
    testing::set_method(options, name);
    const std::int64_t period = method_info(options.method, 3, options.options).period;
    all.push_back({.method = options.method,
                   .options = options.options,
                   .voters = 3,
                   .step = static_cast<int>(period - 1)});
  }
  all.push_back({.method = "dlion-vote", .options = {{"tie", "zero"}}, .voters = 4, .per_node = 2});
  all.push_back({.method = "dlion-avg", .voters = 4, .per_node = 2});
  all.push_back({.method = "lion", .options = {{"dense", "native"}}, .voters = 3});
  all.push_back(
      {.method = "lion-cub", .options = {{"route", "native"}, {"sync_every", "1"}}, .voters = 3});
  all.push_back(
      {.method = "onebit-adam", .options = {{"freeze_steps", "1"}}, .voters = 2, .step = 1});
  for (ServeCase& c : all) c.seed = 11, c.scalars = 12;
  return all;
}

TEST(Serve, GivesTheSameBytesInAProcessWithoutGradientsAndWorkerState) {
  std::set<Route> routes;
  for (const ServeCase& base : cases()) {
    std::vector<std::vector<Served>> seen(static_cast<std::size_t>(base.voters));
    run_world(base.voters, [&](Communicator& comm) {
      step_of(comm, base, seen[static_cast<std::size_t>(comm.rank())]);
    });
    std::size_t bytes = 0;
    for (const auto& of_rank : seen) {
      for (const Served& served : of_rank) {
        routes.insert(served.route);
        bytes += served.result.size();
        EXPECT_TRUE(served.result == result_of_process(served.call))
            << base.method << ", bucket " << served.call.bucket << ", part " << served.call.part
            << ", shard " << served.call.shard;
      }
    }
    const MethodInfo info = method_info(base.method, base.voters, base.options);
    const double least = std::min(1.0, info.bits_down * static_cast<double>(info.period));
    EXPECT_GT(static_cast<double>(bytes), least * 4500 / 8) << base.method;
  }
  EXPECT_EQ(routes.size(), 4u) << "not every route was taken";
}

}  // namespace
}  // namespace pride::serve_test

// One rank of a run whose traffic hierarchical_network_test.sh compares with the counters of the
// network interfaces: prints the parameters' hash and the bytes of its cost.
// SPDX-License-Identifier: Apache-2.0
//
// usage: hierarchical_network METHOD RANKS_PER_NODE STEPS COORDS sharded|hierarchical
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "pride/comm/mpi_comm.h"
#include "pride/nodes.h"
#include "support/training.h"

namespace pride {
namespace {

struct Settings {
  std::string method;
  int per_node = 1, steps = 1;
  std::int64_t coords = 1;
  bool hierarchical = false;
};

// Of a rank, in all steps.
struct Bytes {
  std::uint64_t sent = 0, cost = 0, cost_off_node = 0;
};

void run(Communicator& comm, const Settings& settings) {
  const Layout layout({{"w", {settings.coords}}});
  OptimizerOptions options{.method = settings.method};
  if (settings.hierarchical) options.nodes = Nodes::of_size(comm.size(), settings.per_node);
  Optimizer optimizer(comm, layout, options);
  FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
  Bytes mine;
  for (int step = 0; step < settings.steps; ++step) {
    testing::fill(layout, grads, [&](std::size_t t, std::size_t i) {
      return testing::gradient(comm.rank(), step, t, i);
    });
    mine.cost += optimizer.cost(step).bytes();
    mine.cost_off_node += optimizer.cost(step).bytes_off_node();
    mine.sent += optimizer.step(params.span(), grads.span()).bytes_sent;
  }
  std::vector<Bytes> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  if (comm.rank() != 0) return;
  Bytes node;  // sum over the ranks of the first node
  for (int r = 0; r < settings.per_node; ++r) {
    const Bytes& theirs = all[static_cast<std::size_t>(r)];
    node.sent += theirs.sent;
    node.cost += theirs.cost;
    node.cost_off_node += theirs.cost_off_node;
  }
  std::cout << "hash " << param_hash(layout, params.span()) << "\nsent " << node.sent << "\ncost "
            << node.cost << "\noff_node " << node.cost_off_node << std::endl;
}

}  // namespace
}  // namespace pride

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const pride::MpiEnvironment environment;
  const auto comm = pride::make_mpi_communicator();
  pride::run(*comm, {.method = argv[1],
                     .per_node = std::atoi(argv[2]),
                     .steps = std::atoi(argv[3]),
                     .coords = std::atoll(argv[4]),
                     .hierarchical = std::string(argv[5]) == "hierarchical"});
  return 0;
}

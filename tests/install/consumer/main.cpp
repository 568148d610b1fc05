// A user's program: three ranks, one majority vote, and the exact parameters that must result. The
// oracle is arithmetic by hand: momentum 0 and two positive gradients of three outvote the negative
// one, so x = 0 - lr.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdio>

#include "pride/comm/thread_comm.h"
#include "pride/flat_buffer.h"
#include "pride/optimizer.h"
#ifdef WITH_MPI
#include "pride/comm/mpi_comm.h"
#endif

#ifdef WITH_COORD
#include "pride/coord/client.h"
#include "pride/error.h"
#endif

#ifdef WITH_TORCH
bool torch_part_works();
#endif

int main() {
#ifdef WITH_MPI
  if (pride::launched_by_mpi()) return 2;  // the test starts this program without a launcher
#endif
#ifdef WITH_COORD
  try {
    pride::connect_coordinator({.host_port = "example.org:4770"});
    return 4;  // another machine without certificates
  } catch (const pride::InvalidArgument&) {
  }
#endif
#ifdef WITH_TORCH
  if (!torch_part_works()) {
    std::puts("pride::torch: the tensor is not a view of the flat buffer");
    return 3;
  }
#endif
  constexpr double kLr = 0.25;
  std::atomic<int> agreeing = 0;
  pride::run_world(3, [&](pride::Communicator& comm) {
    const pride::Layout layout({{"weight", {64}}});
    pride::FlatBuffer params(layout.flat_size());
    pride::FlatBuffer grads(layout.flat_size());
    std::ranges::fill(grads.span(), comm.rank() == 1 ? -8.0f : 1.0f);

    pride::Optimizer optimizer(
        comm, layout, {.method = "dlion-vote", .groups = {{.lr = kLr, .weight_decay = 0}}});
    optimizer.step(params.span(), grads.span());
    agreeing += std::ranges::all_of(params.span(), [](float x) { return x == -0.25f; });
  });
  if (agreeing != 3) {
    std::printf("%d of 3 ranks hold the right parameters\n", agreeing.load());
    return 1;
  }
  std::puts("3 ranks agree after one vote");
}

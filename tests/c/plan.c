/* Plans: a network on paper, methods measured here. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "support.h"

/* With fast arithmetic a step is bound by the network: fewer bytes, shorter steps. */
void test_plans(void) {
  pride_comm* comm = NULL;
  CHECK_OK(pride_comm_threads(1, &comm));
  pride_options options;
  pride_options_init(&options, sizeof options);
  pride_plan_facts facts = {.struct_size = sizeof facts,
                            .world = 4,
                            .params = 2e6,
                            .compute_s = 1e-3,
                            .bytes_per_s = 1e6,
                            .latency_s = 1e-4,
                            .cores = 2,
                            .exchange_threads = 4};
  pride_plan_row vote = {.struct_size = sizeof vote}, dense = vote;
  CHECK_OK(pride_plan(comm, &options, &facts, &vote));
  CHECK(strcmp(vote.route, "sharded") == 0);
  CHECK(strcmp(vote.bottleneck, "bandwidth") == 0);
  options.method = "lion";
  CHECK_OK(pride_plan(comm, &options, &facts, &dense));
  CHECK(dense.bytes > 30 * vote.bytes);
  CHECK(dense.overlapped_s > 10 * vote.overlapped_s);
  CHECK(dense.in_order_s >= dense.network_s);
  CHECK(dense.network_s > 12); /* 12 MB at 1 MB/s */
  facts.bytes_per_s = 0;
  CHECK_FAILS(PRIDE_INVALID, "must be above 0", pride_plan(comm, &options, &facts, &dense));
  facts.struct_size = 4;
  CHECK_FAILS(PRIDE_INVALID, "struct_size is 4", pride_plan(comm, &options, &facts, &dense));
  pride_comm_destroy(comm);
}

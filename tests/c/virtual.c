/* Virtual workers. The oracle is the same run by ranks on threads. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "support.h"

enum { kWorkers = 3 };

static pride_optimizer* open_workers(pride_comm* comm, const pride_layout* layout,
                                     const training* run, float* params) {
  pride_options options = run->options;
  options.virtual_workers = kWorkers;
  pride_optimizer* optimizer = NULL;
  CHECK_OK(pride_optimizer_create(comm, layout, &options, &optimizer));
  pride_array arrays[kTensors];
  for (int t = 0; t < kTensors; ++t) {
    arrays[t] = array_of(params + kOffsets[t], kSizes[t], PRIDE_FLOAT32);
  }
  CHECK_OK(pride_optimizer_set_parameters(optimizer, arrays, kTensors));
  return optimizer;
}

/* One set of gradient buffers for all workers. */
static int hand_over(pride_optimizer* optimizer, const pride_layout* layout, int worker, int step) {
  float grads[kFlat] = {0};
  fill_grads(layout, worker, step, grads);
  pride_array arrays[kTensors];
  for (int t = 0; t < kTensors; ++t) {
    arrays[t] = array_of(grads + kOffsets[t], kSizes[t], PRIDE_FLOAT32);
  }
  const int status = pride_optimizer_hand_over(optimizer, worker, NULL, arrays, kTensors);
  memset(grads, 0xff, sizeof grads); /* NaN */
  return status;
}

static void check_run(const char* method, const char* option, const char* value) {
  training run = training_of(method);
  if (option != NULL) {
    run.options.names = &option;
    run.options.values = &value;
    run.options.n_options = 1;
  }
  in_threads(kWorkers, train, &run);

  pride_layout* layout = make_layout();
  pride_comm* comm = NULL;
  CHECK_OK(pride_comm_threads(1, &comm));
  float params[kFlat] = {0};
  for (int i = 0; i < 300; ++i) params[i] = (float)i / 300;
  pride_optimizer* optimizer = open_workers(comm, layout, &run, params);
  pride_report report = {.struct_size = sizeof report};
  for (int step = 0; step < run.steps; ++step) {
    for (int i = 0; i < kWorkers; ++i) {
      CHECK_OK(pride_optimizer_to_worker(optimizer, i, NULL));
      CHECK_OK(hand_over(optimizer, layout, i, step));
    }
    CHECK_OK(pride_optimizer_step_workers(optimizer, NULL, &report));
    CHECK_EQUAL(step, report.step);
  }
  uint64_t hash = 0;
  CHECK_OK(pride_hash(layout, params, &hash));
  CHECK(hash == hash_of_all(&run, kWorkers));
  CHECK_EQUAL(run.bytes_sent[0], report.bytes_sent);

  pride_state* states[kWorkers];
  for (int i = 0; i < kWorkers; ++i) {
    CHECK_OK(pride_optimizer_save_worker(optimizer, i, &states[i]));
  }
  CHECK_OK(pride_optimizer_load_all(optimizer, (const pride_state* const*)states, kWorkers,
                                    PRIDE_LOCAL_KEEP));
  CHECK_FAILS(PRIDE_INVALID, "all 3 virtual workers", pride_optimizer_load(optimizer, states[0]));
  for (int i = 0; i < kWorkers; ++i) pride_state_destroy(states[i]);
  pride_optimizer_destroy(optimizer);
  pride_comm_destroy(comm);
  pride_layout_destroy(layout);
}

void test_virtual_workers(void) {
  check_run("dlion-vote", NULL, NULL);
  check_run("adamw", NULL, NULL);
  check_run("local-vote", "h", "1");
}

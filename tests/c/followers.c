/* Results of a step, applied to copies of the parameters. The oracle is the optimizer that made
 * them: here a rank follows itself. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "support.h"

static void arrays_of(float* params, pride_array* arrays) {
  for (int t = 0; t < kTensors; ++t) {
    arrays[t] = array_of(params + kOffsets[t], kSizes[t], PRIDE_FLOAT32);
  }
}

static void follow(pride_comm* comm, void* shared) {
  (void)shared;
  pride_layout* layout = make_layout();
  pride_optimizer* optimizer = open_optimizer(comm, layout, "dlion-avg");
  float params[kFlat] = {0}, copy[kFlat] = {0}, grads[kFlat];
  pride_array own[kTensors], copies[kTensors];
  arrays_of(params, own);
  arrays_of(copy, copies);
  const pride_array g = array_of(grads, kFlat, PRIDE_FLOAT32);
  CHECK_OK(pride_optimizer_set_parameters(optimizer, own, kTensors));
  const void* data = NULL;
  int32_t part = -2;
  uint64_t n = 1, expected = 0;
  CHECK_OK(pride_optimizer_results(optimizer, &data, &n));
  CHECK_EQUAL(0, n);
  CHECK_OK(pride_optimizer_follow(optimizer, layout, &part));
  CHECK_EQUAL(0, part);
  CHECK_FAILS(PRIDE_INVALID, "before the first step",
              pride_optimizer_result_bytes(optimizer, part, &expected));
  for (int step = 0; step < 3; ++step) {
    const uint8_t frozen[kTensors] = {step == 1, 0, 0};
    CHECK_OK(pride_optimizer_set_frozen(optimizer, frozen));
    fill_grads(layout, pride_comm_rank(comm), step, grads);
    CHECK_OK(pride_optimizer_step(optimizer, NULL, &g, NULL, NULL));
    CHECK_OK(pride_optimizer_results(optimizer, &data, &n));
    CHECK_OK(pride_optimizer_result_bytes(optimizer, part, &expected));
    CHECK_EQUAL(expected, n);
    CHECK_FAILS(
        PRIDE_COMM_ERROR, "bytes, must be ",
        pride_optimizer_apply_results(optimizer, part, copies, kTensors, frozen, data, n - 8));
    CHECK_OK(pride_optimizer_apply_results(optimizer, part, copies, kTensors, frozen, data, n));
    CHECK(memcmp(params, copy, sizeof params) == 0);
  }
  CHECK_FAILS(PRIDE_INVALID, "part 1 of 1",
              pride_optimizer_apply_results(optimizer, 1, copies, kTensors, NULL, data, n));
  CHECK_FAILS(PRIDE_INVALID, "tensors at NULL",
              pride_optimizer_apply_results(optimizer, part, NULL, kTensors, NULL, data, n));
  CHECK_FAILS(PRIDE_INVALID, "bytes at NULL",
              pride_optimizer_apply_results(optimizer, part, copies, kTensors, NULL, NULL, n));
  copies[2].dtype = PRIDE_BFLOAT16;
  CHECK_FAILS(PRIDE_INVALID, "must be float32",
              pride_optimizer_apply_results(optimizer, part, copies, kTensors, NULL, data, n));
  pride_optimizer_destroy(optimizer);

  optimizer = open_optimizer(comm, layout, "adamw");
  CHECK_OK(pride_optimizer_follow(optimizer, layout, &part));
  CHECK_EQUAL(-1, part);
  pride_optimizer_destroy(optimizer);
  pride_layout_destroy(layout);
}

void test_followers(void) { in_threads(2, follow, NULL); }

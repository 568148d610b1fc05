/* Means of gradients. The oracle: values that levels have exactly, and their mean written out. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stddef.h>

#include "support.h"

enum { kN = 100 };

/* Rank r has r + 1 times levels of 7; the mean of two ranks is 1.5 times them. */
static void mean_of_two(pride_comm* comm, void* unused) {
  (void)unused;
  pride_mean* mean = NULL;
  CHECK_OK(pride_mean_create(comm, "int4", NULL, &mean));
  CHECK_EQUAL(0, pride_mean_bytes_sent(mean));
  float values[kN];
  const float times = (float)(pride_comm_rank(comm) + 1);
  for (int i = 0; i < kN; ++i) values[i] = times * (float)(i % 15 - 7);
  pride_array array = array_of(values, kN, PRIDE_FLOAT32);
  int32_t finite = -1;
  CHECK_OK(pride_mean_run(mean, &array, NULL, 0, &finite));
  CHECK_EQUAL(1, finite);
  for (int i = 0; i < kN; ++i) CHECK(values[i] == 1.5f * (float)(i % 15 - 7));
  /* a word each way: header, unused bits, scales, 4 lines */
  CHECK_EQUAL(2 * (64 + 8 + 8 + 4 * 8), pride_mean_bytes_sent(mean));
  if (times > 1) values[3] = NAN;
  CHECK_OK(pride_mean_run(mean, &array, NULL, 0, &finite));
  CHECK_EQUAL(0, finite);
  for (int i = 0; i < kN; ++i) CHECK(isnan(values[i]));
  pride_mean_destroy(mean);
}

static void bad_arguments(pride_comm* comm, void* unused) {
  (void)unused;
  pride_mean* mean = NULL;
  CHECK_FAILS(PRIDE_INVALID, "comm is NULL", pride_mean_create(NULL, "int4", NULL, &mean));
  CHECK_FAILS(PRIDE_INVALID, "dense is NULL", pride_mean_create(comm, NULL, NULL, &mean));
  CHECK_FAILS(PRIDE_INVALID, "'int5'", pride_mean_create(comm, "int5", NULL, &mean));
  CHECK_FAILS(PRIDE_INVALID, "out is NULL", pride_mean_create(comm, "int4", NULL, NULL));
  CHECK_OK(pride_mean_create(comm, "int4", NULL, &mean));
  float value = 1;
  pride_array array = array_of(&value, 1, 7);
  CHECK_FAILS(PRIDE_INVALID, "dtype 7", pride_mean_run(mean, &array, NULL, 0, NULL));
  array = array_of(&value, 1, PRIDE_FLOAT32);
  array.device = PRIDE_CUDA;
  CHECK_FAILS(PRIDE_INVALID, "values: on a device", pride_mean_run(mean, &array, NULL, 0, NULL));
  CHECK_FAILS(PRIDE_INVALID, "values is NULL", pride_mean_run(mean, NULL, NULL, 0, NULL));
  array.device = PRIDE_CPU;
  CHECK_FAILS(PRIDE_INVALID, "mean is NULL", pride_mean_run(NULL, &array, NULL, 0, NULL));
  /* ranks wait for each other from here on: an error ends the world */
  const uint64_t sizes[] = {1, 2};
  CHECK_FAILS(PRIDE_INVALID, "2 tensors have 3 values, given are 1",
              pride_mean_run(mean, &array, sizes, 2, NULL));
  CHECK_FAILS(PRIDE_COMM_ERROR, "2 tensors have 3 values",
              pride_mean_run(mean, &array, NULL, 0, NULL));
  pride_mean_destroy(mean);
  pride_mean_destroy(NULL);
}

static void no_values(pride_comm* comm, void* unused) {
  (void)unused;
  pride_mean* mean = NULL;
  CHECK_OK(pride_mean_create(comm, "int4", NULL, &mean));
  pride_array array = array_of(NULL, 1, PRIDE_FLOAT32);
  CHECK_FAILS(PRIDE_INVALID, "no values", pride_mean_run(mean, &array, NULL, 0, NULL));
  pride_mean_destroy(mean);
}

void test_means(void) {
  in_threads(2, mean_of_two, NULL);
  in_threads(1, bad_arguments, NULL);
  in_threads(1, no_values, NULL);
}

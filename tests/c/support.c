/* What the tests of the C interface share. */
// SPDX-License-Identifier: Apache-2.0
#include "support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void check_true(int holds, const char* text, const char* file, int line) {
  if (holds) return;
  printf("%s:%d: does not hold: %s\n", file, line, text);
  exit(1);
}

void check_equal(long long expected, long long actual, const char* text, const char* file,
                 int line) {
  if (expected == actual) return;
  printf("%s:%d: %s is %lld, expected %lld\n", file, line, text, actual, expected);
  exit(1);
}

void check_status(int expected, const char* part, int actual, const char* text, const char* file,
                  int line) {
  if (expected != actual) {
    printf("%s:%d: %s is %d, expected %d; the last error: %s\n", file, line, text, actual, expected,
           pride_last_error());
    exit(1);
  }
  if (part != NULL) check_contains(pride_last_error(), part, "pride_last_error()", file, line);
}

void check_contains(const char* text, const char* part, const char* name, const char* file,
                    int line) {
  if (text != NULL && strstr(text, part) != NULL) return;
  printf("%s:%d: %s is '%s', expected '%s' in it\n", file, line, name, text ? text : "NULL", part);
  exit(1);
}

typedef struct end {
  pthread_t thread;
  pride_comm* comm;
  rank_body body;
  void* shared;
} end;

static void* run_end(void* arg) {
  end* e = arg;
  e->body(e->comm, e->shared);
  return NULL;
}

void on_ranks(int world, pride_comm** comms, rank_body body, void* shared) {
  end ends[kMaxWorld];
  CHECK(world <= kMaxWorld);
  for (int r = 0; r < world; ++r) {
    ends[r] = (end){.comm = comms[r], .body = body, .shared = shared};
    CHECK_EQUAL(0, pthread_create(&ends[r].thread, NULL, run_end, &ends[r]));
  }
  for (int r = 0; r < world; ++r) pthread_join(ends[r].thread, NULL);
  for (int r = 0; r < world; ++r) pride_comm_destroy(comms[r]);
}

void in_threads(int world, rank_body body, void* shared) {
  pride_comm* comms[kMaxWorld];
  CHECK_OK(pride_comm_threads(world, comms));
  on_ranks(world, comms, body, shared);
}

void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); }

double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

pride_layout* make_layout(void) {
  const int64_t a[] = {300}, b[] = {17, 5};
  const pride_tensor tensors[kTensors] = {{.name = "a", .shape = a, .n_dims = 1},
                                          {.name = "b", .shape = b, .n_dims = 2},
                                          {.name = "s"}};
  pride_layout* layout = NULL;
  CHECK_OK(pride_layout_create(tensors, kTensors, &layout));
  return layout;
}

void fill_grads(const pride_layout* layout, int rank, int64_t step, float* grads) {
  uint64_t state = 1 + 1000 * (uint64_t)step + (uint64_t)rank;
  for (uint64_t t = 0; t < pride_layout_tensors(layout); ++t) {
    uint64_t offset = 0, n = 0;
    CHECK_OK(pride_layout_slot(layout, t, &offset, &n));
    for (uint64_t i = 0; i < n; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      grads[offset + i] = (float)((int)(state >> 57) - 64) / 64;
    }
  }
}

pride_array array_of(void* data, uint64_t n, int32_t dtype) {
  return (pride_array){.data = data, .n = n, .dtype = dtype};
}

training training_of(const char* method) {
  training run = {.steps = 5, .dtype = PRIDE_FLOAT32};
  pride_options_init(&run.options, sizeof run.options);
  run.options.method = method;
  run.options.bucket_coords = 128;
  return run;
}

pride_optimizer* open_optimizer(pride_comm* comm, const pride_layout* layout, const char* method) {
  const training run = training_of(method);
  pride_optimizer* optimizer = NULL;
  CHECK_OK(pride_optimizer_create(comm, layout, &run.options, &optimizer));
  return optimizer;
}

const uint64_t kOffsets[kTensors] = {0, 320, 448}, kSizes[kTensors] = {300, 85, 1};
static uint64_t width_of(int32_t dtype) { return dtype == PRIDE_FLOAT32 ? 4 : 2; }

static void one_step(pride_optimizer* optimizer, const training* run, const pride_array* params,
                     const pride_array* grads, pride_report* report) {
  if (!run->in_parts) {
    CHECK_OK(pride_optimizer_step(optimizer, params, grads, NULL, report));
    return;
  }
  const int apart = run->in_parts >= 2;
  if (run->in_parts == 3) {
    pride_array tensors[kTensors];
    for (int t = 0; t < kTensors; ++t) {
      tensors[t] = array_of((float*)params->data + kOffsets[t], kSizes[t], PRIDE_FLOAT32);
    }
    CHECK_OK(pride_optimizer_set_parameters(optimizer, tensors, kTensors));
    params = NULL;
  }
  CHECK_OK(pride_optimizer_begin(optimizer, params, apart ? NULL : grads));
  for (uint64_t t = kTensors; t-- > 0;) {
    if (!apart) {
      CHECK_OK(pride_optimizer_ready(optimizer, t, 0));
      continue;
    }
    const pride_array g = {.data = (char*)grads->data + kOffsets[t] * width_of(grads->dtype),
                           .n = kSizes[t],
                           .dtype = grads->dtype};
    CHECK_OK(pride_optimizer_ready_at(optimizer, t, &g));
  }
  int status = PRIDE_PENDING;
  while ((status = pride_optimizer_finish(optimizer, 0, report)) == PRIDE_PENDING) nap();
  CHECK_OK(status);
}

void train(pride_comm* comm, void* shared) {
  training* run = shared;
  const int rank = pride_comm_rank(comm);
  pride_layout* layout = make_layout();
  pride_optimizer* optimizer = NULL;
  CHECK_OK(pride_optimizer_create(comm, layout, &run->options, &optimizer));
  float params[kFlat] = {0}, grads[kFlat] = {0};
  uint16_t narrow[kFlat] = {0};
  for (int i = 0; i < 300; ++i) params[i] = (float)i / 300;
  for (int step = 0; step < run->steps; ++step) {
    fill_grads(layout, rank, step, grads);
    for (int i = 0; i < kFlat; ++i) {
      uint32_t bits = 0;
      memcpy(&bits, &grads[i], sizeof bits);
      narrow[i] = (uint16_t)(bits >> 16);
    }
    const pride_array p = array_of(params, kFlat, PRIDE_FLOAT32);
    const pride_array g =
        array_of(run->dtype == PRIDE_FLOAT32 ? (void*)grads : (void*)narrow, kFlat, run->dtype);
    pride_report report = {.struct_size = sizeof report};
    pride_cost cost;
    CHECK_OK(pride_optimizer_cost(optimizer, step, &cost));
    one_step(optimizer, run, &p, &g, &report);
    if (cost.exact) CHECK_EQUAL(cost.bytes_up + cost.bytes_down, report.bytes_sent);
    CHECK_EQUAL(step, report.step);
    CHECK_EQUAL(0, report.skipped);
    run->bytes_sent[rank] = report.bytes_sent;
  }
  CHECK_EQUAL(run->steps, pride_optimizer_steps_done(optimizer));
  CHECK_OK(pride_hash(layout, params, &run->hash[rank]));
  pride_optimizer_destroy(optimizer);
  pride_layout_destroy(layout);
}

uint64_t hash_of_all(const training* run, int world) {
  for (int r = 1; r < world; ++r) CHECK(run->hash[r] == run->hash[0]);
  return run->hash[0];
}

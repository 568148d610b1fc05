// Four threads fit one linear model together, through the C interface, and exchange only signs.
// Exits with 1 if the fit is not close to the weights that made the data.
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "pride/c/pride.h"

enum { kFeatures = 256, kBatch = 32, kSteps = 400, kWorkers = 4 };  // 256: no padding

static void need(int status) {
  if (status != PRIDE_OK) printf("pride: %s\n", pride_last_error()), exit(1);
}

// The next pseudo-random number of a series, in [-1, 1).
static float next(uint32_t* series) {
  *series = *series * 1664525u + 1013904223u;
  return (float)(*series >> 8) / (1 << 23) - 1;
}
static float truth(int feature) { return sinf((float)feature); }

static void gradient(uint32_t* series, const float* weights, float* grads) {
  for (int i = 0; i < kFeatures; ++i) grads[i] = 0;
  for (int sample = 0; sample < kBatch; ++sample) {
    float x[kFeatures], error = 0;
    for (int i = 0; i < kFeatures; ++i) error += (x[i] = next(series)) * (weights[i] - truth(i));
    for (int i = 0; i < kFeatures; ++i) grads[i] += 2 * error * x[i] / kBatch;
  }
}

static double distance[kWorkers];
static void* work(void* end) {
  pride_comm* comm = end;
  const pride_tensor tensor = {.name = "weight", .shape = (int64_t[]){kFeatures}, .n_dims = 1};
  pride_layout* layout = NULL;
  need(pride_layout_create(&tensor, 1, &layout));
  pride_options options;
  pride_options_init(&options, sizeof options);  // dlion-vote
  pride_optimizer* optimizer = NULL;
  need(pride_optimizer_create(comm, layout, &options, &optimizer));

  float weights[kFeatures] = {0}, grads[kFeatures];
  const pride_array p = {.data = weights, .n = kFeatures}, g = {.data = grads, .n = kFeatures};
  uint32_t series = 1 + (uint32_t)pride_comm_rank(comm);
  for (int step = 0; step < kSteps; ++step) {
    gradient(&series, weights, grads);
    const double lr = 0.02 * (kSteps - step) / kSteps;
    need(pride_optimizer_set_group(
        optimizer, 0,
        &(pride_group){.lr = lr, .beta1 = NAN, .beta2 = NAN, .eps = NAN, .momentum = NAN}));
    need(pride_optimizer_step(optimizer, &p, &g, NULL, NULL));
  }
  double* sum = &distance[pride_comm_rank(comm)];
  for (int i = 0; i < kFeatures; ++i) *sum += fabs(weights[i] - truth(i)) / kFeatures;
  pride_optimizer_destroy(optimizer);
  pride_layout_destroy(layout);
  return NULL;
}

int main(void) {
  pride_comm* comms[kWorkers];
  pthread_t threads[kWorkers];
  need(pride_comm_threads(kWorkers, comms));
  for (int r = 0; r < kWorkers; ++r) pthread_create(&threads[r], NULL, work, comms[r]);
  for (int r = 0; r < kWorkers; ++r) pthread_join(threads[r], NULL);
  for (int r = 0; r < kWorkers; ++r) pride_comm_destroy(comms[r]);
  printf("distance from the true weights: %.4f\n", distance[0]);
  return distance[0] < 0.02 && distance[0] == distance[kWorkers - 1] ? 0 : 1;
}

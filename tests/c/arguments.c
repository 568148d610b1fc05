/* Arguments that cannot be used are refused with a text, and change nothing. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "support.h"

static void refuse_options(pride_comm* comm, const pride_layout* layout) {
  int anything = 0;
  pride_optimizer* out = (pride_optimizer*)(void*)&anything;
  pride_options options;
  pride_options_init(&options, sizeof options);
  CHECK_EQUAL(sizeof options, options.struct_size);
  CHECK_TEXT(options.method, "dlion-vote");
  CHECK_EQUAL(1 << 20, options.bucket_coords);

  CHECK_FAILS(PRIDE_INVALID, "comm is NULL", pride_optimizer_create(NULL, layout, &options, &out));
  CHECK(out == NULL);
  CHECK_FAILS(PRIDE_INVALID, "layout is NULL", pride_optimizer_create(comm, NULL, &options, &out));
  CHECK_FAILS(PRIDE_INVALID, "options is NULL", pride_optimizer_create(comm, layout, NULL, &out));
  CHECK_FAILS(PRIDE_INVALID, "out is NULL", pride_optimizer_create(comm, layout, &options, NULL));
  CHECK_FAILS(PRIDE_INVALID, "layout is NULL", pride_optimizer_check_memory(NULL, &options, 0));
  CHECK_FAILS(PRIDE_INVALID, "options is NULL", pride_optimizer_check_memory(layout, NULL, 0));
  CHECK_FAILS(PRIDE_INVALID, "the options name no device",
              pride_optimizer_check_memory(layout, &options, 0));
  CHECK_FAILS(PRIDE_INVALID, "device is NULL", pride_device_set_make_room(NULL, NULL, NULL));
  CHECK_FAILS(PRIDE_INVALID, "text is NULL", pride_cuda_report(NULL));

  pride_options bad = options;
  bad.struct_size = 0;
  CHECK_FAILS(PRIDE_INVALID, "struct_size is 0", pride_optimizer_create(comm, layout, &bad, &out));
  bad.struct_size = offsetof(pride_options, vote_weight) - 1;
  CHECK_FAILS(PRIDE_INVALID, "must be 96 or more",
              pride_optimizer_create(comm, layout, &bad, &out));
  bad = options;
  bad.vote_weight = 70000;
  CHECK_FAILS(PRIDE_INVALID, "vote weight 70000 of rank 0",
              pride_optimizer_create(comm, layout, &bad, &out));
  /* of version 1, which ends before the weight: what lies behind it is not read */
  bad.struct_size = offsetof(pride_options, vote_weight);
  CHECK_OK(pride_optimizer_create(comm, layout, &bad, &out));
  pride_optimizer_destroy(out);
  bad = options;
  bad.method = NULL;
  CHECK_FAILS(PRIDE_INVALID, "method is NULL", pride_optimizer_create(comm, layout, &bad, &out));
  bad.method = "dlion-veto";
  CHECK_FAILS(PRIDE_INVALID, "dlion-veto", pride_optimizer_create(comm, layout, &bad, &out));
  bad = options;
  bad.n_options = 1;
  CHECK_FAILS(PRIDE_INVALID, "1 options at NULL", pride_optimizer_create(comm, layout, &bad, &out));
  bad.names = (const char*[]){"tie"};
  bad.values = (const char*[]){"coin"};
  CHECK_FAILS(PRIDE_INVALID, "coin", pride_optimizer_create(comm, layout, &bad, &out));
  bad.values = (const char*[]){NULL};
  CHECK_FAILS(PRIDE_INVALID, "value of an option",
              pride_optimizer_create(comm, layout, &bad, &out));
  bad = options;
  bad.n_groups = 1;
  CHECK_FAILS(PRIDE_INVALID, "1 groups at NULL", pride_optimizer_create(comm, layout, &bad, &out));
  bad.groups = &(pride_group){.lr = -1, .beta1 = NAN, .beta2 = NAN, .eps = NAN, .momentum = NAN};
  CHECK_FAILS(PRIDE_INVALID, "learning rate", pride_optimizer_create(comm, layout, &bad, &out));
  bad = options;
  bad.exchange_threads = 17;
  CHECK_FAILS(PRIDE_INVALID, "exchange_threads", pride_optimizer_create(comm, layout, &bad, &out));
  bad = options;
  bad.clip_global_norm = 1;
  CHECK_FAILS(PRIDE_INVALID, "clip_global_norm", pride_optimizer_create(comm, layout, &bad, &out));
  bad = options;
  bad.node_of_rank = (const int32_t[]){7};
  bad.method = "adamw";
  CHECK_FAILS(PRIDE_INVALID, "nodes", pride_optimizer_create(comm, layout, &bad, &out));
}

static void refuse_arrays(pride_optimizer* optimizer, float* params, float* grads) {
  const pride_array p = array_of(params, kFlat, PRIDE_FLOAT32);
  const pride_array g = array_of(grads, kFlat, PRIDE_FLOAT32);
  pride_report report = {.struct_size = sizeof report};
  CHECK_FAILS(PRIDE_INVALID, "optimizer is NULL",
              pride_optimizer_step(NULL, &p, &g, NULL, &report));
  CHECK_FAILS(PRIDE_INVALID, "params is NULL",
              pride_optimizer_step(optimizer, NULL, &g, NULL, &report));
  CHECK_FAILS(PRIDE_INVALID, "grads is NULL",
              pride_optimizer_step(optimizer, &p, NULL, NULL, &report));

  pride_array bad = p;
  bad.dtype = PRIDE_BFLOAT16;
  CHECK_FAILS(PRIDE_INVALID, "params: dtype 1",
              pride_optimizer_step(optimizer, &bad, &g, NULL, &report));
  bad.dtype = 7;
  CHECK_FAILS(PRIDE_INVALID, "grads: dtype 7",
              pride_optimizer_step(optimizer, &p, &bad, NULL, &report));
  bad = p;
  bad.device = PRIDE_CUDA;
  CHECK_FAILS(PRIDE_INVALID, "params lies in a GPU's memory (device 1)",
              pride_optimizer_step(optimizer, &bad, &g, NULL, &report));
  CHECK_FAILS(PRIDE_INVALID, "grads lies in a GPU's memory (device 1)",
              pride_optimizer_step(optimizer, &p, &bad, NULL, &report));
  CHECK_FAILS(PRIDE_INVALID, "grads lies in a GPU's memory (device 1)",
              pride_optimizer_begin(optimizer, &p, &bad));
  CHECK_FAILS(PRIDE_INVALID, "params lies in a GPU's memory (device 1)",
              pride_optimizer_broadcast(optimizer, &bad));
  bad = p;
  bad.n = kFlat - 1;
  CHECK_FAILS(PRIDE_INVALID, "511", pride_optimizer_step(optimizer, &p, &bad, NULL, &report));
  CHECK_FAILS(PRIDE_INVALID, "511", pride_optimizer_broadcast(optimizer, &bad));
  bad = p;
  bad.data = NULL;
  CHECK_FAILS(PRIDE_INVALID, "512 values at NULL",
              pride_optimizer_step(optimizer, &p, &bad, NULL, &report));
}

/* A report that cannot be written is refused before the step, in all its forms. */
static void refuse_reports(pride_optimizer* optimizer, float* params, float* grads) {
  const pride_array p = array_of(params, kFlat, PRIDE_FLOAT32);
  const pride_array g = array_of(grads, kFlat, PRIDE_FLOAT32);
  const int64_t before = pride_optimizer_steps_done(optimizer);
  pride_report report = {.struct_size = 8};
  CHECK_FAILS(PRIDE_INVALID, "struct_size is 8",
              pride_optimizer_step(optimizer, &p, &g, NULL, &report));
  CHECK_FAILS(PRIDE_INVALID, "outside a step", pride_optimizer_ready(optimizer, 0, 0));
  CHECK_FAILS(PRIDE_INVALID, "outside a step", pride_optimizer_finish(optimizer, -1, NULL));
  CHECK_EQUAL(before, pride_optimizer_steps_done(optimizer));

  CHECK_OK(pride_optimizer_begin(optimizer, &p, &g));
  CHECK_FAILS(PRIDE_INVALID, "while a step is on", pride_optimizer_begin(optimizer, &p, &g));
  CHECK_FAILS(PRIDE_INVALID, "tensor 3, the layout has 3", pride_optimizer_ready(optimizer, 3, 0));
  CHECK_OK(pride_optimizer_ready(optimizer, 0, 0));
  CHECK_FAILS(PRIDE_INVALID, "twice", pride_optimizer_ready(optimizer, 0, 0));
  pride_state* state = NULL;
  CHECK_FAILS(PRIDE_INVALID, "middle of a step", pride_optimizer_save(optimizer, &state));
  CHECK_FAILS(PRIDE_INVALID, "struct_size is 8", pride_optimizer_finish(optimizer, -1, &report));
  CHECK_FAILS(PRIDE_INVALID, "struct_size is 8", pride_optimizer_finish(optimizer, 0, &report));
  CHECK_EQUAL(before, pride_optimizer_steps_done(optimizer));
  report.struct_size = sizeof report;
  CHECK_OK(pride_optimizer_finish(optimizer, INT64_MAX, &report)); /* a wait, not a poll */
  CHECK_EQUAL(before, report.step);
}

static void refuse_others(pride_optimizer* optimizer) {
  pride_group group = {
      .lr = NAN, .beta1 = NAN, .beta2 = NAN, .eps = NAN, .momentum = NAN, .weight_decay = NAN};
  CHECK_FAILS(PRIDE_INVALID, "group 1, must be from 0 to 0",
              pride_optimizer_set_group(optimizer, 1, &group));
  CHECK_FAILS(PRIDE_INVALID, "values is NULL", pride_optimizer_set_group(optimizer, 0, NULL));
  CHECK_FAILS(PRIDE_INVALID, "group -1, must be from 0 to 0",
              pride_optimizer_get_group(optimizer, -1, &group));
  CHECK_FAILS(PRIDE_INVALID, "optimizer is NULL", pride_optimizer_get_group(NULL, 0, &group));
  pride_state_buffer buffer;
  CHECK_FAILS(PRIDE_INVALID, "buffer 9 of 1", pride_optimizer_state_buffer(optimizer, 9, &buffer));
  CHECK_FAILS(PRIDE_INVALID, "buffer is NULL", pride_optimizer_state_buffer(optimizer, 0, NULL));
  CHECK_FAILS(PRIDE_INVALID, "layout is NULL", pride_optimizer_add(optimizer, NULL, NULL, 0));
  const int64_t shape[] = {3};
  const pride_tensor more = {.name = "more", .shape = shape, .n_dims = 1};
  pride_layout* added = NULL;
  CHECK_OK(pride_layout_create(&more, 1, &added));
  CHECK_FAILS(PRIDE_INVALID, "1 groups at NULL", pride_optimizer_add(optimizer, added, NULL, 1));
  pride_layout_destroy(added);
  CHECK_FAILS(PRIDE_INVALID, "cost is NULL", pride_optimizer_cost(optimizer, 0, NULL));
  CHECK_FAILS(PRIDE_INVALID, "out is NULL", pride_optimizer_save(optimizer, NULL));
  CHECK_FAILS(PRIDE_INVALID, "state is NULL", pride_optimizer_load(optimizer, NULL));
  CHECK_FAILS(PRIDE_INVALID, "2 states at NULL", pride_optimizer_load_all(optimizer, NULL, 2, 0));
  CHECK_FAILS(PRIDE_INVALID, "local is 3", pride_optimizer_load_all(optimizer, NULL, 0, 3));
  CHECK_FAILS(PRIDE_INVALID, "no states", pride_optimizer_load_all(optimizer, NULL, 0, 0));
}

static void refuse_comms(pride_comm* comm) {
  pride_comm* out = NULL;
  CHECK_FAILS(PRIDE_INVALID, "0 threads", pride_comm_threads(0, &out));
  CHECK_FAILS(PRIDE_INVALID, "1025 threads", pride_comm_threads(1025, &out));
  CHECK_FAILS(PRIDE_INVALID, "out is NULL", pride_comm_threads(1, NULL));
  CHECK_FAILS(PRIDE_INVALID, "transport is NULL", pride_comm_create(NULL, &out));
  CHECK_FAILS(PRIDE_INVALID, "struct_size is 0", pride_comm_create(&(pride_transport){0}, &out));
  const pride_transport empty = {.struct_size = sizeof empty, .size = 1};
  CHECK_FAILS(PRIDE_INVALID, "may be NULL", pride_comm_create(&empty, &out));
  CHECK_FAILS(PRIDE_INVALID, "0 ms", pride_comm_set_timeout(comm, 0));
  CHECK_FAILS(PRIDE_INVALID, "comm is NULL", pride_comm_set_timeout(NULL, 1));
  int mine = 5, all = 0;
  CHECK_FAILS(PRIDE_INVALID, "4 bytes at NULL", pride_comm_all_gather(comm, &mine, 4, NULL));
  const uint64_t four = 4, none = 0;
  CHECK_FAILS(PRIDE_INVALID, "sizes are NULL",
              pride_comm_all_to_all_v(comm, &mine, NULL, &all, &none));
  CHECK_FAILS(PRIDE_INVALID, "4 bytes to",
              pride_comm_all_to_all_v(comm, &mine, &four, &all, &none));
  CHECK_OK(pride_comm_all_gather(comm, &mine, sizeof mine, &all)); /* the world is alive */
  CHECK_EQUAL(5, all);
}

/* With model parallelism: the flag is 1 where its gradient is not finite. */
static int no_sum(void* flag, double* values, uint64_t n, char* why, uint64_t size) {
  *(double*)flag = values[n - 1];
  snprintf(why, (size_t)size, "no link");
  return 1;
}

static void fail_to_sum(pride_comm* comm, const pride_layout* layout) {
  double flag = -1;
  pride_options options;
  pride_options_init(&options, sizeof options);
  options.skip_non_finite = 1;
  options.model_parallel_sum = no_sum;
  options.model_parallel_sum_user = &flag;
  pride_optimizer* optimizer = NULL;
  CHECK_OK(pride_optimizer_create(comm, layout, &options, &optimizer));
  float params[kFlat] = {0}, grads[kFlat] = {0};
  grads[0] = NAN;
  const pride_array p = array_of(params, kFlat, PRIDE_FLOAT32);
  const pride_array g = array_of(grads, kFlat, PRIDE_FLOAT32);
  CHECK_FAILS(PRIDE_COMM_ERROR, "model_parallel_sum: no link",
              pride_optimizer_step(optimizer, &p, &g, NULL, NULL));
  CHECK_EQUAL(1, flag);
  pride_optimizer_destroy(optimizer);
}

static int no_agreement(void* calls, char* why, uint64_t size) {
  ++*(int*)calls;
  snprintf(why, (size_t)size, "no agreement");
  return *(int*)calls > 1;
}

static void refuse_to_apply(pride_comm* comm, const pride_layout* layout) {
  int calls = 0;
  pride_options options;
  pride_options_init(&options, sizeof options);
  options.before_apply = no_agreement;
  options.before_apply_user = &calls;
  pride_optimizer* optimizer = NULL;
  CHECK_OK(pride_optimizer_create(comm, layout, &options, &optimizer));
  float params[kFlat] = {0}, before[kFlat], grads[kFlat] = {0};
  fill_grads(layout, 0, 0, grads);
  const pride_array p = array_of(params, kFlat, PRIDE_FLOAT32);
  const pride_array g = array_of(grads, kFlat, PRIDE_FLOAT32);
  CHECK_OK(pride_optimizer_step(optimizer, &p, &g, NULL, NULL));
  memcpy(before, params, sizeof params);
  CHECK_FAILS(PRIDE_COMM_ERROR, "no agreement",
              pride_optimizer_step(optimizer, &p, &g, NULL, NULL));
  CHECK(memcmp(before, params, sizeof params) == 0);
  CHECK_EQUAL(2, calls);
  pride_optimizer_destroy(optimizer);
}

static void refuse_in_a_world(pride_comm* comm, void* unused) {
  (void)unused;
  refuse_comms(comm);
  pride_layout* layout = make_layout();
  refuse_options(comm, layout);

  pride_options options;
  pride_options_init(&options, sizeof options);
  pride_optimizer* optimizer = NULL;
  CHECK_OK(pride_optimizer_create(comm, layout, &options, &optimizer));
  float params[kFlat] = {0}, before[kFlat], grads[kFlat] = {0};
  memcpy(before, params, sizeof params);
  fill_grads(layout, 0, 0, grads);
  refuse_arrays(optimizer, params, grads);
  refuse_others(optimizer);
  CHECK_EQUAL(0, pride_optimizer_steps_done(optimizer));
  CHECK(memcmp(before, params, sizeof params) == 0);
  refuse_reports(optimizer, params, grads);
  CHECK_EQUAL(1, pride_optimizer_steps_done(optimizer));
  pride_optimizer_destroy(optimizer);
  fail_to_sum(comm, layout); /* the world is of no more use */
  pride_layout_destroy(layout);
}

static void refuse_agreement(pride_comm* comm, void* unused) {
  (void)unused;
  pride_layout* layout = make_layout();
  refuse_to_apply(comm, layout);
  pride_layout_destroy(layout);
}

void test_arguments(void) {
  in_threads(1, refuse_in_a_world, NULL);
  in_threads(1, refuse_agreement, NULL);
}

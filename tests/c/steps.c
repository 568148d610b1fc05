/* Steps in worlds of threads: whole and in parts, groups, tensors that join, and steps that fail.
 * Oracles: the same step in its other forms, and the other ranks. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "support.h"

static const char* const kMethods[] = {"dlion-vote", "dlion-avg", "lion-cub", "adamw", "terngrad"};
enum { kNMethods = sizeof kMethods / sizeof *kMethods };

/* Whole, in parts or with tensors that lie apart, with overlap or without, from float32 or
 * bfloat16: the same bits. */
static void test_forms_of_a_step(int world) {
  for (int m = 0; m < kNMethods; ++m) {
    training whole = training_of(kMethods[m]);
    in_threads(world, train, &whole);
    const uint64_t want = hash_of_all(&whole, world);
    for (int form = 1; form < 16; ++form) {
      training run = training_of(kMethods[m]);
      run.in_parts = form / 4;
      run.options.overlap = form & 1;
      run.dtype = form & 2 ? PRIDE_BFLOAT16 : PRIDE_FLOAT32;
      in_threads(world, train, &run);
      CHECK(hash_of_all(&run, world) == want);
    }
  }
}

/* An optimizer with its arrays, on one rank. */
typedef struct model {
  pride_layout* layout;
  pride_optimizer* optimizer;
  float params[kFlat], grads[kFlat];
  pride_array p, g;
  pride_report report;
} model;

static void open_model(model* m, pride_comm* comm, const pride_options* options) {
  memset(m, 0, sizeof *m);
  m->layout = make_layout();
  CHECK_OK(pride_optimizer_create(comm, m->layout, options, &m->optimizer));
  m->p = array_of(m->params, kFlat, PRIDE_FLOAT32);
  m->g = array_of(m->grads, kFlat, PRIDE_FLOAT32);
  m->report.struct_size = sizeof m->report;
  fill_grads(m->layout, pride_comm_rank(comm), 0, m->grads);
}

static void close_model(model* m) {
  pride_optimizer_destroy(m->optimizer);
  pride_layout_destroy(m->layout);
}

static int step_of(model* m) {
  return pride_optimizer_step(m->optimizer, &m->p, &m->g, NULL, &m->report);
}

static void check_equal_params(pride_comm* comm, const pride_layout* layout, const float* params) {
  uint64_t mine = 0, all[kMaxWorld];
  CHECK_OK(pride_hash(layout, params, &mine));
  CHECK_OK(pride_comm_all_gather(comm, &mine, sizeof mine, all));
  for (int r = 0; r < pride_comm_size(comm); ++r) CHECK(all[r] == mine);
}

static void non_finite(pride_comm* comm, void* shared) {
  training* run = shared;
  model m;
  open_model(&m, comm, &run->options);
  float before[kFlat];
  memcpy(before, m.params, sizeof before);
  if (pride_comm_rank(comm) == 1) m.grads[330] = NAN; /* of tensor "b" */
  if (run->options.skip_non_finite) {
    CHECK_OK(step_of(&m));
    CHECK_EQUAL(1, m.report.skipped);
    CHECK_TEXT(pride_optimizer_note(m.optimizer), "'b' on rank 1");
    const char* routes = NULL;
    CHECK_OK(pride_optimizer_routes(m.optimizer, &routes));
    CHECK_TEXT(routes, " bucket");
    CHECK(memcmp(before, m.params, sizeof before) == 0);
    m.grads[330] = 0;
    CHECK_OK(step_of(&m));
    CHECK_EQUAL(0, m.report.skipped);
    CHECK_EQUAL(0, strlen(pride_optimizer_note(m.optimizer)));
    CHECK(memcmp(before, m.params, sizeof before) != 0);
  } else {
    CHECK_FAILS(PRIDE_NON_FINITE, "'b' on rank 1", step_of(&m));
    CHECK_FAILS(PRIDE_INVALID, "no further steps", step_of(&m));
  }
  CHECK_OK(pride_comm_all_gather(comm, NULL, 0, NULL)); /* the world is alive */
  close_model(&m);
}

static void unused_tensors(pride_comm* comm, void* shared) {
  (void)shared;
  pride_options options;
  pride_options_init(&options, sizeof options);
  options.groups =
      &(pride_group){.lr = 0.25, .beta1 = NAN, .beta2 = NAN, .eps = NAN, .momentum = NAN};
  options.n_groups = 1;
  model m;
  open_model(&m, comm, &options);
  for (int i = 0; i < kFlat; ++i) m.grads[i] = i < 300 ? 1 : 0;
  m.grads[448] = -1;
  const uint8_t unused[kTensors] = {0, 1, pride_comm_rank(comm) != 0};
  CHECK_OK(pride_optimizer_step(m.optimizer, &m.p, &m.g, unused, NULL));
  CHECK(m.params[0] == -0.25f && m.params[299] == -0.25f); /* all vote */
  CHECK(m.params[320] == 0);                               /* no rank has it */
  CHECK(m.params[448] == 0.25f);                           /* rank 0 alone */
  close_model(&m);
}

/* Parameters in bfloat16: masters, a change of the caller's, hashes; frozen ones; a factor. */
static void tensors_apart(pride_comm* comm, void* shared) {
  (void)shared;
  training run = training_of("sgdm");
  run.options.groups =
      &(pride_group){.lr = 0.25, .beta1 = 0, .beta2 = NAN, .eps = NAN, .momentum = NAN};
  run.options.n_groups = 1;
  model m;
  open_model(&m, comm, &run.options);
  static const int64_t kOne = 0x3F803F803F803F80; /* four times 1 in bfloat16 */
  uint16_t values[kTensors][300];
  pride_array params[kTensors], grads[kTensors];
  for (int t = 0; t < kTensors; ++t) {
    for (uint64_t i = 0; i < kSizes[t]; ++i) memcpy(&values[t][i], &kOne, sizeof values[t][i]);
    params[t] = (pride_array){.data = values[t], .n = kSizes[t], .dtype = PRIDE_BFLOAT16};
    grads[t] = params[t]; /* of 1, too */
  }
  uint16_t ones[300];
  memcpy(ones, values[0], sizeof ones);
  for (int t = 0; t < kTensors; ++t) grads[t].data = ones;
  CHECK_FAILS(PRIDE_INVALID, "params is NULL", pride_optimizer_begin(m.optimizer, NULL, NULL));
  CHECK_FAILS(PRIDE_INVALID, "has 3", pride_optimizer_set_parameters(m.optimizer, params, 2));
  CHECK_OK(pride_optimizer_set_parameters(m.optimizer, params, kTensors));
  params[1].dtype = PRIDE_FLOAT16;
  CHECK_FAILS(PRIDE_INVALID, "'b' is float16 now and was bfloat16",
              pride_optimizer_set_parameters(m.optimizer, params, kTensors));
  const uint8_t frozen[kTensors] = {0, 1, 0};
  CHECK_OK(pride_optimizer_set_frozen(m.optimizer, frozen));
  CHECK_OK(pride_optimizer_set_gradient_factor(m.optimizer, -4));
  float half[2] = {0.5f, 0};
  pride_array factor = {.data = half, .n = 2};
  CHECK_FAILS(PRIDE_INVALID, "factor: 2 values of dtype 0, must be one float32",
              pride_optimizer_scale_next_step(m.optimizer, &factor));
  factor.n = 1;
  CHECK_OK(pride_optimizer_scale_next_step(m.optimizer, &factor));
  CHECK_OK(pride_optimizer_begin(m.optimizer, NULL, NULL));
  for (uint64_t t = kTensors; t-- > 0;) {
    CHECK_OK(pride_optimizer_ready_at(m.optimizer, t, &grads[t]));
  }
  CHECK_OK(pride_optimizer_finish(m.optimizer, -1, NULL));
  CHECK_EQUAL(0x3FC0, values[0][299]); /* 1 - 0.25 * -2 = 1.5 */
  CHECK_EQUAL(0x3F80, values[1][0]);
  uint64_t hash = 0, other = 0, bytes = 0;
  CHECK_OK(pride_optimizer_hash(m.optimizer, &hash));
  for (int t = 0; t < kTensors; ++t) {
    for (uint64_t i = 0; i < kSizes[t]; ++i) m.params[kOffsets[t] + i] = t == 1 ? 1 : 1.5f;
  }
  CHECK_OK(pride_hash(m.layout, m.params, &other));
  CHECK(hash == other);
  values[2][0] = 0;
  CHECK_OK(pride_optimizer_hash(m.optimizer, &hash));
  CHECK(hash != other);
  float masters[2] = {0, 7};
  CHECK_OK(pride_optimizer_read(m.optimizer, 0, kSizes[0] - 2, 2, masters));
  CHECK(masters[0] == 1.5f && masters[1] == 1.5f);
  CHECK_OK(pride_optimizer_read(m.optimizer, 2, 0, 1, masters));
  CHECK(masters[0] == 0 && masters[1] == 1.5f);
  CHECK_FAILS(PRIDE_INVALID, "2 values of 'a' from value 299; it has 300",
              pride_optimizer_read(m.optimizer, 0, 299, 2, masters));
  CHECK_FAILS(PRIDE_INVALID, "NULL", pride_optimizer_read(m.optimizer, 0, 0, 2, NULL));
  CHECK_OK(pride_hash_tensors(params, kTensors, &bytes));
  params[1].data = NULL;
  CHECK_OK(pride_hash_tensors(params, kTensors, &other));
  CHECK(bytes != other);
  close_model(&m);
}

static void groups(pride_comm* comm, void* shared) {
  (void)shared;
  training run = training_of("adamw");
  run.options.groups =
      &(pride_group){.lr = 0.5, .beta1 = NAN, .beta2 = 0.95, .eps = NAN, .momentum = NAN};
  run.options.n_groups = 1;
  run.options.clip_global_norm = 0.5;
  model m;
  open_model(&m, comm, &run.options);
  pride_group group;
  CHECK_OK(pride_optimizer_get_group(m.optimizer, 0, &group));
  CHECK(group.lr == 0.5 && group.beta1 == 0.9 && group.beta2 == 0.95 && group.weight_decay == 0);
  group = (pride_group){
      .lr = 0.125, .beta1 = NAN, .beta2 = NAN, .eps = NAN, .momentum = NAN, .weight_decay = 0.75};
  CHECK_OK(pride_optimizer_set_group(m.optimizer, 0, &group));
  group.beta1 = 2;
  CHECK_FAILS(PRIDE_INVALID, "beta1", pride_optimizer_set_group(m.optimizer, 0, &group));
  CHECK_OK(pride_optimizer_get_group(m.optimizer, 0, &group));
  CHECK(group.lr == 0.125 && group.beta1 == 0.9 && group.beta2 == 0.95);
  CHECK(group.weight_decay == 0.75);
  CHECK_OK(step_of(&m));
  CHECK(m.report.grad_norm > 0.5); /* before it was clipped */
  close_model(&m);
}

/* Tensors and a group join; old ones keep their coordinates. */
static void add(pride_comm* comm, void* shared) {
  (void)shared;
  training run = training_of("dlion-vote");
  model m;
  open_model(&m, comm, &run.options);
  CHECK_OK(step_of(&m));
  pride_state_buffer buffer;
  CHECK_OK(pride_optimizer_state_buffer(m.optimizer, 0, &buffer));
  const float first = *(const float*)buffer.data;
  CHECK(first != 0);

  const int64_t more[] = {70}, a[] = {300}, b[] = {17, 5};
  const pride_tensor all[] = {{.name = "a", .shape = a, .n_dims = 1},
                              {.name = "b", .shape = b, .n_dims = 2},
                              {.name = "s"},
                              {.name = "more", .shape = more, .n_dims = 1, .group = 1}};
  const pride_group group = {.lr = 0.5, .beta1 = NAN, .beta2 = NAN, .eps = NAN, .momentum = NAN};
  pride_layout *added = NULL, *twice = NULL;
  CHECK_OK(pride_layout_create(all, 1, &twice));
  CHECK_FAILS(PRIDE_INVALID, "two tensors are named 'a'",
              pride_optimizer_add(m.optimizer, twice, NULL, 0));
  pride_layout_destroy(twice);
  CHECK_OK(pride_layout_create(all + 3, 1, &added));
  CHECK_FAILS(PRIDE_INVALID, "layout is NULL", pride_optimizer_add(m.optimizer, NULL, &group, 1));
  CHECK_OK(pride_optimizer_add(m.optimizer, added, &group, 1));
  pride_layout_destroy(added);
  CHECK_FAILS(PRIDE_INVALID, "512", step_of(&m)); /* the buffers have grown */
  pride_layout* grown = NULL;
  CHECK_OK(pride_layout_create(all, 4, &grown));
  enum { kGrown = kFlat + 128 };
  CHECK_EQUAL(kGrown, pride_layout_flat_size(grown));
  CHECK_OK(pride_optimizer_state_buffer(m.optimizer, 0, &buffer));
  const float* momentum = buffer.data;
  CHECK(momentum[0] == first && momentum[kFlat] == 0);

  float params[kGrown] = {0}, grads[kGrown] = {0};
  memcpy(params, m.params, sizeof m.params);
  fill_grads(grown, pride_comm_rank(comm), 1, grads);
  for (int i = 0; i < 70; ++i) grads[kFlat + i] = 1;
  const pride_array p = array_of(params, kGrown, PRIDE_FLOAT32);
  const pride_array g = array_of(grads, kGrown, PRIDE_FLOAT32);
  CHECK_OK(pride_optimizer_step(m.optimizer, &p, &g, NULL, &m.report));
  CHECK_EQUAL(1, m.report.step);
  CHECK(params[kFlat + 69] == -0.5f && params[kFlat + 70] == 0);
  check_equal_params(comm, grown, params);
  pride_layout_destroy(grown);
  close_model(&m);
}

static void broadcast(pride_comm* comm, void* shared) {
  (void)shared;
  training run = training_of("dlion-vote");
  model m;
  open_model(&m, comm, &run.options);
  m.params[7] = (float)pride_comm_rank(comm) + 1;
  CHECK_FAILS(PRIDE_INVALID, "rank(s) 1, 2 and of rank 0 differ", step_of(&m));
  CHECK_OK(pride_optimizer_broadcast(m.optimizer, &m.p));
  CHECK(m.params[7] == 1);
  CHECK_OK(step_of(&m));
  CHECK(isnan(m.report.grad_norm)); /* nothing is clipped */
  check_equal_params(comm, m.layout, m.params);

  /* rank 2 gets a number of each other rank */
  const uint32_t number = 10 + (uint32_t)pride_comm_rank(comm);
  uint32_t numbers[2] = {0, 0};
  uint64_t out[3] = {0, 0, 0}, in[3] = {0, 0, 0};
  if (number == 12) {
    in[0] = in[1] = sizeof number;
  } else {
    out[2] = sizeof number;
  }
  CHECK_OK(pride_comm_all_to_all_v(comm, &number, out, numbers, in));
  CHECK_EQUAL(number == 12 ? 10 : 0, numbers[0]);
  CHECK_EQUAL(number == 12 ? 11 : 0, numbers[1]);
  close_model(&m);
}

/* --- Steps that are pending. --------------------------------------------------------------------
 */

typedef struct meeting {
  int overlap;
  int deadline; /* is what ends the wait */
  atomic_int reached;
} meeting;

static void wait_for(meeting* m, int value) {
  while (atomic_load(&m->reached) < value) nap();
}

static void begin_all(model* m) {
  CHECK_OK(pride_optimizer_begin(m->optimizer, &m->p, &m->g));
  for (uint64_t t = 0; t < kTensors; ++t) CHECK_OK(pride_optimizer_ready(m->optimizer, t, 0));
}

/* Rank 0 begins its second step only after rank 1 has seen that its own is pending. */
static void pending(pride_comm* comm, void* shared) {
  meeting* meet = shared;
  training run = training_of("dlion-vote");
  run.options.overlap = meet->overlap;
  model m;
  open_model(&m, comm, &run.options);
  CHECK_OK(step_of(&m));
  if (pride_comm_rank(comm) == 0) {
    wait_for(meet, 1);
    CHECK_OK(step_of(&m));
  } else {
    begin_all(&m);
    CHECK_EQUAL(PRIDE_PENDING, pride_optimizer_finish(m.optimizer, 0, &m.report));
    CHECK_EQUAL(PRIDE_PENDING, pride_optimizer_finish(m.optimizer, 20, &m.report));
    CHECK_EQUAL(1, pride_optimizer_steps_done(m.optimizer));
    pride_state* state = NULL;
    const char* being = "being finished";
    CHECK_FAILS(PRIDE_INVALID, being, pride_optimizer_save(m.optimizer, &state));
    CHECK_FAILS(PRIDE_INVALID, being, step_of(&m));
    CHECK_FAILS(PRIDE_INVALID, being, pride_optimizer_ready(m.optimizer, 0, 0));
    CHECK_FAILS(PRIDE_INVALID, being,
                pride_optimizer_set_group(m.optimizer, 0, &(pride_group){.lr = 1}));
    atomic_store(&meet->reached, 1);
    CHECK_OK(pride_optimizer_finish(m.optimizer, -1, &m.report));
    CHECK_EQUAL(1, m.report.step);
    CHECK_EQUAL(2, pride_optimizer_steps_done(m.optimizer));
  }
  check_equal_params(comm, m.layout, m.params);
  close_model(&m);
}

/* Rank 1 leaves in the middle of its second step, which was begun or is being finished. */
static void leave(pride_comm* comm, void* shared, int finishing) {
  meeting* meet = shared;
  training run = training_of("dlion-vote");
  run.options.overlap = meet->overlap;
  model m;
  open_model(&m, comm, &run.options);
  CHECK_OK(step_of(&m));
  atomic_fetch_add(&meet->reached, 1);
  if (pride_comm_rank(comm) == 1) {
    wait_for(meet, pride_comm_size(comm)); /* all have done the first step */
    if (finishing) {
      begin_all(&m);
      CHECK_EQUAL(PRIDE_PENDING, pride_optimizer_finish(m.optimizer, 0, NULL));
    } else { /* with all gradients the exchange might be over before it leaves */
      CHECK_OK(pride_optimizer_begin(m.optimizer, &m.p, &m.g));
      for (uint64_t t = 1; t < kTensors; ++t) CHECK_OK(pride_optimizer_ready(m.optimizer, t, 0));
    }
    close_model(&m);
    atomic_fetch_add(&meet->reached, 1);
    return;
  }
  if (finishing) wait_for(meet, pride_comm_size(comm) + 1);
  CHECK_FAILS(PRIDE_COMM_ERROR, "destroyed in the middle of a step", step_of(&m));
  CHECK_FAILS(PRIDE_INVALID, "no further steps", step_of(&m));
  close_model(&m);
}
static void leave_begun(pride_comm* comm, void* shared) { leave(comm, shared, 0); }
static void leave_finishing(pride_comm* comm, void* shared) { leave(comm, shared, 1); }

/* Rank 0 does not come; its world fails from outside, or at the deadline. */
static void stay_away(pride_comm* comm, void* shared) {
  meeting* meet = shared;
  training run = training_of("dlion-vote");
  run.options.overlap = meet->overlap;
  if (meet->deadline) CHECK_OK(pride_comm_set_timeout(comm, 200));
  model m;
  open_model(&m, comm, &run.options);
  CHECK_OK(step_of(&m));
  if (pride_comm_rank(comm) != 0) {
    CHECK_FAILS(PRIDE_COMM_ERROR, meet->deadline ? "deadline" : "the power went", step_of(&m));
    char byte = 0, all[kMaxWorld];
    CHECK_FAILS(PRIDE_COMM_ERROR, NULL, pride_comm_all_gather(comm, &byte, 1, all));
    atomic_fetch_add(&meet->reached, 1);
  } else {
    nap();
    if (!meet->deadline) pride_comm_fail(comm, "the power went");
    wait_for(meet, 2);
  }
  close_model(&m);
}

void test_steps(void) {
  test_forms_of_a_step(1);
  test_forms_of_a_step(3);
  training run = training_of("dlion-vote");
  in_threads(3, non_finite, &run);
  run.options.skip_non_finite = 1;
  in_threads(3, non_finite, &run);
  in_threads(3, unused_tensors, NULL);
  in_threads(2, tensors_apart, NULL);
  in_threads(2, groups, NULL);
  in_threads(3, add, NULL);
  in_threads(3, broadcast, NULL);
  for (int overlap = 0; overlap < 2; ++overlap) {
    in_threads(2, pending, &(meeting){.overlap = overlap});
    in_threads(3, leave_begun, &(meeting){.overlap = overlap});
    in_threads(3, leave_finishing, &(meeting){.overlap = overlap});
    in_threads(3, stay_away, &(meeting){.overlap = overlap});
    in_threads(3, stay_away, &(meeting){.overlap = overlap, .deadline = 1});
  }
}

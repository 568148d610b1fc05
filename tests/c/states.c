/* Saved state: what it holds, copies of it, and loads. The oracle is a run that was not
 * interrupted. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "support.h"

static void take_steps(pride_optimizer* optimizer, const pride_layout* layout, int rank, int first,
                       int end, float* params) {
  float grads[kFlat] = {0};
  const pride_array p = array_of(params, kFlat, PRIDE_FLOAT32);
  const pride_array g = array_of(grads, kFlat, PRIDE_FLOAT32);
  for (int step = first; step < end; ++step) {
    fill_grads(layout, rank, step, grads);
    CHECK_OK(pride_optimizer_step(optimizer, &p, &g, NULL, NULL));
  }
}

static const char* text_of(const pride_state* state, const char* name) {
  const char *key = NULL, *value = NULL;
  for (uint64_t i = 0; i < pride_state_texts(state); ++i) {
    CHECK_OK(pride_state_text(state, i, &key, &value));
    if (strcmp(key, name) == 0) return value;
  }
  return NULL;
}

/* By hand, as a reader of a file would make it. */
static pride_state* copy_of(const pride_state* state) {
  pride_state* copy = NULL;
  CHECK_OK(pride_state_create(&copy));
  pride_tensor tensor;
  const float* values = NULL;
  for (uint64_t i = 0; i < pride_state_tensors(state); ++i) {
    CHECK_OK(pride_state_tensor(state, i, &tensor, &values));
    CHECK_OK(pride_state_set_tensor(copy, &tensor, values));
  }
  CHECK_FAILS(PRIDE_INVALID, "tensor",
              pride_state_tensor(state, pride_state_tensors(state), &tensor, &values));
  const char *name = NULL, *value = NULL;
  for (uint64_t i = 0; i < pride_state_texts(state); ++i) {
    CHECK_OK(pride_state_text(state, i, &name, &value));
    CHECK_OK(pride_state_set_text(copy, name, value));
  }
  CHECK_FAILS(PRIDE_INVALID, "text",
              pride_state_text(state, pride_state_texts(state), &name, &value));
  return copy;
}

static void check_same(const pride_state* a, const pride_state* b) {
  CHECK_EQUAL(pride_state_tensors(a), pride_state_tensors(b));
  CHECK_EQUAL(pride_state_texts(a), pride_state_texts(b));
  for (uint64_t i = 0; i < pride_state_tensors(a); ++i) {
    pride_tensor left, right;
    const float *x = NULL, *y = NULL;
    CHECK_OK(pride_state_tensor(a, i, &left, &x));
    CHECK_OK(pride_state_tensor(b, i, &right, &y));
    CHECK(strcmp(left.name, right.name) == 0);
    CHECK_EQUAL(left.n_dims, right.n_dims);
    size_t n = 1;
    for (int d = 0; d < left.n_dims; ++d) {
      CHECK_EQUAL(left.shape[d], right.shape[d]);
      n *= (size_t)left.shape[d];
    }
    CHECK(memcmp(x, y, n * sizeof *x) == 0);
  }
  const char *name = NULL, *value = NULL;
  for (uint64_t i = 0; i < pride_state_texts(a); ++i) {
    CHECK_OK(pride_state_text(a, i, &name, &value));
    CHECK(strcmp(value, text_of(b, name)) == 0);
  }
}

/* Every tensor of the state, "<buffer>/<tensor>", lies in its buffer's memory. */
static void check_views(pride_optimizer* optimizer, const pride_layout* layout,
                        const pride_state* state) {
  static const char* const names[kTensors] = {"a", "b", "s"};
  uint64_t n_buffers = 0;
  pride_state_buffer buffer;
  while (pride_optimizer_state_buffer(optimizer, n_buffers, &buffer) == PRIDE_OK) {
    ++n_buffers;
    const float* data = buffer.data;
    CHECK(buffer.kind >= PRIDE_STATE_LOCAL && buffer.kind <= PRIDE_STATE_SERVER);
    int found = 0;
    for (uint64_t i = 0; i < pride_state_tensors(state); ++i) {
      pride_tensor tensor;
      const float* values = NULL;
      CHECK_OK(pride_state_tensor(state, i, &tensor, &values));
      const char* slash = strchr(tensor.name, '/');
      if (strlen(buffer.name) != (size_t)(slash - tensor.name)) continue;
      if (strncmp(buffer.name, tensor.name, strlen(buffer.name)) != 0) continue;
      for (uint64_t t = 0; t < kTensors; ++t) {
        if (strcmp(slash + 1, names[t]) != 0) continue;
        uint64_t offset = 0, n = 0;
        CHECK_OK(pride_layout_slot(layout, t, &offset, &n));
        CHECK(memcmp(data + offset, values, n * sizeof *values) == 0);
        ++found;
      }
    }
    CHECK_EQUAL(kTensors, found);
  }
  CHECK_EQUAL(n_buffers * kTensors, pride_state_tensors(state));
}

typedef struct saved_run {
  const char* method;
  pride_state* states[kMaxWorld]; /* after 3 steps */
  float params[kFlat];            /* then */
  uint64_t hash[kMaxWorld];       /* after 5 */
} saved_run;

static void save_and_go_on(pride_comm* comm, void* shared) {
  saved_run* run = shared;
  const int rank = pride_comm_rank(comm);
  pride_layout* layout = make_layout();
  pride_optimizer* optimizer = open_optimizer(comm, layout, run->method);
  float params[kFlat] = {0};
  take_steps(optimizer, layout, rank, 0, 3, params);
  CHECK_OK(pride_optimizer_save(optimizer, &run->states[rank]));
  CHECK_TEXT(text_of(run->states[rank], "method"), run->method);
  CHECK_TEXT(text_of(run->states[rank], "step"), "3");
  check_views(optimizer, layout, run->states[rank]);
  if (rank == 0) memcpy(run->params, params, sizeof params);
  take_steps(optimizer, layout, rank, 3, 5, params);
  CHECK_OK(pride_hash(layout, params, &run->hash[rank]));
  pride_state_buffer buffer;
  pride_memory* memory = NULL;
  CHECK_OK(pride_optimizer_state_buffer(optimizer, 0, &buffer));
  CHECK_OK(pride_optimizer_state_memory(optimizer, &memory));
  const float* momentum = buffer.data;
  const float first = momentum[0];
  pride_optimizer_destroy(optimizer);
  CHECK(momentum[0] == first); /* still there; the address sanitizer would see if it were not */
  pride_memory_destroy(memory);
  pride_layout_destroy(layout);
}

/* Each rank's own state, as it was or as a copy; then all ranks' states. */
static void load_and_go_on(pride_comm* comm, void* shared) {
  saved_run* run = shared;
  const int rank = pride_comm_rank(comm), size = pride_comm_size(comm);
  pride_layout* layout = make_layout();
  for (int whole = 0; whole < 2; ++whole) {
    pride_optimizer* optimizer = open_optimizer(comm, layout, run->method);
    float params[kFlat];
    memcpy(params, run->params, sizeof params);
    pride_state* copy = copy_of(run->states[rank]);
    check_same(run->states[rank], copy);
    if (whole) {
      const pride_state* all[kMaxWorld];
      for (int r = 0; r < size; ++r) all[r] = run->states[size - 1 - r]; /* in any order */
      CHECK_OK(pride_optimizer_load_all(optimizer, all, (uint64_t)size, PRIDE_LOCAL_KEEP));
    } else {
      CHECK_OK(pride_optimizer_load(optimizer, copy));
    }
    pride_state_destroy(copy);
    pride_state* again = NULL;
    CHECK_OK(pride_optimizer_save(optimizer, &again));
    check_same(run->states[rank], again);
    pride_state_destroy(again);
    take_steps(optimizer, layout, rank, 3, 5, params);
    uint64_t hash = 0;
    CHECK_OK(pride_hash(layout, params, &hash));
    CHECK(hash == run->hash[rank]);
    pride_optimizer_destroy(optimizer);
  }
  pride_layout_destroy(layout);
}

/* Rank 1's state is damaged: every rank refuses, and keeps what it has. */
static void refuse_load(pride_comm* comm, void* shared) {
  saved_run* run = shared;
  const int rank = pride_comm_rank(comm);
  pride_layout* layout = make_layout();
  pride_optimizer* optimizer = open_optimizer(comm, layout, run->method);
  float params[kFlat] = {0};
  take_steps(optimizer, layout, rank, 0, 1, params);
  pride_state *before = NULL, *after = NULL, *copy = copy_of(run->states[rank]);
  CHECK_OK(pride_optimizer_save(optimizer, &before));
  if (rank == 1) CHECK_OK(pride_state_set_text(copy, "method", "sgd"));
  CHECK_FAILS(PRIDE_INVALID, rank == 1 ? "method sgd" : "rank(s) 1",
              pride_optimizer_load(optimizer, copy));
  CHECK_OK(pride_optimizer_save(optimizer, &after));
  check_same(before, after);
  take_steps(optimizer, layout, rank, 1, 2, params);
  pride_state_destroy(before);
  pride_state_destroy(after);
  pride_state_destroy(copy);
  pride_optimizer_destroy(optimizer);
  pride_layout_destroy(layout);
}

static void test_bad_tensors(void) {
  pride_state* state = NULL;
  CHECK_OK(pride_state_create(&state));
  const int64_t two[] = {2}, negative[] = {-2};
  const float values[2] = {1, 2};
  const pride_tensor good = {.name = "m/a", .shape = two, .n_dims = 1};
  const pride_tensor bad = {.name = "m/a", .shape = negative, .n_dims = 1};
  const pride_tensor nameless = {.shape = two, .n_dims = 1};
  CHECK_FAILS(PRIDE_INVALID, "dimension of -2", pride_state_set_tensor(state, &bad, values));
  CHECK_FAILS(PRIDE_INVALID, "name of a tensor", pride_state_set_tensor(state, &nameless, values));
  CHECK_FAILS(PRIDE_INVALID, "2 values at NULL", pride_state_set_tensor(state, &good, NULL));
  CHECK_FAILS(PRIDE_INVALID, "state is NULL", pride_state_set_tensor(NULL, &good, values));
  CHECK_FAILS(PRIDE_INVALID, "tensor is NULL", pride_state_set_tensor(state, NULL, values));
  CHECK_FAILS(PRIDE_INVALID, "NULL", pride_state_set_text(state, NULL, "x"));
  CHECK_FAILS(PRIDE_INVALID, "NULL", pride_state_set_text(state, "x", NULL));
  CHECK_FAILS(PRIDE_INVALID, "out is NULL", pride_state_create(NULL));
  CHECK_EQUAL(0, pride_state_tensors(state));
  CHECK_EQUAL(0, pride_state_texts(state));
  CHECK_OK(pride_state_set_tensor(state, &good, values));
  CHECK_OK(pride_state_set_text(state, "x", ""));
  CHECK_OK(pride_state_set_text(state, "x", "y")); /* replaces */
  CHECK_EQUAL(1, pride_state_texts(state));
  CHECK_TEXT(text_of(state, "x"), "y");
  pride_state_destroy(state);
}

/* Local steps with exchanges that are on their way while a state is saved: common parameters are
 * equal on all ranks, a rank's own come back, and a load goes on to the same bits. */
static void local_steps(pride_comm* comm, void* shared) {
  training* run = shared;
  const int rank = pride_comm_rank(comm);
  pride_layout* layout = make_layout();
  pride_optimizer *whole = NULL, *other = NULL;
  CHECK_OK(pride_optimizer_create(comm, layout, &run->options, &whole));
  CHECK_OK(pride_optimizer_create(comm, layout, &run->options, &other));
  CHECK_EQUAL(4, pride_optimizer_period(whole));
  float own[kFlat] = {0}, params[kFlat] = {0};
  const pride_array p = array_of(params, kFlat, PRIDE_FLOAT32);
  take_steps(whole, layout, rank, 0, 6, own);
  memcpy(params, own, sizeof own);
  CHECK_OK(pride_optimizer_to_common(whole, &p));
  CHECK(memcmp(params, own, sizeof own) != 0);
  uint64_t hash = 0, all[kMaxWorld];
  CHECK_OK(pride_hash(layout, params, &hash));
  CHECK_OK(pride_comm_all_gather(comm, &hash, sizeof hash, all));
  for (int r = 0; r < pride_comm_size(comm); ++r) CHECK(all[r] == hash);
  CHECK_OK(pride_optimizer_to_local(whole, &p));
  CHECK(memcmp(params, own, sizeof own) == 0);

  pride_state* state = NULL;
  CHECK_OK(pride_optimizer_save(whole, &state));
  CHECK_OK(pride_optimizer_load(other, state));
  memset(params, 0, sizeof params);
  CHECK_OK(pride_optimizer_to_local(other, &p));
  CHECK(memcmp(params, own, sizeof own) == 0);
  take_steps(whole, layout, rank, 6, 11, own);
  take_steps(other, layout, rank, 6, 11, params);
  CHECK(memcmp(params, own, sizeof own) == 0);

  pride_cost cost, mean, of_method;
  uint64_t sum = 0;
  for (int step = 4; step < 8; ++step) {
    CHECK_OK(pride_optimizer_cost(whole, step, &cost));
    sum += cost.bytes_up + cost.bytes_down;
  }
  CHECK_OK(pride_optimizer_mean_cost(whole, 5, &mean));
  const uint64_t bytes = mean.bytes_up + mean.bytes_down;
  CHECK(4 * bytes >= sum && 4 * bytes <= sum + 8); /* both directions rounded up */
  CHECK_OK(pride_method_mean_cost(&run->options, layout, pride_comm_size(comm), rank, 5, NULL,
                                  &of_method));
  CHECK_EQUAL(bytes, of_method.bytes_up + of_method.bytes_down);
  const pride_array small = array_of(params, 64, PRIDE_FLOAT32);
  CHECK_FAILS(PRIDE_INVALID, "64 parameters", pride_optimizer_to_common(whole, &small));
  CHECK_FAILS(PRIDE_INVALID, "optimizer is NULL", pride_optimizer_to_local(NULL, &p));
  pride_state_destroy(state);
  pride_optimizer_destroy(whole);
  pride_optimizer_destroy(other);
  pride_layout_destroy(layout);
}

static void test_local_steps(void) {
  static const char* const names[] = {"h", "fragments", "delay"};
  static const char* const values[] = {"4", "2", "2"};
  training run = training_of("local-vote");
  run.options.names = names;
  run.options.values = values;
  for (int streams = 0; streams < 2; ++streams) {
    run.options.n_options = streams ? 3 : 1;
    run.options.overlap = streams;
    in_threads(3, local_steps, &run);
  }
}

void test_states(void) {
  test_bad_tensors();
  test_local_steps();
  static const char* const methods[] = {"dlion-vote", "adamw", "signsgd-ef", "onebit-adam"};
  for (int m = 0; m < 4; ++m) {
    saved_run run = {.method = methods[m]};
    in_threads(3, save_and_go_on, &run);
    in_threads(3, load_and_go_on, &run);
    in_threads(3, refuse_load, &run);
    for (int r = 0; r < 3; ++r) pride_state_destroy(run.states[r]);
  }
}

/* The C interface: versions, layouts, methods, costs, and arguments that are refused. The oracles
 * are the numbers of the headers' contracts, written out. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "support.h"

static void test_versions(void) {
  CHECK_EQUAL(PRIDE_C_VERSION, pride_c_version());
  CHECK_TEXT(pride_version(), PRIDE_TEST_VERSION);
  CHECK(strlen(pride_isa()) > 0);
  CHECK(pride_last_error() != NULL);
}

static void test_layouts(void) {
  pride_layout* layout = make_layout();
  CHECK_EQUAL(kTensors, pride_layout_tensors(layout));
  CHECK_EQUAL(300 + 85 + 1, pride_layout_coords(layout));
  CHECK_EQUAL(kFlat, pride_layout_flat_size(layout));
  static const uint64_t want[kTensors][2] = {{0, 300}, {320, 85}, {448, 1}};
  uint64_t offset = 0, n = 0;
  for (uint64_t t = 0; t < kTensors; ++t) {
    CHECK_OK(pride_layout_slot(layout, t, &offset, &n));
    CHECK_EQUAL(want[t][0], offset);
    CHECK_EQUAL(want[t][1], n);
  }
  CHECK_FAILS(PRIDE_INVALID, "tensor 3 of 3", pride_layout_slot(layout, 3, &offset, &n));
  CHECK_FAILS(PRIDE_INVALID, "NULL", pride_layout_slot(layout, 0, NULL, &n));
  CHECK_FAILS(PRIDE_INVALID, "NULL", pride_layout_slot(NULL, 0, &offset, &n));
  CHECK_EQUAL(448, offset);

  pride_layout* same = make_layout();
  CHECK(pride_layout_digest(layout) == pride_layout_digest(same));
  pride_layout* none = NULL;
  CHECK_OK(pride_layout_create(NULL, 0, &none));
  CHECK_EQUAL(0, pride_layout_flat_size(none));
  CHECK(pride_layout_digest(layout) != pride_layout_digest(none));

  /* the hash is of the tensors' bits, not of the padding */
  float values[kFlat] = {0};
  uint64_t zero = 0, padded = 0, changed = 0;
  CHECK_OK(pride_hash(layout, values, &zero));
  values[300] = 1;
  CHECK_OK(pride_hash(layout, values, &padded));
  values[448] = 1;
  CHECK_OK(pride_hash(layout, values, &changed));
  CHECK(zero == padded && zero != changed);
  CHECK_FAILS(PRIDE_INVALID, "values is NULL", pride_hash(layout, NULL, &zero));
  pride_layout_destroy(none);
  pride_layout_destroy(same);
  pride_layout_destroy(layout);
}

static void test_bad_layouts(void) {
  const int64_t four[] = {4}, negative[] = {4, -1};
  const pride_tensor twice[] = {{.name = "w", .shape = four, .n_dims = 1},
                                {.name = "w", .shape = four, .n_dims = 1}};
  const pride_tensor minus = {.name = "w", .shape = negative, .n_dims = 2};
  const pride_tensor nameless = {.shape = four, .n_dims = 1};
  const pride_tensor shapeless = {.name = "w", .n_dims = 1};
  const pride_tensor dimless = {.name = "w", .shape = four, .n_dims = -1};
  const pride_tensor groupless = {.name = "w", .shape = four, .n_dims = 1, .group = -1};
  int anything = 0;
  pride_layout* layout = (pride_layout*)(void*)&anything;
  CHECK_FAILS(PRIDE_INVALID, "two tensors are named 'w'", pride_layout_create(twice, 2, &layout));
  CHECK(layout == NULL);
  CHECK_FAILS(PRIDE_INVALID, "dimension of -1", pride_layout_create(&minus, 1, &layout));
  CHECK_FAILS(PRIDE_INVALID, "name of a tensor", pride_layout_create(&nameless, 1, &layout));
  CHECK_FAILS(PRIDE_INVALID, "without a shape", pride_layout_create(&shapeless, 1, &layout));
  CHECK_FAILS(PRIDE_INVALID, "-1 dimensions", pride_layout_create(&dimless, 1, &layout));
  CHECK_FAILS(PRIDE_INVALID, "group -1", pride_layout_create(&groupless, 1, &layout));
  CHECK_FAILS(PRIDE_INVALID, "1 tensors at NULL", pride_layout_create(NULL, 1, &layout));
  CHECK_FAILS(PRIDE_INVALID, "out is NULL", pride_layout_create(twice, 1, NULL));
  CHECK_OK(pride_layout_create_at(twice, (const uint64_t[]){130}, 1, &layout));
  CHECK_EQUAL(4, pride_layout_coords(layout));
  pride_layout_destroy(layout);
}

/* What is asked of a handle that is NULL has an answer. */
static void test_null_handles(void) {
  pride_layout_destroy(NULL);
  pride_comm_destroy(NULL);
  pride_optimizer_destroy(NULL);
  pride_state_destroy(NULL);
  pride_comm_fail(NULL, "nobody");
  pride_options_init(NULL, 0);
  CHECK_EQUAL(0, pride_layout_tensors(NULL));
  CHECK_EQUAL(0, pride_layout_coords(NULL));
  CHECK_EQUAL(0, pride_layout_flat_size(NULL));
  CHECK_EQUAL(0, pride_layout_digest(NULL));
  CHECK_EQUAL(-1, pride_comm_rank(NULL));
  CHECK_EQUAL(0, pride_comm_size(NULL));
  CHECK_EQUAL(0, pride_state_tensors(NULL));
  CHECK_EQUAL(0, pride_state_texts(NULL));
  CHECK_EQUAL(-1, pride_optimizer_steps_done(NULL));
  CHECK_TEXT(pride_optimizer_note(NULL), "");
}

static void* fail_elsewhere(void* unused) {
  (void)unused;
  CHECK_TEXT(pride_last_error(), "");
  CHECK_EQUAL(0, strlen(pride_last_error()));
  pride_options options;
  pride_options_init(&options, sizeof options);
  options.method = "no-such-method";
  CHECK_FAILS(PRIDE_INVALID, "no-such-method",
              pride_method_info(&options, 2, &(pride_method){.struct_size = sizeof(pride_method)}));
  return NULL;
}

static void test_errors_are_per_thread(void) {
  CHECK_FAILS(PRIDE_INVALID, "out is NULL", pride_layout_create(NULL, 0, NULL));
  pthread_t thread;
  CHECK_EQUAL(0, pthread_create(&thread, NULL, fail_elsewhere, NULL));
  pthread_join(thread, NULL);
  CHECK_TEXT(pride_last_error(), "out is NULL");
}

static void test_methods(void) {
  CHECK(pride_method_count() > 10);
  CHECK(pride_method_name(pride_method_count()) == NULL);
  int n_votes = 0;
  pride_options options;
  pride_options_init(&options, sizeof options);
  for (uint64_t m = 0; m < pride_method_count(); ++m) {
    const char* name = pride_method_name(m);
    pride_method info = {.struct_size = sizeof info};
    options.method = name;
    CHECK_OK(pride_method_info(&options, 4, &info));
    CHECK(strcmp(name, info.name) == 0);
    CHECK(strlen(info.title) > 0 && strlen(info.source) > 0 && strlen(info.growth) > 0);
    CHECK(info.bits_up > 0 && info.max_world >= 4 && info.defaults.lr > 0);
    const char *option = NULL, *value = NULL, *help = NULL;
    for (uint64_t o = 0; o < info.n_options; ++o) {
      CHECK_OK(pride_method_option(name, o, &option, &value, &help));
      CHECK(strlen(option) > 0 && value != NULL && strlen(help) > 0);
    }
    CHECK_FAILS(PRIDE_INVALID, "option",
                pride_method_option(name, info.n_options, &option, &value, &help));
    if (strcmp(name, "dlion-vote") == 0) {
      ++n_votes;
      CHECK_EQUAL(1, info.bits_up);
      CHECK_EQUAL(1, info.state_floats);
      CHECK_EQUAL(1, info.exact_cost);
      CHECK(info.defaults.beta1 == 0.9 && info.defaults.beta2 == 0.99 && info.defaults.eps == 0);
    }
  }
  CHECK_EQUAL(1, n_votes);
  const char *const names[] = {"local"}, *const values[] = {"lion"};
  pride_method info = {.struct_size = sizeof info};
  options.method = "local-ef";
  CHECK_OK(pride_method_info(&options, 4, &info));
  CHECK(info.defaults.eps > 0); /* AdamW's */
  options.names = names;
  options.values = values;
  options.n_options = 1;
  CHECK_OK(pride_method_info(&options, 4, &info));
  CHECK(info.defaults.eps == 0);
  info.struct_size = 0;
  CHECK_FAILS(PRIDE_INVALID, "struct_size is 0", pride_method_info(&options, 4, &info));
  info.struct_size = sizeof info;
  CHECK_FAILS(PRIDE_INVALID, "world of 0", pride_method_info(&options, 0, &info));
  CHECK_FAILS(PRIDE_INVALID, "NULL", pride_method_info(NULL, 4, &info));
  CHECK_FAILS(PRIDE_INVALID, "NULL", pride_method_info(&options, 4, NULL));
}

/* Costs are stated without a world; counted bytes are a run's. */
static void test_costs(void) {
  enum { kWorld = 3 };
  pride_layout* layout = make_layout();
  for (uint64_t m = 0; m < pride_method_count(); ++m) {
    training run = training_of(pride_method_name(m));
    run.steps = 8; /* the last is the first exchange of methods with local steps */
    in_threads(kWorld, train, &run);
    hash_of_all(&run, kWorld);
    uint64_t most = 0;
    pride_cost cost;
    for (int r = 0; r < kWorld; ++r) {
      CHECK_OK(pride_method_cost(&run.options, layout, kWorld, r, run.steps - 1, &cost));
      const uint64_t bytes = cost.bytes_up + cost.bytes_down;
      if (cost.exact) CHECK_EQUAL(bytes, run.bytes_sent[r]);
      if (cost.bound) CHECK(run.bytes_sent[r] <= bytes);
      if (bytes > most) most = bytes;
    }
    CHECK_OK(pride_method_cost(&run.options, layout, kWorld, -1, run.steps - 1, &cost));
    CHECK_EQUAL(most, cost.bytes_up + cost.bytes_down);
  }
  training run = training_of("dlion-vote");
  pride_cost cost;
  CHECK_FAILS(PRIDE_INVALID, "world of 0", pride_method_cost(&run.options, layout, 0, 0, 0, &cost));
  CHECK_FAILS(PRIDE_INVALID, "rank 3", pride_method_cost(&run.options, layout, 3, 3, 0, &cost));
  CHECK_FAILS(PRIDE_INVALID, "NULL", pride_method_cost(&run.options, layout, 3, 0, 0, NULL));
  CHECK_FAILS(PRIDE_INVALID, "NULL", pride_method_cost(&run.options, NULL, 3, 0, 0, &cost));
  CHECK_FAILS(PRIDE_INVALID, "NULL", pride_method_cost(NULL, layout, 3, 0, 0, &cost));
  const int32_t equal[] = {2, 2, 2}, unequal[] = {3, 2, 2};
  pride_cost plain, weighted;
  const char *const route = "route", *const sharded = "sharded";
  run.options.method = "dlion-avg";
  run.options.names = &route;
  run.options.values = &sharded;
  run.options.n_options = 1;
  CHECK_OK(pride_method_cost(&run.options, layout, 3, -1, 0, &plain));
  CHECK_OK(pride_method_weighted_cost(&run.options, layout, 3, -1, 0, equal, &weighted));
  CHECK_EQUAL(plain.bytes_down, weighted.bytes_down);
  CHECK_OK(pride_method_weighted_cost(&run.options, layout, 3, -1, 0, unequal, &weighted));
  CHECK(weighted.bytes_down > plain.bytes_down); /* base 8 instead of 4 */
  run.options.method = "lion";
  run.options.n_options = 0;
  CHECK_FAILS(PRIDE_INVALID, "lion has no vote weights, given are",
              pride_method_weighted_cost(&run.options, layout, 3, 0, 0, unequal, &cost));
  pride_layout_destroy(layout);
}

void test_basics(void) {
  test_versions();
  test_layouts();
  test_bad_layouts();
  test_null_handles();
  test_errors_are_per_thread();
  test_methods();
  test_costs();
}

int main(void) {
  static const struct {
    const char* name;
    void (*run)(void);
  } groups[] = {{"basics", test_basics},       {"arguments", test_arguments},
                {"steps", test_steps},         {"states", test_states},
                {"callbacks", test_callbacks}, {"plans", test_plans},
                {"means", test_means},         {"virtual", test_virtual_workers},
                {"followers", test_followers}, {"sections", test_sections}};
  for (size_t i = 0; i < sizeof groups / sizeof *groups; ++i) {
    const double begin = seconds();
    groups[i].run();
    printf("%-10s passed, %.2f s\n", groups[i].name, seconds() - begin);
    fflush(stdout);
  }
  return 0;
}

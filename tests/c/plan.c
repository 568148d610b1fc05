/* Plans: a network on paper, methods measured here or on a GPU on paper. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "support.h"

static const pride_plan_facts kFacts = {.struct_size = sizeof kFacts,
                                        .world = 4,
                                        .params = 2e6,
                                        .compute_s = 1e-3,
                                        .bytes_per_s = 1e4, /* far below any machine's own */
                                        .latency_s = 1e-4,
                                        .cores = 2,
                                        .exchange_threads = 4};

static pride_plan_row planned(pride_comm* comm, const char* method, pride_plan_facts facts) {
  pride_options options;
  pride_options_init(&options, sizeof options);
  options.method = method;
  pride_plan_row row = {.struct_size = sizeof row};
  CHECK_OK(pride_plan(comm, &options, &facts, &row));
  return row;
}

/* A slow network decides: fewer bytes, shorter steps. */
static void test_networks(pride_comm* comm) {
  const pride_plan_row vote = planned(comm, "dlion-vote", kFacts);
  CHECK(strcmp(vote.route, "sharded") == 0);
  CHECK(strcmp(vote.bottleneck, "bandwidth") == 0);
  const pride_plan_row dense = planned(comm, "lion", kFacts);
  CHECK(dense.bytes > 30 * vote.bytes);
  CHECK(dense.overlapped_s > 10 * vote.overlapped_s);
  CHECK(dense.in_order_s >= dense.network_s);
  CHECK(dense.network_s > 1200); /* 12 MB at 10 kB/s */
}

static int is_near(double expected, double actual) {
  return fabs(actual - expected) < 1e-9 * expected;
}

/* By hand, from docs/performance.md. lion is summed on the GPU: 8 bytes of gradients, then 4 of the
 * sum, 8 of momentum and 8 of the parameter. dlion-vote reads 4 bytes of the gradient, and 8 each
 * of momentum and parameter; a bit crosses the link each way; the host counts the votes. */
static void test_devices(pride_comm* comm) {
  pride_plan_facts facts = kFacts;
  facts.device_bytes_per_s = 1e12;
  facts.device_host_bytes_per_s = 1e10;
  const pride_plan_row lion = planned(comm, "lion", facts);
  CHECK(is_near(2e6 * 28 / 1e12, lion.arithmetic_s));
  CHECK(planned(comm, "lion", kFacts).arithmetic_s > lion.arithmetic_s);
  facts.device_bytes_per_s = facts.device_host_bytes_per_s = 1e3; /* beside which a vote is short */
  const double vote_s = planned(comm, "dlion-vote", facts).arithmetic_s - 2e6 * 20.25 / 1e3;
  CHECK(vote_s > 0 && vote_s < 1000);
}

/* A program that was compiled before structs had the rates: what lies behind its struct is no rate.
 */
static void test_first_size(pride_comm* comm) {
  pride_plan_facts facts = kFacts;
  facts.struct_size = 64;
  facts.device_bytes_per_s = facts.device_host_bytes_per_s = 1e-3;
  CHECK(planned(comm, "lion", facts).arithmetic_s < 1e6); /* on a GPU: 56e9 s */
  facts.struct_size = sizeof facts;
  CHECK(planned(comm, "lion", facts).arithmetic_s > 1e6);
}

static void test_refusals(pride_comm* comm) {
  pride_options options;
  pride_options_init(&options, sizeof options);
  pride_plan_row row = {.struct_size = sizeof row};
  pride_plan_facts facts = kFacts;
  facts.bytes_per_s = 0;
  CHECK_FAILS(PRIDE_INVALID, "must be above 0", pride_plan(comm, &options, &facts, &row));
  facts.struct_size = 4;
  CHECK_FAILS(PRIDE_INVALID, "struct_size is 4", pride_plan(comm, &options, &facts, &row));
  facts = kFacts;
  facts.device_host_bytes_per_s = 1e9;
  CHECK_FAILS(PRIDE_INVALID, "device_bytes_per_s is 0", pride_plan(comm, &options, &facts, &row));
  facts = kFacts;
  facts.device_operations_per_s = 1e9;
  CHECK_FAILS(PRIDE_INVALID, "device_operations_per_s 1e+09",
              pride_plan(comm, &options, &facts, &row));
  double memory = 1, link = 1;
  CHECK_FAILS(PRIDE_INVALID, "device is NULL", pride_device_rates(NULL, 64, 0, &memory, &link));
}

/* Votes have no products of matrices. Newton-Schulz of dlion-muon has, where it was built with a
 * BLAS: five iterations with three products of r r c and one of r r r, for symmetric results. */
static void test_operations(void) {
  const int64_t square[] = {8, 8};
  const pride_tensor tensor = {.name = "w", .shape = square, .n_dims = 2};
  pride_layout* layout = NULL;
  CHECK_OK(pride_layout_create(&tensor, 1, &layout));
  pride_options options;
  pride_options_init(&options, sizeof options);
  double operations = -1;
  CHECK_OK(pride_method_operations(&options, layout, 4, &operations));
  CHECK(operations == 0);
  options.method = "dlion-muon";
  if (pride_method_operations(&options, layout, 4, &operations) == PRIDE_OK) {
    CHECK(operations == 5 * 4 * 8 * 8 * 8);
  } else {
    CHECK_TEXT(pride_last_error(), "CBLAS");
  }
  options.method = "dlion-vote";
  CHECK_FAILS(PRIDE_INVALID, "operations is NULL",
              pride_method_operations(&options, layout, 4, NULL));
  CHECK_FAILS(PRIDE_INVALID, "world of 0",
              pride_method_operations(&options, layout, 0, &operations));
  pride_layout_destroy(layout);
}

static void test_matrices(void) {
  const int64_t square[] = {8, 8}, qkv[] = {8, 24};
  const pride_tensor tensors[] = {{.name = "wte", .shape = square, .n_dims = 2},
                                  {.name = "qkv", .shape = qkv, .n_dims = 2},
                                  {.name = "out", .shape = square, .n_dims = 2}};
  pride_layout* layout = NULL;
  CHECK_OK(pride_layout_create(tensors, 3, &layout));
  pride_options options;
  pride_options_init(&options, sizeof options);
  int32_t forms[] = {-1, -1, -1};
  const char* text = NULL;
  CHECK_OK(pride_method_matrices(&options, layout, forms, &text)); /* dlion-vote */
  CHECK(text[0] == 0 && forms[0] == -1);
  options.method = "dlion-muon";
  if (pride_method_matrices(&options, layout, NULL, &text) == PRIDE_OK) {
    CHECK_TEXT(text, "matrices: out; split: qkv (3 blocks); no matrices: wte");
    CHECK_OK(pride_layout_set_matrices(
        layout, (const int32_t[]){PRIDE_MATRIX, PRIDE_BY_NAME, PRIDE_NO_MATRIX}, 3));
    CHECK_OK(pride_method_matrices(&options, layout, forms, &text));
    CHECK(forms[0] == PRIDE_FORM_WHOLE && forms[1] == PRIDE_FORM_SPLIT &&
          forms[2] == PRIDE_FORM_NONE);
    CHECK_OK(pride_layout_set_matrices(layout, (const int32_t[]){0, 0, PRIDE_UNNAMED}, 3));
    CHECK_FAILS(PRIDE_INVALID, "tensors without a name: out",
                pride_method_matrices(&options, layout, forms, &text));
  } else {
    CHECK_TEXT(pride_last_error(), "CBLAS");
  }
  CHECK_FAILS(PRIDE_INVALID, "as_matrix of 'qkv' is 4, must be from 0 to 3",
              pride_layout_set_matrices(layout, (const int32_t[]){0, 4, 0}, 3));
  CHECK_FAILS(PRIDE_INVALID, "2 values, the layout has 3 tensors",
              pride_layout_set_matrices(layout, forms, 2));
  CHECK_FAILS(PRIDE_INVALID, "as_matrix is NULL", pride_layout_set_matrices(layout, NULL, 3));
  CHECK_FAILS(PRIDE_INVALID, "text is NULL", pride_method_matrices(&options, layout, forms, NULL));
  pride_layout_destroy(layout);
}

void test_plans(void) {
  pride_comm* comm = NULL;
  CHECK_OK(pride_comm_threads(1, &comm));
  test_networks(comm);
  test_devices(comm);
  test_first_size(comm);
  test_refusals(comm);
  test_operations();
  test_matrices();
  pride_comm_destroy(comm);
}

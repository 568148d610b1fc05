/* Groups with methods of their own. Oracle: the bytes of the whole step, and the method's names. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "support.h"

static void two_methods(pride_comm* comm, void* shared) {
  (void)shared;
  const int64_t a[] = {300}, b[] = {17, 5};
  const pride_tensor tensors[] = {{.name = "a", .shape = a, .n_dims = 1},
                                  {.name = "b", .shape = b, .n_dims = 2, .group = 1},
                                  {.name = "s"}};
  pride_layout* layout = NULL;
  CHECK_OK(pride_layout_create(tensors, 3, &layout));
  const char *const names[] = {"dense"}, *const values[] = {"bf16"};
  pride_group groups[2] = {{.lr = NAN, .beta1 = NAN, .beta2 = NAN, .eps = NAN, .momentum = NAN},
                           {.lr = 0.25, .beta1 = NAN, .beta2 = NAN, .eps = NAN, .momentum = NAN}};
  groups[1].method = "adamw";
  groups[1].names = names;
  groups[1].values = values;
  groups[1].n_options = 1;
  pride_options options;
  pride_options_init(&options, sizeof options);
  options.groups = groups;
  options.n_groups = 2;
  pride_optimizer* optimizer = NULL;
  CHECK_OK(pride_optimizer_create(comm, layout, &options, &optimizer));
  float params[kFlat] = {0}, grads[kFlat];
  fill_grads(layout, pride_comm_rank(comm), 0, grads);
  const pride_array p = array_of(params, kFlat, PRIDE_FLOAT32);
  const pride_array g = array_of(grads, kFlat, PRIDE_FLOAT32);
  pride_report report = {.struct_size = sizeof report};
  CHECK_OK(pride_optimizer_step(optimizer, &p, &g, NULL, &report));

  uint64_t sent = 0, state = 0;
  pride_section section = {.struct_size = sizeof section};
  for (int32_t group = 0; group < 2; ++group) {
    CHECK_OK(pride_optimizer_section(optimizer, group, 1, &section));
    CHECK_EQUAL(group, section.index);
    CHECK_TEXT(section.method, group == 0 ? "dlion-vote" : "adamw");
    CHECK(strstr(section.options, group == 0 ? "tie=hash" : "dense=bf16") != NULL);
    CHECK_EQUAL(group == 0 ? 301 : 85, section.n_coords);
    CHECK_EQUAL(section.bytes_sent, section.cost.bytes_up + section.cost.bytes_down);
    sent += section.bytes_sent;
    state += section.state;
  }
  CHECK_EQUAL(report.bytes_sent, sent);
  pride_memory_use use = {.struct_size = sizeof use};
  CHECK_OK(pride_optimizer_memory(optimizer, &use));
  CHECK_EQUAL(use.state, state);
  CHECK_FAILS(PRIDE_INVALID, "no group 2", pride_optimizer_section(optimizer, 2, 0, &section));
  CHECK_FAILS(PRIDE_INVALID, "section is NULL", pride_optimizer_section(optimizer, 0, 0, NULL));
  section.struct_size = 8;
  CHECK_FAILS(PRIDE_INVALID, "struct_size is 8",
              pride_optimizer_section(optimizer, 0, 0, &section));

  pride_state_buffer buffer;
  int n_buffers[2] = {0, 0};
  for (uint64_t i = 0; pride_optimizer_state_buffer(optimizer, i, &buffer) == PRIDE_OK; ++i) {
    CHECK(buffer.section == 0 || buffer.section == 1);
    ++n_buffers[buffer.section == 1];
  }
  CHECK_EQUAL(1, n_buffers[0]); /* a momentum */
  CHECK_EQUAL(2, n_buffers[1]); /* and AdamW's two */

  pride_group group = {
      .lr = NAN, .beta1 = NAN, .beta2 = NAN, .eps = NAN, .momentum = NAN, .weight_decay = NAN};
  group.method = "lion";
  CHECK_FAILS(PRIDE_INVALID, "group 1: set_group() with another method",
              pride_optimizer_set_group(optimizer, 1, &group));
  pride_cost cost;
  CHECK_FAILS(PRIDE_INVALID, "group 1 has the method adamw",
              pride_method_cost(&options, layout, 2, 0, 0, &cost));
  pride_optimizer_destroy(optimizer);

  optimizer = NULL;
  groups[1].method = NULL;
  CHECK_FAILS(PRIDE_INVALID, "group 1: the option dense is given without a method",
              pride_optimizer_create(comm, layout, &options, &optimizer));
  groups[1].names = NULL;
  CHECK_FAILS(PRIDE_INVALID, "1 options at NULL",
              pride_optimizer_create(comm, layout, &options, &optimizer));
  pride_layout_destroy(layout);
}

void test_sections(void) { in_threads(2, two_methods, NULL); }

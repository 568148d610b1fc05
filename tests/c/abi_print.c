/* Prints what programs that were compiled with the headers have built in: versions, values of
 * enumerators, sizes of structs and offsets of members. */
// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>
#include <stdio.h>

#include "pride/c/pride.h"

#define VALUE(name) printf("enumerator %s = %d\n", #name, name)
#define STRUCT(type) printf("struct %s: %zu bytes\n", #type, sizeof(type))
#define MEMBER(type, name) \
  printf("  %s: %zu bytes at %zu\n", #name, sizeof(((type*)0)->name), offsetof(type, name))

static void print_values(void) {
  VALUE(PRIDE_OK);
  VALUE(PRIDE_PENDING);
  VALUE(PRIDE_INVALID);
  VALUE(PRIDE_COMM_ERROR);
  VALUE(PRIDE_NON_FINITE);
  VALUE(PRIDE_DATA_ERROR);
  VALUE(PRIDE_NO_MEMORY);
  VALUE(PRIDE_INTERNAL_ERROR);
  VALUE(PRIDE_NO_DEVICE_MEMORY);
  VALUE(PRIDE_FLOAT32);
  VALUE(PRIDE_BFLOAT16);
  VALUE(PRIDE_FLOAT16);
  VALUE(PRIDE_CPU);
  VALUE(PRIDE_CUDA);
  VALUE(PRIDE_BY_NAME);
  VALUE(PRIDE_MATRIX);
  VALUE(PRIDE_NO_MATRIX);
  VALUE(PRIDE_UNNAMED);
  VALUE(PRIDE_FORM_NONE);
  VALUE(PRIDE_FORM_WHOLE);
  VALUE(PRIDE_FORM_SPLIT);
  VALUE(PRIDE_SUM_FLOAT32);
  VALUE(PRIDE_SUM_INT8);
  VALUE(PRIDE_SUM_INT16);
  VALUE(PRIDE_SUM_INT32);
  VALUE(PRIDE_SUM_BFLOAT16);
  VALUE(PRIDE_STATE_LOCAL);
  VALUE(PRIDE_STATE_SHARED);
  VALUE(PRIDE_STATE_SERVER);
  VALUE(PRIDE_LOCAL_KEEP);
  VALUE(PRIDE_LOCAL_AVERAGE);
  VALUE(PRIDE_LOCAL_RESET);
}

static void print_base(void) {
  STRUCT(pride_array);
  MEMBER(pride_array, data);
  MEMBER(pride_array, n);
  MEMBER(pride_array, dtype);
  MEMBER(pride_array, device);
  MEMBER(pride_array, device_index);
  MEMBER(pride_array, reserved);
  MEMBER(pride_array, stream);
  STRUCT(pride_tensor);
  MEMBER(pride_tensor, name);
  MEMBER(pride_tensor, shape);
  MEMBER(pride_tensor, n_dims);
  MEMBER(pride_tensor, group);
}

static void print_transport(void) {
  STRUCT(pride_transport);
  MEMBER(pride_transport, struct_size);
  MEMBER(pride_transport, rank);
  MEMBER(pride_transport, size);
  MEMBER(pride_transport, name);
  MEMBER(pride_transport, user);
  MEMBER(pride_transport, all_to_all_v);
  MEMBER(pride_transport, all_reduce);
  MEMBER(pride_transport, group);
  MEMBER(pride_transport, check);
  MEMBER(pride_transport, fail);
  MEMBER(pride_transport, release);
}

static void print_options(void) {
  STRUCT(pride_group);
  MEMBER(pride_group, lr);
  MEMBER(pride_group, beta1);
  MEMBER(pride_group, beta2);
  MEMBER(pride_group, eps);
  MEMBER(pride_group, weight_decay);
  MEMBER(pride_group, method);
  MEMBER(pride_group, names);
  MEMBER(pride_group, values);
  MEMBER(pride_group, n_options);
  STRUCT(pride_options);
  MEMBER(pride_options, struct_size);
  MEMBER(pride_options, skip_non_finite);
  MEMBER(pride_options, method);
  MEMBER(pride_options, names);
  MEMBER(pride_options, values);
  MEMBER(pride_options, n_options);
  MEMBER(pride_options, groups);
  MEMBER(pride_options, n_groups);
  MEMBER(pride_options, bucket_coords);
  MEMBER(pride_options, seed);
  MEMBER(pride_options, clip_global_norm);
  MEMBER(pride_options, overlap);
  MEMBER(pride_options, exchange_threads);
  MEMBER(pride_options, node_of_rank);
  MEMBER(pride_options, vote_weight);
  MEMBER(pride_options, virtual_workers);
  MEMBER(pride_options, device);
  MEMBER(pride_options, orthogonalise);
  MEMBER(pride_options, orthogonalise_user);
  MEMBER(pride_options, model_parallel_sum);
  MEMBER(pride_options, model_parallel_sum_user);
  MEMBER(pride_options, before_apply);
  MEMBER(pride_options, before_apply_user);
  STRUCT(pride_section);
  MEMBER(pride_section, struct_size);
  MEMBER(pride_section, index);
  MEMBER(pride_section, method);
  MEMBER(pride_section, options);
  MEMBER(pride_section, n_coords);
  MEMBER(pride_section, state);
  MEMBER(pride_section, cost);
  MEMBER(pride_section, mean_cost);
  MEMBER(pride_section, bytes_sent);
  MEMBER(pride_section, bytes_received);
  MEMBER(pride_section, messages_sent);
  STRUCT(pride_state_buffer);
  MEMBER(pride_state_buffer, name);
  MEMBER(pride_state_buffer, data);
  MEMBER(pride_state_buffer, kind);
  MEMBER(pride_state_buffer, dtype);
  MEMBER(pride_state_buffer, section);
  STRUCT(pride_memory_use);
  MEMBER(pride_memory_use, state);
  MEMBER(pride_memory_use, masters);
  MEMBER(pride_memory_use, frames);
  MEMBER(pride_memory_use, scratch);
  STRUCT(pride_matrices);
  MEMBER(pride_matrices, data);
  MEMBER(pride_matrices, n);
  MEMBER(pride_matrices, rows);
  MEMBER(pride_matrices, cols);
  MEMBER(pride_matrices, stride);
  MEMBER(pride_matrices, iterations);
}

static void print_results(void) {
  STRUCT(pride_report);
  MEMBER(pride_report, struct_size);
  MEMBER(pride_report, skipped);
  MEMBER(pride_report, step);
  MEMBER(pride_report, bytes_sent);
  MEMBER(pride_report, bytes_received);
  MEMBER(pride_report, messages_sent);
  MEMBER(pride_report, grad_norm);
  MEMBER(pride_report, encode_s);
  MEMBER(pride_report, exchange_s);
  MEMBER(pride_report, apply_s);
  STRUCT(pride_cost);
  MEMBER(pride_cost, bytes_up);
  MEMBER(pride_cost, bytes_down);
  MEMBER(pride_cost, bytes_local);
  MEMBER(pride_cost, exact);
  MEMBER(pride_cost, bound);
  STRUCT(pride_method);
  MEMBER(pride_method, struct_size);
  MEMBER(pride_method, state_floats);
  MEMBER(pride_method, name);
  MEMBER(pride_method, title);
  MEMBER(pride_method, source);
  MEMBER(pride_method, growth);
  MEMBER(pride_method, bits_up);
  MEMBER(pride_method, bits_down);
  MEMBER(pride_method, exact_cost);
  MEMBER(pride_method, max_world);
  MEMBER(pride_method, defaults);
  MEMBER(pride_method, n_options);
}

static void print_plan(void) {
  STRUCT(pride_plan_facts);
  MEMBER(pride_plan_facts, struct_size);
  MEMBER(pride_plan_facts, world);
  MEMBER(pride_plan_facts, params);
  MEMBER(pride_plan_facts, compute_s);
  MEMBER(pride_plan_facts, bytes_per_s);
  MEMBER(pride_plan_facts, latency_s);
  MEMBER(pride_plan_facts, message_s);
  MEMBER(pride_plan_facts, cores);
  MEMBER(pride_plan_facts, exchange_threads);
  MEMBER(pride_plan_facts, reserved);
  MEMBER(pride_plan_facts, device_bytes_per_s);
  MEMBER(pride_plan_facts, device_host_bytes_per_s);
  MEMBER(pride_plan_facts, device_operations_per_s);
  STRUCT(pride_plan_row);
  MEMBER(pride_plan_row, struct_size);
  MEMBER(pride_plan_row, buckets);
  MEMBER(pride_plan_row, bytes);
  MEMBER(pride_plan_row, in_order_s);
  MEMBER(pride_plan_row, overlapped_s);
  MEMBER(pride_plan_row, network_s);
  MEMBER(pride_plan_row, arithmetic_s);
  MEMBER(pride_plan_row, route);
  MEMBER(pride_plan_row, bottleneck);
}

static void print_coordinator(void) {
  STRUCT(pride_coordinator_address);
  MEMBER(pride_coordinator_address, struct_size);
  MEMBER(pride_coordinator_address, reserved);
  MEMBER(pride_coordinator_address, host_port);
  MEMBER(pride_coordinator_address, certificates);
  MEMBER(pride_coordinator_address, name);
  MEMBER(pride_coordinator_address, secret_file);
  MEMBER(pride_coordinator_address, patience_ms);
  MEMBER(pride_coordinator_address, notice);
  MEMBER(pride_coordinator_address, user);
  STRUCT(pride_round);
  MEMBER(pride_round, struct_size);
  MEMBER(pride_round, counted);
  MEMBER(pride_round, round);
  MEMBER(pride_round, replayed);
  MEMBER(pride_round, voters);
  MEMBER(pride_round, took_parameters);
  MEMBER(pride_round, why_not);
}

int main(void) {
  printf("PRIDE_C_VERSION = %d\n", PRIDE_C_VERSION);
  print_values();
  print_base();
  print_transport();
  print_options();
  print_results();
  print_plan();
  print_coordinator();
  return 0;
}

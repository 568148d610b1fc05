/* The methods of pride's C interface: what they are, what they cost, and what a step will take. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_C_METHODS_H
#define PRIDE_C_METHODS_H

#include "pride/c/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The methods of this build. */
typedef struct pride_method {
  uint32_t struct_size; /* set by the caller */
  int32_t state_floats; /* per coordinate */
  const char *name, *title, *source, *growth;
  double bits_up, bits_down; /* per coordinate, of one worker */
  int32_t exact_cost, max_world;
  pride_group defaults; /* 0 for betas and eps: the method has none */
  uint64_t n_options;
} pride_method;

PRIDE_API uint64_t pride_method_count(void);
PRIDE_API const char* pride_method_name(uint64_t index); /* NULL beyond the last */
/* Why the options' method runs on the host alone; "": it runs on devices. Other members of the
 * options are not looked at. The text is valid until the thread's next call of it. Since
 * PRIDE_C_VERSION 5. */
PRIDE_API int pride_method_why_host_only(const pride_options* options, const char** why);
/* Of a world of that many ranks. Texts are valid until the thread's next call of it. */
PRIDE_API int pride_method_info(const char* name, int32_t world, pride_method* out);
PRIDE_API int pride_method_option(const char* name, uint64_t index, const char** option,
                                  const char** value, const char** help);
/* Bytes of a step, without an optimizer, of `options` as above. rank -1: the one that sends most.
 */
PRIDE_API int pride_method_cost(const pride_options* options, const pride_layout* layout,
                                int32_t world, int32_t rank, int64_t step, pride_cost* cost);
/* The same with the ranks' vote weights, `world` of them (NULL: equal): frames of counts grow with
 * their sum. Since PRIDE_C_VERSION 3. */
PRIDE_API int pride_method_weighted_cost(const pride_options* options, const pride_layout* layout,
                                         int32_t world, int32_t rank, int64_t step,
                                         const int32_t* vote_weights, pride_cost* cost);
/* The same, mean over the period that the step is in, rounded up: of a method with local steps one
 * step in h sends. Since PRIDE_C_VERSION 4. */
PRIDE_API int pride_method_mean_cost(const pride_options* options, const pride_layout* layout,
                                     int32_t world, int32_t rank, int64_t step,
                                     const int32_t* vote_weights, pride_cost* cost);

/* Multiplications and additions of a rank per step on whole matrices (Newton-Schulz); 0 for all
 * other methods. Since PRIDE_C_VERSION 8. */
PRIDE_API int pride_method_operations(const pride_options* options, const pride_layout* layout,
                                      int32_t world, double* operations);

/* A network on paper, and the model's own work. */
typedef struct pride_plan_facts {
  uint32_t struct_size; /* set by the caller */
  int32_t world;
  double params;
  double compute_s;   /* forward and backward of a step */
  double bytes_per_s; /* of a rank, in each direction */
  double latency_s;   /* of a message, one way */
  double message_s;   /* of each further message where a rank sends several at once */
  double cores;       /* of each rank */
  int32_t exchange_threads;
  int32_t reserved; /* 0 */
  /* The GPU on which the methods run; all 0: they run on the host. Bytes per second of copies
   * within its memory, read and written, and of copies to the host or from it
   * (pride_device_rates()). Multiplications and additions per second in products of matrices, for
   * methods that have some (pride_method_operations()). Since PRIDE_C_VERSION 8. */
  double device_bytes_per_s, device_host_bytes_per_s, device_operations_per_s;
} pride_plan_facts;

typedef struct pride_plan_row {
  uint32_t struct_size; /* set by the caller */
  int32_t buckets;      /* with the shortest overlapped step */
  double bytes;         /* sent per step by the rank with most */
  double in_order_s, overlapped_s;
  double network_s, arithmetic_s; /* parts of the step in order */
  const char *route, *bottleneck; /* valid until the thread's next call of pride_plan() */
} pride_plan_row;

/* The step of `options`' method: its arithmetic is measured here, on all ranks of `comm` at once,
 * or computed from the rates of the GPU. Its bytes are counted, the rest is the model of
 * docs/performance.md. Collective; a second. */
PRIDE_API int pride_plan(pride_comm* comm, const pride_options* options,
                         const pride_plan_facts* facts, pride_plan_row* row);

#ifdef __cplusplus
}
#endif
#endif

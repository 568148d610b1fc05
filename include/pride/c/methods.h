/* Methods in pride's C interface: descriptions, bytes per step, predicted step times. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_C_METHODS_H
#define PRIDE_C_METHODS_H

#include "pride/c/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A method of this build. */
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
/* The reason why options->method with its own options cannot run on a device; "": it can. Other
 * members of `options` are not read. The text is valid until the thread's next call of this
 * function. Since PRIDE_C_VERSION 5. */
PRIDE_API int pride_method_why_host_only(const pride_options* options, const char** why);
/* options->method with its own options on `world` ranks. Other members of `options` are not read.
 * Texts are valid until the thread's next call of this function. */
PRIDE_API int pride_method_info(const pride_options* options, int32_t world, pride_method* out);
PRIDE_API int pride_method_option(const char* name, uint64_t index, const char** option,
                                  const char** value, const char** help);
/* Bytes of a step of options->method, without an optimizer. rank -1: the rank that sends most. */
PRIDE_API int pride_method_cost(const pride_options* options, const pride_layout* layout,
                                int32_t world, int32_t rank, int64_t step, pride_cost* cost);
/* The same with vote_weights[r] for each rank r (NULL: equal). Frames of counts grow with their
 * sum. Since PRIDE_C_VERSION 3. */
PRIDE_API int pride_method_weighted_cost(const pride_options* options, const pride_layout* layout,
                                         int32_t world, int32_t rank, int64_t step,
                                         const int32_t* vote_weights, pride_cost* cost);
/* The mean over the step's period, rounded up: with local steps one step in h sends. Since
 * PRIDE_C_VERSION 4. */
PRIDE_API int pride_method_mean_cost(const pride_options* options, const pride_layout* layout,
                                     int32_t world, int32_t rank, int64_t step,
                                     const int32_t* vote_weights, pride_cost* cost);

/* Multiplications and additions of Newton-Schulz per step and rank. 0: the method multiplies no
 * matrices. Since PRIDE_C_VERSION 8. */
PRIDE_API int pride_method_operations(const pride_options* options, const pride_layout* layout,
                                      int32_t world, double* operations);

/* What options->method makes of each tensor of a whole model's layout: forms[i], of as many as the
 * layout has tensors (NULL: none are written), and a line for a log. "": the method orthogonalises
 * nothing, and writes no forms. PRIDE_INVALID if a tensor is PRIDE_UNNAMED, if no name holds a word
 * of the options not_matrices and split, or if sizes of split do not fit a tensor. The text is
 * valid until the thread's next call of this function. Since PRIDE_C_VERSION 10. */
enum { PRIDE_FORM_NONE = 0, PRIDE_FORM_WHOLE = 1, PRIDE_FORM_SPLIT = 2 };
PRIDE_API int pride_method_matrices(const pride_options* options, const pride_layout* layout,
                                    int32_t* forms, const char** text);

/* The inputs of a plan: a network, and the model's own work. */
typedef struct pride_plan_facts {
  uint32_t struct_size; /* set by the caller */
  int32_t world;
  double params;
  double compute_s;   /* forward and backward of a step */
  double bytes_per_s; /* of a rank, in each direction */
  double latency_s;   /* of a message, one way */
  double message_s;   /* of each further message, if a rank sends several at once */
  double cores;       /* of each rank */
  int32_t exchange_threads;
  int32_t reserved; /* 0 */
  /* Rates of the GPU on which the methods run; all 0: they run on the host. Bytes per second of
   * copies within its memory, read and written, and of copies to and from the host
   * (pride_device_rates()). Multiplications and additions of Newton-Schulz per second, for methods
   * that have some (pride_method_operations()). Since PRIDE_C_VERSION 8. */
  double device_bytes_per_s, device_host_bytes_per_s, device_operations_per_s;
} pride_plan_facts;

typedef struct pride_plan_row {
  uint32_t struct_size; /* set by the caller */
  int32_t buckets;      /* with the shortest overlapped step */
  double bytes;         /* sent per step by the rank that sends most */
  double in_order_s, overlapped_s;
  double network_s, arithmetic_s; /* parts of the step in order */
  const char *route, *bottleneck; /* valid until the thread's next call of pride_plan() */
} pride_plan_row;

/* Predicts a step of options->method (docs/performance.md). Its arithmetic is measured here, on all
 * ranks of `comm` at once, in about a second, or computed from the rates of a GPU. Its bytes are
 * counted. Collective. */
PRIDE_API int pride_plan(pride_comm* comm, const pride_options* options,
                         const pride_plan_facts* facts, pride_plan_row* row);

#ifdef __cplusplus
}
#endif
#endif

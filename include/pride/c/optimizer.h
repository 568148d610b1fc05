/* Optimizers and their state in pride's C interface. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_C_OPTIMIZER_H
#define PRIDE_C_OPTIMIZER_H

#include "pride/c/comm.h"
#include "pride/c/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Hyper-parameters of a group; NaN: the method's default, or unchanged. */
typedef struct pride_group {
  double lr, beta1, beta2, eps, weight_decay;
} pride_group;

/* Adds to each of n values those of the other parts of a model. Not 0: it failed; it has then
 * written why, at most `size` bytes with their 0. */
typedef int (*pride_sum_of_parts)(void* user, double* values, uint64_t n, char* why, uint64_t size);

/* pride_options_init() fills in the defaults; `method` and `groups` may stay as they are. */
typedef struct pride_options {
  uint32_t struct_size;
  int32_t skip_non_finite;  /* not 0: a step with NaN or Inf is left out on all ranks; 0: error */
  const char* method;       /* "dlion-vote"; pride_method_name() lists them */
  const char* const* names; /* of the method's own options, n_options of them ... */
  const char* const* values;
  uint64_t n_options;
  const pride_group* groups; /* NULL: one group with the method's defaults */
  uint64_t n_groups;
  uint64_t bucket_coords; /* target size of a bucket: 1 Mi coordinates */
  uint64_t seed;
  double clip_global_norm;  /* 0: none; for methods that have the mean gradient */
  int32_t overlap;          /* not 0: exchange on threads, in parallel with the caller's work */
  int32_t exchange_threads; /* with overlap: 1 to 16 */
  const int32_t*
      node_of_rank; /* which ranks share a node, one entry for each rank; NULL: not known */
  /* Since PRIDE_C_VERSION 2. */
  int32_t vote_weight; /* votes of this rank, 1 to 65535: 1; others for methods that send signs */
  /* 0, or the number of virtual workers, which this process plays in turn on a communicator of size
   * 1: pride_optimizer_hand_over(). Since PRIDE_C_VERSION 5. */
  int32_t virtual_workers;
  /* The device of all parameters, gradients and state, where the method runs. Arrays are then
   * PRIDE_CUDA, and state buffers are in the device's memory. NULL: the host. Not for
   * methods of which pride_method_why_host_only() says why; those that orthogonalise matrices need
   * `orthogonalise`. Since PRIDE_C_VERSION 5. */
  pride_device* device;
  pride_orthogonalise orthogonalise;
  void* orthogonalise_user;
  /* NULL; or of a part of a model (pride_layout_create_part()), whose other parts have optimizers
   * of their own: with skip_non_finite or clip_global_norm it is called once a step, on a thread of
   * pride_optimizer_finish(), with 2 values: the sum of squares of the mean gradient, or 0 without
   * clip_global_norm; 1 where the gradient is not finite, else 0. All parts then skip the step, or
   * clip it by the norm of all. Since PRIDE_C_VERSION 6. */
  pride_sum_of_parts sum_of_parts;
  void* sum_of_parts_user;
} pride_options;

/* `struct_size`: sizeof(pride_options) where it is called. */
PRIDE_API void pride_options_init(pride_options* options, uint32_t struct_size);

/* The report of a step. `bytes_...` and `messages_sent` are this rank's; times are in seconds. */
typedef struct pride_report {
  uint32_t struct_size; /* set by the caller: sizeof(pride_report) */
  int32_t skipped;
  int64_t step; /* 0 for the first */
  uint64_t bytes_sent, bytes_received, messages_sent;
  double grad_norm; /* of the mean gradient, with clip_global_norm; else NaN */
  double encode_s, exchange_s, apply_s;
} pride_report;

typedef struct pride_cost {
  uint64_t bytes_up, bytes_down; /* towards the shards' servers, and results back */
  uint64_t bytes_local;          /* part of both, to ranks of the same node */
  int32_t exact;                 /* 0: bytes depend on the data or on the transport, and ... */
  int32_t bound;                 /* ... not 0: these are an upper bound; 0: an estimate */
} pride_cost;

typedef struct pride_optimizer pride_optimizer;

/* Collective: ranks compare layout, method and options. If one differs, the error on all ranks
 * names it. */
PRIDE_API int pride_optimizer_create(pride_comm* comm, const pride_layout* layout,
                                     const pride_options* options, pride_optimizer** out);
/* During a step this fails the world. */
PRIDE_API void pride_optimizer_destroy(pride_optimizer* optimizer);

/* Where the parameters lie: params[i] is tensor i, its values in row-major order; n is the number
 * of tensors. Between steps; again whenever an address has changed, and after
 * pride_optimizer_add(). From then on `params` may be NULL in all other calls, and no flat buffer
 * is taken. Another size or dtype than before is PRIDE_INVALID, with the tensor's name. Parameters
 * in bfloat16 or float16 have float32 masters, which are state: tensors "master/<parameter>". The
 * library holds 16 bits of a bfloat16 parameter's master; saving reads the others where the
 * parameter lies. The caller may change parameters between steps (docs/design/masters.md). Since
 * PRIDE_C_VERSION 5. */
PRIDE_API int pride_optimizer_set_parameters(pride_optimizer* optimizer, const pride_array* params,
                                             uint64_t n);
/* frozen[i] not 0: from the next step on tensor i does not change, without weight decay, and its
 * gradient is not read. The same on all ranks. NULL: none. Since version 5. */
PRIDE_API int pride_optimizer_set_frozen(pride_optimizer* optimizer, const uint8_t* frozen);
/* From the next step on this rank's gradients are first multiplied by it, in float32: 1 / scale of
 * a scaled loss, -1 to maximise. Since version 5. */
PRIDE_API int pride_optimizer_set_gradient_factor(pride_optimizer* optimizer, float factor);
/* The next step, and only that one, is one of a loss scaler's; on all ranks, or on none. Gradients
 * are multiplied by `factor`, too: one float32 where the gradients lie, which must stay there as
 * long as they do, and is read when they are; NULL: by 1. If a gradient is not finite, all ranks
 * skip the step, whatever skip_non_finite says, and it does not count in
 * pride_optimizer_steps_done(). Not with methods of local steps or virtual workers.
 * Since version 7. */
PRIDE_API int pride_optimizer_scale_next_step(pride_optimizer* optimizer,
                                              const pride_array* factor);

/* With a device: the stream (cudaStream_t) of the caller's work on parameters and gradients, for
 * later calls. Their work starts after the stream's present work, and the stream continues after
 * theirs. Since version 5. */
PRIDE_API int pride_optimizer_set_stream(pride_optimizer* optimizer, void* stream);

/* One step. `params`: one flat buffer of float32, or NULL; equal on all ranks before and after.
 * `grads`: this rank's, flat, padding zero. unused[i] not 0: tensor i has no gradient here; NULL:
 * all have. Collective. */
PRIDE_API int pride_optimizer_step(pride_optimizer* optimizer, const pride_array* params,
                                   const pride_array* grads, const uint8_t* unused,
                                   pride_report* report);

/* The same in parts: begin, each tensor when its gradient is complete, finish. Arrays must stay in
 * place until finish returns something other than PRIDE_PENDING. It returns PRIDE_PENDING after
 * timeout_ms (-1: never) if the step is not complete; then call it again, from any thread. */
PRIDE_API int pride_optimizer_begin(pride_optimizer* optimizer, const pride_array* params,
                                    const pride_array* grads);
PRIDE_API int pride_optimizer_ready(pride_optimizer* optimizer, uint64_t tensor, int32_t unused);
/* In a step begun with grads = NULL: the tensor's gradient, in row-major order. It is read in place
 * and must stay there as long as the arrays of begin. */
PRIDE_API int pride_optimizer_ready_at(pride_optimizer* optimizer, uint64_t tensor,
                                       const pride_array* grad);
/* In a step with overlap: writes the indices of tensors whose gradients have been encoded since the
 * last call and are not read again, at most n, and their number. The memory of these gradients is
 * free. REQUIRES: n is at least the number of tensors. Since version 5. */
PRIDE_API int pride_optimizer_take_released(pride_optimizer* optimizer, uint64_t* tensors,
                                            uint64_t n, uint64_t* found);
PRIDE_API int pride_optimizer_finish(pride_optimizer* optimizer, int64_t timeout_ms,
                                     pride_report* report);
/* Why the last step was skipped, or the method's note about it; valid until the next step. */
PRIDE_API const char* pride_optimizer_note(const pride_optimizer* optimizer);

/* Processes that divide a model among their optimizers and all hold its parameters: results of a
 * step, about a bit a parameter, can travel between them instead of parameters. follow: the layout
 * of another process's optimizer, which has the same voters and options; `part` becomes the number
 * of that part of the model, or -1: results of this method do not determine the parameters, which
 * then have to travel. results: the n bytes of this optimizer's last step, until the next one; 0
 * bytes: it was skipped. Since PRIDE_C_VERSION 6. */
PRIDE_API int pride_optimizer_follow(pride_optimizer* optimizer, const pride_layout* layout,
                                     int32_t* part);
PRIDE_API int pride_optimizer_results(const pride_optimizer* optimizer, const void** data,
                                      uint64_t* n);
/* After a step of this optimizer: the size of the part's results of the same step; and applies
 * them, n_bytes at `data`, to the part's parameters, one array a tensor, n of them in float32.
 * frozen[i] not 0: tensor i was frozen there; NULL: none. PRIDE_COMM_ERROR: they are damaged or of
 * another step, and nothing was changed. Since PRIDE_C_VERSION 6. */
PRIDE_API int pride_optimizer_result_bytes(const pride_optimizer* optimizer, int32_t part,
                                           uint64_t* n);
PRIDE_API int pride_optimizer_apply_results(pride_optimizer* optimizer, int32_t part,
                                            const pride_array* params, uint64_t n,
                                            const uint8_t* frozen, const void* data,
                                            uint64_t n_bytes);

PRIDE_API int pride_optimizer_set_group(pride_optimizer* optimizer, int32_t group,
                                        const pride_group* values);
PRIDE_API int pride_optimizer_get_group(const pride_optimizer* optimizer, int32_t group,
                                        pride_group* values);
/* Appends tensors and groups; then set the parameters again. Collective. */
PRIDE_API int pride_optimizer_add(pride_optimizer* optimizer, const pride_tensor* tensors,
                                  uint64_t n, const pride_group* groups, uint64_t n_groups);
/* The same of a part of a larger model: first_coords as in pride_layout_create_part(). Since
 * PRIDE_C_VERSION 6. */
PRIDE_API int pride_optimizer_add_part(pride_optimizer* optimizer, const pride_tensor* tensors,
                                       const uint64_t* first_coords, uint64_t n,
                                       const pride_group* groups, uint64_t n_groups);
/* Rank 0's parameters on all ranks. Collective. */
PRIDE_API int pride_optimizer_broadcast(pride_optimizer* optimizer, const pride_array* params);
/* pride_hash() of the parameters as set: of the masters of narrower ones, and with local steps of
 * the common ones. Between steps. Since version 5. */
PRIDE_API int pride_optimizer_hash(pride_optimizer* optimizer, uint64_t* out);
/* As float32, n values of tensor `tensor` from number `begin` on, where the parameters were set or
 * lay last: of its master, if it is narrower. Between steps. Since PRIDE_C_VERSION 5. */
PRIDE_API int pride_optimizer_read(const pride_optimizer* optimizer, uint64_t tensor,
                                   uint64_t begin, uint64_t n, float* values);

PRIDE_API int64_t pride_optimizer_steps_done(const pride_optimizer* optimizer);
PRIDE_API int pride_optimizer_cost(const pride_optimizer* optimizer, int64_t step,
                                   pride_cost* cost);
/* Mean over the step's period, rounded up. Since PRIDE_C_VERSION 4. */
PRIDE_API int pride_optimizer_mean_cost(const pride_optimizer* optimizer, int64_t step,
                                        pride_cost* cost);
/* Steps after which exchanges repeat: 1, or h of a method with local steps. Since version 4. */
PRIDE_API int64_t pride_optimizer_period(const pride_optimizer* optimizer);

/* Bytes that it holds beside the caller's tensors: the method's state; masters of narrower
 * parameters, 2 a value of bfloat16 and 4 of float16; frames; what the method works in, with a
 * device's memory for the words of frames. The last member may not be there in older libraries:
 * struct_size is set by the caller. Since version 5. */
typedef struct pride_memory_use {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t state, masters, frames, scratch;
} pride_memory_use;
PRIDE_API int pride_optimizer_memory(const pride_optimizer* optimizer, pride_memory_use* use);

/* With local steps a rank has its own parameters between exchanges. Between steps: to_common sets
 * `params` to the common ones, to evaluate, hash or save; to_local restores this rank's own, before
 * the next gradient and after a load. With other methods neither changes anything. to_common waits
 * for exchanges in flight. Since version 4. */
PRIDE_API int pride_optimizer_to_common(const pride_optimizer* optimizer,
                                        const pride_array* params);
PRIDE_API int pride_optimizer_to_local(const pride_optimizer* optimizer, const pride_array* params);

/* Virtual workers (docs/virtual_workers.md), since version 5: one process plays N workers over one
 * copy of the parameters, with the bits and the counted bytes of N ranks. Instead of a step call
 * for each worker: to_worker, which with local steps sets `params` to its own; and hand_over, with
 * a gradient for each of the n tensors (data NULL: none), which need not stay. Then call
 * step_workers once. PRIDE_INVALID names a worker that comes twice or is missing, and nothing was
 * changed. Afterwards `params` are the common ones. Bytes in the report are worker 0's. */
PRIDE_API int pride_optimizer_to_worker(const pride_optimizer* optimizer, int32_t worker,
                                        const pride_array* params);
PRIDE_API int pride_optimizer_hand_over(pride_optimizer* optimizer, int32_t worker,
                                        const pride_array* params, const pride_array* grads,
                                        uint64_t n);
PRIDE_API int pride_optimizer_step_workers(pride_optimizer* optimizer, const pride_array* params,
                                           pride_report* report);

/* State: named tensors of float32 and named texts. */
typedef struct pride_state pride_state;
enum { PRIDE_STATE_LOCAL = 0, PRIDE_STATE_SHARED = 1, PRIDE_STATE_SERVER = 2 };

/* The optimizer's own memory of buffer `index`, of the layout's flat size, until the next
 * pride_optimizer_add(). PRIDE_INVALID beyond the last. Kinds: each rank has its own; all have the
 * same; each server has its shard's part, with zeros elsewhere, always in host memory. Only steps
 * and loads change it. */
PRIDE_API int pride_optimizer_state_buffer(pride_optimizer* optimizer, uint64_t index,
                                           const char** name, int32_t* kind, float** data);
/* PRIDE_FLOAT32, or PRIDE_BFLOAT16: `data` of the buffer is then bfloat16. Since version 5. */
PRIDE_API int pride_optimizer_state_dtype(pride_optimizer* optimizer, uint64_t index,
                                          int32_t* dtype);

/* Keeps the present memory of all buffers readable, also after pride_optimizer_add() replaced it or
 * the optimizer is gone: for views of unknown lifetime. */
typedef struct pride_memory pride_memory;
PRIDE_API int pride_optimizer_state_memory(pride_optimizer* optimizer, pride_memory** out);
PRIDE_API void pride_memory_destroy(pride_memory* memory);

PRIDE_API int pride_optimizer_save(const pride_optimizer* optimizer,
                                   pride_state** out); /* a copy */
/* The state of a virtual worker: that of the rank with its number. Load them with
 * pride_optimizer_load_all(). */
PRIDE_API int pride_optimizer_save_worker(const pride_optimizer* optimizer, int32_t worker,
                                          pride_state** out);
/* This rank's own state, saved on as many ranks. Collective: all ranks load, or none. */
PRIDE_API int pride_optimizer_load(pride_optimizer* optimizer, const pride_state* state);
/* The states of all n ranks of the saving run, for any number of ranks here. `local`: treatment of
 * each rank's own state. Collective. */
enum { PRIDE_LOCAL_KEEP = 0, PRIDE_LOCAL_AVERAGE = 1, PRIDE_LOCAL_RESET = 2 };
PRIDE_API int pride_optimizer_load_all(pride_optimizer* optimizer, const pride_state* const* states,
                                       uint64_t n, int32_t local);

PRIDE_API int pride_state_create(pride_state** out); /* empty */
PRIDE_API void pride_state_destroy(pride_state* state);
PRIDE_API uint64_t pride_state_tensors(const pride_state* state);
PRIDE_API int pride_state_tensor(const pride_state* state, uint64_t index, pride_tensor* tensor,
                                 const float** values); /* pointers of the state's own */
PRIDE_API int pride_state_set_tensor(pride_state* state, const pride_tensor* tensor,
                                     const float* values);
PRIDE_API uint64_t pride_state_texts(const pride_state* state);
PRIDE_API int pride_state_text(const pride_state* state, uint64_t index, const char** name,
                               const char** value);
PRIDE_API int pride_state_set_text(pride_state* state, const char* name, const char* value);

#ifdef __cplusplus
}
#endif
#endif

/* Optimizers and their state in pride's C interface. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_C_OPTIMIZER_H
#define PRIDE_C_OPTIMIZER_H

#include "pride/c/comm.h"
#include "pride/c/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A group. Hyper-parameters: NaN: the method's default, or unchanged. */
typedef struct pride_group {
  double lr, beta1, beta2, eps, weight_decay;
  double momentum; /* of Muon's rule; of some methods in place of betas. Since
                    * PRIDE_C_VERSION 14 */
  /* The method of these tensors, with n_options options of its own. NULL: method and options of
   * pride_options. Groups with the same method and options are a section. A section's steps have
   * the bits of an optimizer of its own. Since PRIDE_C_VERSION 12. */
  const char* method;
  const char* const* names;
  const char* const* values;
  uint64_t n_options;
} pride_group;

/* Sums each of n values over the model-parallel processes, in place. Returns 0; on failure not 0,
 * with the reason in `why`: at most `size` bytes with NUL. */
typedef int (*pride_model_parallel_sum)(void* user, double* values, uint64_t n, char* why,
                                        uint64_t size);

/* Returns 0; on failure not 0, with the reason in `why`, as above. */
typedef int (*pride_before_apply)(void* user, char* why, uint64_t size);

/* pride_options_init() fills in the defaults, also of `method` and `groups`. */
typedef struct pride_options {
  uint32_t struct_size;
  int32_t skip_non_finite;  /* a step with NaN or Inf on any rank: not 0: skip it; 0: error */
  const char* method;       /* "dlion-vote"; pride_method_name() lists them */
  const char* const* names; /* of n_options options of the method; `values` has their values */
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
  int32_t vote_weight; /* votes of this rank, 1 (default) to 65535, for methods that send signs */
  /* Number of virtual workers, which this process plays in turn on a communicator of size 1; 0:
   * none. See pride_optimizer_hand_over(). Since PRIDE_C_VERSION 5. */
  int32_t virtual_workers;
  /* The device that holds parameters, gradients and state and runs the method. Arrays are then
   * PRIDE_CUDA, and state buffers are in the device's memory. NULL: the host.
   * pride_method_why_host_only() must return "". Methods that orthogonalise matrices need
   * `orthogonalise`. Since PRIDE_C_VERSION 5. */
  pride_device* device;
  pride_orthogonalise orthogonalise;
  void* orthogonalise_user;
  /* NULL, or with model parallelism, where other optimizers have the model's other tensors or
   * shards (pride_layout_create_at()). A step with skip_non_finite, clip_global_norm or a loss
   * scaler calls it once, on a thread of pride_optimizer_finish(). values[0]: the sum of squares of
   * the mean gradient, 0 without clip_global_norm. values[1]: 1 if the gradient is not finite,
   * otherwise 0. All then skip the step, or clip it by the norm of the whole model's gradient.
   * Since PRIDE_C_VERSION 6; named sum_of_parts before 13. */
  pride_model_parallel_sum model_parallel_sum;
  void* model_parallel_sum_user;
  /* NULL, or called once in each step, on a thread of pride_optimizer_finish(), before anything is
   * applied, while buckets are exchanged: there the caller can wait for an agreement of its own
   * between ranks. Not called if a gradient is not finite and so nothing is applied. If it fails,
   * the step ends with PRIDE_COMM_ERROR on all ranks and has changed no parameter. Not with virtual
   * workers. Since PRIDE_C_VERSION 11. */
  pride_before_apply before_apply;
  void* before_apply_user;
} pride_options;

/* `struct_size`: the caller's sizeof(pride_options). */
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
  uint64_t bytes_local;          /* of both: bytes to ranks of the same node */
  int32_t exact;                 /* 0: bytes depend on the data or on the transport, and ... */
  int32_t bound;                 /* ... not 0: these are an upper bound; 0: an estimate */
} pride_cost;

typedef struct pride_optimizer pride_optimizer;

/* Allocates on options->device what an optimizer will take there, about: state, `master_bytes` for
 * masters (2 a bfloat16, 4 a float16), frames, directions; and frees all at once. With
 * PRIDE_NO_DEVICE_MEMORY this rank may still choose the host. Since PRIDE_C_VERSION 9. */
PRIDE_API int pride_optimizer_check_memory(const pride_layout* layout, const pride_options* options,
                                           uint64_t master_bytes);
/* Collective: ranks compare layout, method and options. If ranks differ, the error on all ranks
 * names the difference. */
PRIDE_API int pride_optimizer_create(pride_comm* comm, const pride_layout* layout,
                                     const pride_options* options, pride_optimizer** out);
/* During a step this fails the world. */
PRIDE_API void pride_optimizer_destroy(pride_optimizer* optimizer);

/* Sets the addresses of the parameters: params[i] is tensor i, in row-major order; n is the number
 * of tensors. Call it between steps, again after an address has changed and after
 * pride_optimizer_add(). Later calls then need NULL as `params` and accept no flat buffer. Another
 * size or dtype than before is PRIDE_INVALID, with the tensor's name. bfloat16 and float16
 * parameters have float32 masters, which are state: tensors "master/<parameter>". Of a bfloat16
 * parameter's master the library holds 16 bits; saving reads the others from the parameter. The
 * caller may change parameters between steps (docs/state.md). Since PRIDE_C_VERSION 5.
 */
PRIDE_API int pride_optimizer_set_parameters(pride_optimizer* optimizer, const pride_array* params,
                                             uint64_t n);
/* frozen[i] not 0: from the next step on tensor i does not change, also not by weight decay. Its
 * gradient is not read. Flags must be equal on all ranks. NULL: none. Since version 5. */
PRIDE_API int pride_optimizer_set_frozen(pride_optimizer* optimizer, const uint8_t* frozen);
/* From the next step on this rank's gradients are multiplied by `factor`, in float32: 1 / scale for
 * a scaled loss, -1 to maximise. Since version 5. */
PRIDE_API int pride_optimizer_set_gradient_factor(pride_optimizer* optimizer, float factor);
/* For loss scalers; affects only the next step. Call it on all ranks or on none. Gradients are also
 * multiplied by `factor`: one float32 in the gradients' memory, read when they are read, which must
 * stay in place as long as they; NULL: 1. If a gradient is not finite, all ranks skip the step,
 * whatever skip_non_finite says, and it does not count in pride_optimizer_steps_done().
 * PRIDE_INVALID with local steps, virtual workers or a coordinator, and during a step. Since
 * version 7. */
PRIDE_API int pride_optimizer_scale_next_step(pride_optimizer* optimizer,
                                              const pride_array* factor);

/* With a device: the stream (cudaStream_t) of the caller's work on parameters and gradients. Later
 * calls start after the work queued on it, and work queued on it afterwards starts after theirs.
 * The stream must exist until another one is named. Since version 5. */
PRIDE_API int pride_optimizer_set_stream(pride_optimizer* optimizer, void* stream);

/* One step. `params`: one flat buffer of float32, or NULL after pride_optimizer_set_parameters();
 * equal on all ranks before and after. `grads`: this rank's gradients, flat, with zeros as padding.
 * unused[i] not 0: tensor i has no gradient on this rank; NULL: all have one. Collective. */
PRIDE_API int pride_optimizer_step(pride_optimizer* optimizer, const pride_array* params,
                                   const pride_array* grads, const uint8_t* unused,
                                   pride_report* report);

/* The step in parts: begin; ready for each tensor when its gradient is complete; finish. If the
 * step is not complete after timeout_ms (-1: no limit), finish returns PRIDE_PENDING. Then call it
 * again, from any thread. Arrays must stay in place until it returns something else. */
PRIDE_API int pride_optimizer_begin(pride_optimizer* optimizer, const pride_array* params,
                                    const pride_array* grads);
PRIDE_API int pride_optimizer_ready(pride_optimizer* optimizer, uint64_t tensor, int32_t unused);
/* For a step begun with grads = NULL: the tensor's gradient, in row-major order. It is read in
 * place and must stay there as long as the arrays of begin. */
PRIDE_API int pride_optimizer_ready_at(pride_optimizer* optimizer, uint64_t tensor,
                                       const pride_array* grad);
/* In a step with overlap: writes to `tensors` the indices of the tensors whose gradients have been
 * encoded since the last call, and their number to `found`. These gradients are not read again, so
 * the caller may free them. REQUIRES: n is at least the number of tensors. Since version 5. */
PRIDE_API int pride_optimizer_take_released(pride_optimizer* optimizer, uint64_t* tensors,
                                            uint64_t n, uint64_t* found);
PRIDE_API int pride_optimizer_finish(pride_optimizer* optimizer, int64_t timeout_ms,
                                     pride_report* report);
/* Why the last step was skipped, or a device's warning; valid until the next step. */
PRIDE_API const char* pride_optimizer_note(const pride_optimizer* optimizer);
/* The routes of the next step and their numbers of buckets, as "sharded (3 buckets)"; "": one rank.
 * Valid until the thread's next call of this function. Since PRIDE_C_VERSION 10. */
PRIDE_API int pride_optimizer_routes(const pride_optimizer* optimizer, const char** text);

/* For processes that divide a model: each has the optimizer of its part, all hold all parameters.
 * Results of a step, about a bit per parameter, then travel instead of parameters. follow takes the
 * layout of another process's optimizer with the same voters and options, and sets `part` to the
 * number of that part; -1: results of this method do not determine the parameters, so that these
 * must travel. results returns the n bytes of this optimizer's last step, valid until the next; 0
 * bytes: the step was skipped. Since PRIDE_C_VERSION 6. */
PRIDE_API int pride_optimizer_follow(pride_optimizer* optimizer, const pride_layout* layout,
                                     int32_t* part);
PRIDE_API int pride_optimizer_results(const pride_optimizer* optimizer, const void** data,
                                      uint64_t* n);
/* After a step of this optimizer. result_bytes: the size of the part's results of the same step.
 * apply_results applies n_bytes of results at `data` to the part's n tensors `params`, in float32.
 * frozen[i] not 0: tensor i was frozen there; NULL: none. PRIDE_COMM_ERROR: the results are damaged
 * or of another step, and nothing was changed. Since PRIDE_C_VERSION 6. */
PRIDE_API int pride_optimizer_result_bytes(const pride_optimizer* optimizer, int32_t part,
                                           uint64_t* n);
PRIDE_API int pride_optimizer_apply_results(pride_optimizer* optimizer, int32_t part,
                                            const pride_array* params, uint64_t n,
                                            const uint8_t* frozen, const void* data,
                                            uint64_t n_bytes);

/* Hyper-parameters alone: set_group refuses another method, get_group sets method to NULL. */
PRIDE_API int pride_optimizer_set_group(pride_optimizer* optimizer, int32_t group,
                                        const pride_group* values);
PRIDE_API int pride_optimizer_get_group(const pride_optimizer* optimizer, int32_t group,
                                        pride_group* values);
/* Appends the tensors of a layout, with its first_coords and pride_layout_set_matrices(), and
 * groups. Call pride_optimizer_set_parameters() after it. Collective. */
PRIDE_API int pride_optimizer_add(pride_optimizer* optimizer, const pride_layout* layout,
                                  const pride_group* groups, uint64_t n_groups);
/* Copies rank 0's parameters to all ranks. Collective. */
PRIDE_API int pride_optimizer_broadcast(pride_optimizer* optimizer, const pride_array* params);
/* pride_hash() of the parameters given to pride_optimizer_set_parameters(), or of their masters;
 * with local steps of the common parameters. Between steps. Since version 5. */
PRIDE_API int pride_optimizer_hash(pride_optimizer* optimizer, uint64_t* out);
/* Copies n values of a tensor, from number `begin` on, as float32 (of the master, if it has one).
 * Reads at the addresses of the last call. Between steps. Since PRIDE_C_VERSION 5. */
PRIDE_API int pride_optimizer_read(const pride_optimizer* optimizer, uint64_t tensor,
                                   uint64_t begin, uint64_t n, float* values);

PRIDE_API int64_t pride_optimizer_steps_done(const pride_optimizer* optimizer);
PRIDE_API int pride_optimizer_cost(const pride_optimizer* optimizer, int64_t step,
                                   pride_cost* cost);
/* The mean over the step's period, rounded up. Since PRIDE_C_VERSION 4. */
PRIDE_API int pride_optimizer_mean_cost(const pride_optimizer* optimizer, int64_t step,
                                        pride_cost* cost);
/* Steps after which exchanges repeat: 1; with local steps h. Since version 4. */
PRIDE_API int64_t pride_optimizer_period(const pride_optimizer* optimizer);

/* The section of a group, and its shares of cost, bytes and state. `options`: all of the method's,
 * as "tie=hash ...". The texts are valid until the thread's next call of this function. The caller
 * sets struct_size. Since PRIDE_C_VERSION 12. */
typedef struct pride_section {
  uint32_t struct_size;
  int32_t index; /* from 0; the same for all groups of the section */
  const char *method, *options;
  uint64_t n_coords, state;   /* coordinates of its tensors, bytes of its state */
  pride_cost cost, mean_cost; /* of `step` */
  uint64_t bytes_sent, bytes_received, messages_sent; /* in the last step */
} pride_section;
PRIDE_API int pride_optimizer_section(const pride_optimizer* optimizer, int32_t group, int64_t step,
                                      pride_section* section);

/* Bytes that the optimizer holds beside the caller's tensors. masters: 2 bytes per bfloat16
 * parameter, 4 per float16 parameter. scratch: the method's working memory, on a device also staged
 * words of frames. The caller sets struct_size; older libraries lack the last member. Since version
 * 5. */
typedef struct pride_memory_use {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t state, masters, frames, scratch;
} pride_memory_use;
PRIDE_API int pride_optimizer_memory(const pride_optimizer* optimizer, pride_memory_use* use);

/* With local steps a rank has its own parameters between exchanges. Between steps, to_common sets
 * `params` to the common parameters, to evaluate, hash or save; it waits for exchanges in flight.
 * to_local restores this rank's own: call it before the next gradient and after a load. With other
 * methods neither changes anything. Since version 4. */
PRIDE_API int pride_optimizer_to_common(const pride_optimizer* optimizer,
                                        const pride_array* params);
PRIDE_API int pride_optimizer_to_local(const pride_optimizer* optimizer, const pride_array* params);

/* Virtual workers (docs/virtual_workers.md), since version 5: one process plays N workers over one
 * copy of the parameters, with the bits and the counted bytes of N ranks. For each worker call
 * to_worker, which with local steps sets `params` to its own, then hand_over with a gradient for
 * each of the n tensors (data NULL: none), read before it returns. Then call step_workers once.
 * PRIDE_INVALID, and nothing was changed, if a worker comes twice or is missing. After the step
 * `params` are the common parameters. Bytes in the report are worker 0's. */
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

/* The optimizer's own memory of state buffer `index`: values of a section's tensors in their order,
 * each of which begins at a multiple of 64. Valid until the next pride_optimizer_add().
 * PRIDE_INVALID beyond the last. Kinds: LOCAL: each rank has its own; SHARED: equal on all ranks;
 * SERVER: each server has its shards' values, with zeros elsewhere, always in host memory. Only
 * steps and loads change it. */
typedef struct pride_state_buffer {
  const char* name;
  void* data;
  int32_t kind;
  int32_t dtype; /* PRIDE_FLOAT32 or PRIDE_BFLOAT16 */
  int32_t section;
  int32_t reserved;
} pride_state_buffer;
PRIDE_API int pride_optimizer_state_buffer(pride_optimizer* optimizer, uint64_t index,
                                           pride_state_buffer* buffer);

/* Keeps the present memory of all state buffers readable, also after pride_optimizer_add() replaced
 * it and after pride_optimizer_destroy(): for views of unknown lifetime. */
typedef struct pride_memory pride_memory;
PRIDE_API int pride_optimizer_state_memory(pride_optimizer* optimizer, pride_memory** out);
PRIDE_API void pride_memory_destroy(pride_memory* memory);

PRIDE_API int pride_optimizer_save(const pride_optimizer* optimizer,
                                   pride_state** out); /* a copy */
/* The state of a virtual worker; it equals that of the rank with its number. Load the states of all
 * workers with pride_optimizer_load_all(). */
PRIDE_API int pride_optimizer_save_worker(const pride_optimizer* optimizer, int32_t worker,
                                          pride_state** out);
/* This rank's own state, saved on as many ranks. Collective: all ranks load, or none. */
PRIDE_API int pride_optimizer_load(pride_optimizer* optimizer, const pride_state* state);
/* Loads from the states of all n ranks of the saving run. This run may have another number of
 * ranks. `local`: treatment of each rank's own state. Collective. */
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

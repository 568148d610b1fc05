/* The mean of gradients in pride's C interface, for optimizers that are not pride's. Since
 * PRIDE_C_VERSION 15. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_C_MEAN_H
#define PRIDE_C_MEAN_H

#include "pride/c/comm.h"
#include "pride/c/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One thread at a time may use it. It keeps no state of gradients. */
typedef struct pride_mean pride_mean;

/* `dense`: "int8", "int4", "int2", "bf16", "ordered" or "native", as the option of "adamw". device:
 * of the values; NULL: the host. The communicator must outlive the mean. */
PRIDE_API int pride_mean_create(pride_comm* comm, const char* dense, pride_device* device,
                                pride_mean** out);
PRIDE_API void pride_mean_destroy(pride_mean* mean);

/* Replaces the values by their mean over the ranks, rounded to their dtype; the same bits on all
 * ranks. They are n_sizes tensors of sizes[i] values, one after the other; NULL: one tensor. With
 * levels no two tensors share a scale. If a value is NaN or Inf on a rank, or the sum in float32
 * overflows, all values become NaN on all ranks, and `finite`, which may be NULL, becomes 0; else
 * 1. A mean beyond the range of the dtype becomes Inf. values->stream: with a device, the caller's
 * CUstream. Collective: ranks make the same calls, with equal sizes, in the same order; otherwise
 * PRIDE_COMM_ERROR (Gloo ends the process at other sizes). */
PRIDE_API int pride_mean_run(pride_mean* mean, const pride_array* values, const uint64_t* sizes,
                             uint64_t n_sizes, int32_t* finite);

/* Bytes of gradients that this rank has sent. Any thread may call it. */
PRIDE_API uint64_t pride_mean_bytes_sent(const pride_mean* mean);

#ifdef __cplusplus
}
#endif
#endif

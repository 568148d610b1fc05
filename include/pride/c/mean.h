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
 * ranks. If a value is NaN or Inf on a rank, or the mean is not finite, all values become NaN on
 * all ranks, and `finite`, which may be NULL, becomes 0; else 1. values->stream: with a device, the
 * caller's CUstream. Collective: ranks make the same calls, with as many values, in the same order;
 * otherwise PRIDE_COMM_ERROR (Gloo ends the process at another number). */
PRIDE_API int pride_mean_run(pride_mean* mean, const pride_array* values, int32_t* finite);

/* Bytes of gradients that this rank has sent. Any thread may call it. */
PRIDE_API uint64_t pride_mean_bytes_sent(const pride_mean* mean);

#ifdef __cplusplus
}
#endif
#endif

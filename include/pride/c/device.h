/* Devices in pride's C interface: GPUs on which a method runs. Since PRIDE_C_VERSION 5. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_C_DEVICE_H
#define PRIDE_C_DEVICE_H

#include "pride/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A CUDA GPU by its number, with its own queue. PRIDE_INVALID, with the reason, if it cannot be
 * used: no driver, no NVRTC, no such GPU. */
typedef struct pride_device pride_device;
PRIDE_API int pride_cuda_device(int32_t number, pride_device** out);
/* Optimizers that were made with it keep it. */
PRIDE_API void pride_device_destroy(pride_device* device);
PRIDE_API const char* pride_device_name(const pride_device* device); /* "cuda:0 (...)" */
/* Bytes per second of the device's copies, measured for `seconds` and more each: within its memory,
 * read and written, and the slower of to and from the page-locked memory of the host. Copies are of
 * `bytes`, but of at most 256 MiB to and from the host. Meanwhile twice `bytes` of the device's
 * memory are held. Since PRIDE_C_VERSION 8. */
PRIDE_API int pride_device_rates(pride_device* device, uint64_t bytes, double seconds,
                                 double* memory, double* link);

/* n matrices of one shape in the memory of a device, each in row-major order, `stride` floats from
 * one row to the next. */
typedef struct pride_matrices {
  float* const* data;
  uint64_t n, rows, cols, stride;
  int32_t iterations;
  int32_t reserved; /* 0 */
} pride_matrices;
/* Replaces each matrix by its Newton-Schulz iterate, in work that it queues on `stream` (a
 * CUstream). Not 0: it failed and has written why, at most `size` bytes with their 0. */
typedef int (*pride_orthogonalise)(void* user, const pride_matrices* matrices, void* stream,
                                   char* why, uint64_t size);

#ifdef __cplusplus
}
#endif
#endif

/* Devices in pride's C interface: GPUs on which a method runs. Since PRIDE_C_VERSION 5. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_C_DEVICE_H
#define PRIDE_C_DEVICE_H

#include "pride/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a CUDA GPU by its number, with its own queue. PRIDE_INVALID, with the reason, if the GPU
 * cannot be used: no driver, no NVRTC, no such GPU, or a kernel whose bits are not the host's.
 * PRIDE_NO_DEVICE_MEMORY if it is full. */
typedef struct pride_device pride_device;
PRIDE_API int pride_cuda_device(int32_t number, pride_device** out);
/* Optimizers that were made with the device keep it open. */
PRIDE_API void pride_device_destroy(pride_device* device);
PRIDE_API const char* pride_device_name(const pride_device* device); /* "cuda:0 (...)" */
/* What is called when an allocation finds the device full, before it is tried once more: it frees
 * memory that the process keeps for later, and waits until that is done. It must not call libpride.
 * If there is still no memory, the call returns PRIDE_NO_DEVICE_MEMORY. Set it before an optimizer
 * uses the device. Since PRIDE_C_VERSION 9. */
typedef void (*pride_make_room)(void* user);
PRIDE_API int pride_device_set_make_room(pride_device* device, pride_make_room function,
                                         void* user);
/* What is installed, what each GPU is, and whether its kernels give the host's bits: lines of text,
 * as `pride info` prints. Opens the GPUs. Valid until the thread's next call of this function.
 * Since PRIDE_C_VERSION 9. */
PRIDE_API int pride_cuda_report(const char** text);
/* Measures bytes per second of copies, for at least `seconds` each. memory: within the device's
 * memory, read and written. link: to or from page-locked memory of the host, whichever is slower.
 * Copies are of `bytes`; those to and from the host are of at most 256 MiB. It allocates twice
 * `bytes` on the device, and frees them. Since PRIDE_C_VERSION 8. */
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
 * CUstream). Returns 0, or not 0 with the reason in `why`: at most `size` bytes with its NUL. */
typedef int (*pride_orthogonalise)(void* user, const pride_matrices* matrices, void* stream,
                                   char* why, uint64_t size);

#ifdef __cplusplus
}
#endif
#endif

/* Errors, versions, arrays and layouts of pride's C interface. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_C_BASE_H
#define PRIDE_C_BASE_H

#include <stdint.h>

#define PRIDE_API __attribute__((visibility("default")))
#ifdef __cplusplus
extern "C" {
#endif

/* This number grows when a function, an enumerator or a last member of a struct is added. Existing
 * ones keep meaning and place as long as the library's name ends in .so.1, from the first release
 * on. */
#define PRIDE_C_VERSION 15

/* The result of every function that can fail. For all but PRIDE_OK and PRIDE_PENDING,
 * pride_last_error() returns the text. No C++ exception leaves the library. */
enum {
  PRIDE_OK = 0,
  PRIDE_PENDING = 1,    /* not complete within the time given; call again */
  PRIDE_INVALID = 2,    /* an unusable argument or setting; nothing was changed */
  PRIDE_COMM_ERROR = 3, /* a peer disagrees, stalls or is gone; the communicator is dead */
  PRIDE_NON_FINITE = 4, /* a gradient held NaN or Inf, on some rank */
  PRIDE_DATA_ERROR = 5, /* saved state that is damaged or of the wrong kind */
  PRIDE_NO_MEMORY = 6,
  PRIDE_INTERNAL_ERROR = 7,
  PRIDE_NO_DEVICE_MEMORY = 8 /* since version 9; before, PRIDE_INTERNAL_ERROR */
};

/* Text of the calling thread's last failed call, valid until its next failed call; never NULL. */
PRIDE_API const char* pride_last_error(void);

PRIDE_API uint32_t pride_c_version(void);  /* PRIDE_C_VERSION of the library */
PRIDE_API const char* pride_version(void); /* "0.1.0" */
PRIDE_API const char* pride_isa(void);     /* the instruction set of the kernels, "AVX2" */

enum { PRIDE_FLOAT32 = 0, PRIDE_BFLOAT16 = 1, PRIDE_FLOAT16 = 2 }; /* float16: since version 5 */
enum { PRIDE_CPU = 0, PRIDE_CUDA = 1 };

/* n values in the caller's memory, on the CPU or on the optimizer's device. `device_index` is
 * not read, and `stream` only by pride_mean_run() (pride_optimizer_set_stream()). */
typedef struct pride_array {
  void* data;
  uint64_t n;
  int32_t dtype;
  int32_t device;
  int32_t device_index;
  int32_t reserved; /* 0 */
  void* stream;
} pride_array;

/* One parameter tensor: `n_dims` dimensions (0: a scalar), and the index of its group. */
typedef struct pride_tensor {
  const char* name;
  const int64_t* shape;
  int32_t n_dims;
  int32_t group;
} pride_tensor;

/* Numbers the coordinates of all tensors: tensor i has flat coordinates offset .. offset + n - 1,
 * followed by zeros up to a multiple of 64. Equal on all ranks. */
typedef struct pride_layout pride_layout;

PRIDE_API int pride_layout_create(const pride_tensor* tensors, uint64_t n, pride_layout** out);
/* The layout of some tensors or shards of a larger model. first_coords[i] is the flat coordinate of
 * the first value of tensor i in the layout of the whole model; it keys the random bits of ties,
 * zeros and rounding. It must be equal on all ranks that vote together. NULL: as
 * pride_layout_create(). Since PRIDE_C_VERSION 13; pride_layout_create_part() before. */
PRIDE_API int pride_layout_create_at(const pride_tensor* tensors, const uint64_t* first_coords,
                                     uint64_t n, pride_layout** out);
/* Whether methods that orthogonalise matrices (dlion-muon, muon, ...) treat tensor i as one, before
 * the layout's first use: by its name (unless it holds a word of the option not_matrices), yes (if
 * it has two dimensions or more, none of them 1), no, or, if the caller made the name up, the
 * method refuses the tensor. Since PRIDE_C_VERSION 10. */
enum { PRIDE_BY_NAME = 0, PRIDE_MATRIX = 1, PRIDE_NO_MATRIX = 2, PRIDE_UNNAMED = 3 };
PRIDE_API int pride_layout_set_matrices(pride_layout* layout, const int32_t* as_matrix, uint64_t n);
PRIDE_API void pride_layout_destroy(pride_layout* layout); /* NULL is allowed, as everywhere */
PRIDE_API uint64_t pride_layout_tensors(const pride_layout* layout);
PRIDE_API uint64_t pride_layout_coords(const pride_layout* layout);    /* without padding */
PRIDE_API uint64_t pride_layout_flat_size(const pride_layout* layout); /* with padding */
PRIDE_API uint64_t pride_layout_digest(const pride_layout* layout);    /* names, shapes, groups */
PRIDE_API int pride_layout_slot(const pride_layout* layout, uint64_t tensor, uint64_t* offset,
                                uint64_t* n);

/* 64-bit digest of the bits of all tensors' float32 values, without padding. `values` is a flat
 * buffer of pride_layout_flat_size() floats. The digest of the parameters is equal on all ranks of
 * a healthy run. */
PRIDE_API int pride_hash(const pride_layout* layout, const float* values, uint64_t* out);

/* 64-bit digest of the concatenated bytes of n arrays; arrays with data NULL are skipped. Since
 * PRIDE_C_VERSION 5. */
PRIDE_API int pride_hash_tensors(const pride_array* tensors, uint64_t n, uint64_t* out);

#ifdef __cplusplus
}
#endif
#endif

/* Communicators of pride's C interface: the ranks of a world, over the caller's transport. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_C_COMM_H
#define PRIDE_C_COMM_H

#include "pride/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's end of a world. One thread at a time may use it. Must outlive its optimizers. */
typedef struct pride_comm pride_comm;

enum { PRIDE_SUM_FLOAT32, PRIDE_SUM_INT8, PRIDE_SUM_INT16, PRIDE_SUM_INT32, PRIDE_SUM_BFLOAT16 };

/* The caller's collectives over the ranks of a group. Functions with a status return 0 on success.
 * On failure they write the reason to `error`, at most error_size bytes with its NUL, and the world
 * has failed. Several threads call them at the same time, but only one per group. They must not
 * throw. pride never frees the buffers of a failed call, because operations that could not be
 * cancelled may still use them. */
typedef struct pride_transport {
  uint32_t struct_size; /* sizeof(pride_transport) */
  int32_t rank, size;   /* of the group */
  const char* name;     /* "torch.distributed", for texts; copied */
  void* user;           /* the group: first argument of every function */

  /* `send` holds send_sizes[r] bytes for each rank r, and `recv` gets recv_sizes[r] bytes from it,
   * both in rank order. Sizes are 0 for the rank itself. Ends within timeout_ms. */
  int32_t (*all_to_all_v)(void* user, const void* send, const uint64_t* send_sizes, void* recv,
                          const uint64_t* recv_sizes, int64_t timeout_ms, char* error,
                          uint64_t error_size);

  /* Sums n values of the type PRIDE_SUM_... over the ranks, in place; sums are equal on all ranks.
   * If it is NULL, or returns -1 and has changed nothing, pride sums over all_to_all_v. */
  int32_t (*all_reduce)(void* user, void* values, uint64_t n, int32_t type, int64_t timeout_ms,
                        char* error, uint64_t error_size);

  /* Makes a group of the n ranks `members` of this group, in that order. Messages of different
   * groups never mix. All members call it, and make their groups in the same order. */
  int32_t (*group)(void* user, const int32_t* members, int32_t n, int64_t timeout_ms,
                   void** new_user, char* error, uint64_t error_size);

  /* Returns not 0, with the reason, if the world of this group has failed on any rank. Must return
   * at once. */
  int32_t (*check)(void* user, char* error, uint64_t error_size);

  /* Fails the world of this group, with all its groups, on every rank within a second. Waiting
   * calls return an error with this reason. Only the first reason counts. May be called during
   * another call for the group. */
  void (*fail)(void* user, const char* reason);

  void (*release)(void* user); /* the last call for a group, also for the first */
} pride_transport;

PRIDE_API int pride_comm_create(const pride_transport* transport, pride_comm** out);

/* Makes a world of threads of this process: out[r] is the communicator of rank r. Each rank needs
 * its own thread, because collectives wait for the other ranks. 1 <= world <= 1024. */
PRIDE_API int pride_comm_threads(int32_t world, pride_comm** out);

PRIDE_API void pride_comm_destroy(pride_comm* comm);
PRIDE_API int32_t pride_comm_rank(const pride_comm* comm);
PRIDE_API int32_t pride_comm_size(const pride_comm* comm);

/* Sets the longest time of one wait; by default 300,000 ms. It applies to optimizers made later. */
PRIDE_API int pride_comm_set_timeout(pride_comm* comm, int64_t timeout_ms);

/* `all` gets the n bytes of every rank, in rank order. Collective; n is the same on all ranks. */
PRIDE_API int pride_comm_all_gather(pride_comm* comm, const void* mine, uint64_t n, void* all);

/* As pride_transport's all_to_all_v, over this communicator. Collective; two ranks give the same
 * sizes for the messages between them. */
PRIDE_API int pride_comm_all_to_all_v(pride_comm* comm, const void* send,
                                      const uint64_t* send_sizes, void* recv,
                                      const uint64_t* recv_sizes);

/* The network interfaces of ranks on several machines. `used`: the name of this rank's, or its
 * address; "": unknown. `line` names interfaces, addresses and speeds; `warnings` has a line for
 * each interface that another should replace. Both are "" if all ranks are on one machine. They are
 * valid until the thread's next call of this function. Collective. Since PRIDE_C_VERSION 10. */
PRIDE_API int pride_comm_network(pride_comm* comm, const char* used, const char** line,
                                 const char** warnings);

/* Marks the world as failed on every rank: pending and later calls return PRIDE_COMM_ERROR with
 * this text. Not collective. Any thread may call it, also during a step of an optimizer, but not
 * during another call on `comm`. */
PRIDE_API void pride_comm_fail(pride_comm* comm, const char* reason);

/* libpride_mpi.so: sets `out` to the transport over all ranks of the MPI job. Initialises MPI if
 * needed. One call per process. */
PRIDE_API int pride_mpi_transport(pride_transport* out, char* error, uint64_t error_size);

#ifdef __cplusplus
}
#endif
#endif

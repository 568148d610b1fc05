/* Workers of a coordinator (`pride serve`) in pride's C interface. Link libpride_coord.so, which is
 * libpride.so with gRPC; in libpride.so pride_coordinator_connect() always fails. Since
 * PRIDE_C_VERSION 4. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_C_COORDINATOR_H
#define PRIDE_C_COORDINATOR_H

#include "pride/c/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A worker's connection to a coordinator. */
typedef struct pride_coordinator pride_coordinator;

typedef struct pride_coordinator_address {
  uint32_t struct_size;     /* sizeof(pride_coordinator_address) */
  int32_t reserved;         /* 0 */
  const char* host_port;    /* "coordinator.example.org:4770" */
  const char* certificates; /* folder of `pride certs worker`; NULL: only to this machine */
  const char* name;         /* of this worker in the run; NULL: its certificate's */
  const char* secret_file;  /* identifies the worker after a restart; NULL: it is a new worker */
  int64_t patience_ms;      /* time during which a failed call is repeated; above 0 */
  /* NULL, or called with a line for the user while the coordinator cannot be reached (after 5 s,
   * then every 10 s), and once three of the last eight ballots were not counted, on the thread that
   * waits. Valid until pride_coordinator_destroy(). */
  void (*notice)(void* user, const char* text);
  void* user; /* first argument of notice */
} pride_coordinator_address;

PRIDE_API int pride_coordinator_connect(const pride_coordinator_address* address,
                                        pride_coordinator** out);
/* Ends a call that waits for the coordinator, on any thread, within a second: it and later ones
 * return PRIDE_COMM_ERROR. The optimizer then makes no further steps, but can still be saved. Since
 * PRIDE_C_VERSION 10. */
PRIDE_API void pride_coordinator_interrupt(pride_coordinator* coordinator);

/* Destroy the optimizer first. */
PRIDE_API void pride_coordinator_destroy(pride_coordinator* coordinator);

/* Makes an optimizer whose exchanges are rounds of the coordinator's run. Functions that it cannot
 * do return PRIDE_INVALID: add, scale_next_step, follow, those of virtual workers. In a step in
 * parts gradients are read in pride_optimizer_finish(), and only functions of the step may be
 * called. Call pride_optimizer_broadcast() before the first step and after each load: it joins the
 * run, overwrites the parameters with the run's and sets steps_done to the open round. `settings`:
 * a text that must be equal on all workers, or NULL. */
PRIDE_API int pride_optimizer_create_worker(pride_coordinator* coordinator,
                                            const pride_layout* layout,
                                            const pride_options* options, const char* settings,
                                            pride_optimizer** out);

/* This worker's number in the run it has joined. */
PRIDE_API int32_t pride_optimizer_worker(const pride_optimizer* optimizer);

/* The fate of this worker's ballot in a round. */
typedef struct pride_round {
  uint32_t struct_size;    /* set by the caller: sizeof(pride_round) */
  int32_t counted;         /* this worker's ballot was counted */
  int64_t round;           /* 0 for the first; -1: the last step ended no round */
  int64_t replayed;        /* number of later rounds whose records this worker applied */
  int32_t voters;          /* number of counted ballots */
  int32_t took_parameters; /* this worker adopted the coordinator's parameters */
  const char* why_not;     /* "late", ...; empty if counted; valid until the next step */
} pride_round;

/* The round that the last step ended. */
PRIDE_API int pride_optimizer_round(const pride_optimizer* optimizer, pride_round* out);

#ifdef __cplusplus
}
#endif
#endif

/* A transport made of callbacks, for the tests: ranks are threads that copy from each other's
 * memory while all of a group are inside the call. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_TESTS_C_MAILBOX_H
#define PRIDE_TESTS_C_MAILBOX_H

#include "pride/c/comm.h"

enum { kNoSum, kRefusedSum, kOwnSum }; /* all_reduce: NULL, returns -1, does it */

typedef struct mailbox mailbox;
mailbox* mailbox_create(int world, int sum);
void mailbox_transport(mailbox* world, int rank, pride_transport* out);
/* Rank `rank`'s all_to_all_v number `call` (from 0, over all of its groups) fails. */
void mailbox_break(mailbox* world, int rank, int call, const char* text);
int mailbox_sums(mailbox* world);  /* calls of all_reduce that made a sum, on all ranks */
int mailbox_quiet(mailbox* world); /* calls of all_to_all_v, of groups above 1, without a byte */
/* Returns the number of groups' ends that were not released. */
int mailbox_destroy(mailbox* world);

#endif

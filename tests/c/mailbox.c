/* The transport of callbacks: every group has a table of what its ranks send, and all functions
 * take the one lock of the world. */
// SPDX-License-Identifier: Apache-2.0
#include "mailbox.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support.h"

typedef struct post {
  const char* send;
  const uint64_t* send_sizes;
  void* values; /* of a sum */
} post;

typedef struct room {
  mailbox* world;
  int n;
  int members[kMaxWorld]; /* ranks of the parent */
  const struct room* parent;
  int number; /* among the groups of its members */
  post posts[kMaxWorld];
  int inside;        /* ranks that have come to the meeting in progress */
  uint64_t meetings; /* that are over */
  struct room* next;
} room;

struct mailbox {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int size, sum, failed, ends, sums, quiet;
  char reason[256];
  room* rooms;
  int broken_rank, broken_call;
  const char* broken_text;
  int calls[kMaxWorld];
};

/* One rank's end of a group. */
typedef struct seat {
  room* room;
  int rank, world_rank, groups;
} seat;

static int refuse(char* error, uint64_t error_size, const char* text) {
  snprintf(error, error_size, "%s", text);
  return 1;
}

static void break_world(mailbox* w, const char* reason) {
  if (!w->failed) snprintf(w->reason, sizeof w->reason, "%s", reason);
  w->failed = 1;
  pthread_cond_broadcast(&w->changed);
}

/* Returns 0 when all ranks of the room have come. REQUIRES: the lock is held. */
static int meet(room* r, int64_t timeout_ms, char* error, uint64_t error_size) {
  mailbox* w = r->world;
  const uint64_t meeting = r->meetings;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += timeout_ms / 1000;
  until.tv_nsec += timeout_ms % 1000 * 1000000;
  if (until.tv_nsec >= 1000000000) {
    until.tv_nsec -= 1000000000;
    ++until.tv_sec;
  }
  if (++r->inside == r->n) {
    r->inside = 0;
    ++r->meetings;
    pthread_cond_broadcast(&w->changed);
  }
  while (r->meetings == meeting && !w->failed) {
    if (pthread_cond_timedwait(&w->changed, &w->lock, &until) != 0) {
      break_world(w, "not complete at the deadline");
    }
  }
  /* in a failed world the others' posts may be gone, whether they came or not */
  return w->failed ? refuse(error, error_size, w->reason) : 0;
}

static uint64_t sum_before(const uint64_t* sizes, int n) {
  uint64_t sum = 0;
  for (int i = 0; i < n; ++i) sum += sizes[i];
  return sum;
}

static int exchange(seat* s, char* recv, const uint64_t* recv_sizes, int64_t timeout_ms,
                    char* error, uint64_t error_size) {
  room* r = s->room;
  if (meet(r, timeout_ms, error, error_size) != 0) return 1;
  for (int from = 0; from < r->n; ++from) {
    const post* p = &r->posts[from];
    if (p->send_sizes[s->rank] != recv_sizes[from]) break_world(r->world, "sizes differ");
    if (r->world->failed) return refuse(error, error_size, r->world->reason);
    if (recv_sizes[from] > 0) {
      memcpy(recv, p->send + sum_before(p->send_sizes, s->rank), recv_sizes[from]);
    }
    recv += recv_sizes[from];
  }
  return meet(r, timeout_ms, error, error_size); /* the others have copied too */
}

static int32_t all_to_all_v(void* user, const void* send, const uint64_t* send_sizes, void* recv,
                            const uint64_t* recv_sizes, int64_t timeout_ms, char* error,
                            uint64_t error_size) {
  seat* s = user;
  mailbox* w = s->room->world;
  pthread_mutex_lock(&w->lock);
  int status = 0;
  if (w->calls[s->world_rank]++ == w->broken_call && s->world_rank == w->broken_rank) {
    status = refuse(error, error_size, w->broken_text);
  } else if (w->failed) {
    status = refuse(error, error_size, w->reason);
  } else {
    const int n = s->room->n;
    if (n > 1 && sum_before(send_sizes, n) + sum_before(recv_sizes, n) == 0) ++w->quiet;
    s->room->posts[s->rank] = (post){.send = send, .send_sizes = send_sizes};
    status = exchange(s, recv, recv_sizes, timeout_ms, error, error_size);
  }
  pthread_mutex_unlock(&w->lock);
  return status;
}

static void add(void* sum, const void* values, uint64_t n, int32_t type) {
  for (uint64_t i = 0; i < n; ++i) {
    if (type == PRIDE_SUM_FLOAT32) {
      ((float*)sum)[i] += ((const float*)values)[i];
    } else if (type == PRIDE_SUM_INT8) {
      ((int8_t*)sum)[i] = (int8_t)(((int8_t*)sum)[i] + ((const int8_t*)values)[i]);
    } else if (type == PRIDE_SUM_INT16) {
      ((int16_t*)sum)[i] = (int16_t)(((int16_t*)sum)[i] + ((const int16_t*)values)[i]);
    } else {
      CHECK_EQUAL(PRIDE_SUM_INT32, type);
      ((int32_t*)sum)[i] += ((const int32_t*)values)[i];
    }
  }
}

static int32_t all_reduce(void* user, void* values, uint64_t n, int32_t type, int64_t timeout_ms,
                          char* error, uint64_t error_size) {
  seat* s = user;
  room* r = s->room;
  mailbox* w = r->world;
  if (w->sum == kRefusedSum) return -1;
  static const size_t widths[] = {4, 1, 2, 4, 2};
  const size_t bytes = widths[type] * n;
  char* sum = calloc(bytes + 1, 1);
  pthread_mutex_lock(&w->lock);
  r->posts[s->rank] = (post){.values = values};
  int status = meet(r, timeout_ms, error, error_size);
  if (status == 0) {
    for (int from = 0; from < r->n; ++from) add(sum, r->posts[from].values, n, type);
    status = meet(r, timeout_ms, error, error_size);
    if (status == 0) memcpy(values, sum, bytes);
    ++w->sums;
  }
  pthread_mutex_unlock(&w->lock);
  free(sum);
  return status;
}

/* REQUIRES: the lock is held, but for the world itself. */
static seat* seat_in(mailbox* w, const room* parent, int number, const int32_t* members, int n,
                     int rank, int world_rank) {
  room* r = w->rooms;
  while (r != NULL && !(r->parent == parent && r->number == number && r->n == n &&
                        memcmp(r->members, members, (size_t)n * sizeof *members) == 0)) {
    r = r->next;
  }
  if (r == NULL) {
    r = calloc(1, sizeof *r);
    *r = (room){.world = w, .n = n, .parent = parent, .number = number, .next = w->rooms};
    memcpy(r->members, members, (size_t)n * sizeof *members);
    w->rooms = r;
  }
  seat* s = calloc(1, sizeof *s);
  *s = (seat){.room = r, .rank = rank, .world_rank = world_rank};
  ++w->ends;
  return s;
}

static int32_t group(void* user, const int32_t* members, int32_t n, int64_t timeout_ms,
                     void** new_user, char* error, uint64_t error_size) {
  seat* s = user;
  mailbox* w = s->room->world;
  (void)timeout_ms; /* nothing is waited for */
  pthread_mutex_lock(&w->lock);
  int own = 0;
  while (own < n && members[own] != s->rank) ++own;
  const int status = w->failed  ? refuse(error, error_size, w->reason)
                     : own == n ? refuse(error, error_size, "not a member")
                                : 0;
  if (status == 0) {
    *new_user = seat_in(w, s->room, ++s->groups, members, n, own, s->world_rank);
  }
  pthread_mutex_unlock(&w->lock);
  return status;
}

static int32_t check(void* user, char* error, uint64_t error_size) {
  mailbox* w = ((seat*)user)->room->world;
  pthread_mutex_lock(&w->lock);
  const int status = w->failed ? refuse(error, error_size, w->reason) : 0;
  pthread_mutex_unlock(&w->lock);
  return status;
}

static void fail(void* user, const char* reason) {
  const seat* s = user;
  mailbox* w = s->room->world;
  pthread_mutex_lock(&w->lock);
  char text[200];
  snprintf(text, sizeof text, "rank %d: %s", s->world_rank, reason);
  break_world(w, text);
  pthread_mutex_unlock(&w->lock);
}

static void release(void* user) {
  seat* s = user;
  mailbox* w = s->room->world;
  pthread_mutex_lock(&w->lock);
  --w->ends;
  pthread_mutex_unlock(&w->lock);
  free(s);
}

mailbox* mailbox_create(int world, int sum) {
  mailbox* w = calloc(1, sizeof *w);
  *w = (mailbox){.size = world, .sum = sum, .broken_rank = -1};
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->changed, NULL);
  return w;
}

void mailbox_transport(mailbox* w, int rank, pride_transport* out) {
  static const int32_t all[kMaxWorld] = {0, 1, 2, 3, 4, 5, 6, 7};
  *out = (pride_transport){.struct_size = sizeof *out,
                           .rank = rank,
                           .size = w->size,
                           .name = "mailbox",
                           .user = seat_in(w, NULL, 0, all, w->size, rank, rank),
                           .all_to_all_v = all_to_all_v,
                           .all_reduce = w->sum == kNoSum ? NULL : all_reduce,
                           .group = group,
                           .check = check,
                           .fail = fail,
                           .release = release};
}

void mailbox_break(mailbox* w, int rank, int call, const char* text) {
  w->broken_rank = rank;
  w->broken_call = call;
  w->broken_text = text;
}

int mailbox_sums(mailbox* w) { return w->sums; }
int mailbox_quiet(mailbox* w) { return w->quiet; }

int mailbox_destroy(mailbox* w) {
  const int ends = w->ends;
  while (w->rooms != NULL) {
    room* r = w->rooms;
    w->rooms = r->next;
    free(r);
  }
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
  return ends;
}

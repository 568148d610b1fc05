/* A transport of callbacks: the bits of the world of threads, and failures on all ranks. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "mailbox.h"
#include "support.h"

static void in_mailbox(mailbox* box, int world, rank_body body, void* shared) {
  pride_comm* comms[kMaxWorld];
  for (int r = 0; r < world; ++r) {
    pride_transport transport;
    mailbox_transport(box, r, &transport);
    CHECK_OK(pride_comm_create(&transport, &comms[r]));
    CHECK_EQUAL(r, pride_comm_rank(comms[r]));
    CHECK_EQUAL(world, pride_comm_size(comms[r]));
    memset(&transport, 0, sizeof transport); /* the table was copied */
  }
  on_ranks(world, comms, body, shared);
}

static void test_same_bits(int world) {
  static const char* const methods[] = {"dlion-vote", "dlion-avg", "lion-cub", "adamw", "terngrad"};
  for (int m = 0; m < 5; ++m) {
    training threads = training_of(methods[m]);
    in_threads(world, train, &threads);
    for (int overlap = 0; overlap < 2; ++overlap) {
      training run = training_of(methods[m]);
      run.options.overlap = overlap;
      run.in_parts = overlap;
      mailbox* box = mailbox_create(world, kNoSum);
      in_mailbox(box, world, train, &run);
      CHECK(hash_of_all(&run, world) == hash_of_all(&threads, world));
      for (int r = 0; r < world; ++r) CHECK_EQUAL(threads.bytes_sent[r], run.bytes_sent[r]);
      CHECK_EQUAL(0, mailbox_destroy(box));
    }
  }
}

/* The mean by the transport's own sum; where it has none, by all_to_all_v. Both add in rank order
 * here, so that bits are equal. A sum counts as one message of its values. */
static void test_native_sums(void) {
  enum { kWorld = 3 };
  uint64_t hash[3];
  for (int sum = kNoSum; sum <= kOwnSum; ++sum) {
    training run = training_of("adamw");
    run.options.names = (const char*[]){"dense"};
    run.options.values = (const char*[]){"native"};
    run.options.n_options = 1;
    run.options.bucket_coords = kFlat;
    mailbox* box = mailbox_create(kWorld, sum);
    in_mailbox(box, kWorld, train, &run);
    hash[sum] = hash_of_all(&run, kWorld);
    CHECK_EQUAL(sum == kOwnSum ? kWorld * run.steps : 0, mailbox_sums(box));
    if (sum == kOwnSum) CHECK(run.bytes_sent[0] > kFlat * sizeof(float));
    CHECK_EQUAL(0, mailbox_destroy(box));
  }
  CHECK(hash[kNoSum] == hash[kRefusedSum] && hash[kNoSum] == hash[kOwnSum]);
}

/* A transport may return from a call without a byte before the others have come: pride, which makes
 * barriers of such calls, sends at least one. */
static void meet(pride_comm* comm, void* unused) {
  (void)unused;
  CHECK_OK(pride_comm_all_gather(comm, NULL, 0, NULL));
}

static void test_empty_messages(void) {
  mailbox* box = mailbox_create(3, kNoSum);
  in_mailbox(box, 3, meet, NULL);
  CHECK_EQUAL(0, mailbox_quiet(box));
  CHECK_EQUAL(0, mailbox_destroy(box));
}

/* Steps until the transport fails. */
static void train_until_broken(pride_comm* comm, void* shared) {
  const training* run = shared;
  pride_layout* layout = make_layout();
  pride_optimizer* optimizer = NULL;
  float params[kFlat] = {0}, grads[kFlat] = {0};
  const pride_array p = array_of(params, kFlat, PRIDE_FLOAT32);
  const pride_array g = array_of(grads, kFlat, PRIDE_FLOAT32);
  int status = pride_optimizer_create(comm, layout, &run->options, &optimizer);
  for (int step = 0; status == PRIDE_OK && step < 100; ++step) {
    fill_grads(layout, pride_comm_rank(comm), step, grads);
    status = pride_optimizer_step(optimizer, &p, &g, NULL, NULL);
  }
  CHECK_EQUAL(PRIDE_COMM_ERROR, status);
  CHECK_TEXT(pride_last_error(), "the cable was cut");
  char byte = 0, all[kMaxWorld];
  CHECK_FAILS(PRIDE_COMM_ERROR, "the cable was cut", pride_comm_all_gather(comm, &byte, 1, all));
  pride_optimizer_destroy(optimizer);
  pride_layout_destroy(layout);
}

static void test_failures(void) {
  static const int calls[] = {0, 1, 3, 6, 11, 40};
  for (int i = 0; i < 6; ++i) {
    for (int overlap = 0; overlap < 2; ++overlap) {
      training run = training_of("dlion-vote");
      run.options.overlap = overlap;
      mailbox* box = mailbox_create(3, kNoSum);
      mailbox_break(box, 1, calls[i], "the cable was cut");
      const double begin = seconds();
      in_mailbox(box, 3, train_until_broken, &run);
      CHECK(seconds() - begin < 20);
      CHECK_EQUAL(0, mailbox_destroy(box));
    }
  }
}

/* No reason given is a text too. */
static void gather_until_broken(pride_comm* comm, void* unused) {
  (void)unused;
  char byte = 0, all[kMaxWorld];
  CHECK_FAILS(PRIDE_COMM_ERROR, "no reason given", pride_comm_all_gather(comm, &byte, 1, all));
}

static void stay_away(pride_comm* comm, void* unused) {
  (void)unused;
  CHECK_OK(pride_comm_set_timeout(comm, 100));
  char byte = 0, all[kMaxWorld];
  if (pride_comm_rank(comm) == 0) return;
  CHECK_FAILS(PRIDE_COMM_ERROR, "deadline", pride_comm_all_gather(comm, &byte, 1, all));
}

static void test_refused_tables(void) {
  mailbox* box = mailbox_create(1, kNoSum);
  pride_transport good, bad;
  mailbox_transport(box, 0, &good);
  pride_comm* comm = NULL;
  bad = good;
  bad.struct_size -= 1;
  CHECK_FAILS(PRIDE_INVALID, "struct_size", pride_comm_create(&bad, &comm));
  bad = good;
  bad.rank = 1;
  CHECK_FAILS(PRIDE_INVALID, "rank 1 of 1", pride_comm_create(&bad, &comm));
  bad = good;
  bad.group = NULL;
  CHECK_FAILS(PRIDE_INVALID, "may be NULL", pride_comm_create(&bad, &comm));
  good.struct_size += 8; /* a later header: more members, not read here */
  CHECK_OK(pride_comm_create(&good, &comm));
  training run = training_of("dlion-vote");
  train(comm, &run);
  pride_comm_destroy(comm);
  CHECK_EQUAL(0, mailbox_destroy(box)); /* a table that was refused is not released */
}

void test_callbacks(void) {
  test_refused_tables();
  test_same_bits(1);
  test_same_bits(3);
  test_native_sums();
  test_empty_messages();
  test_failures();
  mailbox* box = mailbox_create(2, kNoSum);
  mailbox_break(box, 1, 0, "");
  in_mailbox(box, 2, gather_until_broken, NULL);
  CHECK_EQUAL(0, mailbox_destroy(box));
  box = mailbox_create(2, kNoSum);
  in_mailbox(box, 2, stay_away, NULL);
  CHECK_EQUAL(0, mailbox_destroy(box));
}

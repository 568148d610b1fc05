/* libpride_mpi.so as the transport of libpride.so, in the processes of an MPI job. The oracle is
 * the world of threads: the same bits. "fail": rank 1 fails the world, which the launcher must see
 * end. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "support.h"

static void test_null(void) {
  char error[100] = "";
  CHECK_EQUAL(PRIDE_INVALID, pride_mpi_transport(NULL, error, sizeof error));
  CHECK_TEXT(error, "out is NULL");
  CHECK_EQUAL(PRIDE_INVALID, pride_mpi_transport(NULL, error, 4)); /* cut, with its NUL */
  CHECK_EQUAL(3, strlen(error));
  CHECK_EQUAL(PRIDE_INVALID, pride_mpi_transport(NULL, NULL, 0));
}

/* Groups by the table itself: the ranks turned round, each its own end. */
static void test_groups(const pride_transport* world) {
  char error[200] = "";
  int32_t members[kMaxWorld];
  for (int r = 0; r < world->size; ++r) members[r] = world->size - 1 - r;
  void* turned = NULL;
  CHECK_EQUAL(0,
              world->group(world->user, members, world->size, 10000, &turned, error, sizeof error));
  int32_t mine[kMaxWorld], theirs[kMaxWorld] = {0};
  uint64_t sizes[kMaxWorld];
  for (int r = 0; r < world->size; ++r) {
    mine[r] = world->rank;
    sizes[r] = members[r] == world->rank ? 0 : sizeof *mine;
  }
  const int own = world->size - 1 - world->rank;
  memmove(mine + own, mine + own + 1, (size_t)(world->size - own - 1) * sizeof *mine);
  CHECK_EQUAL(0,
              world->all_to_all_v(turned, mine, sizes, theirs, sizes, 10000, error, sizeof error));
  for (int r = 0, i = 0; r < world->size; ++r) {
    if (r != own) CHECK_EQUAL(members[r], theirs[i++]);
  }
  int8_t one = 1;
  CHECK_EQUAL(0, world->all_reduce(turned, &one, 1, PRIDE_SUM_INT8, 10000, error, sizeof error));
  CHECK_EQUAL(world->size, one);
  CHECK_EQUAL(0, world->check(turned, error, sizeof error));
  world->release(turned);
}

static void test_methods(pride_comm* comm) {
  static const char* const methods[] = {"dlion-vote", "dlion-avg", "lion-cub", "adamw", "terngrad"};
  const int size = pride_comm_size(comm);
  for (int m = 0; m < 5; ++m) {
    training threads = training_of(methods[m]);
    in_threads(size, train, &threads);
    for (int form = 0; form < 4; ++form) {
      training run = training_of(methods[m]);
      run.options.overlap = form & 1;
      run.in_parts = form & 2;
      train(comm, &run);
      const int rank = pride_comm_rank(comm);
      CHECK_OK(pride_comm_all_gather(comm, &run.hash[rank], sizeof *run.hash, run.hash));
      CHECK(hash_of_all(&run, size) == hash_of_all(&threads, size));
      CHECK_EQUAL(threads.bytes_sent[rank], run.bytes_sent[rank]);
    }
  }
}

/* The sum of MPI itself: its order is its own, so that ranks are equal and threads are not asked.
 */
static void test_sums(pride_comm* comm) {
  training run = training_of("adamw");
  run.options.names = (const char*[]){"dense"};
  run.options.values = (const char*[]){"native"};
  run.options.n_options = 1;
  train(comm, &run);
  const int rank = pride_comm_rank(comm), size = pride_comm_size(comm);
  CHECK_OK(pride_comm_all_gather(comm, &run.hash[rank], sizeof *run.hash, run.hash));
  hash_of_all(&run, size);
  CHECK(size == 1 || run.bytes_sent[rank] >= kFlat * sizeof(float));
}

static int fail_the_world(pride_comm* comm) {
  int32_t mine = 0, all[kMaxWorld];
  CHECK_OK(pride_comm_all_gather(comm, &mine, sizeof mine, all));
  if (pride_comm_rank(comm) == 1) {
    pride_comm_fail(comm, "out of images");
  } else {
    CHECK_EQUAL(PRIDE_COMM_ERROR, pride_comm_all_gather(comm, &mine, sizeof mine, all));
    printf("rank %d: %s\n", pride_comm_rank(comm), pride_last_error());
  }
  pride_comm_destroy(comm);
  return 1;
}

int main(int argc, char** argv) {
  const int failing = argc > 1 && strcmp(argv[1], "fail") == 0;
  test_null();
  pride_transport transport;
  char error[1000] = "";
  if (pride_mpi_transport(&transport, error, sizeof error) != PRIDE_OK) {
    printf("pride_mpi_transport: %s\n", error);
    return 1;
  }
  CHECK(transport.size >= 1 && transport.rank < transport.size && transport.size <= kMaxWorld);
  if (!failing) test_groups(&transport);
  pride_comm* comm = NULL;
  CHECK_OK(pride_comm_create(&transport, &comm));
  if (failing) return fail_the_world(comm);
  test_methods(comm);
  test_sums(comm);
  pride_comm_destroy(comm);
  return 0;
}

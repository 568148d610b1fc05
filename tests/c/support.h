/* Checks for the tests of the C interface, worlds of threads, and a small training run. */
// SPDX-License-Identifier: Apache-2.0
#ifndef PRIDE_TESTS_C_SUPPORT_H
#define PRIDE_TESTS_C_SUPPORT_H

#include "pride/c/pride.h"

/* A check that does not hold ends the program with 1, after what it compared. */
void check_true(int holds, const char* text, const char* file, int line);
void check_equal(long long expected, long long actual, const char* text, const char* file,
                 int line);
void check_status(int expected, const char* part, int actual, const char* text, const char* file,
                  int line);
void check_contains(const char* text, const char* part, const char* name, const char* file,
                    int line);

#define CHECK(condition) check_true((condition) != 0, #condition, __FILE__, __LINE__)
#define CHECK_EQUAL(expected, actual) \
  check_equal((long long)(expected), (long long)(actual), #actual, __FILE__, __LINE__)
#define CHECK_OK(call) check_status(PRIDE_OK, NULL, (call), #call, __FILE__, __LINE__)
/* The call fails with this status, and its text has this part. */
#define CHECK_FAILS(status, part, call) \
  check_status((status), (part), (call), #call, __FILE__, __LINE__)
#define CHECK_TEXT(text, part) check_contains((text), (part), #text, __FILE__, __LINE__)

enum { kMaxWorld = 8 };

/* Runs the body on a thread for each rank; comms[r] is destroyed after all have ended. */
typedef void (*rank_body)(pride_comm* comm, void* shared);
void on_ranks(int world, pride_comm** comms, rank_body body, void* shared);
void in_threads(int world, rank_body body, void* shared); /* on pride_comm_threads() */

void nap(void);       /* a millisecond */
double seconds(void); /* on some clock */

/* "a" of 300, "b" of 17 x 5 and the scalar "s": 512 floats with padding. */
enum { kFlat = 512, kTensors = 3 };
extern const uint64_t kOffsets[kTensors], kSizes[kTensors]; /* of the tensors of make_layout() */
pride_layout* make_layout(void);
/* This rank's gradients in a step: any numbers in [-1, 1), exact in bfloat16; padding is zero. */
void fill_grads(const pride_layout* layout, int rank, int64_t step, float* grads);
pride_array array_of(void* data, uint64_t n, int32_t dtype);

/* A run of a few steps from equal parameters, and what came of it on each rank. */
typedef struct training {
  pride_options options;
  int steps;
  int in_parts; /* begin, ready, finish instead of step; 2: with gradients that lie apart; 3:
                   parameters, too */
  int dtype;    /* of the gradients */
  uint64_t hash[kMaxWorld];
  uint64_t bytes_sent[kMaxWorld]; /* in the last step */
} training;
training training_of(const char* method); /* 5 steps, buckets of 128 coordinates */
/* An optimizer of the method over the layout of tests. */
pride_optimizer* open_optimizer(pride_comm* comm, const pride_layout* layout, const char* method);
void train(pride_comm* comm, void* training);
/* Checks that all ranks have the same hash, and returns it. */
uint64_t hash_of_all(const training* run, int world);

/* The groups of tests. */
void test_basics(void);
void test_arguments(void);
void test_steps(void);
void test_states(void);
void test_callbacks(void);
void test_followers(void);
void test_sections(void);
void test_plans(void);
void test_means(void);
void test_virtual_workers(void);

#endif

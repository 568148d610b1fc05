// main() of GoogleTest programs that run under mpirun: all ranks run the same cases together.
// SPDX-License-Identifier: Apache-2.0
//
// `--world=K` makes any other number of ranks an error: without it, a launcher that is not the
// library's would start K worlds of one rank, and all would pass. Rank 0 prints; the others print
// what failed on them. Each rank's result is not 0 if any rank's was.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

  void OnTestStart(const testing::TestInfo& info) override {
    test_ = std::string(info.test_suite_name()) + "." + info.name();
  }

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s: %s:%d: %s\n", rank_, test_.c_str(),
                 result.file_name() ? result.file_name() : "", result.line_number(),
                 result.message());
  }

 private:
  int rank_;
  std::string test_;
};

int promised_world(int argc, char** argv) {
  const std::string option = "--world=";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind(option, 0) == 0) return std::atoi(argument.c_str() + option.size());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int level = MPI_THREAD_SINGLE, rank = 0, world = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  if (world != promised_world(argc, argv) || level != MPI_THREAD_MULTIPLE) {
    std::fprintf(stderr, "rank %d of %d, thread level %d; --world promised %d ranks\n", rank, world,
                 level, promised_world(argc, argv));
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  if (rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  int failed = RUN_ALL_TESTS();
  // a program that ran no case has shown nothing
  if (testing::UnitTest::GetInstance()->test_to_run_count() == 0) failed = 1;
  int any = 0;
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return any;
}

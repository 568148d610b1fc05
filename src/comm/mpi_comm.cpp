// mpi_comm: the communicator over MPI's point-to-point messages, polled with back-off.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/mpi_comm.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

#include "comm/bf16_sum.h"
#include "comm/mpi_chunk.h"
#include "comm/mpi_family.h"
#include "comm/mpi_messages.h"
#include "pride/error.h"

namespace pride {
namespace mpi {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<std::size_t> chunk{kDefaultChunk};

// MPI has no bfloat16: it moves two bytes, and this function adds them.
void add_bf16(void* in, void* inout, int* n, MPI_Datatype*) {
  const auto size = static_cast<std::size_t>(*n);
  add_to({static_cast<const BFloat16*>(in), size}, {static_cast<BFloat16*>(inout), size});
}

// Made once and never freed: MPI_Finalize may come at any time after the last communicator.
MPI_Op bf16_sum() {
  static const MPI_Op op = [] {
    MPI_Op made = MPI_OP_NULL;
    check(MPI_Op_create(add_bf16, 1, &made), "MPI_Op_create");
    return made;
  }();
  return op;
}

class MpiComm final : public Communicator {
 public:
  MpiComm(MPI_Comm comm, int rank, int size, std::shared_ptr<MpiFamily> family)
      : Communicator(rank, size),
        comm_(comm),
        family_(family),
        messages_(comm, std::move(family)) {}

  ~MpiComm() override {
    if (!usable()) return;
    const bool idle = !give_up();
    if (idle && !family_->dead()) MPI_Comm_free(&comm_);  // else leaked: peers may not reach it
  }

  std::string_view transport() const noexcept override { return "mpi"; }

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    return messages_.start_send(peer, tag, bytes);
  }

  std::uint64_t do_start_recv(int peer, int tag, std::span<std::byte> bytes) override {
    return messages_.start_recv(peer, tag, bytes);
  }

  bool do_test(std::uint64_t id) override { return messages_.test(id); }

  void do_wait(std::uint64_t id, Clock::time_point deadline) override {
    std::size_t begun = messages_.begun();
    for (Backoff backoff(family_->crowded()); !messages_.test(id);) {
      if (std::exchange(begun, messages_.begun()) != messages_.begun()) backoff.hurry();
      if (!backoff.pause()) continue;
      check_alive([&] { return messages_.text(id); });
      if (Clock::now() >= deadline) {
        throw CommError(messages_.text(id) + ": not complete at the deadline");
      }
    }
  }

  bool do_native_sum(SumType type, std::span<std::byte> values) override {
    if (size() == 1) return true;
    const auto [datatype, width, op] = element(type);
    const std::size_t limit = messages_.chunk() == kDefaultChunk ? kLongestSum : messages_.chunk();
    const std::size_t most = std::max(width, limit / width * width);
    for (std::size_t begin = 0; begin < values.size(); begin += most) {
      const auto part = values.subspan(begin, std::min(most, values.size() - begin));
      check(MPI_Iallreduce(MPI_IN_PLACE, part.data(), static_cast<int>(part.size() / width),
                           datatype, op, comm_, &sum_),
            "MPI_Iallreduce");
      finish_sum(part.size());
      count({part.size(), part.size(), 1, 1});
    }
    return true;
  }

  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    const auto own = std::find(members.begin(), members.end(), rank()) - members.begin();
    MPI_Comm group = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, members.front(), static_cast<int>(own), &group), "MPI_Comm_split");
    check(MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return std::make_unique<MpiComm>(group, static_cast<int>(own), static_cast<int>(members.size()),
                                     family_);
  }

  void do_check() override { family_->check_alive(); }

  void do_fail(std::string_view reason) noexcept override {
    family_->fail(reason);
    if (usable()) give_up();
  }

 private:
  struct Element {
    MPI_Datatype datatype;
    std::size_t width;
    MPI_Op op = MPI_SUM;
  };

  static Element element(SumType type) {
    switch (type) {
      case SumType::kBFloat16:
        return {MPI_UINT16_T, 2, bf16_sum()};
      case SumType::kInt8:
        return {MPI_INT8_T, 1};
      case SumType::kInt16:
        return {MPI_INT16_T, 2};
      case SumType::kInt32:
        return {MPI_INT32_T, 4};
      default:
        return {MPI_FLOAT, 4};
    }
  }

  // `what` names the wait.
  template <typename Text>
  void check_alive(const Text& what) {
    try {
      family_->check_alive();
    } catch (const CommError& e) {
      throw CommError(concat(what(), ": ", e.what()));
    }
  }

  // Requests that are not complete when another rank fails, or at the deadline, stay with MPI. Each
  // MPI_Test advances the sum by a fragment. With sleeps between the tests the sum takes seven
  // times as long in shared memory.
  void finish_sum(std::size_t bytes) {
    const auto deadline = Clock::now() + timeout();
    const auto what = [&] { return concat("sum of ", bytes, " bytes"); };
    for (Backoff backoff(family_->crowded(), false);;) {
      int done = 0;
      check(MPI_Test(&sum_, &done, MPI_STATUS_IGNORE), "MPI_Iallreduce");
      if (done) return;
      if (!backoff.pause()) continue;
      check_alive(what);
      if (Clock::now() >= deadline) throw CommError(what() + ": not complete at the deadline");
    }
  }

  bool give_up() noexcept {
    const bool any = messages_.give_up(sum_);
    sum_ = MPI_REQUEST_NULL;
    return any;
  }

  MPI_Comm comm_;
  std::shared_ptr<MpiFamily> family_;
  Messages messages_;
  MPI_Request sum_ = MPI_REQUEST_NULL;  // of native_sum
};

}  // namespace

void set_chunk_limit(std::size_t limit) {
  PRIDE_CHECK(limit >= 1 && limit <= std::numeric_limits<int>::max(), "set_chunk_limit: ", limit,
              " bytes, must be from 1 to ", std::numeric_limits<int>::max());
  chunk = limit;
}

std::size_t chunk_limit() noexcept { return chunk; }

}  // namespace mpi

MpiEnvironment::MpiEnvironment() {
  int begun = 0, level = MPI_THREAD_SINGLE;
  mpi::check(MPI_Initialized(&begun), "MPI_Initialized");
  if (begun) {
    mpi::check(MPI_Query_thread(&level), "MPI_Query_thread");
  } else {
    mpi::check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    began_ = true;
  }
  thread_multiple_ = level == MPI_THREAD_MULTIPLE;
}

// After a failure some ranks may never reach MPI_Finalize, which waits for all: a process that
// exits without it makes the launcher end the others.
MpiEnvironment::~MpiEnvironment() {
  if (began_ && mpi::usable() && !mpi::any_world_failed()) MPI_Finalize();
}

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm comm) {
  PRIDE_CHECK(mpi::usable(), "make_mpi_communicator: MPI is not initialised, or finalised already");
  PRIDE_CHECK(comm != MPI_COMM_NULL, "make_mpi_communicator: MPI_COMM_NULL");
  int between_groups = 0;
  mpi::check(MPI_Comm_test_inter(comm, &between_groups), "MPI_Comm_test_inter");
  PRIDE_CHECK(!between_groups,
              "make_mpi_communicator: an inter-communicator, must be an intra-communicator");
  auto family = std::make_shared<mpi::MpiFamily>(comm);
  MPI_Comm own = mpi::duplicate(comm);
  int size = 1;
  mpi::check(MPI_Comm_size(own, &size), "MPI_Comm_size");
  const int rank = family->rank();
  return std::make_unique<mpi::MpiComm>(own, rank, size, std::move(family));
}

bool launched_by_mpi() noexcept {
  // srun's and mpirun's variables reach the processes of a torchrun that they started, too
  if (std::getenv("TORCHELASTIC_RUN_ID") != nullptr) return false;
  constexpr std::array kNames = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace pride

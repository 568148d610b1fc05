// mpi_comm: the communicator over MPI's point-to-point messages, polled with back-off.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/mpi_comm.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <utility>

#include "comm/mpi_chunk.h"
#include "comm/mpi_family.h"
#include "comm/mpi_messages.h"
#include "pride/error.h"

namespace pride {
namespace mpi {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<std::size_t> chunk{kDefaultChunk};

class MpiComm final : public Communicator {
 public:
  MpiComm(MPI_Comm comm, int rank, int size, std::shared_ptr<MpiFamily> family)
      : Communicator(rank, size),
        comm_(comm),
        family_(family),
        messages_(comm, std::move(family)) {}

  ~MpiComm() override {
    if (!usable()) return;
    const bool idle = !messages_.give_up();
    if (idle && !family_->dead()) MPI_Comm_free(&comm_);  // else leaked: peers may not come to it
  }

  std::string_view transport() const noexcept override { return "mpi"; }

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    return messages_.start_send({peer, tag, peer, tag}, bytes);
  }

  std::uint64_t do_start_recv(int peer, int tag, std::span<std::byte> bytes) override {
    return messages_.start_recv({peer, tag, peer, tag}, bytes);
  }

  bool do_test(std::uint64_t id) override { return messages_.test(id); }

  void do_wait(std::uint64_t id, Clock::time_point deadline) override {
    for (Backoff backoff; !messages_.test(id);) {
      if (!backoff.pause()) continue;
      check_alive(id);
      if (Clock::now() >= deadline) {
        throw CommError(messages_.text(id) + ": not complete at the deadline");
      }
    }
  }

  bool do_native_sum(SumType type, std::span<std::byte> values) override {
    if (size() == 1) return true;
    const auto [datatype, width] = element(type);
    const std::size_t most = std::max(width, messages_.chunk() / width * width);
    for (std::size_t begin = 0; begin < values.size(); begin += most) {
      const auto part = values.subspan(begin, std::min(most, values.size() - begin));
      check(MPI_Allreduce(MPI_IN_PLACE, part.data(), static_cast<int>(part.size() / width),
                          datatype, MPI_SUM, comm_),
            "MPI_Allreduce");
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
    if (usable()) messages_.give_up();
  }

 private:
  struct Element {
    MPI_Datatype datatype;
    std::size_t width;
  };

  static Element element(SumType type) {
    switch (type) {
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

  void check_alive(std::uint64_t id) {
    try {
      family_->check_alive();
    } catch (const CommError& e) {
      throw CommError(concat(messages_.text(id), ": ", e.what()));
    }
  }

  MPI_Comm comm_;
  std::shared_ptr<MpiFamily> family_;
  Messages messages_;
};

}  // namespace

void set_chunk_limit(std::size_t limit) {
  PRIDE_CHECK(limit >= 1 && limit <= std::numeric_limits<int>::max(), "set_chunk_limit: ", limit);
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

// After a failure some ranks may never come to MPI_Finalize, which waits for all: a process that
// ends without it is what the launcher takes as the sign to end the others.
MpiEnvironment::~MpiEnvironment() {
  if (began_ && mpi::usable() && !mpi::any_world_failed()) MPI_Finalize();
}

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm comm) {
  PRIDE_CHECK(mpi::usable(), "make_mpi_communicator: MPI is not initialised, or finalised already");
  PRIDE_CHECK(comm != MPI_COMM_NULL, "make_mpi_communicator: MPI_COMM_NULL");
  int between_groups = 0;
  mpi::check(MPI_Comm_test_inter(comm, &between_groups), "MPI_Comm_test_inter");
  PRIDE_CHECK(!between_groups, "make_mpi_communicator: an inter-communicator");
  auto family = std::make_shared<mpi::MpiFamily>(comm);
  MPI_Comm own = mpi::duplicate(comm);
  int size = 1;
  mpi::check(MPI_Comm_size(own, &size), "MPI_Comm_size");
  const int rank = family->rank();
  return std::make_unique<mpi::MpiComm>(own, rank, size, std::move(family));
}

bool launched_by_mpi() noexcept {
  constexpr std::array kNames = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace pride

// MpiFamily: failure notices between the ranks of an MPI world.
// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_family.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <list>
#include <utility>
#include <vector>

#include "pride/digest.h"
#include "pride/error.h"
#include "pride/nodes.h"

namespace pride::mpi {
namespace {

constexpr int kNoticeTag = 0;
constexpr std::size_t kLongestNotice = 1024;  // below every transport's eager limit
constexpr std::chrono::milliseconds kConnectTime{200};

std::atomic<bool> some_world_failed{false};

// Notices not yet received live as long as the process: MPI may read them until it is finalised.
const std::string& keep(std::string notice) {
  static std::mutex mutex;
  static auto* const kept = new std::list<std::string>;
  const std::lock_guard lock(mutex);
  return kept->emplace_back(std::move(notice));
}

// Collective.
int processes_on_this_machine(MPI_Comm comm, int size) {
  const std::uint64_t mine = Digest().text(machine_name()).value();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(size));
  check(MPI_Allgather(&mine, 1, MPI_UINT64_T, all.data(), 1, MPI_UINT64_T, comm), "MPI_Allgather");
  return static_cast<int>(std::ranges::count(all, mine));
}

}  // namespace

bool usable() noexcept {
  int begun = 0, over = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&over);
  return begun != 0 && over == 0;
}

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(concat(call, ": ", std::string_view(text, static_cast<std::size_t>(length))));
}

MPI_Comm duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  check(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

bool any_world_failed() noexcept { return some_world_failed; }

MpiFamily::MpiFamily(MPI_Comm comm) : notices_(duplicate(comm)) {
  check(MPI_Comm_rank(notices_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(notices_, &size_), "MPI_Comm_size");
  crowded_ = 2L * processes_on_this_machine(notices_, size_) > sysconf(_SC_NPROCESSORS_ONLN);
}

// A communicator of a failed world is leaked: peers may not reach the collective that frees it.
MpiFamily::~MpiFamily() {
  if (!dead() && usable()) MPI_Comm_free(&notices_);
}

void MpiFamily::mark_dead(std::string reason) {
  reason_ = std::move(reason);
  some_world_failed = true;
  dead_.store(true, std::memory_order_release);
}

void MpiFamily::check_alive() {
  if (!dead()) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock() && !dead()) take_notice();
  }
  if (dead()) throw CommError(reason_);
}

void MpiFamily::take_notice() {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check(MPI_Improbe(MPI_ANY_SOURCE, kNoticeTag, notices_, &found, &message, &status),
        "MPI_Improbe");
  if (!found) return;
  int length = 0;
  check(MPI_Get_count(&status, MPI_CHAR, &length), "MPI_Get_count");
  std::string reason(static_cast<std::size_t>(length), ' ');
  check(MPI_Mrecv(reason.data(), length, MPI_CHAR, &message, &status), "MPI_Mrecv");
  mark_dead(std::move(reason));
}

void MpiFamily::fail(std::string_view reason) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (dead()) return;
    mark_dead(concat("rank ", rank_, ": ", reason));
    if (usable()) send_notices();
  } catch (...) {
    dead_.store(true, std::memory_order_release);  // peers fail at their deadlines
  }
}

void MpiFamily::send_notices() {
  const std::string_view notice = keep(reason_.substr(0, kLongestNotice));
  std::vector<MPI_Request> requests;
  for (int i = 1; i < size_; ++i) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(notice.data(), static_cast<int>(notice.size()), MPI_CHAR,
                               (rank_ + i) % size_, kNoticeTag, notices_, &request);
    if (code == MPI_SUCCESS) requests.push_back(request);
  }
  // the first message to a peer may need a connection, which only advances inside MPI
  const auto enough = std::chrono::steady_clock::now() + kConnectTime;
  int done = 0;
  while (!done && std::chrono::steady_clock::now() < enough) {
    if (MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done,
                    MPI_STATUSES_IGNORE) != MPI_SUCCESS) {
      break;
    }
  }
  for (MPI_Request& request : requests) {
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
}

}  // namespace pride::mpi

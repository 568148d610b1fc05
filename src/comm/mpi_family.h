// MpiFamily: failure notices between the ranks of an MPI world, its duplicates and its splits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace pride::mpi {

// False before MPI_Init and after MPI_Finalize, when MPI calls are not allowed.
bool usable() noexcept;

// Throws CommError with the call's name and MPI's text unless `code` is MPI_SUCCESS.
void check(int code, const char* call);

// A duplicate of `comm` whose errors are returned. Collective.
MPI_Comm duplicate(MPI_Comm comm);

// True once any world of this process has failed.
bool any_world_failed() noexcept;

// A failing rank sends one notice to each other rank, on a separate communicator; ranks poll for
// notices while they wait. Several threads may use a family if MPI allows several threads.
class MpiFamily {
 public:
  explicit MpiFamily(MPI_Comm comm);  // collective
  ~MpiFamily();
  MpiFamily(const MpiFamily&) = delete;
  MpiFamily& operator=(const MpiFamily&) = delete;

  int rank() const noexcept { return rank_; }  // in the first world

  // True if ranks on this node have less than two cores each: a waiting rank must yield soon.
  bool crowded() const noexcept { return crowded_; }
  bool dead() const noexcept { return dead_.load(std::memory_order_acquire); }

  // Throws CommError with the reason if the world has failed; polls for notices.
  void check_alive();

  // Only the first call counts. Spends at most kConnectTime on sending the notices.
  void fail(std::string_view reason) noexcept;

 private:
  void take_notice();
  void send_notices();
  void mark_dead(std::string reason);

  MPI_Comm notices_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool crowded_ = false;
  std::atomic<bool> dead_{false};
  std::mutex mutex_;    // one thread at a time polls for notices, or sends them
  std::string reason_;  // "rank 2: ..."; written once, before dead_
};

}  // namespace pride::mpi

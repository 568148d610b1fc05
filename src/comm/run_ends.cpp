// Threads for the ends of a world.
// SPDX-License-Identifier: Apache-2.0
#include "comm/run_ends.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "pride/error.h"

namespace pride {
namespace {

// Exceptions of the ranks of a world.
class Errors {
 public:
  void add(int rank, std::exception_ptr error, bool is_comm_error) {
    const std::lock_guard lock(mutex_);
    list_.push_back({rank, std::move(error), is_comm_error});
  }

  // A rank's own error first; then the CommError of the first failed rank; then any.
  void rethrow(int failed_rank) const {
    const auto pick = [this](auto&& is) { return std::find_if(list_.begin(), list_.end(), is); };
    auto it = pick([](const Entry& e) { return !e.is_comm_error; });
    if (it == list_.end()) it = pick([&](const Entry& e) { return e.rank == failed_rank; });
    if (it == list_.end()) it = list_.begin();
    if (it != list_.end()) std::rethrow_exception(it->error);
  }

 private:
  struct Entry {
    int rank;
    std::exception_ptr error;
    bool is_comm_error;
  };
  std::mutex mutex_;  // guards list_, until the threads are joined
  std::vector<Entry> list_;
};

void run_rank(std::unique_ptr<Communicator> comm, const std::function<void(Communicator&)>& body,
              Errors& errors) {
  const int rank = comm->rank();
  try {
    body(*comm);
  } catch (const CommError& e) {
    comm->fail(e.what());
    errors.add(rank, std::current_exception(), true);
  } catch (const std::exception& e) {
    comm->fail(e.what());
    errors.add(rank, std::current_exception(), false);
  } catch (...) {
    comm->fail("an exception of unknown type");
    errors.add(rank, std::current_exception(), false);
  }
}

}  // namespace

void run_ends(std::vector<std::unique_ptr<Communicator>> ends,
              const std::function<void(Communicator&)>& body,
              const std::function<int()>& failed_rank) {
  Errors errors;
  std::vector<std::thread> ranks;
  ranks.reserve(ends.size());
  try {
    // each thread owns its end: a body that returns early leaves the world, which fails its peers'
    // waits
    for (auto& end : ends) {
      ranks.emplace_back([&errors, &body, &end] { run_rank(std::move(end), body, errors); });
    }
  } catch (const std::exception& e) {  // no more threads available
    ends.at(ranks.size())->fail(e.what());
    for (auto& rank : ranks) rank.join();
    throw;
  }
  for (auto& rank : ranks) rank.join();
  errors.rethrow(failed_rank());
}

}  // namespace pride

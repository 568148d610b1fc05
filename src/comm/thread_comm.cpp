// thread_comm: the communicator over a World of mailboxes, and run_world.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/thread_comm.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/thread_world.h"
#include "pride/comm/ticket_table.h"
#include "pride/error.h"

namespace pride {
namespace {

using threads::Family;
using threads::Operation;
using threads::World;

class ThreadComm final : public Communicator {
 public:
  ThreadComm(std::shared_ptr<World> world, int rank)
      : Communicator(rank, world->size()), world_(std::move(world)) {}

  ~ThreadComm() override {
    give_up_pending();
    world_->leave(rank());
  }

  std::string_view transport() const noexcept override { return "threads"; }

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    return start({.is_send = true,
                  .self = rank(),
                  .peer = peer,
                  .tag = tag,
                  .source = bytes.data(),
                  .size = bytes.size()});
  }

  std::uint64_t do_start_recv(int peer, int tag, std::span<std::byte> bytes) override {
    return start({.is_send = false,
                  .self = rank(),
                  .peer = peer,
                  .tag = tag,
                  .target = bytes.data(),
                  .size = bytes.size()});
  }

  bool do_test(std::uint64_t id) override {
    if (!world_->test(pending_.find(id))) return false;
    pending_.release(id);
    return true;
  }

  void do_wait(std::uint64_t id, World::Deadline deadline) override {
    world_->wait(pending_.find(id), deadline);
    pending_.release(id);
  }

  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    const auto own = std::find(members.begin(), members.end(), rank());
    return std::make_unique<ThreadComm>(world_->group(++groups_, members),
                                        static_cast<int>(own - members.begin()));
  }

  void do_check() override {
    if (world_->family()->dead()) throw CommError(world_->family()->reason());
  }

  void do_fail(std::string_view reason) noexcept override {
    world_->family()->fail(world_->first_rank(rank()), reason);
    give_up_pending();
  }

 private:
  std::uint64_t start(Operation op) {
    auto& entry = pending_.make();
    entry.value = std::move(op);
    world_->start(entry.value);
    return entry.id;
  }

  void give_up_pending() noexcept {
    pending_.for_each([this](Operation& op) { world_->cancel(op); });
    pending_.clear();
  }

  std::shared_ptr<World> world_;
  TicketTable<Operation> pending_;
  std::uint64_t groups_ = 0;
};

std::shared_ptr<World> make_world(int size) {
  PRIDE_CHECK(size >= 1 && size <= 1024, "a world of ", size, " threads, must be 1 to 1024");
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  auto world = std::make_shared<World>(std::make_shared<Family>(), std::move(ranks));
  world->family()->add(world);
  return world;
}

std::vector<std::unique_ptr<Communicator>> make_ends(const std::shared_ptr<World>& world) {
  std::vector<std::unique_ptr<Communicator>> ends;
  for (int i = 0; i < world->size(); ++i) ends.push_back(std::make_unique<ThreadComm>(world, i));
  return ends;
}

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

std::vector<std::unique_ptr<Communicator>> make_thread_world(int size) {
  return make_ends(make_world(size));
}

void run_world(int size, const std::function<void(Communicator&)>& body) {
  const auto world = make_world(size);
  auto ends = make_ends(world);
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
  errors.rethrow(world->family()->failed_rank());
}

}  // namespace pride

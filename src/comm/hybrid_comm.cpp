// hybrid_comm: a World of mailboxes for the ranks of a process, and MPI between the processes.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/hybrid_comm.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "comm/mpi_family.h"
#include "comm/mpi_messages.h"
#include "comm/run_ends.h"
#include "comm/thread_world.h"
#include "comm/ticket_table.h"
#include "pride/comm/mpi_comm.h"
#include "pride/error.h"

namespace pride {
namespace {

using mpi::Backoff;
using threads::Operation;
using threads::World;
using Clock = std::chrono::steady_clock;

constexpr int kTags = 2048;  // tags of Communicator's calls, and kGroupTag
constexpr int kGroupTag = kTags - 1;
constexpr int kMostRanks = 1024;
constexpr int kFewestContexts = 16;

// Result of an attempt to take a context.
enum class Take : int { kTaken, kInUse, kNotItsTurn };

// State shared by all communicators of this process. An MPI tag encodes the communicator's context,
// the threads at both ends and the tag. So one MPI communicator serves all of them.
class Job {
 public:
  Job(MPI_Comm comm, int n_threads)
      : family_(std::make_shared<mpi::MpiFamily>(comm, n_threads)),
        comm_(mpi::duplicate(comm)),
        threads_(n_threads),
        contexts_(static_cast<std::size_t>(n_threads)),
        queues_(static_cast<std::size_t>(n_threads)) {
    int* highest = nullptr;
    int found = 0;
    mpi::check(MPI_Comm_get_attr(comm_, MPI_TAG_UB, static_cast<void*>(&highest), &found),
               "MPI_Comm_get_attr");
    const std::int64_t tags = found != 0 ? std::int64_t{*highest} + 1 : 32768;
    most_contexts_ = static_cast<int>(tags / (std::int64_t{kTags} * threads_ * threads_));
    PRIDE_CHECK(most_contexts_ >= kFewestContexts, "make_hybrid_world: ", threads_,
                " threads: this MPI has tags up to ", tags - 1,
                ", too few for these; use fewer threads");
  }

  // After a failure the MPI communicator is leaked: peers may not reach the call that frees it.
  ~Job() {
    if (!family_->dead() && mpi::usable()) MPI_Comm_free(&comm_);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::shared_ptr<mpi::MpiFamily>& family() const noexcept { return family_; }
  MPI_Comm comm() const noexcept { return comm_; }
  int threads() const noexcept { return threads_; }
  int process() const noexcept { return family_->rank(); }

  int tag(int context, int from_thread, int to_thread, int tag) const {
    return ((context * threads_ + from_thread) * threads_ + to_thread) * kTags + tag;
  }

  int most_contexts() const noexcept { return most_contexts_; }

  // The lowest context, from `first` on, that is free for a rank's thread.
  int free_context(int thread, int first) {
    const std::lock_guard lock(mutex_);
    return lowest_free(thread, first);
  }
  // The lowest free context, taken; most_contexts() if there is none.
  int take_lowest_context(int thread) {
    const std::lock_guard lock(mutex_);
    const int lowest = lowest_free(thread, 1);
    if (lowest < most_contexts_) contexts_[static_cast<std::size_t>(thread)].insert(lowest);
    return lowest;
  }
  // Takes the context for a group of `parent`. REQUIRES: `parent` is in the queue of this thread.
  Take take_context(int thread, int context, int parent) {
    const std::lock_guard lock(mutex_);
    if (*queues_[static_cast<std::size_t>(thread)].begin() != parent) return Take::kNotItsTurn;
    const bool is_new = contexts_[static_cast<std::size_t>(thread)].insert(context).second;
    return is_new ? Take::kTaken : Take::kInUse;
  }
  void give_back_context(int thread, int context) noexcept {
    const std::lock_guard lock(mutex_);
    contexts_[static_cast<std::size_t>(thread)].erase(context);
  }

  // The queue holds the parent's context of each group under construction with this thread.
  void enter_queue(int thread, int parent) {
    const std::lock_guard lock(mutex_);
    queues_[static_cast<std::size_t>(thread)].insert(parent);
  }
  void leave_queue(int thread, int parent) noexcept {
    const std::lock_guard lock(mutex_);
    queues_[static_cast<std::size_t>(thread)].erase(parent);
  }

 private:
  int lowest_free(int thread, int first) const {
    const auto& taken = contexts_[static_cast<std::size_t>(thread)];
    while (taken.contains(first)) ++first;
    return first;
  }

  std::shared_ptr<mpi::MpiFamily> family_;
  MPI_Comm comm_;
  int threads_;
  int most_contexts_ = 0;
  std::mutex mutex_;                     // guards the members below
  std::vector<std::set<int>> contexts_;  // in use, by thread; 0 is the first world's
  std::vector<std::set<int>> queues_;    // by thread
};

// RAII entry of a group in the queue of a thread.
class Place {
 public:
  Place(Job& job, int thread, int parent) : job_(job), thread_(thread), parent_(parent) {
    job_.enter_queue(thread_, parent_);
  }
  ~Place() { job_.leave_queue(thread_, parent_); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  Job& job_;
  const int thread_, parent_;
};

// Failures go through MpiFamily alone, which the ranks of a process share. The World's own family
// never fails. So a wait polls, and never sleeps in the World.
class HybridComm final : public Communicator {
 public:
  HybridComm(std::shared_ptr<Job> job, std::shared_ptr<World> world, int rank, int context)
      : Communicator(rank, world->size()),
        job_(std::move(job)),
        world_(std::move(world)),
        context_(context),
        messages_(job_->comm(), job_->family()) {}

  // A message still in flight must not match a receive of the next communicator with this context.
  ~HybridComm() override {
    const bool idle = give_up_pending();
    world_->leave(rank());
    if (idle && !job_->family()->dead()) job_->give_back_context(thread_of(rank()), context_);
  }

  std::string_view transport() const noexcept override { return "threads+mpi"; }

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    if (!is_here(peer)) {
      return kRemote | messages_.start_send(address(peer, rank(), peer, tag), bytes);
    }
    return start({.is_send = true,
                  .self = rank(),
                  .peer = peer,
                  .tag = tag,
                  .source = bytes.data(),
                  .size = bytes.size()});
  }

  std::uint64_t do_start_recv(int peer, int tag, std::span<std::byte> bytes) override {
    if (!is_here(peer)) {
      return kRemote | messages_.start_recv(address(peer, peer, rank(), tag), bytes);
    }
    return start({.is_send = false,
                  .self = rank(),
                  .peer = peer,
                  .tag = tag,
                  .target = bytes.data(),
                  .size = bytes.size()});
  }

  // Also serves other pending operations, in both directions: two ranks that both wait for a send
  // would otherwise wait for each other.
  bool do_test(std::uint64_t id) override {
    if ((id & kRemote) != 0) {
      world_->serve(rank());
      return messages_.test(id & ~kRemote);
    }
    messages_.look();
    try {
      if (!world_->test(pending_.find(id))) return false;
    } catch (const CommError&) {
      check_alive(id);  // throws the first failure's reason, not its consequence here
      throw;
    }
    pending_.release(id);
    return true;
  }

  void do_wait(std::uint64_t id, Clock::time_point deadline) override {
    std::size_t begun = messages_.begun();
    for (Backoff backoff(job_->family()->crowded()); !do_test(id);) {
      if (std::exchange(begun, messages_.begun()) != messages_.begun()) backoff.hurry();
      if (!backoff.pause()) continue;
      check_alive(id);
      if (Clock::now() >= deadline) throw CommError(text(id) + ": not complete at the deadline");
    }
  }

  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    const int context = agree_on_context(members);
    const auto here = std::ranges::count_if(members, [&](int m) { return is_here(m); });
    auto world =
        world_->group(static_cast<std::uint64_t>(context), members, static_cast<std::size_t>(here));
    const auto own = std::ranges::find(members, rank()) - members.begin();
    return std::make_unique<HybridComm>(job_, std::move(world), static_cast<int>(own), context);
  }

  void do_check() override { job_->family()->check_alive(); }

  void do_fail(std::string_view reason) noexcept override {
    job_->family()->fail(world_->first_rank(rank()), reason);
    give_up_pending();
  }

 private:
  static constexpr std::uint64_t kRemote = std::uint64_t{1} << 63;  // bit of an id: over MPI

  int process_of(int rank) const { return world_->first_rank(rank) / job_->threads(); }
  int thread_of(int rank) const { return world_->first_rank(rank) % job_->threads(); }
  bool is_here(int rank) const { return process_of(rank) == job_->process(); }

  mpi::Address address(int peer, int from, int to, int tag) const {
    return {process_of(peer), job_->tag(context_, thread_of(from), thread_of(to), tag), peer, tag};
  }

  std::uint64_t start(Operation op) {
    auto& entry = pending_.make();
    entry.value = std::move(op);
    world_->start(entry.value);
    return entry.id;
  }

  std::string text(std::uint64_t id) {
    return (id & kRemote) != 0 ? messages_.text(id & ~kRemote) : pending_.find(id).text();
  }

  void check_alive(std::uint64_t id) {
    try {
      job_->family()->check_alive();
    } catch (const CommError& e) {
      throw CommError(concat(text(id), ": ", e.what()));
    }
  }

  // Returns a context that is free on all members: the highest of their lowest free contexts, or a
  // higher one if another group uses that. Several threads of a rank may create groups at the same
  // time. They would take contexts from each other, forever if they run in lockstep. So on each
  // rank only the group whose parent has the lowest context proceeds, and the others retry. That
  // group waits for nothing else, because duplicate and split synchronise its members first. A rank
  // frees a context when it destroys its end. So two ranks reuse a context between them only when
  // both have received all messages of the first use.
  int agree_on_context(std::span<const int> members) {
    const int thread = thread_of(rank());
    if (members.size() == 1) return checked(job_->take_lowest_context(thread));
    const Place place(*job_, thread, context_);
    const auto deadline = Clock::now() + timeout();
    Backoff backoff(job_->family()->crowded());
    for (int first = 1;;) {
      const int lowest = job_->free_context(thread, first);
      const int context = checked(std::ranges::max(gathered(members, lowest)));
      const Take mine = job_->take_context(thread, context, context_);
      const int worst = std::ranges::max(gathered(members, static_cast<int>(mine)));
      if (worst == static_cast<int>(Take::kTaken)) return context;
      if (mine == Take::kTaken) job_->give_back_context(thread, context);
      if (worst == static_cast<int>(Take::kInUse)) {
        first = context + 1;
      } else if (backoff.pause() && Clock::now() >= deadline) {
        throw CommError(
            "no agreement on a new communicator's number at the deadline: these ranks keep "
            "creating others at the same time");
      }
    }
  }

  int checked(int context) const {
    if (context < job_->most_contexts()) return context;
    throw CommError(concat(
        "too many communicators: at most ", job_->most_contexts(), " at a time with ",
        job_->threads(), " threads on each process, because an MPI tag contains the number of the ",
        "communicator and of both threads; destroy unused duplicates and splits, or use more ",
        "processes with fewer threads"));
  }

  // All-gather of each member's number.
  std::vector<int> gathered(std::span<const int> members, int mine) {
    std::vector<int> all(members.size(), mine);
    std::vector<std::uint64_t> ids;
    const auto deadline = Clock::now() + timeout();
    try {
      for (std::size_t i = 0; i < members.size(); ++i) {
        if (members[i] == rank()) continue;
        ids.push_back(
            do_start_recv(members[i], kGroupTag, std::as_writable_bytes(std::span(&all[i], 1))));
        ids.push_back(do_start_send(members[i], kGroupTag, std::as_bytes(std::span(&mine, 1))));
      }
      for (const std::uint64_t id : ids) do_wait(id, deadline);
    } catch (const std::exception& e) {
      do_fail(e.what());  // before the buffers are destroyed
      throw;
    }
    return all;
  }

  // True if nothing was pending with MPI.
  bool give_up_pending() noexcept {
    pending_.for_each([this](Operation& op) { world_->cancel(op); });
    pending_.clear();
    return mpi::usable() && !messages_.give_up();
  }

  std::shared_ptr<Job> job_;
  std::shared_ptr<World> world_;  // has all ranks; only ranks of this process communicate in it
  const int context_;
  mpi::Messages messages_;
  TicketTable<Operation> pending_;
};

// Throws on all processes or on none, because the reduction gives all of them the same numbers.
void check_same_threads(int n_threads, MPI_Comm comm) {
  int level = MPI_THREAD_SINGLE, n_processes = 1;
  mpi::check(MPI_Query_thread(&level), "MPI_Query_thread");
  mpi::check(MPI_Comm_size(comm, &n_processes), "MPI_Comm_size");
  // the lowest level, the lowest number of threads, and minus the highest
  int lowest[3] = {level, n_threads, -n_threads};
  mpi::check(MPI_Allreduce(MPI_IN_PLACE, lowest, 3, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
  PRIDE_CHECK(lowest[1] == -lowest[2], "make_hybrid_world: the processes have from ", lowest[1],
              " to ", -lowest[2], " threads, must have equal numbers");
  PRIDE_CHECK(n_threads >= 1 && n_threads <= kMostRanks / n_processes,
              "make_hybrid_world: ", n_threads, " threads on each of ", n_processes,
              " processes, must be at least 1 thread and at most ", kMostRanks, " ranks in all");
  PRIDE_CHECK(lowest[0] == MPI_THREAD_MULTIPLE,
              "make_hybrid_world: this MPI does not grant MPI_THREAD_MULTIPLE");
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_hybrid_world(int threads, MPI_Comm comm) {
  PRIDE_CHECK(mpi::usable(), "make_hybrid_world: MPI is not initialised, or finalised already");
  PRIDE_CHECK(comm != MPI_COMM_NULL, "make_hybrid_world: MPI_COMM_NULL");
  check_same_threads(threads, comm);
  const auto job = std::make_shared<Job>(comm, threads);
  int n_processes = 1;
  mpi::check(MPI_Comm_size(comm, &n_processes), "MPI_Comm_size");
  std::vector<int> ranks(static_cast<std::size_t>(threads * n_processes));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto world = std::make_shared<World>(std::make_shared<threads::Family>(), std::move(ranks));
  std::vector<std::unique_ptr<Communicator>> ends;
  for (int t = 0; t < threads; ++t) {
    ends.push_back(std::make_unique<HybridComm>(job, world, job->process() * threads + t, 0));
  }
  return ends;
}

void run_hybrid_world(int threads, const std::function<void(Communicator&)>& body, MPI_Comm comm) {
  run_ends(make_hybrid_world(threads, comm), body, [] { return -1; });
}

}  // namespace pride

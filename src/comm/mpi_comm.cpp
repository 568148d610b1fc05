// mpi_comm: the communicator over MPI's point-to-point messages, polled with back-off.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/mpi_comm.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "comm/bf16_sum.h"
#include "comm/mpi_chunk.h"
#include "comm/mpi_family.h"
#include "comm/ticket_table.h"
#include "pride/error.h"

namespace pride {
namespace mpi {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<std::size_t> chunk{kDefaultChunk};

// Chunks of a message that MPI has to send at a time.
constexpr std::size_t kWindow = 4;

// How long a failed rank goes on serving MPI, so that its pending operations can end.
constexpr std::chrono::milliseconds kGrace{250};

// Between two looks at a pending operation: nothing at first, then give way to ranks that share the
// core, then sleep, up to 200 us at a time. Or never sleep.
class Backoff {
 public:
  explicit Backoff(bool crowded, bool sleeps = true)
      : spins_(crowded ? 8 : 64), yields_(crowded ? 8 : 256), sleeps_(sleeps) {}

  // True now and then: time to look for what is rarer.
  bool pause() {
    ++round_;
    if (round_ < spins_) return false;
    if (round_ < spins_ + yields_ || !sleeps_) {
      sched_yield();
      return round_ % 16 == 0;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, std::chrono::microseconds(200));
    return true;
  }

  // Something came: more may follow soon.
  void hurry() { sleep_ = kShortest; }

 private:
  static constexpr std::chrono::microseconds kShortest{10};
  int spins_, yields_;
  bool sleeps_;
  std::int64_t round_ = 0;
  std::chrono::microseconds sleep_ = kShortest;
};

// MPI knows no bfloat16: of two bytes each, added by this.
void add_bf16(void* in, void* inout, int* n, MPI_Datatype*) {
  const auto size = static_cast<std::size_t>(*n);
  add_to({static_cast<const BFloat16*>(in), size}, {static_cast<BFloat16*>(inout), size});
}

// Made once, and never freed: MPI_Finalize may come at any time after the last communicator.
MPI_Op bf16_sum() {
  static const MPI_Op op = [] {
    MPI_Op made = MPI_OP_NULL;
    check(MPI_Op_create(add_bf16, 1, &made), "MPI_Op_create");
    return made;
  }();
  return op;
}

// One send or receive: its chunks, in order.
struct Operation {
  bool is_send = false;
  int peer = 0, tag = 0;
  std::size_t size = 0;
  const std::byte* source = nullptr;     // of a send
  std::byte* target = nullptr;           // of a receive
  std::size_t total = 0;                 // chunks, the last one included
  std::vector<MPI_Request> chunks = {};  // those that MPI has begun
  std::size_t done = 0;

  std::string text() const {
    return concat(is_send ? "send of " : "receive of ", size, is_send ? " bytes to" : " bytes from",
                  " rank ", peer, " (tag ", tag, ")");
  }
};

// A message is received only once its size is known to be right (MPI_Improbe, then MPI_Imrecv). A
// receive posted in advance would be simpler, but then Open MPI 4.1.4 was seen to corrupt the heap
// when a large message was longer than its buffer.
class MpiComm final : public Communicator {
 public:
  MpiComm(MPI_Comm comm, int rank, int size, std::shared_ptr<MpiFamily> family)
      : Communicator(rank, size), comm_(comm), family_(std::move(family)) {}

  ~MpiComm() override {
    if (!usable()) return;
    const bool idle = !give_up_pending();
    if (idle && !family_->dead()) MPI_Comm_free(&comm_);  // else leaked: peers may not come to it
  }

  std::string_view transport() const noexcept override { return "mpi"; }

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    auto& [id, op] = begin(
        {.is_send = true, .peer = peer, .tag = tag, .size = bytes.size(), .source = bytes.data()});
    sends_.push_back(&op);
    if (first_of_its_kind(op)) send_chunks(op);
    return id;
  }

  std::uint64_t do_start_recv(int peer, int tag, std::span<std::byte> bytes) override {
    auto& [id, op] =
        begin({.peer = peer, .tag = tag, .size = bytes.size(), .target = bytes.data()});
    expected_[{peer, tag}].push_back(&op);
    return id;
  }

  bool do_test(std::uint64_t id) override {
    progress();
    if (!advance(pending_.find(id))) return false;
    pending_.release(id);
    return true;
  }

  void do_wait(std::uint64_t id, Clock::time_point deadline) override {
    Operation& op = pending_.find(id);
    for (Backoff backoff(family_->crowded());;) {
      if (progress()) backoff.hurry();
      if (advance(op)) break;
      if (!backoff.pause()) continue;
      check_alive([&] { return op.text(); });
      if (Clock::now() >= deadline) throw CommError(op.text() + ": not complete at the deadline");
    }
    pending_.release(id);
  }

  bool do_native_sum(SumType type, std::span<std::byte> values) override {
    if (size() == 1) return true;
    const auto [datatype, width, op] = element(type);
    const std::size_t limit = chunk_ == kDefaultChunk ? kLongestSum : chunk_;
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
    if (usable()) give_up_pending();
  }

 private:
  using Pending = TicketTable<Operation>;

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

  Pending::Entry& begin(Operation op) {
    op.total = op.size / chunk_ + 1;
    auto& entry = pending_.make();
    entry.value = std::move(op);
    return entry;
  }

  // Of chunk k: all are full but the last, which may be empty.
  int length(const Operation& op, std::size_t k) const {
    return static_cast<int>(std::min(chunk_, op.size - k * chunk_));
  }

  // `what` says what waits.
  template <typename Text>
  void check_alive(const Text& what) {
    try {
      family_->check_alive();
    } catch (const CommError& e) {
      throw CommError(concat(what(), ": ", e.what()));
    }
  }

  // Begins what can begin. True if anything was.
  bool progress() {
    const std::size_t before = begun_;
    look_for_messages();
    for (std::size_t i = 0; i < sends_.size();) {
      if (first_of_its_kind(*sends_[i]) && send_chunks(*sends_[i])) {
        sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    return begun_ != before;
  }

  // Messages with one peer and tag keep their order: the next begins behind the last chunk.
  bool first_of_its_kind(const Operation& op) const {
    const auto first = std::ranges::find_if(sends_, [&](const Operation* other) {
      return other->peer == op.peer && other->tag == op.tag;
    });
    return *first == &op;
  }

  // So many chunks of each message are with MPI at a time, so that those to all peers take turns:
  // streams that are written one after the other, each as fast as it goes, meet on some links while
  // others are idle. True if all have begun.
  bool send_chunks(Operation& op) {
    while (op.chunks.size() < op.total) {
      advance(op);
      const std::size_t k = op.chunks.size();
      if (k - op.done >= kWindow) return false;
      check(MPI_Isend(op.source + k * chunk_, length(op, k), MPI_BYTE, op.peer, op.tag, comm_,
                      &op.chunks.emplace_back(MPI_REQUEST_NULL)),
            "MPI_Isend");
      ++begun_;
    }
    return true;
  }

  // Begins to receive what has come. The first receive of each peer and tag is served first.
  void look_for_messages() {
    for (auto it = expected_.begin(); it != expected_.end();) {
      auto& queue = it->second;
      while (!queue.empty() && begin_chunks(*queue.front())) queue.pop_front();
      it = queue.empty() ? expected_.erase(it) : std::next(it);
    }
  }

  // True if all chunks have begun. Throws if one has another size than expected.
  bool begin_chunks(Operation& op) {
    while (op.chunks.size() < op.total) {
      const std::size_t k = op.chunks.size();
      int found = 0, got = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      check(MPI_Improbe(op.peer, op.tag, comm_, &found, &message, &status), "MPI_Improbe");
      if (!found) return false;
      check(MPI_Get_count(&status, MPI_BYTE, &got), "MPI_Get_count");
      check_size(op, k, got);
      check(MPI_Imrecv(op.target + k * chunk_, got, MPI_BYTE, &message,
                       &op.chunks.emplace_back(MPI_REQUEST_NULL)),
            "MPI_Imrecv");
      ++begun_;
    }
    return true;
  }

  void check_size(const Operation& op, std::size_t k, int got) const {
    if (got == length(op, k)) return;
    const bool more_follows = static_cast<std::size_t>(got) == chunk_;
    throw CommError(concat(op.text(), ": sizes differ: rank ", op.peer, " sends ",
                           k * chunk_ + static_cast<std::size_t>(got),
                           more_follows ? " bytes or more" : " bytes"));
  }

  // True if complete.
  bool advance(Operation& op) {
    for (; op.done < op.chunks.size(); ++op.done) {
      int done = 0;
      const int code = MPI_Test(&op.chunks[op.done], &done, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS) fail_chunk(op, code);
      if (!done) return false;
    }
    return op.done == op.total;
  }

  [[noreturn]] static void fail_chunk(const Operation& op, int code) {
    try {
      check(code, "MPI_Test");
    } catch (const CommError& e) {
      throw CommError(concat(op.text(), ": ", e.what()));
    }
    throw CommError(op.text());
  }

  // What is not complete when another rank fails, or at the deadline, stays with MPI. The looks
  // move the sum on, fragment by fragment: with sleeps between them it takes seven times as long in
  // shared memory.
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

  // Forgets the receives that have not begun, and serves MPI until all else has ended, for kGrace
  // at most. True if anything was pending. docs/transports.md says what MPI may still touch.
  bool give_up_pending() noexcept {
    bool any = false, open = true;
    expected_.clear();
    sends_.clear();
    const auto enough = Clock::now() + kGrace;
    for (Backoff backoff(family_->crowded()); open && Clock::now() < enough; backoff.pause()) {
      open = false;
      pending_.for_each([&](Operation& op) {
        any = true;
        for (MPI_Request& request : op.chunks) open |= !ended(request);
      });
      any |= sum_ != MPI_REQUEST_NULL;
      open |= !ended(sum_);
    }
    pending_.clear();
    sum_ = MPI_REQUEST_NULL;
    return any;
  }

  static bool ended(MPI_Request& request) noexcept {
    int done = 1;
    if (request != MPI_REQUEST_NULL &&
        MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
      return true;
    }
    return done != 0;
  }

  MPI_Comm comm_;
  const std::size_t chunk_ = chunk_limit();
  std::shared_ptr<MpiFamily> family_;
  Pending pending_;
  MPI_Request sum_ = MPI_REQUEST_NULL;  // of native_sum
  // receives whose message has not come, by peer and tag, in the order in which they were started
  std::map<std::pair<int, int>, std::deque<Operation*>> expected_;
  std::vector<Operation*> sends_;  // that have not begun their last chunk
  std::size_t begun_ = 0;          // chunks, ever
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

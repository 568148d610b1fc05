// c10d_comm: the communicator over Links, and worlds over an existing process group.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/c10d_comm.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "c10d/engine.h"
#include "c10d/links.h"
#include "pride/comm/ticket_table.h"
#include "pride/error.h"

namespace pride {
namespace process_group {
namespace {

using Clock = std::chrono::steady_clock;

// Id of a group: the same on all its members, and distinct, up to a probability of 2^-64, from the
// ids of all other groups of any of them. The finaliser of SplitMix64.
std::uint64_t child_number(std::uint64_t parent, std::uint64_t nth) {
  std::uint64_t z = parent + (nth + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class C10dComm final : public Communicator {
 public:
  // members: ranks in the first world; members[rank] is this process
  C10dComm(std::shared_ptr<Links> links, std::uint64_t number, int rank, std::vector<int> members)
      : Communicator(rank, static_cast<int>(members.size())),
        links_(std::move(links)),
        number_(number),
        members_(std::move(members)) {
    links_->add(waiter_);
  }

  ~C10dComm() override {
    give_up_pending();
    links_->remove(waiter_);
    links_->forget(number_);
  }

  std::string_view transport() const noexcept override { return "c10d"; }

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    auto& [id, op] = begin(true, peer, tag, bytes.size());
    links_->send(op, bytes);
    return id;
  }

  std::uint64_t do_start_recv(int peer, int tag, std::span<std::byte> bytes) override {
    auto& [id, op] = begin(false, peer, tag, bytes.size());
    op.target = bytes.data();
    links_->receive(op);
    return id;
  }

  bool do_test(std::uint64_t id) override {
    Operation& op = pending_.find(id);
    return concluded(id, op, links_->look(op));
  }

  void do_wait(std::uint64_t id, Clock::time_point deadline) override {
    Operation& op = pending_.find(id);
    if (concluded(id, op, links_->wait(op, deadline))) return;
    throw CommError(text(op) + ": not complete at the deadline");
  }

  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    std::vector<int> ranks;
    for (const int member : members) ranks.push_back(members_[member]);
    const auto own = std::find(members.begin(), members.end(), rank()) - members.begin();
    return std::make_unique<C10dComm>(links_, child_number(number_, groups_made_++),
                                      static_cast<int>(own), std::move(ranks));
  }

  void do_check() override { links_->check_alive(); }

  void do_fail(std::string_view reason) noexcept override {
    links_->fail(reason);
    give_up_pending();
  }

 private:
  using Pending = TicketTable<Operation>;

  Pending::Entry& begin(bool is_send, int peer, int tag, std::size_t size) {
    auto& entry = pending_.make();
    entry.value = {.is_send = is_send,
                   .peer = members_[peer],
                   .tag = tag,
                   .world = number_,
                   .size = size,
                   .waiter = &waiter_};
    return entry;
  }

  // True if the operation is done; throws if it cannot complete.
  bool concluded(std::uint64_t id, const Operation& op, Links::Standing standing) {
    switch (standing) {
      case Links::Standing::kPending:
        return false;
      case Links::Standing::kDone:
        pending_.release(id);
        return true;
      case Links::Standing::kFaulty:
        throw CommError(concat(text(op), ": ", fault(op)));
      default:
        break;
    }
    try {
      links_->check_alive();
    } catch (const CommError& e) {
      throw CommError(concat(text(op), ": ", e.what()));
    }
    throw CommError(text(op));
  }

  // The peer's rank in this world.
  int peer_of(const Operation& op) const {
    return static_cast<int>(std::ranges::find(members_, op.peer) - members_.begin());
  }

  std::string text(const Operation& op) const {
    return concat(op.is_send ? "send of " : "receive of ", op.size,
                  op.is_send ? " bytes to" : " bytes from", " rank ", peer_of(op), " (tag ", op.tag,
                  ")");
  }

  std::string fault(const Operation& op) const {
    if (op.fault == Operation::Fault::kSize) {
      return concat("sizes differ: rank ", peer_of(op), " sends ", op.sent, " bytes");
    }
    const std::string words = links_->end_reason(op.peer);
    return concat("rank ", peer_of(op), " has left, or died", words.empty() ? "" : ": ", words);
  }

  void give_up_pending() noexcept {
    std::vector<Operation*> ops;
    pending_.for_each([&](Operation& op) { ops.push_back(&op); });
    links_->give_up(ops);
    pending_.clear();
  }

  const std::shared_ptr<Links> links_;
  const std::uint64_t number_;
  const std::vector<int> members_;
  std::uint64_t groups_made_ = 0;
  Waiter waiter_;
  Pending pending_;
};

}  // namespace

std::unique_ptr<Communicator> make_world(EnginePtr engine, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  auto links = std::make_shared<Links>(std::move(engine));
  links->meet(deadline);
  const int rank = links->rank();
  std::vector<int> members(static_cast<std::size_t>(links->size()));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<C10dComm>(std::move(links), 0, rank, std::move(members));
}

}  // namespace process_group

namespace {

process_group::EnginePtr engine_of(const c10::intrusive_ptr<::c10d::ProcessGroup>& group) {
#if TORCH_VERSION_MAJOR >= 2
  return group->getBackend(c10::DeviceType::CPU);
#else
  return group;
#endif
}

}  // namespace

std::unique_ptr<Communicator> make_c10d_communicator(c10::intrusive_ptr<::c10d::ProcessGroup> group,
                                                     std::chrono::milliseconds timeout) {
  PRIDE_CHECK(group, "make_c10d_communicator: no process group");
  auto engine = engine_of(group);
  PRIDE_CHECK(engine->getBackendName() == "gloo",
              "make_c10d_communicator: the backend for the CPU "
              "is ",
              engine->getBackendName(), ", must be gloo");
  return process_group::make_world(std::move(engine), timeout);
}

}  // namespace pride

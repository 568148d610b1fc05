// FaultyComm: a communicator that forwards calls to another one, with one fault.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "pride/communicator.h"
#include "pride/error.h"

namespace pride {

// Base of decorators: a communicator with the same ranks whose transport is another communicator.
// Its collectives use its own messages, unless a decorator forwards them.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner)
      : Communicator(inner->rank(), inner->size()), inner_(std::move(inner)) {
    set_timeout(inner_->timeout());
  }

  std::string_view transport() const noexcept override { return inner_->transport(); }

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    return inner_->do_start_send(peer, tag, bytes);
  }
  std::uint64_t do_start_recv(int peer, int tag, std::span<std::byte> bytes) override {
    return inner_->do_start_recv(peer, tag, bytes);
  }
  bool do_test(std::uint64_t id) override { return inner_->do_test(id); }
  void do_wait(std::uint64_t id, std::chrono::steady_clock::time_point deadline) override {
    inner_->do_wait(id, deadline);
  }
  void pass_on_all_to_all_v(int tag, std::span<const Outgoing> send, std::span<const Incoming> recv,
                            Deadline deadline) {
    inner_->do_all_to_all_v(tag, send, recv, deadline);
  }
  void pass_on_all_gather_v(int tag, std::span<const std::span<const std::byte>> mine,
                            std::span<const Incoming> all, Deadline deadline) {
    inner_->do_all_gather_v(tag, mine, all, deadline);
  }
  bool do_native_sum(SumType type, std::span<std::byte> values) override {
    return inner_->do_native_sum(type, values);  // counted in the inner communicator's traffic
  }
  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    return inner_->do_group(members);
  }
  void do_check() override { inner_->do_check(); }
  void do_fail(std::string_view reason) noexcept override { inner_->do_fail(reason); }

 private:
  std::unique_ptr<Communicator> inner_;
};

// A fault in one of this rank's sends, including the sends of collectives.
struct Fault {
  enum class Kind { kNone, kThrow, kDrop, kDelay, kCorrupt };
  Kind kind = Kind::kNone;
  int at_send = 0;                     // counted from 0, over the communicator and its duplicates
  std::size_t byte = 0;                // kCorrupt: index of the byte whose lowest bit is flipped
  std::chrono::milliseconds delay{0};  // kDelay: before the send starts
};

class FaultyComm final : public ForwardingCommunicator {
 public:
  FaultyComm(std::unique_ptr<Communicator> inner, Fault fault)
      : FaultyComm(std::move(inner), std::make_shared<Plan>(fault)) {}

  // True once the fault has happened: a test that never reaches it proves nothing.
  bool happened() const { return plan_->happened; }
  int victim() const { return plan_->victim; }  // the peer of the faulty send; -1 before it

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    const Fault& fault = plan_->fault;
    if (fault.kind == Fault::Kind::kNone || plan_->sends++ != fault.at_send) {
      return ForwardingCommunicator::do_start_send(peer, tag, bytes);
    }
    plan_->happened = true;
    plan_->victim = peer;
    switch (fault.kind) {
      case Fault::Kind::kThrow:
        throw CommError(concat("injected fault: send of ", bytes.size(), " bytes to rank ", peer));
      case Fault::Kind::kDrop:
        return kDropped;
      case Fault::Kind::kCorrupt:
        return ForwardingCommunicator::do_start_send(peer, tag, corrupted(bytes));
      default:
        std::this_thread::sleep_for(fault.delay);
        return ForwardingCommunicator::do_start_send(peer, tag, bytes);
    }
  }

  bool do_test(std::uint64_t id) override {
    return id == kDropped || ForwardingCommunicator::do_test(id);
  }

  void do_wait(std::uint64_t id, std::chrono::steady_clock::time_point deadline) override {
    if (id != kDropped) ForwardingCommunicator::do_wait(id, deadline);
  }

  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    return std::unique_ptr<Communicator>(
        new FaultyComm(ForwardingCommunicator::do_group(members), plan_));
  }

 private:
  struct Plan {
    explicit Plan(Fault f) : fault(f) {}
    const Fault fault;
    std::atomic<int> sends{0};
    std::atomic<bool> happened{false};
    std::atomic<int> victim{-1};
  };

  FaultyComm(std::unique_ptr<Communicator> inner, std::shared_ptr<Plan> plan)
      : ForwardingCommunicator(std::move(inner)), plan_(std::move(plan)) {}

  std::span<const std::byte> corrupted(std::span<const std::byte> bytes) {
    auto& copy = copies_.emplace_back(bytes.begin(), bytes.end());
    if (!copy.empty()) copy[plan_->fault.byte % copy.size()] ^= std::byte{1};
    return copy;
  }

  static constexpr std::uint64_t kDropped = ~std::uint64_t{0};

  std::shared_ptr<Plan> plan_;
  std::list<std::vector<std::byte>> copies_;
};

}  // namespace pride

// SPDX-License-Identifier: Apache-2.0
#include "bench/patterns.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "bench/memory.h"

namespace pride::app {
namespace {

constexpr int kTag = 0;

std::size_t rounded_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// The share of the data that goes to other ranks.
double others_of(const Communicator& comm) { return (comm.size() - 1.0) / comm.size(); }

// What rank `from` sends to rank `to` (kAll: the same to all) at an offset.
constexpr int kAll = -1;
std::byte sent_byte(int from, int to, std::size_t i) {
  const auto mixed = (static_cast<std::uint32_t>(i) + 977u * static_cast<std::uint32_t>(from + 1) +
                      131071u * static_cast<std::uint32_t>(to + 2)) *
                     2654435761u;
  return static_cast<std::byte>(mixed >> 24);
}

void fill(std::span<std::byte> part, int from, int to) {
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = sent_byte(from, to, i);
}

bool holds(std::span<const std::byte> part, int from, int to) {
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i] != sent_byte(from, to, i)) return false;
  }
  return true;
}

// One pattern on one rank, with its buffers.
class Pattern {
 public:
  Pattern(Communicator& comm, const char* name, double sent_share)
      : comm_(comm), name_(name), sent_share_(sent_share) {}
  virtual ~Pattern() = default;

  std::string name() const { return name_; }
  double sent_share() const { return sent_share_; }
  virtual std::size_t fitting(std::size_t bytes) const { return bytes; }
  virtual double ways() const { return 1; }  // on which a run sends the data one after the other

  // Buffers for so many bytes, with nothing in them that a run must receive.
  virtual void prepare(std::size_t bytes) = 0;
  virtual void run() = 0;
  // After runs: whether this rank has received what it must. Collective.
  virtual bool right() = 0;

 protected:
  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  std::size_t ranks() const { return static_cast<std::size_t>(comm_.size()); }

  Communicator& comm_;

 private:
  const char* name_;
  double sent_share_;
};

// Patterns that move bytes from one buffer to another.
class BytePattern : public Pattern {
 public:
  using Pattern::Pattern;

 protected:
  void make_buffers(std::size_t out, std::size_t in) {
    out_.resize(out);
    in_.assign(in, std::byte{0x5A});
  }
  // Part r of what was received came from rank r.
  bool parts_are_right(int to) const {
    const std::size_t part = in_.size() / ranks();
    for (int r = 0; r < size(); ++r) {
      const auto from = std::span(in_).subspan(part * static_cast<std::size_t>(r), part);
      if (!holds(from, r, to)) return false;
    }
    return true;
  }

  std::vector<std::byte> out_, in_;
};

class PingPong final : public BytePattern {
 public:
  explicit PingPong(Communicator& comm) : BytePattern(comm, "ping-pong", 1) {}
  void prepare(std::size_t bytes) override {
    const bool plays = is_first() || is_last();
    make_buffers(plays ? bytes : 0, plays ? bytes : 0);
    fill(out_, rank(), kAll);
  }
  void run() override {
    if (!is_first() && !is_last()) return;
    const int peer = is_first() ? size() - 1 : 0;
    Ticket receive = comm_.start_recv(peer, kTag, in_);
    if (is_last()) comm_.wait(receive);
    Ticket send = comm_.start_send(peer, kTag, out_);
    comm_.wait(receive);
    comm_.wait(send);
  }
  bool right() override { return holds(in_, is_first() ? size() - 1 : 0, kAll); }
  double ways() const override { return 2; }

 private:
  bool is_first() const { return rank() == 0; }
  bool is_last() const { return rank() == size() - 1; }
};

class Shift final : public BytePattern {
 public:
  explicit Shift(Communicator& comm) : BytePattern(comm, "shift", 1) {}
  void prepare(std::size_t bytes) override {
    make_buffers(bytes, bytes);
    fill(out_, rank(), kAll);
  }
  void run() override {
    Ticket receive = comm_.start_recv(before(), kTag, in_);
    Ticket send = comm_.start_send((rank() + 1) % size(), kTag, out_);
    comm_.wait(receive);
    comm_.wait(send);
  }
  bool right() override { return holds(in_, before(), kAll); }

 private:
  int before() const { return (rank() - 1 + size()) % size(); }
};

class AllToAll final : public BytePattern {
 public:
  explicit AllToAll(Communicator& comm) : BytePattern(comm, "all-to-all", others_of(comm)) {}
  std::size_t fitting(std::size_t bytes) const override { return rounded_up(bytes, ranks()); }
  void prepare(std::size_t bytes) override {
    make_buffers(bytes, bytes);
    const std::size_t part = bytes / ranks();
    for (int r = 0; r < size(); ++r) {
      fill(std::span(out_).subspan(part * static_cast<std::size_t>(r), part), rank(), r);
    }
  }
  void run() override { comm_.all_to_all(out_, in_); }
  bool right() override { return parts_are_right(rank()); }
};

class AllGather final : public BytePattern {
 public:
  explicit AllGather(Communicator& comm) : BytePattern(comm, "all-gather", others_of(comm)) {}
  std::size_t fitting(std::size_t bytes) const override { return rounded_up(bytes, ranks()); }
  void prepare(std::size_t bytes) override {
    make_buffers(bytes / ranks(), bytes);
    fill(out_, rank(), kAll);
  }
  void run() override { comm_.all_gather(out_, in_); }
  bool right() override { return parts_are_right(kAll); }
};

// Works in place, so that every run adds up what the one before has left. Zeros are measured, and
// one more run is checked.
class AllReduce final : public Pattern {
 public:
  explicit AllReduce(Communicator& comm) : Pattern(comm, "all-reduce", 2 * others_of(comm)) {}
  std::size_t fitting(std::size_t bytes) const override { return rounded_up(bytes, sizeof(float)); }
  void prepare(std::size_t bytes) override { values_.assign(bytes / sizeof(float), 0); }
  void run() override { comm_.native_sum(std::span(values_)); }
  bool right() override {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = term(rank(), i);
    run();
    for (std::size_t i = 0; i < values_.size(); ++i) {
      float sum = 0;
      for (int r = 0; r < size(); ++r) sum += term(r, i);
      if (values_[i] != sum) return false;
    }
    return true;
  }

 private:
  // whole numbers, so small that every order of additions is exact
  static float term(int rank, std::size_t i) {
    return static_cast<float>(std::to_integer<int>(sent_byte(rank, kAll, i)) - 128);
  }
  std::vector<float> values_;
};

PatternCell measured(Communicator& comm, Pattern& pattern, std::size_t bytes,
                     const PatternBench& how) {
  PatternCell cell{.name = pattern.name(), .bytes = pattern.fitting(bytes)};
  cell.sent_share = pattern.sent_share();
  pattern.prepare(cell.bytes);
  cell.times = measure(comm, how.seconds, how.least, [&] { pattern.run(); });
  for (double* t : {&cell.times.min_s, &cell.times.median_s, &cell.times.p99_s}) {
    *t /= pattern.ways();
  }
  cell.wrong_ranks = count_ranks(comm, !pattern.right());
  return cell;
}

}  // namespace

void bench_patterns(Communicator& comm, const PatternBench& how,
                    const std::function<void(const PatternCell&)>& done) {
  if (comm.size() == 1) return;
  std::unique_ptr<Pattern> patterns[] = {
      std::make_unique<PingPong>(comm), std::make_unique<Shift>(comm),
      std::make_unique<AllToAll>(comm), std::make_unique<AllGather>(comm),
      std::make_unique<AllReduce>(comm)};
  for (const auto& pattern : patterns) {
    for (const std::size_t bytes : how.sizes) {
      const auto size = static_cast<double>(bytes);
      done(with_memory_for(concat(pattern->name(), " of ", grouped(size), " bytes"), size,
                           [&] { return measured(comm, *pattern, bytes, how); }));
    }
  }
}

}  // namespace pride::app

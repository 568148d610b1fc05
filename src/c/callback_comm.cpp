// Communicators of the C interface, and the one over a table of the caller's functions.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>

#include "c/handles.h"
#include "pride/comm/network.h"
#include "pride/comm/thread_comm.h"
#include "pride/communicator.h"

namespace pride::c {
namespace {

// A growing buffer of uninitialised bytes.
class Staging {
 public:
  std::byte* of_size(std::size_t n) {
    if (n > size_) {
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(n);
      size_ = n;
    }
    return bytes_.get();
  }

  // Keeps the bytes until the process ends, because a failed call may still use them.
  void abandon() noexcept {
    static std::mutex mutex;
    static auto& kept = *new std::vector<std::unique_ptr<std::byte[]>>();
    try {
      const std::lock_guard lock(mutex);
      kept.push_back(std::move(bytes_));
    } catch (...) {
      static_cast<void>(bytes_.release());
    }
    size_ = 0;
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
};

// A message without bytes is sent as one byte, because it must arrive, as in a barrier.
std::size_t sent_size(std::size_t bytes) { return std::max<std::size_t>(1, bytes); }

// The text of a function that failed.
using ErrorText = std::array<char, 2048>;
std::string text_of(const ErrorText& text) {
  const auto end = std::find(text.begin(), text.end(), '\0');
  return end == text.begin() ? "no reason given" : std::string(text.begin(), end);
}

class CallbackComm final : public Communicator {
 public:
  CallbackComm(const pride_transport& table, std::string name, void* user, int rank, int size)
      : Communicator(rank, size), table_(table), name_(std::move(name)), user_(user) {}
  ~CallbackComm() override {
    if (table_.release != nullptr) table_.release(user_);
  }

  std::string_view transport() const noexcept override { return name_; }

 protected:
  void do_all_to_all_v(int, std::span<const Outgoing> send, std::span<const Incoming> recv,
                       Deadline deadline) override {
    const auto ranks = static_cast<std::size_t>(size());
    std::vector<std::uint64_t> out(ranks, 0), in(ranks, 0);
    for (const Outgoing& m : send) out[m.to] += sent_size(m.bytes.size());
    for (const Incoming& m : recv) in[m.from] += sent_size(m.bytes.size());
    const auto place = [](const std::vector<std::uint64_t>& sizes) {
      std::vector<std::uint64_t> begin(sizes.size() + 1, 0);
      for (std::size_t r = 0; r < sizes.size(); ++r) begin[r + 1] = begin[r] + sizes[r];
      return begin;
    };
    auto to = place(out), from = place(in);
    std::byte* const out_bytes = send_.of_size(to.back());
    std::byte* const in_bytes = recv_.of_size(from.back());
    for (const Outgoing& m : send) {
      if (!m.bytes.empty()) std::memcpy(out_bytes + to[m.to], m.bytes.data(), m.bytes.size());
      to[m.to] += sent_size(m.bytes.size());
    }
    ErrorText error{};
    if (table_.all_to_all_v(user_, out_bytes, out.data(), in_bytes, in.data(), left(deadline),
                            error.data(), error.size()) != 0) {
      send_.abandon();
      recv_.abandon();
      throw CommError(text_of(error));
    }
    for (const Incoming& m : recv) {
      if (!m.bytes.empty()) std::memcpy(m.bytes.data(), in_bytes + from[m.from], m.bytes.size());
      from[m.from] += sent_size(m.bytes.size());
    }
  }

  bool do_native_sum(SumType type, std::span<std::byte> values) override {
    if (table_.all_reduce == nullptr || size() == 1) return false;
    static constexpr std::size_t kBytes[] = {4, 1, 2, 4, 2};
    const std::size_t bytes = kBytes[static_cast<int>(type)];
    std::byte* const sum = send_.of_size(values.size());
    std::memcpy(sum, values.data(), values.size());
    ErrorText error{};
    const int status = table_.all_reduce(user_, sum, values.size() / bytes, static_cast<int>(type),
                                         left(std::chrono::steady_clock::now() + timeout()),
                                         error.data(), error.size());
    if (status == -1) return false;
    if (status != 0) {
      send_.abandon();
      throw CommError(text_of(error));
    }
    std::memcpy(values.data(), sum, values.size());
    count({values.size(), values.size(), 1, 1});  // as for MPI's all-reduce
    return true;
  }

  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    const auto own = std::ranges::find(members, rank()) - members.begin();
    const auto n = static_cast<int>(members.size());
    void* user = nullptr;
    ErrorText error{};
    if (table_.group(user_, members.data(), n, timeout().count(), &user, error.data(),
                     error.size()) != 0) {
      throw CommError(text_of(error));
    }
    return std::make_unique<CallbackComm>(table_, name_, user, static_cast<int>(own), n);
  }

  void do_check() override {
    ErrorText error{};
    if (table_.check(user_, error.data(), error.size()) != 0) throw CommError(text_of(error));
  }

  void do_fail(std::string_view reason) noexcept override {
    try {
      table_.fail(user_, std::string(reason).c_str());
    } catch (...) {
      table_.fail(user_, "out of memory");
    }
  }

 private:
  static std::int64_t left(Deadline deadline) {
    const auto ms =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    return std::max<std::int64_t>(1, ms.count());
  }

  const pride_transport table_;
  const std::string name_;
  void* const user_;
  Staging send_, recv_;
};

std::unique_ptr<Communicator> make_callback_comm(const pride_transport& table) {
  // a caller with a later header has more members, which are optional and ignored here
  PRIDE_CHECK(table.struct_size >= sizeof(pride_transport), "pride_transport: struct_size is ",
              table.struct_size, ", must be ", sizeof(pride_transport), " or more");
  PRIDE_CHECK(table.all_to_all_v && table.group && table.check && table.fail,
              "pride_transport: only all_reduce and release may be NULL");
  return std::make_unique<CallbackComm>(table, table.name ? table.name : "callbacks", table.user,
                                        table.rank, table.size);
}

}  // namespace
}  // namespace pride::c

using namespace pride::c;

int pride_comm_create(const pride_transport* transport, pride_comm** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    *out = new pride_comm{make_callback_comm(given(transport, "transport"))};
  });
}

int pride_comm_threads(int32_t world, pride_comm** out) {
  return guarded([&] {
    given(out, "out");
    auto ends = pride::make_thread_world(world);
    for (std::size_t r = 0; r < ends.size(); ++r) out[r] = new pride_comm{std::move(ends[r])};
  });
}

void pride_comm_destroy(pride_comm* comm) { delete comm; }
int32_t pride_comm_rank(const pride_comm* comm) { return comm ? comm->comm->rank() : -1; }
int32_t pride_comm_size(const pride_comm* comm) { return comm ? comm->comm->size() : 0; }

int pride_comm_set_timeout(pride_comm* comm, int64_t timeout_ms) {
  return guarded(
      [&] { given(comm, "comm").comm->set_timeout(std::chrono::milliseconds(timeout_ms)); });
}

int pride_comm_all_gather(pride_comm* comm, const void* mine, uint64_t n, void* all) {
  return guarded([&] {
    pride::Communicator& world = *given(comm, "comm").comm;
    PRIDE_CHECK(n == 0 || (mine != nullptr && all != nullptr), n, " bytes at NULL");
    world.all_gather({static_cast<const std::byte*>(mine), n},
                     {static_cast<std::byte*>(all), n * static_cast<std::size_t>(world.size())});
  });
}

int pride_comm_network(pride_comm* comm, const char* used, const char** line,
                       const char** warnings) {
  return guarded([&] {
    given(line, "line") = given(warnings, "warnings") = nullptr;
    thread_local std::string first, others;
    const auto report =
        pride::network_report(*given(comm, "comm").comm, std::string(&given(used, "used")));
    first = report.line;
    others.clear();
    for (const std::string& text : report.warnings) others += (others.empty() ? "" : "\n") + text;
    *line = first.c_str();
    *warnings = others.c_str();
  });
}

int pride_comm_all_to_all_v(pride_comm* comm, const void* send, const uint64_t* send_sizes,
                            void* recv, const uint64_t* recv_sizes) {
  return guarded([&] {
    pride::Communicator& world = *given(comm, "comm").comm;
    PRIDE_CHECK(send_sizes != nullptr && recv_sizes != nullptr, "sizes are NULL");
    const auto own = static_cast<std::size_t>(world.rank());
    PRIDE_CHECK(send_sizes[own] == 0 && recv_sizes[own] == 0, "rank ", own, ": ", send_sizes[own],
                " bytes to and ", recv_sizes[own], " bytes from itself");
    std::vector<pride::Outgoing> out;
    std::vector<pride::Incoming> in;
    const auto* from = static_cast<const std::byte*>(send);
    auto* to = static_cast<std::byte*>(recv);
    for (int r = 0; r < world.size(); ++r) {
      PRIDE_CHECK((send_sizes[r] == 0 || send) && (recv_sizes[r] == 0 || recv), "bytes at NULL");
      if (send_sizes[r] > 0) out.push_back({r, {from, send_sizes[r]}});
      if (recv_sizes[r] > 0) in.push_back({r, {to, recv_sizes[r]}});
      from += send_sizes[r];
      to += recv_sizes[r];
    }
    world.all_to_all_v(out, in);
  });
}

void pride_comm_fail(pride_comm* comm, const char* reason) {
  if (comm != nullptr) comm->comm->fail(reason ? reason : "no reason given");
}

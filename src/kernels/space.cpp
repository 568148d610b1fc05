// The host as a space: kernels run at once, in place.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/space.h"

#include <algorithm>

#include "pride/error.h"

namespace pride {
namespace {

class HostSpace final : public Space {
 public:
  bool is_host() const noexcept override { return true; }
  std::shared_ptr<float[]> zeros(std::size_t n) override { return counted(memory_.zeros(n), n); }
  std::shared_ptr<std::byte[]> frame(std::size_t bytes) override { return memory_.frame(bytes); }
  void read_bytes(const void* from, std::span<std::byte> to) override {
    memory_.read_bytes(from, to);
  }
  void write_bytes(std::span<const std::byte> from, void* to) override {
    memory_.write_bytes(from, to);
  }

 private:
  void set_bytes(std::span<std::byte> words, std::byte value) override {
    std::ranges::fill(words, value);
  }
  const std::byte* upload_bytes(std::span<const std::byte> frame) override { return frame.data(); }
  std::byte* stage_bytes(std::span<std::byte> frame) override { return frame.data(); }
  void send_bytes(const void*, std::span<std::byte>) override {}

  Memory& memory_ = Memory::host();
};

}  // namespace

std::shared_ptr<std::uint32_t[]> Space::fault_words(std::size_t n) {
  auto floats = zeros(n);
  auto* words = reinterpret_cast<std::uint32_t*>(floats.get());
  return {std::move(floats), words};
}

std::uint32_t* Space::watch(std::uint32_t& word) {
  const std::span watched = stage(std::span(&word, 1));
  if (!is_host()) forget(watched);
  return watched.data();
}

std::uint32_t Space::fault_in(Guard word) {
  std::uint32_t fault = 0;
  read(word, std::span(&fault, 1));
  return fault;
}

void Space::call(const std::function<void(void*)>&) {
  throw Error("space: call() needs a device; the host has no queue");
}

Space& Space::host() {
  static HostSpace space;
  return space;
}

std::unique_ptr<Space> Space::make_host() { return std::make_unique<HostSpace>(); }

}  // namespace pride

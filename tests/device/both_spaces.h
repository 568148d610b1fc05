// A device's space beside the host's, with the same content in the memory of each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "base/words.h"
#include "device/device_space.h"
#include "pride/bf16.h"
#include "pride/float16.h"
#include "support/test_device.h"

namespace pride::space_test {

using testing::OnDevice;
using testing::TestDevice;

// One call on both spaces, with memory of each and the same content.
class Both {
 public:
  explicit Both(std::uint32_t seed) : random_(seed) {}

  // Some are zeros, denormal, large or, if they may be, not finite.
  std::vector<float> floats(std::size_t n, bool finite = true) {
    std::vector<float> x(n);
    for (float& y : x) {
      const auto kind = random_() % 40;
      y = (static_cast<float>(random_() >> 8) * 0x1p-24f - 0.5f) * (kind < 4 ? 1e30f : 1.0f);
      if (kind == 5) y = 0.0f;
      if (kind == 6) y = -0.0f;
      if (kind == 7) y *= 1e-39f;
      if (kind == 8 && !finite && random_() % 8 == 0) y = std::numeric_limits<float>::infinity();
      if (kind == 9 && !finite && random_() % 8 == 0) y = std::nanf("");
    }
    return x;
  }
  std::vector<std::uint64_t> words(std::size_t n) {
    std::vector<std::uint64_t> x(words_for(n));
    for (std::uint64_t& y : x) y = std::uint64_t{random_()} << 32 | random_();
    return x;
  }
  std::uint32_t below(std::uint32_t n) { return random_() % n; }

  TestDevice device;
  DeviceSpace on{std::shared_ptr<Device>(&device, [](Device*) {})};

 private:
  std::mt19937 random_;
};

// The same values in both memories.
template <typename T>
class Pair {
 public:
  Pair(Both& both, std::vector<T> values)
      : host(std::move(values)), device_(both.device, std::span<const T>(host)) {}
  std::span<T> at(bool on_device) { return on_device ? device_.span() : std::span(host); }
  void expect_equal(const char* what, std::size_t n) {
    const std::vector<T> got = device_.get();
    EXPECT_TRUE(std::memcmp(got.data(), host.data(), sizeof(T) * host.size()) == 0)
        << what << ", n = " << n;
  }
  std::vector<T> host;

 private:
  OnDevice<T> device_;
};

// A gradient in a dtype of its own; on the device a part of its factor may lie there.
class Gradient {
 public:
  Gradient(Both& both, std::vector<float> values, DType dtype, float factor)
      : n_(values.size()),
        dtype_(dtype),
        factor_(factor),
        bytes_(both, bytes_of(values, dtype)),
        scaled_(both.below(2) == 0),
        scale_(both, {0.7f}) {}
  Values at(bool on_device) {
    const float factor = scaled_ && !on_device ? factor_ * scale_.host[0] : factor_;
    const float* const scale = scaled_ && on_device ? scale_.at(true).data() : nullptr;
    return {bytes_.at(on_device).data(), n_, dtype_, factor, scale};
  }

 private:
  static std::vector<std::byte> bytes_of(std::span<const float> x, DType dtype) {
    std::vector<std::byte> bytes(x.size() * size_of(dtype));
    void* const at = bytes.data();
    if (dtype == DType::kFloat32) std::memcpy(at, x.data(), bytes.size());
    if (dtype == DType::kBFloat16) to_bf16(x, {static_cast<BFloat16*>(at), x.size()});
    if (dtype == DType::kFloat16) to_float16(x, {static_cast<Float16*>(at), x.size()});
    return bytes;
  }
  std::size_t n_;
  DType dtype_;
  float factor_;
  Pair<std::byte> bytes_;
  bool scaled_;
  Pair<float> scale_;
};

// Calls body(space, on_device) for both, and waits.
template <typename Body>
void run(Both& both, const Body& body) {
  body(Space::host(), false);
  body(both.on, true);
  both.on.wait(both.on.record());
}

}  // namespace pride::space_test

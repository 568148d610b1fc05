// Seconds of calls, and the rates of a device's copies.
// SPDX-License-Identifier: Apache-2.0
#include "device/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "pride/device.h"
#include "pride/error.h"

namespace pride {
namespace device {
namespace {

constexpr double kShortest = 0.02;  // seconds that are timed together
constexpr double kMostCalls = 2000;

}  // namespace

std::vector<double> seconds_of_calls(Device& device, double seconds, int least,
                                     const std::function<void()>& work) {
  const auto time = [&](int calls) {
    device.wait(device.record());
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) work();
    device.wait(device.record());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
  };
  time(3);  // warms up
  const int calls = static_cast<int>(std::clamp(kShortest / time(3), 1.0, kMostCalls));
  std::vector<double> all;
  for (double total = 0; total < seconds || static_cast<int>(all.size()) < least;) {
    all.push_back(time(calls));
    total += all.back() * calls;
  }
  return all;
}

}  // namespace device

CopyRates measure_copies(Device& device, std::size_t bytes, double seconds, int least) {
  constexpr std::size_t kMostOfHost = std::size_t{1} << 28;
  PRIDE_CHECK(bytes >= sizeof(std::uint32_t) && std::isfinite(seconds) && seconds >= 0 && least > 0,
              "copies of ", bytes, " bytes for ", seconds, " s, ", least,
              " times: give 4 bytes or more, 0 s or more, once or more");
  const auto of_device = [&](void* memory) { device.free(memory); };
  const std::unique_ptr<void, decltype(of_device)> from(device.allocate(bytes), of_device),
      to(device.allocate(bytes), of_device);
  const std::size_t part = std::min(bytes, kMostOfHost);
  const auto of_host = [&](void* memory) { device.free_host(memory); };
  const std::unique_ptr<void, decltype(of_host)> host(device.allocate_host(part), of_host);
  device.fill(from.get(), 0, bytes / sizeof(std::uint32_t));
  const auto rate = [&](std::size_t moved, const std::function<void()>& copy) {
    auto all = device::seconds_of_calls(device, seconds, least, copy);
    const auto median = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::ranges::nth_element(all, median);
    return static_cast<double>(moved) / *median;
  };
  return {.memory = rate(2 * bytes, [&] { device.copy(to.get(), from.get(), bytes); }),
          .to_host = rate(part, [&] { device.copy_out(host.get(), from.get(), part); }),
          .from_host = rate(part, [&] { device.copy_in(to.get(), host.get(), part); })};
}

}  // namespace pride

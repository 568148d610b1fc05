// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_context.h"

#include <array>

#include "pride/error.h"

namespace pride::cuda {
namespace {

Handle handle_of(const Driver& driver, int number) {
  PRIDE_CHECK(number >= 0 && number < driver.count(), "cuda:", number, ": this process has ",
              driver.count(), " GPUs");
  Handle handle = 0;
  driver.run(concat("cuda:", number), driver.cuDeviceGet, &handle, number);
  return handle;
}

}  // namespace

GpuFacts gpu_facts(const Driver& driver, int number) {
  const Handle handle = handle_of(driver, number);
  const std::string who = concat("cuda:", number);
  const auto attribute = [&](int which) {
    int value = 0;
    driver.run(who, driver.cuDeviceGetAttribute, &value, which, handle);
    return value;
  };
  std::array<char, 256> name{};
  driver.run(who, driver.cuDeviceGetName, name.data(), static_cast<int>(name.size()) - 1, handle);
  GpuFacts facts{.name = name.data(),
                 .chip = 10 * attribute(kMajor) + attribute(kMinor),
                 .multiprocessors = attribute(kMultiprocessors)};
  const bool has_calls =
      driver.cuMemAllocAsync.function != nullptr && driver.cuMemFreeAsync.function != nullptr;
  facts.pools = has_calls && attribute(kMemoryPools) != 0;
  driver.run(who, driver.cuDeviceTotalMem, &facts.bytes, handle);
  return facts;
}

PrimaryContext::PrimaryContext(const Driver& driver, int number)
    : driver_(driver),
      handle_(handle_of(driver, number)),
      facts_(gpu_facts(driver, number)),
      name_(concat("cuda:", number, " (", facts_.name, ")")) {
  run(driver_.cuDevicePrimaryCtxRetain, &context_, handle_);
}

PrimaryContext::~PrimaryContext() { driver_.cuDevicePrimaryCtxRelease.function(handle_); }

}  // namespace pride::cuda

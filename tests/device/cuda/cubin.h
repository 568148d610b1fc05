// What a cubin says of its kernels: registers, and stack, which spilled registers take.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace pride {

struct KernelFacts {
  std::uint32_t registers = 0, frame = 0, stack = 0;  // stack: with what it calls; bytes
  std::uint32_t code = 0;                             // bytes
};

// By name. Throws DataError where it is no cubin.
std::map<std::string, KernelFacts> facts_of(const std::string& cubin);

}  // namespace pride

// Shared by the files with Communicator's public calls: the tags of the collectives, and the guard
// around every call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstring>
#include <span>
#include <string>

#include "pride/communicator.h"
#include "pride/error.h"

namespace pride {

using ConstBytes = std::span<const std::byte>;
using Bytes = std::span<std::byte>;

// Tags below belong to the caller; each collective has its own, so that ranks in different
// collectives never exchange bytes.
constexpr int kUserTags = 1024;
enum ReservedTag : int {
  kTagAllToAll = kUserTags,
  kTagAllToAllV,
  kTagAllGather,
  kTagAllGatherV,
  kTagBroadcast,
  kTagBroadcastRest,
  kTagBarrier,
  kTagSumScatter,
  kTagSumGather,
  kTagSplit,
  kTagNativeSum,
};

inline void copy_bytes(ConstBytes from, Bytes to) {
  if (!from.empty() && from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

// Runs the body of a public call. If it throws, the world is marked as failed before the caller's
// buffers can go out of scope, and a CommError gets the names of scope, call and rank. An
// InvalidArgument changes nothing. A buffer that the body sends or receives must be declared
// outside it. Declared inside, it would be destroyed before the transport releases it, while
// another rank may still write to it.
template <typename Body>
auto Communicator::guarded(const char* operation, Body&& body) {
  if (operation_ != nullptr) return body();
  struct Reset {
    const char*& operation;
    ~Reset() { operation = nullptr; }
  } reset{operation_ = operation};
  try {
    do_check();
    return body();
  } catch (const CommError& e) {
    give_up(e.what());
  } catch (const InvalidArgument&) {
    throw;
  } catch (const std::exception& e) {
    fail(concat(operation, ": ", e.what()));
    throw;
  }
}

}  // namespace pride

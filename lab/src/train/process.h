// Settings of a training process: one thread per worker in the maths libraries, and a flag for
// Ctrl-C.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace pride::train {

// The number of threads reported by each library: {"torch": 1, "torch_interop": 1, "openblas": 1}.
nlohmann::json thread_facts();

// True after a signal that catch_interrupts() waits for.
bool interrupted() noexcept;

// While an object lives, such a signal ends the process at once; an earlier signal ends it at
// construction. For the loading of data, which may take minutes: no work is lost.
class EndsAtOnce {
 public:
  EndsAtOnce();
  ~EndsAtOnce();
  EndsAtOnce(const EndsAtOnce&) = delete;
  EndsAtOnce& operator=(const EndsAtOnce&) = delete;
};

// Clears a signal that an earlier run has handled.
void forget_interrupts() noexcept;

// Version of libtorch at run time.
std::string torch_version();

}  // namespace pride::train

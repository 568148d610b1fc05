// What a training process sets for itself: one thread per worker in the maths libraries, and a flag
// for Ctrl-C.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace pride::train {

// How many threads each library says it uses: {"torch": 1, "torch_interop": 1, "openblas": 1}.
nlohmann::json thread_facts();

// True after a signal that catch_interrupts() waits for.
bool interrupted() noexcept;

// While one lives, such a signal ends the process at once, and one that came before does so when it
// is made: data may take minutes to load, and there is nothing yet to bring to an end.
class EndsAtOnce {
 public:
  EndsAtOnce();
  ~EndsAtOnce();
  EndsAtOnce(const EndsAtOnce&) = delete;
  EndsAtOnce& operator=(const EndsAtOnce&) = delete;
};

// Forgets a signal that an earlier run has answered.
void forget_interrupts() noexcept;

// Version of libtorch at run time.
std::string torch_version();

}  // namespace pride::train

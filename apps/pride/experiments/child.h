// One run as a process of its own, so that whatever happens to it happens to it alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pride::app {

// Runs this very program with the given arguments, its output in the file `log`, and waits for its
// end. While stop_asked() is true (it is polled), the child is asked once to stop, by SIGTERM: it
// has a process group of its own, so that Ctrl-C reaches it only this way. Should this process die
// first, the child is asked as well. Returns its exit code, or 128 + the signal that killed it.
// Throws Error if it cannot be started.
int run_child(const std::vector<std::string>& arguments, const std::filesystem::path& log,
              bool (*stop_asked)() noexcept);

}  // namespace pride::app

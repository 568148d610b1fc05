// The program `pride` as a function, for main() and for tests of many command lines in one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace pride::app {

// If another program has the command, replaces this process by that program and does not return.
// `commands`: the existing subcommands.
using HandOver = void(const std::vector<std::string>& commands,
                      const std::vector<std::string>& words);

// In a build with libtorch, which takes most of a second to load, `pride` replaces itself by
// pride-torch for all but a few commands.
HandOver to_torch;

// The words of pride_main()'s command line, from the program's name to a null pointer.
char** arguments();

}  // namespace pride::app

// Parses the command line, runs the command and returns the exit code. Errors go to standard error.
// Calls `hand_over` first, unless it is null.
extern "C" int pride_main(int argc, char** argv, pride::app::HandOver* hand_over);

// The program `pride` as a function, for main() and for tests of many command lines in one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace pride::app {

// Becomes another program if the words of the command line are that one's, and does not return
// then. `commands` are the subcommands that there are.
using HandOver = void(const std::vector<std::string>& commands,
                      const std::vector<std::string>& words);

// `pride` of a build with libtorch, which takes most of a second to load, becomes pride-torch for
// all commands but a few.
HandOver to_torch;

// Of the command line that pride_main() has, the program's name first, a null pointer last.
char** arguments();

}  // namespace pride::app

// Parses the command line, runs the command and returns the exit code; errors are on standard
// error. A `hand_over` comes first.
extern "C" int pride_main(int argc, char** argv, pride::app::HandOver* hand_over);

// The program `pride` as a function, for main() and for tests of many command lines in one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses the command line, runs the command and returns the exit code; errors are on standard
// error.
extern "C" int pride_main(int argc, char** argv);

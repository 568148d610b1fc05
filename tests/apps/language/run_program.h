// Runs the program `pride` as a user would and keeps what it said.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "apps/io/temp_folder.h"

namespace pride::app::test {

struct Outcome {
  int code = -1;  // 128 + signal if one killed it
  std::string out, err;
};

inline Outcome run_program(const std::vector<std::string>& arguments) {
  const TempFolder folder;
  const auto quoted = [](const std::string& text) {
    std::string shell = "'";
    for (const char c : text) shell += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return shell + "'";
  };
  std::string command = quoted(PRIDE_PROGRAM);
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  command += " >" + quoted((folder.path() / "out").string());
  command += " 2>" + quoted((folder.path() / "err").string());
  const int status = std::system(command.c_str());
  Outcome outcome;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = bytes_of(folder.path() / "out");
  outcome.err = bytes_of(folder.path() / "err");
  return outcome;
}

}  // namespace pride::app::test

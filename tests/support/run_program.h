// Runs the program `pride` as a user would and keeps its output.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "pride/error.h"
#include "support/temp_folder.h"

namespace pride::app::test {

using Words = std::vector<std::string>;

// The words of a command line, which stand between blanks.
template <typename... Parts>
Words words(const Parts&... parts) {
  std::istringstream in(concat(parts...));
  return {std::istream_iterator<std::string>(in), {}};
}

inline Words plus(Words all, const Words& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// The values of JSON lines.
inline std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

struct Outcome {
  int code = -1;  // 128 + signal if one killed it
  std::string out, err;
};

inline std::string quoted(const std::string& text) {
  std::string shell = "'";
  for (const char c : text) shell += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return shell + "'";
}

inline std::string command_of(const std::vector<std::string>& arguments) {
  std::string command = quoted(PRIDE_PROGRAM);
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  return command;
}

// `tail` may redirect or pipe its standard output.
inline Outcome run_shell(const std::string& command, const std::string& tail = "") {
  const TempFolder folder;
  const std::string out = quoted((folder.path() / "out").string());
  const std::string err = quoted((folder.path() / "err").string());
  const std::string whole = concat(command, " 2>", err, tail.empty() ? concat(" >", out) : tail);
  const int status = std::system(whole.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          bytes_of(folder.path() / "out"), bytes_of(folder.path() / "err")};
}

inline Outcome run_program(const std::vector<std::string>& arguments,
                           const std::string& tail = "") {
  return run_shell(command_of(arguments), tail);
}

// What a command that succeeds prints with --json.
inline nlohmann::json json_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out, nullptr, false);
}

// lines with structure, so that a few steps lower the loss
inline std::string sample_text(const std::string& animal = "fox") {
  std::string text;
  for (int i = 0; text.size() < 40000; ++i) {
    text += concat("line ", i % 17, ": the quick brown ", animal, " jumps over the lazy dog\n");
  }
  return text;
}

}  // namespace pride::app::test

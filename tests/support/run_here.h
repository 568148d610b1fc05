// Runs a program of pride (PRIDE_HERE) in the test's own process: libtorch is loaded once for all
// command lines of a test. For refusals and short runs; a command that ends its process, or is a
// job, is not for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "program/program.h"
#include "support/run_program.h"

namespace pride::app::test {

// What is written to a stream while this lives.
class Captured {
 public:
  explicit Captured(std::ostream& stream) : stream_(stream), old_(stream.rdbuf(text_.rdbuf())) {}
  ~Captured() { stream_.rdbuf(old_); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::ostream& stream_;
  std::streambuf* old_;
};

inline Outcome run_here(std::vector<std::string> arguments) {
  using Main = decltype(::pride_main);
  static Main* const program_main = [] {
    // global: the program asks for the threads of a BLAS by name
    void* program = dlopen(PRIDE_HERE, RTLD_NOW | RTLD_GLOBAL);
    if (program == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<Main*>(dlsym(program, "pride_main"));
  }();
  arguments.insert(arguments.begin(), "pride");
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  const Captured out(std::cout), err(std::cerr);
  const int code = program_main(static_cast<int>(arguments.size()), words.data());
  return {code, out.text(), err.text()};
}

// Wrong usage: code 2, the part on standard error, nothing on standard output.
inline void expect_usage(const std::vector<std::string>& arguments, const std::string& part) {
  const Outcome outcome = run_here(arguments);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  expect_contains(outcome.err, part);
  EXPECT_EQ(outcome.out, "");
}

// A command that fails on what it finds: code 1, one line that begins with "pride: error: ".
inline void expect_failure(const std::vector<std::string>& arguments, const std::string& part) {
  const Outcome outcome = run_here(arguments);
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_EQ(outcome.err.rfind("pride: error: ", 0), 0U) << outcome.err;
  expect_contains(outcome.err, part);
  EXPECT_EQ(outcome.out, "");
}

}  // namespace pride::app::test

// Runs the program `pride` in the test's own process: libtorch is loaded once for all command lines
// of a test. For refusals and short runs; a command that ends its process, or is a job, is not for
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/io/run_program.h"

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
  using Main = int(int, char**);
  static Main* const pride_main = [] {
    void* program = dlopen(PRIDE_HERE, RTLD_NOW | RTLD_LOCAL);
    if (program == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<Main*>(dlsym(program, "pride_main"));
  }();
  arguments.insert(arguments.begin(), "pride");
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  const Captured out(std::cout), err(std::cerr);
  const int code = pride_main(static_cast<int>(arguments.size()), words.data());
  return {code, out.text(), err.text()};
}

}  // namespace pride::app::test

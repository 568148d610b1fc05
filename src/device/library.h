// Shared libraries opened at run time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace pride {

// A library that stays loaded until the process ends.
class Library {
 public:
  // `name` is a path, or a name for the loader's own search. Throws InvalidArgument with the
  // loader's reason.
  explicit Library(const std::string& name);

  const std::string& path() const noexcept { return path_; }  // the file that was loaded
  void* find(const char* symbol) const noexcept;              // null: no such symbol
  void* get(const char* symbol) const;                        // throws InvalidArgument instead

 private:
  void* handle_;
  std::string path_;
};

// Paths of the libraries that the process has loaded.
std::vector<std::string> loaded_libraries();

}  // namespace pride

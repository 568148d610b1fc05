// Exceptions of pride, and the check of preconditions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace pride {

// Base class of pride's exceptions.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A broken contract, or an unusable value from the caller. Nothing was changed.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// The world failed: a peer disagrees, stalls or is gone. The communicator is dead afterwards.
class CommError : public Error {
 public:
  using Error::Error;
};

// A device has no memory left.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// A gradient held NaN or Inf. Thrown on all ranks at the same bucket, with the same text.
class NonFiniteGradient : public Error {
 public:
  using Error::Error;
};

// A file or checkpoint is missing, truncated or of the wrong kind.
class DataError : public Error {
 public:
  using Error::Error;
};

// concat("rank ", 3, " of ", 4): the concatenated text of its arguments.
template <typename... Args>
std::string concat(const Args&... args) {
  static_assert(!(... || requires { typename Args::json_pointer; }),
                "give a JSON value's text: nlohmann-json from 3.11.3 on has a concat of its own");
  std::ostringstream text;
  (text << ... << args);
  return text.str();
}

}  // namespace pride

// Checks a precondition in all builds. The message should hold both values:
//   PRIDE_CHECK(a.size() == b.size(), "dense_mean: ", a.size(), " values in, ", b.size(), " out");
#define PRIDE_CHECK(condition, ...)                                                 \
  do {                                                                              \
    if (!(condition)) throw ::pride::InvalidArgument(::pride::concat(__VA_ARGS__)); \
  } while (false)

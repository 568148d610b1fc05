// Errors of torch as one line: their what() carries torch's own call stack.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "pride/error.h"

namespace pride::train {

// Calls `body`; converts torch's exceptions to an Error with the first line of their text.
template <typename Body>
auto with_short_errors(const Body& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw Error("torch: " + text.substr(0, text.find('\n')));
  }
}

}  // namespace pride::train

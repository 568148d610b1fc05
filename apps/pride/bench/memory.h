// What a row of a benchmark asked for when there was no memory for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <string>
#include <utility>

#include "pride/error.h"
#include "text/table.h"

namespace pride::app {

// Returns what `work` does; if the system has no memory for it, throws an Error that says of which
// row (with its size) and how many bytes it takes at least on each rank.
template <typename Work>
auto with_memory_for(const std::string& row, double bytes, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    throw Error(concat(row, ": out of memory: each rank needs ", grouped(bytes),
                       " bytes or more; ask for smaller --sizes"));
  }
}

}  // namespace pride::app

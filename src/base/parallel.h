// Independent tasks on several threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace pride {

// Calls body(i) once for each i below n, on as many threads as there are CPUs; returns when all
// have returned. Rethrows the first exception; tasks that had not begun are then left out.
void run_parallel(std::size_t n, const std::function<void(std::size_t)>& body);

}  // namespace pride

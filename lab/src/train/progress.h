// Numbers of a run as people read them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "pride/train/facts.h"

namespace pride::train {

// The time between lines of long work if output is no terminal: PRIDE_PROGRESS in seconds, by
// default 30. Empty: PRIDE_PROGRESS is "none", and there are no such lines.
std::optional<std::chrono::milliseconds> progress_interval();

// "1:02:03" or "2:03".
std::string clock_text(double seconds);

// "  loss 2.3026  accuracy 0.1000": each number of `metrics`, for people.
std::string metric_text(const Facts& metrics);

// 1234567 -> "1.2 MB"; powers of 1000.
std::string bytes_text(double bytes);

}  // namespace pride::train

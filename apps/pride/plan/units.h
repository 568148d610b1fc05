// Rates and times as people write them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace pride::app {

// "1Gbit", "100Mbit", "12.5MB" (per second; bit, kbit, Mbit, Gbit, Tbit, B, kB, MB, GB; powers of
// ten) -> bytes per second. Throws InvalidArgument, naming
// the text, if it is none of these or not above 0.
double parse_rate(const std::string& text);

// "50us", "2ms", "1.5s" (ns, us, ms, s) -> seconds. Throws InvalidArgument, naming the text, if it
// is none of these or below 0.
double parse_time(const std::string& text);

// 0.0153 -> "15.3 ms"; 2.1e-5 -> "21 us"
std::string time_text(double seconds);

// 117.6e6 -> "941 Mbit/s"
std::string bandwidth_text(double bytes_per_s);

}  // namespace pride::app

// Rates and times in everyday notation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace pride::inline program {

// "1Gbit/s", "1Gbps", "100mbit", "12.5MB/s" -> bytes per second. A small b is a bit, a large one a
// byte; k, M, G and T are powers of ten in either case, Ki, Mi and Gi of two; "/s" and "ps" may be
// left out. Throws InvalidArgument, naming the text, if it is none of these or not above 0.
double parse_rate(const std::string& text);

// "50us", "2ms", "1.5s" (ns, us, ms, s, min) -> seconds. Throws InvalidArgument, naming the text,
// if it is none of these or below 0.
double parse_time(const std::string& text);

// 0.0153 -> "15.3 ms"; 2.1e-5 -> "21 us"
std::string time_text(double seconds);

// 117.6e6 -> "941 Mbit/s"
std::string bandwidth_text(double bytes_per_s);

}  // namespace pride::inline program

// "host:port" in parts, and whether only this machine can reach it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace pride::coord {

struct HostPort {
  std::string host;  // without the brackets of IPv6
  int port = 0;
};

// Throws InvalidArgument, naming `flag`, unless this is HOST:PORT or [IPV6]:PORT, port 0 to 65535.
HostPort parse_host_port(const std::string& text, const std::string& flag);

// Of 127.0.0.0/8, ::1, or "localhost".
bool is_loopback(const std::string& host);

}  // namespace pride::coord

// Parses "host:port"; finds whether only this machine can reach it; checks names of workers.
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

// True for 127.0.0.0/8, ::1 and "localhost".
bool is_loopback(const std::string& host);

// "192.0.2.1:4711" or "[::1]:4711" from gRPC's "ipv4:192.0.2.1:4711" or "ipv6:%5B::1%5D:4711",
// without a scope.
std::string peer_address(const std::string& grpc_peer);

// Throws InvalidArgument unless the name has 1 to 64 letters, digits, '.', '_' and '-', and begins
// with a letter or digit. Names are parts of paths.
void check_worker_name(const std::string& name);

}  // namespace pride::coord

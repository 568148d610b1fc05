// The number of calls begun on a connection, reset ones included. gRPC offers it only through
// channelz.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace pride::coord {

class BegunCalls {
 public:
  // Since the connection from `address` ("192.0.2.1:4711") began; 0: channelz has no entry yet.
  std::int64_t count(const std::string& address);

 private:
  std::int64_t socket_ = 0;  // the connection's number in channelz
};

}  // namespace pride::coord

// What gRPC itself has to say of connections: a handshake that fails never becomes a call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace pride::coord {

// Takes gRPC's log of this process while it lives; one at a time. Other lines of gRPC are dropped.
class GrpcLog {
 public:
  // `on_refused`, by any thread: a connection failed, and why.
  explicit GrpcLog(std::function<void(const std::string&)> on_refused);
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;

  std::string newest_error() const;  // "" if there was none
};

}  // namespace pride::coord

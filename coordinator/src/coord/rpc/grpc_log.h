// gRPC's own log about connections: a failed handshake never becomes a call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace pride::coord {

struct FailedConnection {
  std::string address;  // as gRPC writes it; empty: unknown
  std::string why;
};

// Receives gRPC's log of this process while it lives; one object at a time. Other lines of gRPC are
// dropped.
class GrpcLog {
 public:
  // `on_failed` is called by any thread, and must not call gRPC.
  explicit GrpcLog(std::function<void(const FailedConnection&)> on_failed);
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;
};

}  // namespace pride::coord

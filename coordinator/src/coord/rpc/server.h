// A Coordinator on the network: gRPC, certificates, limits, and the clock.
// SPDX-License-Identifier: Apache-2.0
//
// Before the coordinator sees a call, the server checks the caller's certificate, its rate, and
// size and form of its message. A waiting WaitRound holds no thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "coord/coordinator.h"
#include "coord/rpc/acceptor.h"
#include "coord/rpc/admission.h"

namespace pride::coord {

// A call or a connection refused before it reached the coordinator. Unknown fields are empty.
struct Refused {
  std::string call, worker, address, why;
};

struct ServerOptions {
  std::string listen = "127.0.0.1:4770";  // port 0: any free port
  // `pride certs server` made the folder. cert.pem and key.pem may be replaced while it serves.
  std::optional<std::filesystem::path> certificates = {};
  CallLimits limits = {};
  ConnectionLimits connections = {};
  std::chrono::seconds slow_reader{60};                 // limit on reading one reply
  std::function<void(const Refused&)> on_refused = {};  // any thread may call both functions
  std::function<void(const std::string&)> on_warning = {};
};

class Server {
 public:
  // Listens when the constructor returns. Throws InvalidArgument if another machine could call
  // without certificates, DataError for faulty certificates, CommError if it cannot listen.
  Server(ServerOptions options, Coordinator& coordinator);
  ~Server();  // stops first

  int port() const;

  // Replies to waiting calls, then accepts no more.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride::coord

// A worker's connection to `pride serve`: a CoordinatorClient over gRPC. Library pride::coord.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "pride/coordinator.h"

namespace pride {

struct CoordinatorAddress {
  std::string host_port =
      {};  // "host:4770", "[::1]:4770"; the worker dials, nobody dials the worker

  // Folder with ca.pem, cert.pem and key.pem, as `pride certs worker` makes them. Empty: no TLS,
  // and host_port must be on the loopback interface.
  std::string certificates = {};

  // This worker's name in the run: at most 64 letters, digits, '.', '_' and '-'. The certificate,
  // if there is one, has the name; then this is empty or equal.
  std::string name = {};

  // File with 16 bytes that prove to the coordinator that this is the same worker. If missing, it
  // is created, readable only by its owner. Empty: random bytes of this process, so the name is
  // lost when it ends.
  std::string secret_file = {};

  // How long calls are repeated while the coordinator cannot be reached. A round that waits for
  // other workers may take longer. REQUIRES: > 0.
  std::chrono::milliseconds patience{600'000};

  // Called with a line for people by the thread that repeats a call, while the coordinator cannot
  // be reached: after 5 s, then every 10 s.
  std::function<void(const std::string&)> on_notice = {};

  // Checked every few seconds while a call waits or is repeated. Once it is true, the call throws
  // CommError. For interrupts.
  std::function<bool()> gives_up = {};
};

// Connects at the first call, join(). Throws InvalidArgument, naming which, if the address, the
// name or the certificates cannot be used. A thread of the client sends heartbeats from join()
// until it is destroyed.
std::shared_ptr<CoordinatorClient> connect_coordinator(const CoordinatorAddress& address);

}  // namespace pride

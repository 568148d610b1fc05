// A worker's connection to `pride serve`: a CoordinatorClient over gRPC. pride::coord implements
// it, a library of coordinator/.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "pride/coordinator.h"

namespace pride {

struct CoordinatorAddress {
  std::string host_port = {};  // "host:4770", "[::1]:4770"; only the worker opens connections

  // Folder with ca.pem, cert.pem and key.pem, as `pride certs worker` makes them. Empty: no TLS,
  // and host_port must be on the loopback interface.
  std::string certificates = {};

  // This worker's name in the run: at most 64 letters, digits, '.', '_' and '-'. With a certificate
  // it must be empty or equal to the certificate's name.
  std::string name = {};

  // File with 16 bytes that identify this worker after a restart. If it is missing, it is created,
  // readable only by its owner. Empty: random bytes of this process, so a restart cannot use the
  // same name.
  std::string secret_file = {};

  // How long calls are repeated while the coordinator cannot be reached. A round that waits for
  // other workers may take longer. REQUIRES: > 0.
  std::chrono::milliseconds patience{600'000};

  // Called with a line for the user while the coordinator cannot be reached (after 5 s, then every
  // 10 s), and once three of the last eight ballots were not counted. The thread that waits calls
  // it.
  std::function<void(const std::string&)> on_notice = {};
};

// Connects at the first call, join(). Throws InvalidArgument, naming which, if the address, the
// name or the certificates cannot be used. A thread of the client sends heartbeats from join()
// until it is destroyed.
std::shared_ptr<CoordinatorClient> connect_coordinator(const CoordinatorAddress& address);

}  // namespace pride

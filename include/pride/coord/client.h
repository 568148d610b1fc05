// A worker's line to `pride serve`: a CoordinatorClient over gRPC. Library pride::coord.
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
  // and host_port must be of the loopback interface.
  std::string certificates = {};

  // Of this worker among all of the run: letters, digits, '.', '_' and '-', 64 at most. With
  // certificates the certificate has it, and this is empty or equal.
  std::string name = {};

  // File of the 16 bytes that prove, to a coordinator that knows the name, that this is the same
  // worker; made, readable by its owner only, where it is not there. Empty: random bytes of this
  // process, so that the name is lost with it.
  std::string secret_file = {};

  // How long a call is tried again while the coordinator is not to be reached. A round that waits
  // for other workers may take longer. REQUIRES: > 0.
  std::chrono::milliseconds patience{600'000};

  // Called with a line for people, by the thread whose call is tried again: after five seconds, and
  // then every ten, while the coordinator is not to be reached.
  std::function<void(const std::string&)> on_notice = {};

  // Looked at every few seconds while a call waits for others, or is tried again: once it is true
  // the call throws CommError. For an interrupt, which has to end these waits, too.
  std::function<bool()> gives_up = {};
};

// Dials out at the first call, join(). Throws InvalidArgument if the address, the name or the
// certificates cannot be used, naming which. Heartbeats are sent from a thread of the client's own,
// from join() until it is destroyed.
std::shared_ptr<CoordinatorClient> connect_coordinator(const CoordinatorAddress& address);

}  // namespace pride

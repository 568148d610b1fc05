// NoSigpipe: during its lifetime, a write to a connection closed by the peer is an error here and
// no signal. Gloo writes without MSG_NOSIGNAL; the disposition of SIGPIPE belongs to the program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

namespace pride::process_group {

// Applies to the constructing thread, and, permanently, to threads started during its lifetime.
class NoSigpipe {
 public:
  NoSigpipe() noexcept {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pending_before_ = pending();
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }

  ~NoSigpipe() {
    int signal = 0;
    if (!pending_before_ && pending()) sigwait(&pipe_, &signal);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  static bool pending() noexcept {
    sigset_t all;
    return sigpending(&all) == 0 && sigismember(&all, SIGPIPE) == 1;
  }

  sigset_t pipe_, before_;
  bool pending_before_;
};

}  // namespace pride::process_group

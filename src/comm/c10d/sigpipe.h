// NoSigpipe: while one lives, writing to a connection that the peer has closed is an error here and
// no signal. Gloo writes without MSG_NOSIGNAL; the disposition of SIGPIPE is the program's own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

namespace pride::process_group {

// Of the thread that makes it, and of the threads that are begun meanwhile, for good.
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

// SPDX-License-Identifier: Apache-2.0
#include "train/process.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <malloc.h>

#include <torch/version.h>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>

#include "pride/train/trainer.h"
#include "program/blas.h"

namespace pride::train {
namespace {

// the signal, set by the handler, read by every worker; 0: none
std::atomic<int> g_interrupted = 0;
std::atomic<int> g_ends_at_once = 0;  // number of objects of that class
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may not wait");

void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void on_interrupt(int signal) {
  g_interrupted = signal;
  if (g_ends_at_once > 0) end_by(signal);
}

// activations are allocated and freed every step: keep their pages instead of asking the system
// anew
void keep_pages() {
#ifdef M_MMAP_THRESHOLD
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

}  // namespace

void pin_threads() {
  static std::once_flag once;
  std::call_once(once, [] {
    pin_blas();  // at::set_num_threads() does not reach a BLAS with threads of its own
    keep_pages();
    try {
      if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
    } catch (const c10::Error&) {  // the program has set them: nothing here runs on them
    }
  });
  at::set_num_threads(1);
}

nlohmann::json thread_facts() {
  nlohmann::json facts = {{"torch", at::get_num_threads()},
                          {"torch_interop", at::get_num_interop_threads()}};
  void* const get = dlsym(RTLD_DEFAULT, "openblas_get_num_threads");
  if (get != nullptr) facts["openblas"] = reinterpret_cast<int (*)()>(get)();
  return facts;
}

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  // SIGPIPE: nobody reads the output, as after a broken ssh
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    // SA_RESETHAND: the second signal has its default effect. A lost terminal sends several
    const bool by_hand = signal == SIGINT || signal == SIGTERM;
    action.sa_flags = SA_RESTART | (by_hand ? static_cast<int>(SA_RESETHAND) : 0);
    struct sigaction inherited = {};
    sigaction(signal, nullptr, &inherited);
    // ignored signals stay ignored, as under nohup or in a shell's background
    if (inherited.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

bool interrupted() noexcept { return g_interrupted != 0; }

EndsAtOnce::EndsAtOnce() {
  ++g_ends_at_once;
  if (interrupted()) end_by(g_interrupted);
}

EndsAtOnce::~EndsAtOnce() { --g_ends_at_once; }

void forget_interrupts() noexcept { g_interrupted = 0; }

std::string torch_version() { return TORCH_VERSION; }

}  // namespace pride::train

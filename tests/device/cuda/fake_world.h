// The state of the fake driver, and what its files share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace pride::fake_cuda {

constexpr int kOk = 0, kInvalidValue = 1, kNoMemory = 2, kNoDevice = 100, kBadDevice = 101,
              kBadImage = 200, kNewerPtx = 222, kBadContext = 201, kBadHandle = 400,
              kNotFound = 500, kNotReady = 600, kIllegalAddress = 700;

struct FakeContext {
  int gpu = 0, retained = 0;
};

struct FakeEvent {
  FakeContext* context;
  std::uint64_t recorded = 0, done = 0;  // under the lock of the world
};

struct FakeStream {
  FakeContext* context = nullptr;
  std::deque<std::function<void()>> queue;
  bool busy = false, ends = false;
  std::thread thread;
};

struct World {
  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  int gpus = 2;
  bool pools = true, held = false, dead = false;
  bool (*changes)(unsigned word) = nullptr;
  std::map<std::uintptr_t, std::size_t> device_blocks, host_blocks;
  std::map<void*, std::unique_ptr<FakeStream>> streams;  // by handle; null: the default stream
  std::map<void*, std::shared_ptr<FakeEvent>> events;
  std::set<void*> modules;
  std::vector<FakeContext> contexts = std::vector<FakeContext>(8);
  std::string failing, wrong_kernel, crashing_kernel;
  int failure = 0, calls_before = 0;
  int waiting = 0;
  int priority = 0;
  int launches = 0;
  std::map<std::string, int> calls;  // by name, as for planned()
  unsigned grid = 0;
};

World& world();
bool crashed();                                   // a kernel, see fake_cuda_crash()
std::vector<FakeContext*>& contexts_of_thread();  // the last is current
FakeContext* current();

// All of these need the lock of the world.

// Counts the call. The failure that a test asked for, or `otherwise`.
int planned(const char* call, int otherwise = kOk);
int needs_context(const char* call);  // the same, or that none is current or a kernel has crashed
void release_all(std::map<std::uintptr_t, std::size_t>& blocks);
FakeStream* stream_of(void* handle);  // null: no such stream of the current context
int enqueue(void* stream, std::function<void()> work);

}  // namespace pride::fake_cuda

// Streams of the fake driver, each with a thread, and events.
// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/fake_world.h"

namespace pride::fake_cuda {
namespace {

// Work goes on in the order of the queue, outside of the lock.
void run_stream(FakeStream& stream) {
  std::unique_lock lock(world().mutex);
  while (true) {
    world().changed.wait(lock, [&] {
      return (!stream.queue.empty() && !world().held) || (stream.ends && stream.queue.empty());
    });
    if (stream.queue.empty()) return;
    const auto work = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.busy = true;
    lock.unlock();
    work();
    lock.lock();
    stream.busy = false;
    world().changed.notify_all();
  }
}

std::shared_ptr<FakeEvent> event_of(void* handle) {
  const auto found = world().events.find(handle);
  return found == world().events.end() ? nullptr : found->second;
}

}  // namespace

World& world() {
  static World& instance = *new World;
  return instance;
}

bool crashed() {
  const std::lock_guard lock(world().mutex);
  return world().dead;
}

std::vector<FakeContext*>& contexts_of_thread() {
  static thread_local std::vector<FakeContext*> stack;
  return stack;
}

FakeContext* current() {
  const auto& stack = contexts_of_thread();
  return stack.empty() ? nullptr : stack.back();
}

int planned(const char* call, int otherwise) {
  World& w = world();
  ++w.calls[call];
  if (w.failing != call || w.calls_before-- > 0) return otherwise;
  w.failing.clear();
  return w.failure;
}

int needs_context(const char* call) {
  const int result = planned(call);
  if (result != kOk) return result;
  if (current() == nullptr) return kBadContext;
  return world().dead ? kIllegalAddress : kOk;
}

FakeStream* stream_of(void* handle) {
  auto& streams = world().streams;
  if (handle == nullptr && !streams.contains(nullptr)) {
    auto& stream = streams[nullptr] = std::make_unique<FakeStream>();
    stream->context = current();
    stream->thread = std::thread([s = stream.get()] { run_stream(*s); });
  }
  const auto found = streams.find(handle);
  if (found == streams.end()) return nullptr;
  return handle == nullptr || found->second->context == current() ? found->second.get() : nullptr;
}

int enqueue(void* handle, std::function<void()> work) {
  FakeStream* const stream = stream_of(handle);
  if (stream == nullptr) return kBadHandle;
  stream->queue.push_back(std::move(work));
  world().changed.notify_all();
  return kOk;
}

extern "C" {

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  const std::lock_guard lock(world().mutex);
  *least = 0, *greatest = -5;
  return needs_context("cuCtxGetStreamPriorityRange");
}
int cuStreamCreateWithPriority(void** handle, unsigned, int priority) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context("cuStreamCreateWithPriority"); result != kOk) return result;
  world().priority = priority;
  auto stream = std::make_unique<FakeStream>();
  stream->context = current();
  *handle = stream.get();
  stream->thread = std::thread([s = stream.get()] { run_stream(*s); });
  world().streams[*handle] = std::move(stream);
  return kOk;
}
int cuStreamCreate(void** handle, unsigned flags) {
  return cuStreamCreateWithPriority(handle, flags, 0);
}
int cuStreamDestroy_v2(void* handle) {
  std::unique_ptr<FakeStream> stream;
  {
    const std::lock_guard lock(world().mutex);
    if (stream_of(handle) == nullptr || handle == nullptr) return kBadHandle;
    stream = std::move(world().streams[handle]);
    world().streams.erase(handle);
    stream->ends = true;
    world().changed.notify_all();
  }
  stream->thread.join();
  return kOk;
}
int cuStreamSynchronize(void* handle) {
  std::unique_lock lock(world().mutex);
  if (const int result = needs_context("cuStreamSynchronize"); result != kOk) return result;
  FakeStream* const stream = stream_of(handle);
  if (stream == nullptr) return kBadHandle;
  world().changed.wait(lock, [&] { return stream->queue.empty() && !stream->busy; });
  return world().dead ? kIllegalAddress : kOk;
}

int cuEventCreate(void** handle, unsigned) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context("cuEventCreate"); result != kOk) return result;
  auto event = std::make_shared<FakeEvent>(FakeEvent{.context = current()});
  *handle = event.get();
  world().events[*handle] = std::move(event);
  return kOk;
}
int cuEventDestroy_v2(void* handle) {
  const std::lock_guard lock(world().mutex);
  return world().events.erase(handle) == 0 ? kBadHandle : kOk;
}
int cuEventRecord(void* handle, void* stream) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context("cuEventRecord"); result != kOk) return result;
  const auto event = event_of(handle);
  if (event == nullptr || event->context != current()) return kBadHandle;
  const std::uint64_t number = ++event->recorded;
  return enqueue(stream, [event, number] {
    const std::lock_guard inner(world().mutex);
    event->done = number;
    world().changed.notify_all();
  });
}
int cuEventQuery(void* handle) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context("cuEventQuery"); result != kOk) return result;
  const auto event = event_of(handle);
  if (event == nullptr) return kBadHandle;
  return event->done >= event->recorded ? kOk : kNotReady;
}
int cuEventSynchronize(void* handle) {
  std::unique_lock lock(world().mutex);
  if (const int result = needs_context("cuEventSynchronize"); result != kOk) return result;
  const auto event = event_of(handle);
  if (event == nullptr) return kBadHandle;
  const std::uint64_t number = event->recorded;
  ++world().waiting;
  world().changed.wait(lock, [&] { return event->done >= number; });
  --world().waiting;
  return world().dead ? kIllegalAddress : kOk;
}
int cuStreamWaitEvent(void* stream, void* handle, unsigned) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context("cuStreamWaitEvent"); result != kOk) return result;
  const auto event = event_of(handle);
  if (event == nullptr) return kBadHandle;
  const std::uint64_t number = event->recorded;
  return enqueue(stream, [event, number] {
    std::unique_lock inner(world().mutex);
    world().changed.wait(inner, [&] { return event->done >= number; });
  });
}

}  // extern "C"

}  // namespace pride::fake_cuda

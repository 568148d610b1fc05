// Machines that the tests of a CUDA device run on: the fake driver, and this one's GPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/cuda/fake_cuda.h"
#include "device/cuda_device.h"

namespace pride {

// The fake driver of this test program, and its controls.
struct Fake {
  const cuda::Driver driver;
  void (*state)(FakeCudaState*);
  void (*fail)(const char* call, int result, int calls);
  void (*hold)(int held);
  int (*calls)(const char* call);
  void (*machine)(int gpus, int pools);
  void (*wrong)(const char* kernel);
  void (*crash)(const char* kernel);
  void (*change)(bool (*which)(unsigned word));

  FakeCudaState now() const;
};
const Fake& fake();

std::string beside_this_program(const std::string& file);  // a library of the tests

constexpr const char* kFakeImage = "fake kernels";

// Why the tests cannot run on a GPU, or "".
std::string no_gpu();
// "fake", and "gpu" where there is one.
std::vector<const char*> machines();
std::shared_ptr<cuda::CudaDevice> device_on(const std::string& machine);

// Runs its queue no further until the end of its life, or of release().
class Held {
 public:
  Held() { fake().hold(1); }
  ~Held() { release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  void release() { fake().hold(0); }
};

}  // namespace pride

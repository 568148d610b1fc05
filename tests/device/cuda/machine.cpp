// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/machine.h"

#include <filesystem>

#include "device/kernel_loading.h"
#include "pride/error.h"

namespace pride {
namespace {

template <typename Function>
Function control(const Library& library, const char* name) {
  return reinterpret_cast<Function>(library.get(name));
}

std::shared_ptr<cuda::CudaDevice> gpu_device() {
  const cuda::Driver& driver = cuda::driver();
  return cuda::load_device(driver, 0, cuda::nvrtc_candidates(loaded_libraries())).device;
}

}  // namespace

std::string beside_this_program(const std::string& file) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / file).string();
}

FakeCudaState Fake::now() const {
  FakeCudaState result{};
  state(&result);
  return result;
}

const Fake& fake() {
  static const Library library(beside_this_program(PRIDE_FAKE_CUDA));
  static const Fake instance{
      .driver = cuda::Driver(library.path()),
      .state = control<decltype(Fake::state)>(library, "fake_cuda_state"),
      .fail = control<decltype(Fake::fail)>(library, "fake_cuda_fail"),
      .hold = control<decltype(Fake::hold)>(library, "fake_cuda_hold"),
      .calls = control<decltype(Fake::calls)>(library, "fake_cuda_calls"),
      .machine = control<decltype(Fake::machine)>(library, "fake_cuda_machine"),
      .wrong = control<decltype(Fake::wrong)>(library, "fake_cuda_wrong"),
      .crash = control<decltype(Fake::crash)>(library, "fake_cuda_crash"),
      .change = control<decltype(Fake::change)>(library, "fake_cuda_change")};
  return instance;
}

std::string no_gpu() {
  try {
    cuda::driver();
    cuda::find_nvrtc();
    return "";
  } catch (const InvalidArgument& e) {
    return e.what();
  }
}

std::vector<const char*> machines() {
  std::vector<const char*> all = {"fake"};
  if (no_gpu().empty()) all.push_back("gpu");
  return all;
}

std::shared_ptr<cuda::CudaDevice> device_on(const std::string& machine) {
  if (machine == "gpu") return gpu_device();
  return std::make_shared<cuda::CudaDevice>(fake().driver, 0, kFakeImage);
}

}  // namespace pride

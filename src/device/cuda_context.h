// The primary context of a GPU, which all libraries of a process share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "device/cuda_driver.h"

namespace pride::cuda {

struct GpuFacts {
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int chip = 0;      // 90 for sm_90
  int multiprocessors = 0;
  bool pools = false;  // memory can be allocated and freed in the order of a stream
  std::size_t bytes = 0;
};
GpuFacts gpu_facts(const Driver& driver, int number);

class PrimaryContext {
 public:
  // Throws InvalidArgument if there is no such GPU, Error if it cannot be used.
  PrimaryContext(const Driver& driver, int number);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  const Driver& driver() const noexcept { return driver_; }
  const GpuFacts& facts() const noexcept { return facts_; }
  const std::string& name() const noexcept { return name_; }  // "cuda:0 (NVIDIA H100 80GB HBM3)"

  // Makes the context current in the calling thread while this object lives.
  class Current {
   public:
    explicit Current(const PrimaryContext& context) : driver_(context.driver_) {
      context.run(driver_.cuCtxPushCurrent, context.context_);
    }
    ~Current() {
      Context popped = nullptr;
      driver_.cuCtxPopCurrent.function(&popped);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Driver& driver_;
  };

  template <typename... P, typename... A>
  void run(const Call<P...>& call, A... arguments) const {
    driver_.run(name_, call, arguments...);
  }

 private:
  const Driver& driver_;
  Handle handle_ = 0;
  GpuFacts facts_;
  std::string name_;
  Context context_ = nullptr;
};

}  // namespace pride::cuda

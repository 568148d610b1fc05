// A torch::nn::Module as a Model of pride::train.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "pride/train/model.h"

namespace pride::train {

// Torch has one generator for all threads.
inline std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

// A module whose forward(input) returns logits. Parameters keep the constructor's values.
// Parameters of one dimension, and embeddings, are not decayed.
template <typename Net>
class ModuleModel : public Model {
 public:
  template <typename... Args>
  explicit ModuleModel(Args&&... args) : net_(std::forward<Args>(args)...) {
    for (const auto& p : net_->named_parameters()) {
      adopt(p.key(), p.value(), p.value().dim() > 1 && p.key().find("embed") == std::string::npos);
    }
  }

  at::Tensor logits(const at::Tensor& input) override { return net_->forward(input); }
  void set_training(bool training) override { net_->train(training); }
  Net& net() noexcept { return net_; }

 private:
  Net net_;  // a module holder, as made by TORCH_MODULE
};

// Makes a run's copies of the module. All copies start with the same values:
// torch::manual_seed(options.seed) is called before each.
template <typename Net, typename... Args>
ModelMaker module_maker(std::string name, const TrainOptions& options, Args... args) {
  return {.name = std::move(name), .make = [seed = options.seed, args...] {
            const std::lock_guard lock(generator_mutex());
            torch::manual_seed(seed);
            return std::make_unique<ModuleModel<Net>>(args...);
          }};
}

}  // namespace pride::train

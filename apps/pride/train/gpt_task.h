// GptTask: what the tasks of language have in common: which GPT is trained, and where it begins.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/gpt.h"
#include "train/task.h"

namespace pride::app {

class GptTask : public Task {
 public:
  std::string_view model_name() const noexcept override { return model_; }
  std::unique_ptr<Model> make_model() const override { return make_gpt(size_); }
  nlohmann::ordered_json model_size() const override;
  void load_initial(Model& model) const override;
  nlohmann::ordered_json model_config() const override;

 protected:
  // Of --init, or of --model; `vocabulary`: tokens of the data. Throws InvalidArgument, DataError.
  GptTask(const TrainOptions& options, std::int64_t vocabulary);

  const GptSize& size() const noexcept { return size_; }
  std::size_t context() const noexcept { return static_cast<std::size_t>(size_.context); }

 private:
  GptSize size_;
  std::string model_;
  std::filesystem::path init_;  // empty: initial values from the seed
  std::string init_hash_;
};

}  // namespace pride::app

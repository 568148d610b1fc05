// Model: a network as named parameters and one forward function, initialised from pride's streams.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pride/train/facts.h"
#include "pride/train/options.h"

namespace pride::train {

// A parameter's initial values. Normal ones have mean 0; truncated ones lie within two deviations.
// kKeep: the present values stay.
struct Init {
  enum class Kind { kConstant, kNormal, kTruncatedNormal, kKeep } kind = Kind::kConstant;
  double value = 0;  // the constant, or the standard deviation

  static Init constant(double value) { return {Kind::kConstant, value}; }
  static Init normal(double deviation) { return {Kind::kNormal, deviation}; }
  static Init truncated(double deviation) { return {Kind::kTruncatedNormal, deviation}; }
};

// One trainable tensor (a float32 leaf) under its usual PyTorch name.
struct ModelParameter {
  std::string name;
  at::Tensor tensor;
  Init init;
  bool decay = true;  // false: biases, norms, embeddings, position tables
};

class Model {
 public:
  virtual ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Token ids (batch, length) -> (batch, length, vocabulary), or images (batch, channels, height,
  // width) -> (batch, classes). Throws InvalidArgument on a wrong shape.
  virtual at::Tensor logits(const at::Tensor& input) = 0;

  // The rows `places` (int64) of logits(input) reshaped to (batch * length, vocabulary). Models
  // that override it compute only those.
  virtual at::Tensor logits_at(const at::Tensor& input, const at::Tensor& places);

  // Called with false before an evaluation and with true after it: for dropout and similar layers.
  virtual void set_training(bool) {}

  // In declaration order, which is the canonical order of coordinates.
  const std::vector<ModelParameter>& parameters() const noexcept { return parameters_; }
  std::int64_t n_parameters() const;

  // Fills every parameter from the stream keyed by (seed, hash of its name). Host tensors only.
  void initialise(std::uint64_t seed);

  // Moves every parameter to a device and dtype; handles stay valid.
  void move_to(const at::Device& device, at::ScalarType dtype = at::kFloat);

 protected:
  Model() = default;

  // A zeroed trainable tensor. Copies of the handle share it.
  at::Tensor declare(std::string name, std::vector<std::int64_t> shape, Init init,
                     bool decay = true);

  // A trainable float32 tensor of the caller, with its values.
  void adopt(std::string name, at::Tensor tensor, bool decay = true);

 private:
  std::vector<ModelParameter> parameters_;
};

// The inputs and classes of a model.
struct ModelInput {
  enum class Kind { kTokens, kImages } kind = Kind::kTokens;
  std::int64_t classes = 0;                   // of images, or the tokens of the vocabulary
  std::int64_t image_size = 0, channels = 3;  // of images: pixels along a side
  std::vector<std::string> labels = {};       // names of the classes; empty: not known
};

// The constructor and the description of a run's model.
struct ModelMaker {
  std::string name = {};
  Facts size = {};           // layers, width ...; equal on all ranks of a job
  std::int64_t context = 0;  // of tokens: the longest input
  // The default rate of a run, as a factor on its method's default rate, which is for models of
  // hundreds of millions of parameters. Small models learn faster with larger rates
  // (lab/docs/training.md).
  double lr_scale = 1;
  std::string config = {};  // text of config.json beside model.safetensors; empty: no such file
  std::function<std::unique_ptr<Model>()> make = {};
  // Replaces the initial values drawn from the seed, on host tensors; empty: keep them.
  std::function<void(Model&)> load_initial = {};
};

// A row of the registry of models.
struct ModelInfo {
  std::string name = {}, about = {};  // for --model and its help
  ModelInput::Kind kind = ModelInput::Kind::kTokens;
  // Throws InvalidArgument on impossible sizes, DataError on a bad file of --init.
  std::function<ModelMaker(const TrainOptions&, const ModelInput&)> make = {};
};

const std::vector<ModelInfo>& models();

// Adds a row. REQUIRES: before the first thread starts; a new name.
void register_model(ModelInfo info);

// The model of options.model, or of `default_name`. Throws InvalidArgument if it does not exist or
// is of another kind.
ModelMaker model_maker(const TrainOptions& options, const ModelInput& input,
                       const std::string& default_name);

}  // namespace pride::train

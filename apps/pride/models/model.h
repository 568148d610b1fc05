// Model: a network as named parameters and one forward function, initialised from pride's streams.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pride::app {

// How a parameter starts. Normal values lie around 0; truncated ones within two deviations.
struct Init {
  enum class Kind { kConstant, kNormal, kTruncatedNormal } kind = Kind::kConstant;
  double value = 0;  // the constant, or the standard deviation

  static Init constant(double value) { return {Kind::kConstant, value}; }
  static Init normal(double deviation) { return {Kind::kNormal, deviation}; }
  static Init truncated(double deviation) { return {Kind::kTruncatedNormal, deviation}; }
};

// One trainable tensor (a float32 leaf) under the name that a PyTorch user expects.
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
  // width) -> (batch, classes). Throws InvalidArgument on a shape that does not fit.
  virtual at::Tensor logits(const at::Tensor& input) = 0;

  // Of these logits, as rows (batch * length, vocabulary), the rows `places` (int64) alone: at less
  // cost where a model can.
  virtual at::Tensor logits_at(const at::Tensor& input, const at::Tensor& places);

  // In declaration order, which is the canonical order of coordinates.
  const std::vector<ModelParameter>& parameters() const noexcept { return parameters_; }
  std::int64_t n_parameters() const;

  // Fills every parameter from the stream keyed by (seed, hash of its name). Host tensors only.
  void initialise(std::uint64_t seed);

  // Moves every parameter to a device and a type of number; handles keep pointing at it.
  void move_to(const at::Device& device, at::ScalarType dtype = at::kFloat);

 protected:
  Model() = default;

  // A zeroed trainable tensor. Copies of the handle share it.
  at::Tensor declare(std::string name, std::vector<std::int64_t> shape, Init init,
                     bool decay = true);

 private:
  std::vector<ModelParameter> parameters_;
};

// Throws InvalidArgument if the parameters alone, in float32, need more memory than the machine
// has: those of `layers` blocks of attention and a fourfold MLP, and `others`.
void check_memory(const char* model, std::int64_t layers, std::int64_t width, double others);

// A weight matrix and its bias.
struct Affine {
  at::Tensor weight, bias;
};

// softmax(q k^T / sqrt(d) + mask) v over (batch * heads, length, d). An undefined mask is none.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& mask);

// x: (batch, length, 3 * width), q, k and v beside each other -> the attended (batch, length,
// width).
at::Tensor self_attention(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& mask);

}  // namespace pride::app

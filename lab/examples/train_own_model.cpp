// Your own model and data, trained by four workers that exchange only signs. A small network learns
// on which of two spirals a point lies. Exits with 1 if it does not.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "pride/train.h"

using namespace pride::train;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    using namespace torch::nn;
    layers = register_module(
        "layers", Sequential(Linear(2, 64), Tanh(), Linear(64, 64), Tanh(), Linear(64, 2)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(Net);

class Spirals : public Task {
 public:
  explicit Spirals(const TrainOptions& options) : model_(module_maker<Net>("net", options)) {}

  std::string name() const override { return "spirals"; }
  const ModelMaker& model() const override { return model_; }
  DataFacts data() const override { return {"two spirals", "1", {}}; }
  std::size_t n_samples() const override { return 4000; }
  std::size_t n_eval_batches() const override { return 4; }

  Batch train_batch(std::span<const Draw> draws) const override {
    Batch batch{torch::empty({std::ssize(draws), 2}),
                torch::empty({std::ssize(draws)}, torch::kLong)};
    for (std::int64_t i = 0; i < std::ssize(draws); ++i) put(draws[i].sample / 4000.0, i, batch);
    return batch;
  }

  Batch eval_batch(std::size_t index) const override {
    Batch batch{torch::empty({100, 2}), torch::empty({100}, torch::kLong)};
    for (std::int64_t i = 0; i < 100; ++i) put((i * 4 + index + 0.5) / 400, i, batch);
    return batch;
  }

 private:
  // Sets row i: the point at `t`, from 0 to 1, along a spiral.
  static void put(double t, std::int64_t i, const Batch& batch) {
    const double turn = 9 * t, side = i % 2 == 0 ? 1 : -1;
    batch.input[i] = torch::tensor({side * t * std::cos(turn), side * t * std::sin(turn)});
    batch.target[i] = i % 2;
  }

  ModelMaker model_;
};

int main() {
  const TrainOptions options{
      .method = "dlion-vote", .lr = 3e-3, .batch = 32, .steps = 600, .log_every = 100};
  const TrainResult result = run(options, std::make_shared<Spirals>(options), {progress_line()});
  return number_of(result.metrics, "accuracy") > 0.95 ? 0 : 1;
}

// Four threads fit one linear model together. Each has its own samples, and they exchange only
// signs. Exits with 1 if the fit is not close to the true weights.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include "pride/comm/thread_comm.h"
#include "pride/flat_buffer.h"
#include "pride/optimizer.h"
#include "pride/random_bits.h"
#include "pride/schedule.h"

namespace {

constexpr std::size_t kFeatures = 1024;
constexpr int kBatch = 64;
constexpr int kSteps = 600;
constexpr int kWorkers = 4;
constexpr double kLr = 0.01;

enum Purpose : std::uint32_t { kTruth = 1, kSamples = 2 };

std::vector<float> true_weights() {
  pride::PhiloxStream random(7, kTruth, 0);
  std::vector<float> weights(kFeatures);
  for (float& w : weights) w = 2 * random.next_unit() - 1;
  return weights;
}

float dot(std::span<const float> a, std::span<const float> b) {
  float sum = 0;
  for (std::size_t i = 0; i < kFeatures; ++i) sum += a[i] * b[i];
  return sum;
}

// Mean squared error of this worker's batch of this step, and its gradient.
double loss_and_gradient(std::span<const float> truth, std::span<const float> weights, int rank,
                         int step, std::span<float> gradient) {
  pride::PhiloxStream random(7, kSamples, static_cast<std::uint64_t>(step),
                             static_cast<std::uint32_t>(rank));
  for (float& g : gradient) g = 0;
  std::vector<float> x(kFeatures);
  double loss = 0;
  for (int sample = 0; sample < kBatch; ++sample) {
    for (float& v : x) v = 2 * random.next_unit() - 1;
    const float noise = 0.1f * (2 * random.next_unit() - 1);
    const float error = dot(x, weights) - (dot(x, truth) + noise);
    for (std::size_t i = 0; i < kFeatures; ++i) gradient[i] += 2 * error * x[i] / kBatch;
    loss += double{error} * error / kBatch;
  }
  return loss;
}

double distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < kFeatures; ++i) sum += std::pow(double{a[i]} - b[i], 2);
  return std::sqrt(sum / kFeatures);
}

// One worker. Returns the root mean square distance of its final weights from the true ones.
double train(pride::Communicator& comm) {
  const std::vector<float> truth = true_weights();
  const pride::Layout layout({{"weight", {kFeatures}}});
  pride::FlatBuffer params(layout.flat_size());
  pride::FlatBuffer grads(layout.flat_size());
  pride::Optimizer optimizer(comm, layout,
                             {.method = "dlion-vote", .groups = {{.lr = kLr, .weight_decay = 0}}});
  const pride::Schedule schedule{.kind = pride::ScheduleKind::kLinear, .total_steps = kSteps};

  for (int step = 0; step < kSteps; ++step) {
    const double loss =
        loss_and_gradient(truth, params.span(), comm.rank(), step, grads.span().first(kFeatures));
    optimizer.set_group({.lr = kLr * schedule.factor(step)});
    const pride::StepReport report = optimizer.step(params.span(), grads.span());
    if (comm.rank() == 0 && step % 100 == 0)
      std::printf("step %3d  loss %8.4f  %llu bytes sent by this rank\n", step, loss,
                  static_cast<unsigned long long>(report.bytes_sent));
  }
  return distance(params.span(), truth);
}

}  // namespace

int main() {
  double error = 0;
  pride::run_world(kWorkers, [&](pride::Communicator& comm) {
    const double mine = train(comm);
    if (comm.rank() == 0) error = mine;
  });
  std::printf("distance from the true weights: %.4f\n", error);
  return error < 0.02 ? 0 : 1;
}

// Steps of the optimizer: each rank's arrays, and the steps on them.
// SPDX-License-Identifier: Apache-2.0
#include "bench/exchange.h"

#include <algorithm>
#include <barrier>
#include <memory>
#include <optional>

#include "bench/device/gpu.h"
#include "kernels/kernels.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "program/settings.h"

namespace pride::app {
namespace {

constexpr kernels::Blend kBlend{0.9f, 0.1f, 0.99f, 0.01f};
constexpr kernels::Step kStep{1.0f, 1e-4f};

// Data that the threads share for the dense step in shared memory.
struct SharedMean {
  SharedMean(int ranks, std::size_t n)
      : all_here(ranks), grads(static_cast<std::size_t>(ranks)), mean(n) {}
  std::barrier<> all_here;
  std::vector<const float*> grads;
  FlatBuffer mean;
};

// Returns rank 0's object on all ranks. REQUIRES: all are threads of this process. Collective.
std::shared_ptr<SharedMean> shared_by_threads(Communicator& comm, std::size_t n) {
  const auto mine = comm.rank() == 0 ? std::make_shared<SharedMean>(comm.size(), n) : nullptr;
  const auto* made = gathered(comm, &mine).front();
  const auto shared = *made;
  comm.barrier();
  return shared;
}

// A layout of `tensors` tensors of about equal size.
Layout layout_of(std::size_t coords, int tensors) {
  std::vector<TensorSpec> specs;
  const auto n = static_cast<std::size_t>(tensors);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t size = coords * (i + 1) / n - coords * i / n;
    specs.push_back({concat("weights", i), {static_cast<std::int64_t>(size)}});
  }
  return Layout(std::move(specs));
}

class Steps {
 public:
  Steps(Communicator& comm, const MethodBench& how, std::size_t coords)
      : comm_(comm),
        how_(how),
        layout_(layout_of(coords, how.tensors)),
        params_(layout_.flat_size()),
        grads_(layout_.flat_size()),
        moments_(how.device ? 0 : layout_.flat_size()),
        mean_(how.device ? 0 : layout_.flat_size()),
        where_params_(params_.span()),
        where_grads_(grads_.span()) {
    auto state = 12345u + static_cast<std::uint32_t>(comm.rank());
    for (float& g : grads_.span()) {
      state = state * 1664525u + 1013904223u;
      g = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
    }
    if (how.device) go_to_gpu();
    for (const TensorSlot& slot : layout_.tensors()) {
      each_param_.emplace_back(where_params_.subspan(slot.offset, slot.n));
      each_grad_.emplace_back(where_grads_.subspan(slot.offset, slot.n));
    }
  }

  std::vector<StepRow> run() {
    if (gpu_) add_gpu_copy();
    add(kNoExchange, options_of("dlion-vote", false), *alone_.front());
    steps_.back().row.bucket_coords = 0;  // so that time_steps() compares no hashes
    for (const std::string& method : how_.methods) {
      for (const bool overlap : {false, true}) {
        if (!overlap || how_.exchange_threads > 0) add(method, options_of(method, overlap), comm_);
      }
    }
    if (!gpu_) add_native_sum();
    if (!gpu_ && ranks_in_this_process(comm_) == comm_.size()) add_shared_mean();
    const StepParams params{.restore = [&] { restore(); }, .hash = [&] { return hash(); }};
    return time_steps(comm_, std::move(steps_), params, how_.seconds, how_.least);
  }

 private:
  OptimizerOptions options_of(const std::string& method, bool overlap) const {
    const MethodChoice choice = parse_method(method);
    return {.method = choice.name,
            .options = checked_options(choice),
            .bucket_coords = how_.bucket_coords,
            .overlap = overlap,
            .exchange_threads = std::max(1, how_.exchange_threads),
            .device = how_.device};
  }

  void add(const std::string& name, const OptimizerOptions& options, Communicator& comm) {
    const auto optimizer = std::make_shared<Optimizer>(comm, layout_, options);
    const StepRow row{
        .name = name, .overlap = options.overlap, .bucket_coords = options.bucket_coords};
    steps_.push_back({row, [this, optimizer] {
                        StepReport report = how_.tensors == 1
                                                ? optimizer->step(where_params_, where_grads_)
                                                : optimizer->step(each_param_, each_grad_);
                        if (gpu_) gpu_->wait();
                        return report;
                      }});
  }

  void go_to_gpu() {
    gpu_.emplace(how_.device);
    where_params_ = gpu_->add(params_.size());
    where_grads_ = gpu_->add(grads_.size());
    gpu_->write(grads_.span(), where_grads_);
  }
  void restore() {
    std::ranges::fill(params_.span(), 0.0f);
    if (gpu_) gpu_->write(params_.span(), where_params_);
  }
  std::uint64_t hash() {
    if (gpu_) gpu_->read(where_params_, params_.span());
    return param_hash(layout_, params_.span());
  }

  // 20 bytes per coordinate, half of them read: two and a half copies of all gradients.
  void add_gpu_copy() {
    const auto copy = [this, to = gpu_->add(grads_.size())] {
      const std::size_t bytes = where_grads_.size_bytes();
      for (const std::size_t part : {bytes, bytes, bytes / 2}) {
        how_.device->copy(to.data(), where_grads_.data(), part);
      }
      gpu_->wait();
      return StepReport{};
    };
    const StepRow row{.name = kGpuCopy};
    steps_.push_back({row, copy});
  }

  StepReport lion_on(std::span<const float> mean) {
    kernels::dense_lion(mean, kBlend, kStep, moments_.span(), params_.span());
    return {};
  }

  void add_native_sum() {
    const StepRow row{.name = "native all-reduce + lion"};
    const auto sum = [this] {
      comm_.native_sum(mean_.span());
      kernels::scale(1.0f / static_cast<float>(comm_.size()), mean_.span());
      return lion_on(mean_.span());
    };
    steps_.push_back(
        {row, sum, [this] { std::ranges::copy(grads_.span(), mean_.span().begin()); }});
  }

  void add_shared_mean() {
    const StepRow row{.name = "shared-memory lion"};
    const auto shared = shared_by_threads(comm_, layout_.flat_size());
    shared->grads[static_cast<std::size_t>(comm_.rank())] = grads_.data();
    steps_.push_back({row, [this, shared] {
                        shared->all_here.arrive_and_wait();
                        average_part(*shared);
                        shared->all_here.arrive_and_wait();
                        return lion_on(shared->mean.span());
                      }});
  }

  void average_part(SharedMean& shared) {
    const auto rank = static_cast<std::size_t>(comm_.rank()), world = shared.grads.size();
    const std::size_t n_words = layout_.flat_size() / 64;
    const std::size_t begin = 64 * (n_words * rank / world),
                      end = 64 * (n_words * (rank + 1) / world);
    std::vector<const float*> rows;
    for (const float* grads : shared.grads) rows.push_back(grads + begin);
    kernels::mean_rows(rows, comm_.size(), shared.mean.span().subspan(begin, end - begin));
  }

  Communicator& comm_;
  const MethodBench& how_;
  Layout layout_;
  FlatBuffer params_, grads_, moments_, mean_;
  std::optional<GpuArrays> gpu_;
  std::span<float> where_params_, where_grads_;  // on the GPU, if there is one
  std::vector<Tensor> each_param_;
  std::vector<ConstTensor> each_grad_;
  std::vector<std::unique_ptr<Communicator>> alone_ = make_thread_world(1);
  std::vector<TimedStep> steps_;
};

}  // namespace

std::vector<StepRow> bench_optimizer(Communicator& comm, const MethodBench& how,
                                     std::size_t coords) {
  for (const std::string& method : how.methods) check_method(method, comm.size());
  return Steps(comm, how, coords).run();
}

}  // namespace pride::app

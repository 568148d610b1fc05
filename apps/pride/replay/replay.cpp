// Checks of a recording, and the replay loop: one thread per recorded worker, each with its own
// parameters and optimizer.
// SPDX-License-Identifier: Apache-2.0
#include "replay/replay.h"

#include <fnmatch.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "program/table.h"

namespace pride::app {
namespace {

using std::filesystem::path;

constexpr std::string_view kParam = "param.";
constexpr std::string_view kGrad = "grad.";
constexpr std::int64_t kMaxWorkers = 1024;

[[noreturn]] void refuse(const path& file, const std::string& why) {
  throw DataError(concat(file.string(), ": not a recording for replay: ", why));
}

std::string text(std::span<const std::int64_t> shape) {
  std::string out;
  for (const std::int64_t size : shape) out += concat(out.empty() ? "" : ", ", size);
  return "[" + out + "]";
}

// Every tensor is a parameter or a gradient, in F32, and has a partner of the other kind.
void check_names(const path& file, const std::map<std::string, SafeTensor>& tensors) {
  if (tensors.empty()) refuse(file, "it holds no tensors");
  for (const auto& [key, tensor] : tensors) {
    const bool is_param = key.starts_with(kParam);
    const auto prefix = is_param ? kParam : kGrad;
    if (!key.starts_with(prefix) || key.size() == prefix.size()) {
      refuse(file, concat("tensor \"", key, "\" is neither param.<name> nor grad.<name>"));
    }
    if (tensor.dtype != "F32") {
      refuse(file, concat("tensor \"", key, "\" has dtype ", tensor.dtype, ", expected F32"));
    }
    const std::string partner = concat(is_param ? kGrad : kParam, key.substr(prefix.size()));
    if (!tensors.contains(partner)) {
      refuse(file, concat("tensor \"", key, "\" is there, \"", partner, "\" is missing"));
    }
  }
}

// The gradient's first two sizes are steps and workers, the same for all; the rest is the shape.
void check_grad(const path& file, const std::string& name, const SafeTensor& param,
                const SafeTensor& grad, Recording& recording) {
  const std::span<const std::int64_t> shape = grad.shape;
  if (shape.size() < 2 || !std::ranges::equal(shape.subspan(2), param.shape)) {
    refuse(file, concat("tensor \"grad.", name, "\" has shape ", text(shape),
                        ", expected [steps, workers] before the parameter's ", text(param.shape)));
  }
  if (shape[1] < 1 || shape[1] > kMaxWorkers) {
    refuse(file, concat("tensor \"grad.", name, "\" has ", shape[1], " workers, expected 1 to ",
                        kMaxWorkers));
  }
  const bool first = recording.tensors.empty();
  if (!first && (shape[0] != recording.steps || shape[1] != recording.workers)) {
    refuse(file, concat("tensor \"grad.", name, "\" has ", shape[0], " steps of ", shape[1],
                        " workers, those before it ", recording.steps, " of ", recording.workers));
  }
  recording.steps = shape[0];
  recording.workers = static_cast<int>(shape[1]);
}

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// The tensors' layout: group 0 has the requested weight decay; group 1, of names that a pattern
// matches, has none.
Layout layout_of(const Recording& recording, const std::vector<std::string>& no_decay) {
  for (const std::string& pattern : no_decay) {
    const bool used = std::ranges::any_of(
        recording.tensors, [&](const auto& tensor) { return matches(pattern, tensor.first); });
    PRIDE_CHECK(used, "no-decay pattern \"", pattern, "\" matches none of the ",
                recording.tensors.size(), " tensors");
  }
  return recording.layout([&](const std::string& name) {
    return std::ranges::any_of(no_decay, [&](const auto& p) { return matches(p, name); }) ? 1 : 0;
  });
}

OptimizerOptions optimizer_of(const ReplayOptions& options) {
  OptimizerOptions optimizer = options.optimizer;
  PRIDE_CHECK(!optimizer.groups.empty(), "replay: no parameter group given");
  optimizer.groups.resize(1);
  if (!options.no_decay.empty()) {
    optimizer.groups.push_back(optimizer.groups.front());
    optimizer.groups.back().weight_decay = 0.0;
  }
  return optimizer;
}

// A text about the first bit in which two buffers differ.
std::string first_difference(const Layout& layout, std::span<const float> expected,
                             std::span<const float> actual) {
  for (const TensorSlot& slot : layout.tensors()) {
    for (std::size_t i = 0; i < slot.n; ++i) {
      const float a = expected[slot.offset + i], b = actual[slot.offset + i];
      if (std::bit_cast<std::uint32_t>(a) != std::bit_cast<std::uint32_t>(b)) {
        return concat("tensor \"", slot.spec.name, "\", coordinate ", i, ": ", b,
                      ", on rank 0: ", a);
      }
    }
  }
  return "padding differs";
}

// Rank r writes params[r] and bytes[r], rank 0 the rest; others read params[0] only between the two
// barriers of after_step().
class Replay {
 public:
  Replay(const Recording& recording, const ReplayOptions& options)
      : recording_(recording),
        layout_(layout_of(recording, options.no_decay)),
        options_(optimizer_of(options)),
        bytes_(static_cast<std::size_t>(recording.workers)) {
    for (int rank = 0; rank < recording.workers; ++rank) {
      params_.emplace_back(layout_.flat_size());
      recording.copy_params(layout_, params_.back().span());
    }
    for (const auto& [name, tensor] : recording.tensors) {
      SafeTensor& out = result_.params["param." + name];
      out.shape = tensor.shape;
      out.shape.insert(out.shape.begin(), recording.steps);
      out.values.resize(static_cast<std::size_t>(recording.steps) * tensor.param.size());
    }
  }

  ReplayResult run() {
    const int n = recording_.workers;
    run_world(n, [&](Communicator& comm) { run_rank(comm); });
    result_.n_coords = layout_.n_coords();
    result_.bytes_sent = std::accumulate(bytes_.begin(), bytes_.end(), std::uint64_t{0});
    result_.param_hash = param_hash(layout_, params_[0].span());
    if (recording_.steps == 0) return std::move(result_);
    const double bytes =
        static_cast<double>(result_.bytes_sent) / (static_cast<double>(recording_.steps) * n);
    const double ring = fp32_ring_bytes(static_cast<double>(result_.n_coords), n);
    result_.bytes_per_step_and_rank = bytes;
    if (ring > 0) result_.ratio_to_fp32_ring = bytes / ring;
    return std::move(result_);
  }

 private:
  void run_rank(Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    FlatBuffer& params = params_[rank];
    FlatBuffer grads(layout_.flat_size());
    Optimizer optimizer(comm, layout_, options_);
    for (std::int64_t step = 0; step < recording_.steps; ++step) {
      recording_.copy_grads(layout_, step, comm.rank(), grads.span());
      const StepReport report = optimizer.step(params.span(), grads.span());
      bytes_[rank] += report.bytes_sent;
      optimizer.to_common(params.span());
      after_step(comm, step, report);
      optimizer.to_local(params.span());
    }
  }

  // Rank 0 keeps its parameters, the others compare theirs with them.
  void after_step(Communicator& comm, std::int64_t step, const StepReport& report) {
    comm.barrier();
    const auto expected = std::as_const(params_[0]).span();
    const auto actual = std::as_const(params_[static_cast<std::size_t>(comm.rank())]).span();
    if (comm.rank() == 0) {
      publish(step, report);
    } else if (!expected.empty() &&
               std::memcmp(expected.data(), actual.data(), expected.size_bytes()) != 0) {
      throw Error(concat("replay: parameters of rank ", comm.rank(), " differ after step ", step,
                         ": ", first_difference(layout_, expected, actual)));
    }
    comm.barrier();
  }

  void publish(std::int64_t step, const StepReport& report) {
    result_.skipped_steps += report.skipped ? 1 : 0;
    for (const TensorSlot& slot : layout_.tensors()) {
      std::ranges::copy(std::as_const(params_[0]).span().subspan(slot.offset, slot.n),
                        result_.params.at("param." + slot.spec.name).values.begin() +
                            step * static_cast<std::ptrdiff_t>(slot.n));
    }
  }

  const Recording& recording_;
  const Layout layout_;
  const OptimizerOptions options_;
  std::vector<FlatBuffer> params_;
  std::vector<std::uint64_t> bytes_;
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const Recording& recording, const ReplayOptions& options) {
  return Replay(recording, options).run();
}

void Recording::copy_params(const Layout& layout, std::span<float> flat) const {
  for (const TensorSlot& slot : layout.tensors()) {
    std::ranges::copy(tensors.at(slot.spec.name).param, flat.subspan(slot.offset).begin());
  }
}

void Recording::copy_grads(const Layout& layout, std::int64_t step, int worker,
                           std::span<float> flat) const {
  const auto row = static_cast<std::size_t>(step * workers + worker);
  for (const TensorSlot& slot : layout.tensors()) {
    const std::span<const float> all = tensors.at(slot.spec.name).grads;
    std::ranges::copy(all.subspan(row * slot.n, slot.n), flat.subspan(slot.offset).begin());
  }
}

Recording make_recording(const path& file, std::map<std::string, SafeTensor> tensors) {
  check_names(file, tensors);
  Recording recording;
  for (auto& [key, param] : tensors) {
    if (!key.starts_with(kParam)) continue;
    const std::string name = key.substr(kParam.size());
    SafeTensor& grad = tensors.at(concat(kGrad, name));
    check_grad(file, name, param, grad, recording);
    recording.tensors.emplace(name, RecordedTensor{.shape = std::move(param.shape),
                                                   .param = std::move(param.values),
                                                   .grads = std::move(grad.values)});
  }
  return recording;
}

}  // namespace pride::app

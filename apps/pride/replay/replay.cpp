// Checks of a recording, and the replay loop: one thread per recorded worker, each with its own
// parameters and optimizer.
// SPDX-License-Identifier: Apache-2.0
#include "replay/replay.h"

#include <fnmatch.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "text/table.h"

namespace pride::app {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

void check_patterns(const Recording& recording, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    const bool used =
        std::any_of(recording.tensors.begin(), recording.tensors.end(),
                    [&](const auto& tensor) { return matches(pattern, tensor.first); });
    PRIDE_CHECK(used, "no-decay pattern \"", pattern, "\" matches none of the ",
                recording.tensors.size(), " tensors");
  }
}

// Group 0 has the weight decay asked for; group 1, if any pattern is given, has none.
std::vector<ParamGroup> groups_of(const ReplayOptions& options) {
  PRIDE_CHECK(!options.optimizer.groups.empty(), "replay: no parameter group given");
  std::vector<ParamGroup> groups = {options.optimizer.groups.front()};
  if (!options.no_decay.empty()) {
    groups.push_back(groups.front());
    groups.back().weight_decay = 0.0;
  }
  return groups;
}

// Where two buffers differ in a bit first, in words.
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

// What the ranks' threads share: rank r writes params[r] and bytes[r], rank 0 the rest; others
// read params[0] only between the two barriers of after_step().
struct Shared {
  const Recording& recording;
  const Layout& layout;
  const OptimizerOptions& options;
  std::vector<FlatBuffer> params;
  std::vector<std::uint64_t> bytes;
  ReplayResult& result;
};

void publish(Shared& shared, std::int64_t step, const StepReport& report) {
  shared.result.skipped_steps += report.skipped ? 1 : 0;
  const std::span<const float> flat = shared.params[0].span();
  for (const TensorSlot& slot : shared.layout.tensors()) {
    SafeTensor& out = shared.result.params.at("param." + slot.spec.name);
    std::ranges::copy(
        flat.subspan(slot.offset, slot.n),
        out.values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(step) * slot.n));
  }
}

// Rank 0 keeps its parameters, the others compare theirs with them.
void after_step(Communicator& comm, Shared& shared, std::int64_t step, const StepReport& report) {
  comm.barrier();
  if (comm.rank() == 0) {
    publish(shared, step, report);
  } else {
    const auto expected = std::as_const(shared.params[0]).span();
    const auto actual = std::as_const(shared.params[comm.rank()]).span();
    if (!expected.empty() &&
        std::memcmp(expected.data(), actual.data(), expected.size_bytes()) != 0) {
      throw Error(concat("replay: parameters of rank ", comm.rank(), " differ after step ", step,
                         ": ", first_difference(shared.layout, expected, actual)));
    }
  }
  comm.barrier();
}

void run_rank(Communicator& comm, Shared& shared) {
  const int rank = comm.rank();
  FlatBuffer& params = shared.params[rank];
  FlatBuffer grads(shared.layout.flat_size());
  Optimizer optimizer(comm, shared.layout, shared.options);
  for (std::int64_t step = 0; step < shared.recording.steps; ++step) {
    shared.recording.copy_grads(shared.layout, step, rank, grads.span());
    const StepReport report = optimizer.step(params.span(), grads.span());
    shared.bytes[rank] += report.bytes_sent;
    optimizer.to_common(params.span());
    after_step(comm, shared, step, report);
    optimizer.to_local(params.span());
  }
}

void prepare(const Recording& recording, const Layout& layout, Shared& shared) {
  for (int rank = 0; rank < recording.workers; ++rank) {
    shared.params.emplace_back(layout.flat_size());
    recording.copy_params(layout, shared.params.back().span());
  }
  for (const auto& [name, tensor] : recording.tensors) {
    SafeTensor out;
    out.shape = tensor.shape;
    out.shape.insert(out.shape.begin(), recording.steps);
    out.values.resize(static_cast<std::size_t>(recording.steps) * tensor.param.size());
    shared.result.params.emplace("param." + name, std::move(out));
  }
}

void summarise(const Recording& recording, const Layout& layout, const Shared& shared,
               ReplayResult& result) {
  result.n_coords = layout.n_coords();
  result.bytes_sent = std::accumulate(shared.bytes.begin(), shared.bytes.end(), std::uint64_t{0});
  result.param_hash = param_hash(layout, shared.params[0].span());
  if (recording.steps == 0) return;
  const double n = recording.workers;
  const double bytes =
      static_cast<double>(result.bytes_sent) / (static_cast<double>(recording.steps) * n);
  const double ring = fp32_ring_bytes(static_cast<double>(result.n_coords), recording.workers);
  result.bytes_per_step_and_rank = bytes;
  if (ring > 0) result.ratio_to_fp32_ring = bytes / ring;
}

}  // namespace

ReplayResult replay(const Recording& recording, const ReplayOptions& options) {
  check_patterns(recording, options.no_decay);
  const Layout layout = recording.layout(
      [&](const std::string& name) { return matches_any(options.no_decay, name) ? 1 : 0; });
  OptimizerOptions optimizer = options.optimizer;
  optimizer.groups = groups_of(options);
  ReplayResult result;
  Shared shared{.recording = recording,
                .layout = layout,
                .options = optimizer,
                .params = {},
                .bytes = std::vector<std::uint64_t>(static_cast<std::size_t>(recording.workers)),
                .result = result};
  prepare(recording, layout, shared);
  run_world(recording.workers, [&](Communicator& comm) { run_rank(comm, shared); });
  summarise(recording, layout, shared, result);
  return result;
}

namespace {

using std::filesystem::path;

constexpr std::string_view kParam = "param.";
constexpr std::string_view kGrad = "grad.";
constexpr std::int64_t kMaxWorkers = 1024;

[[noreturn]] void refuse(const path& file, const std::string& why) {
  throw DataError(concat(file.string(), ": not a recording for replay: ", why));
}

std::string text(std::span<const std::int64_t> shape) {
  std::ostringstream out;
  out << '[';
  for (std::size_t i = 0; i < shape.size(); ++i) out << (i == 0 ? "" : ", ") << shape[i];
  out << ']';
  return out.str();
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

}  // namespace

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

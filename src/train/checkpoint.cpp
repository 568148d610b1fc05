// SPDX-License-Identifier: Apache-2.0
#include "pride/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

#include "pride/error.h"
#include "train/facts_json.h"
#include "train/files.h"
#include "train/hex.h"
#include "train/io/safetensors.h"

namespace pride::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFacts = "checkpoint.json";
constexpr std::string_view kPrefix = "step-";

fs::path state_file(const fs::path& folder, int rank) {
  return folder / concat("state-rank", rank, ".safetensors");
}

// what the step counter, the data order and the schedule depend on
nlohmann::json facts_of(const TrainPlan& plan) {
  const TrainOptions& o = plan.options;
  return {{"world", plan.world},
          {"method", o.method},
          {"task", plan.task->name()},
          {"seed", o.seed},
          {"batch", o.batch},
          {"accumulate", o.accumulate},
          {"sharding", o.sharding},
          {"model", to_json(plan.task->model().size)},
          {"data", plan.task->data().hash}};
}

void save_state(const fs::path& file, const Optimizer& optimizer) {
  StateDict state = optimizer.save();
  std::map<std::string, SafeTensor> tensors;
  for (auto& [name, tensor] : state.tensors) {
    tensors[name] = {.shape = std::move(tensor.shape), .values = std::move(tensor.values)};
  }
  write_safetensors(file, tensors, state.scalars);
}

StateDict read_state(const fs::path& file) {
  StateDict state;
  state.scalars = read_safetensors_metadata(file);
  for (auto& [name, tensor] : read_safetensors(file)) {
    state.tensors[name] = {tensor.shape, std::move(tensor.values)};
  }
  return state;
}

template <typename... Why>
[[noreturn]] void refuse_mixed(const fs::path& folder, const Why&... why) {
  throw DataError(concat("--resume ", folder.string(), ": mixed checkpoint: ", why...));
}

void load_state(const fs::path& folder, int rank, const Resumed& saved, const std::string& local,
                Optimizer& optimizer) {
  const auto state_of = [&](int r) {
    StateDict state = read_state(state_file(folder, r));
    const std::string& step = state.scalars["step"];
    if (step != std::to_string(saved.step)) {
      refuse_mixed(folder, state_file("", r).string(), " is of step ", step, ", ", kFacts,
                   " of step ", saved.step);
    }
    return state;
  };
  if (local.empty()) return optimizer.load(state_of(rank));
  std::vector<StateDict> all;
  for (int r = 0; r < saved.world; ++r) all.push_back(state_of(r));
  optimizer.load(std::move(all), local == "keep"      ? LocalState::kKeep
                                 : local == "average" ? LocalState::kAverage
                                                      : LocalState::kReset);
}

// All ranks must have read the parameters that were saved. Collective.
void check_parameters(Communicator& comm, const fs::path& folder, const nlohmann::json& saved,
                      std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(comm.size()));
  const Communicator::Scope scope(comm, "check of the checkpoint");
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  const std::string hash = saved.value("param_hash", "missing");
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (hex16(all[r]) == hash) continue;
    refuse_mixed(folder, "model.safetensors, as rank ", r, " reads it, has param_hash ",
                 hex16(all[r]), ", ", kFacts, " ", hash);
  }
}

std::int64_t step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  std::int64_t step = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && last == end ? step : -1;
}

}  // namespace

void save_parameters(const fs::path& file, const Layout& layout, std::span<const float> params) {
  std::map<std::string, SafeTensor> tensors;
  for (const TensorSlot& slot : layout.tensors()) {
    const std::span<const float> values = params.subspan(slot.offset, slot.n);
    tensors[slot.spec.name] = {.shape = slot.spec.shape, .values = {values.begin(), values.end()}};
  }
  write_safetensors(file, tensors, {{"format", "pt"}});
}

void save_model(const fs::path& folder, const Task& task, const Layout& layout,
                std::span<const float> params) {
  save_parameters(folder / "model.safetensors", layout, params);
  const std::string& config = task.model().config;
  if (!config.empty()) {
    write_file(folder / "config.json", nlohmann::ordered_json::parse(config).dump(2) + "\n");
  }
}

void load_parameters(const fs::path& file, const Layout& layout, std::span<float> params) {
  const std::map<std::string, SafeTensor> tensors = read_safetensors(file);
  for (const TensorSlot& slot : layout.tensors()) {
    const auto found = tensors.find(slot.spec.name);
    if (found == tensors.end() || found->second.shape != slot.spec.shape) {
      throw DataError(concat(file.string(), ": tensor '", slot.spec.name,
                             found == tensors.end() ? "' is missing" : "' has another shape"));
    }
  }
  if (tensors.size() != layout.tensors().size()) {
    throw DataError(concat(file.string(), ": ", tensors.size(), " tensors, the model has ",
                           layout.tensors().size()));
  }
  for (const TensorSlot& slot : layout.tensors()) {
    std::ranges::copy(tensors.at(slot.spec.name).values, params.begin() + slot.offset);
  }
}

void save_checkpoint(Communicator& comm, const TrainPlan& plan, const Optimizer& optimizer,
                     std::span<const float> params, std::int64_t ahead) {
  const fs::path parent = fs::path(plan.options.out) / "checkpoints";
  const std::string name = concat(kPrefix, optimizer.steps_done());
  const fs::path partial = parent / (name + ".partial");
  const Communicator::Scope scope(comm, "checkpoint");
  if (comm.rank() == 0) {
    fs::remove_all(partial);
    fs::create_directories(partial);
  }
  comm.barrier();
  save_state(state_file(partial, comm.rank()), optimizer);
  if (comm.rank() == 0) {
    save_model(partial, *plan.task, optimizer.layout(), params);
    nlohmann::json facts = facts_of(plan);
    facts["step"] = optimizer.steps_done();
    facts["batches_ahead"] = ahead;
    facts["param_hash"] = hex16(param_hash(optimizer.layout(), params));
    write_file(partial / kFacts, facts.dump(2) + "\n");
  }
  comm.barrier();
  if (comm.rank() == 0) {
    fs::remove_all(parent / name);
    fs::rename(partial, parent / name);
  }
}

fs::path find_checkpoint(const fs::path& folder) {
  if (fs::exists(folder / kFacts)) return folder;
  fs::path last;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder / "checkpoints", none)) {
    const bool complete = fs::exists(entry.path() / kFacts);
    if (complete && step_of(entry.path()) > step_of(last)) last = entry.path();
  }
  if (last.empty())
    throw DataError(concat("--resume ", folder.string(), ": no complete checkpoint there"));
  return last;
}

Resumed load_checkpoint(Communicator& comm, const fs::path& folder, const TrainPlan& plan,
                        Optimizer& optimizer, std::span<float> params) {
  const nlohmann::json saved = read_json(folder / kFacts);
  const std::string& local = plan.options.resume_local;
  const nlohmann::json wanted = facts_of(plan);
  for (const auto& [key, value] : wanted.items()) {
    const auto found = saved.find(key);
    const bool other_world = key == "world" && found != saved.end() && found->is_number_integer() &&
                             *found >= 1 && *found <= 65535;
    if (other_world && !local.empty()) continue;
    PRIDE_CHECK(
        found != saved.end() && *found == value, "--resume ", folder.string(),
        ": the checkpoint has ", key, " ",
        found == saved.end() ? std::string("none") : found->dump(), ", this run ", value.dump(),
        other_world ? "; --resume-local keep, average or reset goes on with other workers" : "");
  }
  const Resumed resumed{saved.value("step", std::int64_t{0}), saved["world"].get<int>(),
                        saved.value("batches_ahead", std::int64_t{0})};
  load_parameters(folder / "model.safetensors", optimizer.layout(), params);
  load_state(folder, comm.rank(), resumed, local, optimizer);
  check_parameters(comm, folder, saved, param_hash(optimizer.layout(), params));
  return resumed;
}

}  // namespace pride::train

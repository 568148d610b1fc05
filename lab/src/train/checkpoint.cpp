// SPDX-License-Identifier: Apache-2.0
#include "pride/train/checkpoint.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "pride/agreement.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "pride/train/flags.h"
#include "program/files.h"
#include "program/hex.h"
#include "program/io/mapped_file.h"
#include "program/io/safetensors.h"
#include "train/checkpoint_files.h"
#include "train/facts_json.h"
#include "train/settings/groups.h"

namespace pride::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPersonalState = "personal.safetensors";

// "embeddings,vectors: adamw; ...": numbers and options may change, or the state refuses them.
std::string methods_of_groups(const TrainOptions& options) {
  std::string text;
  for (const GroupChoice& choice : parse_groups(options.groups)) {
    text += text.empty() ? "" : "; ";
    for (const std::string& word : choice.words) {
      text += (word == choice.words.front() ? "" : ",") + word;
    }
    text += ": " + choice.group.method;
  }
  return text;
}

// settings on which step counter, data order and schedule depend
nlohmann::json facts_of(const TrainPlan& plan) {
  const TrainOptions& o = plan.options;
  return {{"world", plan.world},
          {"method", o.method},
          {"groups", methods_of_groups(o)},
          {"task", plan.task->name()},
          {"seed", o.seed},
          {"batch", o.batch},
          {"accumulate", o.accumulate},
          {"sharding", o.sharding},
          {"participation", o.participation},
          {"personal", o.personal},
          {"model", to_json(plan.task->model().size)},
          {"data", plan.task->data().hash}};
}

// A hash of the workers' shared parameters.
std::uint64_t common_hash(const Kept& kept) {
  return kept.optimizer.hash(kept.params.first(kept.optimizer.layout().tensors().size()));
}

// Calls body(optimizer, its parameters, their part of `flat`), for each optimizer.
void for_parts(const Kept& kept, auto flat, auto&& body) {
  const Layout& common = kept.optimizer.layout();
  const std::size_t n = common.tensors().size();
  body(kept.optimizer, kept.params.first(n), flat.first(common.flat_size()));
  if (kept.personal == nullptr) return;
  body(*kept.personal, kept.params.subspan(n), flat.subspan(common.flat_size()));
}

StateDict save_of(const Replica& optimizer, int worker) {
  if (worker == 0) return optimizer.save();
  return dynamic_cast<const VirtualWorkers&>(optimizer).save(worker);
}

// Without masters of narrow parameters: model.safetensors has them.
void save_state(const fs::path& file, StateDict state) {
  std::erase_if(state.tensors, [](const auto& t) { return t.first.starts_with("master/"); });
  state.scalars.erase("kind.master");
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

// Loads the states of all ranks with --resume-local or virtual workers, otherwise the rank's own.
void load_states(const fs::path& folder, int rank, const Resumed& saved,
                 const TrainOptions& options, Replica& optimizer) {
  const std::string& local = options.resume_local;
  const auto state_of = [&](int r) {
    StateDict state = read_state(folder / state_name(r));
    const std::string& step = state.scalars["step"];
    if (step != std::to_string(saved.step)) {
      refuse_mixed(folder, state_name(r), " is of step ", step, ", ", kCheckpointFacts, " of step ",
                   saved.step);
    }
    return state;
  };
  if (local.empty() && options.virtual_workers == 0) return optimizer.load(state_of(rank));
  std::vector<StateDict> all;
  for (int r = 0; r < saved.world; ++r) all.push_back(state_of(r));
  optimizer.load(std::move(all), local == "average" ? LocalState::kAverage
                                 : local == "reset" ? LocalState::kReset
                                                    : LocalState::kKeep);
}

// Checks that all ranks have read the parameters that were saved. Collective.
void check_parameters(Communicator& comm, const fs::path& folder, const nlohmann::json& saved,
                      std::uint64_t mine) {
  const Communicator::Scope scope(comm, "check of the checkpoint");
  const std::vector<std::uint64_t> all = gather_rows(comm, {mine});
  const std::string hash = saved.value("param_hash", "missing");
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (hex16(all[r]) == hash) continue;
    refuse_mixed(folder, "model.safetensors, as rank ", r, " reads it, has param_hash ",
                 hex16(all[r]), ", ", kCheckpointFacts, " ", hash);
  }
}

// The first rank's reason against the checkpoint, on all ranks; empty: none has one. Collective.
std::string first_reason(Communicator& comm, const std::string& mine) {
  using Text = std::array<char, 512>;
  Text text = {};
  mine.copy(text.data(), text.size() - 1);
  std::vector<Text> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(text)), std::as_writable_bytes(std::span(all)));
  const auto bad = std::ranges::find_if(all, [](const Text& t) { return t[0] != 0; });
  return bad == all.end() ? "" : bad->data();
}

// Why this rank cannot resume from the checkpoint; empty: it can. `all_states`: of all ranks.
std::string reason_against(const fs::path& folder, int rank, bool all_states) {
  try {
    const nlohmann::json facts = read_checkpoint_facts(folder);
    std::vector<std::string> files = {"model.safetensors"};
    const nlohmann::json all = facts.value("files", nlohmann::json::object());
    for (const char* file : {"config.json", kPersonalState}) {
      if (all.contains(file)) files.emplace_back(file);
    }
    for (int r = 0; r < facts.value("world", 0); ++r) {  // load_checkpoint() checks the world
      if (r == rank || all_states) files.push_back(state_name(r));
    }
    check_checkpoint_files(folder, facts, files);
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

// The newest checkpoint that is intact on every rank; `notes` gets the reasons against newer ones.
// Collective.
fs::path choose_checkpoint(Communicator& comm, const TrainOptions& options,
                           std::vector<std::string>& notes) {
  const std::vector<fs::path> all = find_checkpoints(options.resume);
  const bool all_states = !options.resume_local.empty() || options.virtual_workers > 0;
  const Communicator::Scope scope(comm, "choice of the checkpoint");
  for (const fs::path& folder : all) {
    const std::string why = first_reason(comm, reason_against(folder, comm.rank(), all_states));
    if (why.empty()) return folder;
    if (folder == all.back()) throw DataError(concat("--resume ", options.resume, ": ", why));
    notes.push_back(concat("skipped: ", why));
  }
  throw DataError(concat("--resume ", options.resume, ": no checkpoint"));
}

// "--lr was 0.001 and is 0.01": the changed settings that affect the run's result.
std::vector<std::string> changes(const nlohmann::json& saved, const nlohmann::ordered_json& now) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : now.items()) {
    const Role role = role_of(name);
    const bool decides = role == Role::kTask || role == Role::kBatches || role == Role::kMethod ||
                         role == Role::kTraining;
    const auto before = saved.find(name);
    if (!decides || name == "workers" || before == saved.end() || *before == value) continue;
    texts.push_back(concat("--", name, " was ", before->dump(), " and is ", value.dump()));
  }
  return texts;
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

void save_model(const fs::path& folder, const Task& task, const Kept& kept) {
  FlatBuffer params(kept.layout.flat_size());
  for_parts(kept, params.span(), [](const Replica& optimizer, auto tensors, auto part) {
    optimizer.read(tensors, part);
  });
  save_parameters(folder / "model.safetensors", kept.layout, params.span());
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

namespace {

struct At {
  std::int64_t ahead = 0;  // batches
  std::optional<double> loss;
};

// Rank 0's part, once all states are there.
void finish_checkpoint(const TrainPlan& plan, const Kept& kept,
                       std::span<const std::uint64_t> hashes, const fs::path& partial,
                       const At& at) {
  save_model(partial, *plan.task, kept);
  nlohmann::json facts = facts_of(plan), files;
  for (const auto& entry : fs::directory_iterator(partial)) {  // ranks have hashed their states
    const std::string file = entry.path().filename().string();
    if (!file.starts_with("state-")) files[file] = hex16(file_hash(entry.path()));
  }
  for (int r = 0; r < std::ssize(hashes); ++r) {
    files[state_name(r)] = hex16(hashes[static_cast<std::size_t>(r)]);
  }
  facts["files"] = files;
  facts["settings"] = to_json(plan.options);
  facts["step"] = kept.optimizer.steps_done();
  facts["batches_ahead"] = at.ahead;
  facts["param_hash"] = hex16(common_hash(kept));
  if (at.loss) facts["loss"] = *at.loss;
  write_checkpoint_facts(partial, facts);
  put_in_place(partial, partial.parent_path() / partial.stem());
  keep_newest(partial.parent_path(), plan.options.keep_checkpoints);
}

// If a rank's body fails, as on a full disk, all ranks throw its DataError. Collective.
template <typename Body>
void all_or_none(Communicator& comm, const fs::path& partial, const Body& body) {
  std::string why;
  try {
    body();
  } catch (const std::exception& error) {
    why = error.what();
  }
  why = first_reason(comm, why);
  if (why.empty()) return;
  std::error_code none;
  if (comm.rank() == 0) fs::remove_all(partial, none);
  throw DataError(concat(partial.stem().string(), " was not saved: ", why));
}

}  // namespace

void save_checkpoint(Communicator& comm, const TrainPlan& plan, const Kept& kept,
                     std::int64_t ahead, std::optional<double> loss) {
  const fs::path parent = fs::path(plan.options.out) / "checkpoints";
  const std::string name = checkpoint_name(kept.optimizer.steps_done());
  const fs::path partial = parent / (name + kPartial);
  const Communicator::Scope scope(comm, "checkpoint");
  all_or_none(comm, partial, [&] {
    if (comm.rank() != 0) return;
    remove_partial(parent);
    fs::create_directories(partial);
  });
  // hashes of states: one rank's, or all virtual workers'
  std::vector<std::uint64_t> mine(
      static_cast<std::size_t>(std::max(1, plan.options.virtual_workers)));
  all_or_none(comm, partial, [&] {
    for (int i = 0; i < std::ssize(mine); ++i) {
      const fs::path state = partial / state_name(comm.rank() + i);
      save_state(state, save_of(kept.optimizer, i));
      mine[static_cast<std::size_t>(i)] = file_hash(state);
    }
    if (kept.personal != nullptr) save_state(partial / kPersonalState, kept.personal->save());
  });
  const std::vector<std::uint64_t> hashes = gather_rows(comm, mine);
  all_or_none(comm, partial, [&] {
    if (comm.rank() == 0) finish_checkpoint(plan, kept, hashes, partial, {ahead, loss});
  });
}

Resumed load_checkpoint(Communicator& comm, const TrainPlan& plan, const Kept& kept) {
  Resumed resumed;
  const fs::path folder = choose_checkpoint(comm, plan.options, resumed.notes);
  const nlohmann::json saved = read_checkpoint_facts(folder);
  const std::string& local = plan.options.resume_local;
  const nlohmann::json wanted = facts_of(plan);
  // of runs whose checkpoints do not say
  const nlohmann::json unsaid = {{"groups", ""}, {"personal", ""}, {"participation", 1}};
  for (const auto& [key, value] : wanted.items()) {
    const nlohmann::json was = saved.value(key, unsaid.value(key, nlohmann::json()));
    const bool other_world = key == "world" && was.is_number_integer() && was >= 1 && was <= 65535;
    if (other_world && !local.empty()) continue;
    PRIDE_CHECK(
        was == value, "--resume ", folder.string(), ": the checkpoint has ", key, " ",
        was.is_null() ? std::string("none") : was.dump(), ", this run ", value.dump(),
        other_world ? "; --resume-local keep, average or reset continues with another number" : "");
  }
  resumed.step = saved.value("step", std::int64_t{0});
  resumed.world = saved["world"].get<int>();
  resumed.ahead = saved.value("batches_ahead", std::int64_t{0});
  FlatBuffer params(kept.layout.flat_size());
  load_parameters(folder / "model.safetensors", kept.layout, params.span());
  for_parts(kept, params.span(),
            [](Replica& optimizer, auto tensors, auto part) { optimizer.write(tensors, part); });
  load_states(folder, comm.rank(), resumed, plan.options, kept.optimizer);
  if (kept.personal != nullptr) kept.personal->load(read_state(folder / kPersonalState));
  check_parameters(comm, folder, saved, common_hash(kept));
  for (const std::string& change :
       changes(saved.value("settings", nlohmann::json::object()), to_json(plan.options))) {
    resumed.notes.push_back("changed since the checkpoint: " + change);
  }
  return resumed;
}

bool resumes_in_place(const TrainOptions& o) {
  if (o.resume.empty() || !fs::exists(o.out)) return false;
  const fs::path checkpoint = fs::weakly_canonical(find_checkpoints(o.resume).front());
  return checkpoint.parent_path().parent_path() == fs::weakly_canonical(o.out);
}

}  // namespace pride::train

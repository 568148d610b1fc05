// The files of a run: metrics.jsonl, summary.json, and the folder that they lie in.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <span>
#include <string>

#include "pride/cpu.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "pride/train/checkpoint.h"
#include "pride/train/observer.h"
#include "program/build_info.h"
#include "program/files.h"
#include "program/hex.h"
#include "program/io/folder_lock.h"
#include "program/io/growing_file.h"
#include "train/checkpoint_files.h"
#include "train/facts_json.h"
#include "train/process.h"
#include "train/run_folder.h"

namespace pride::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kResults[] = {"metrics.jsonl", "summary.json", "model.safetensors",
                                    "config.json", "checkpoints"};

bool has_contents(const fs::path& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    return entry.path().filename() != kLockFile;
  });
}

void make_folder(const char* flag, const std::string& folder) {
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) throw DataError(concat(flag, " ", folder, ": ", error.message()));
}

// what an earlier run in the same folder wrote about steps up to `step`
std::string kept_metrics(const fs::path& file, std::int64_t step) {
  std::ifstream in(file);
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object() && record.value("step", step + 1) <= step) kept += line + "\n";
  }
  return kept;
}

nlohmann::ordered_json seconds_json(const StageTimes& s) {
  nlohmann::ordered_json json;
  for (const auto& [name, stage] : kStages) json[concat(name, "_s")] = s.*stage;
  return json;
}

// A group's values in force, with the peak rate and the method's defaults.
nlohmann::ordered_json group_json(const ParamGroup& given, const MethodInfo& info) {
  const ParamGroup group = with_defaults(given, info);
  return {{"lr", *group.lr},
          {"beta1", group.beta1.value_or(0)},
          {"beta2", group.beta2.value_or(0)},
          {"eps", group.eps.value_or(0)},
          {"weight_decay", *group.weight_decay},
          {"momentum", group.momentum.value_or(0)}};
}

nlohmann::ordered_json method_json(const TrainPlan& plan) {
  const MethodInfo info = method_info(plan.options.method, plan.world, plan.optimizer.options);
  std::map<std::string, std::string> options = plan.optimizer.options;
  for (const MethodOption& option : info.options) {
    options.emplace(option.name, option.default_value);  // unless it was given
  }
  nlohmann::ordered_json json = {{"name", info.name}, {"title", info.title}, {"options", options}};
  json.update(group_json(plan.optimizer.groups.front(), info));
  return json;
}

nlohmann::ordered_json sections_json(const TrainPlan& plan, const TrainResult& result) {
  nlohmann::ordered_json sections = nlohmann::ordered_json::array();
  for (const SectionReport& s : result.sections) {
    const MethodInfo info = method_info(s.method, plan.world, s.options);
    nlohmann::ordered_json groups = nlohmann::ordered_json::array();
    for (const int g : s.groups) {
      groups.push_back(group_json(plan.optimizer.groups[static_cast<std::size_t>(g)], info));
    }
    sections.push_back({{"method", s.method},
                        {"options", s.options},
                        {"groups", groups},
                        {"parameters", s.n_coords},
                        {"state_bytes", s.state},
                        {"cost_up", s.mean_cost.bytes_up},
                        {"cost_down", s.mean_cost.bytes_down},
                        {"sent_last_step", s.bytes_sent},
                        {"received_last_step", s.bytes_received}});
  }
  return sections;
}

nlohmann::ordered_json versions_json() {
  return {{"pride", kVersion},
          {"commit", kGitDescribe},
          {"torch", torch_version()},
          {"compiler", kCompiler},
          {"build", kBuildType}};
}

nlohmann::ordered_json round_json(const RoundReport& r) {
  nlohmann::ordered_json json = {{"round", r.round}, {"voters", r.voters}, {"counted", r.counted}};
  if (!r.counted) json["why_not"] = r.why_not;
  if (r.replayed > 0) json["replayed"] = r.replayed;
  if (r.took_parameters) json["took_parameters"] = true;
  return json;
}

nlohmann::ordered_json bytes_json(const TrainResult& result) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  const double steps = static_cast<double>(std::max<std::int64_t>(result.steps_run, 1));
  for (std::size_t r = 0; r < result.sent.size(); ++r) {
    ranks.push_back({{"rank", r},
                     {"sent", result.sent[r]},
                     {"received", result.received[r]},
                     {"sent_per_step", static_cast<double>(result.sent[r]) / steps},
                     {"received_per_step", static_cast<double>(result.received[r]) / steps}});
  }
  const Cost& cost = result.start.cost;
  return {{"ranks", ranks},
          {"cost_up", cost.bytes_up},
          {"cost_down", cost.bytes_down},
          {"cost_exact", cost.exact},
          {"cost_bound", cost.bound}};
}

nlohmann::ordered_json data_json(const DataFacts& data) {
  nlohmann::ordered_json json = {{"source", data.source}, {"hash", data.hash}};
  json.update(to_json(data.more));
  return json;
}

class JsonLines final : public Observer {
 public:
  void on_start(const TrainPlan& plan, const RunStart& start) override {
    PRIDE_CHECK(!plan.options.out.empty(), "json_lines: options.out names no folder");
    plan_ = &plan;
    if (start.finished) return;
    file_ = fs::path(plan.options.out) / "metrics.jsonl";
    write_file(file_, start.step > 0 ? kept_metrics(file_, start.step) : "");
    out_.open(file_);
  }

  void on_step(const WorldStep& step) override {
    nlohmann::ordered_json record = {{"type", "step"},
                                     {"step", step.step},
                                     {"loss", step.mean_loss()},
                                     {"lr", step.lr},
                                     {"bytes_sent", step.max_bytes_sent()},
                                     {"bytes_received", step.max_bytes_received()}};
    if (step.grad_norm) record["grad_norm"] = *step.grad_norm;
    record.update(seconds_json(step.max_seconds()));
    const auto dropped = [](const RankStep& rank) { return rank.skipped != 0; };
    if (std::ranges::any_of(step.ranks, dropped)) record["skipped"] = true;
    if (step.round) record.update(round_json(*step.round));
    write(record);
    if (!step.note.empty()) write({{"type", "note"}, {"step", step.step}, {"text", step.note}});
  }

  void on_eval(std::int64_t step, const Facts& metrics, double seconds) override {
    nlohmann::ordered_json record = {{"type", "eval"}, {"step", step}, {"seconds", seconds}};
    record.update(to_json(metrics));
    write(record);
  }

  void on_end(const TrainResult& result) override {
    if (result.start.finished) return;
    write_file(file_.parent_path() / "summary.json", summary_json(*plan_, result) + "\n");
  }

 private:
  void write(const nlohmann::ordered_json& record) {
    out_.add(record.dump() + '\n');
    if (!fs::exists(file_)) {
      throw DataError(concat(file_.string(), ": it was removed while the run wrote there"));
    }
  }

  const TrainPlan* plan_ = nullptr;
  fs::path file_;
  GrowingFile out_;
};

}  // namespace

void check_out_folder(const TrainOptions& options) {
  // a resumed run continues in the folder; any other would mix with its content
  PRIDE_CHECK(
      !options.resume.empty() || options.overwrite || event_files_in(options.tensorboard).empty(),
      "--tensorboard ", options.tensorboard,
      ": the folder has event files of an earlier run; --overwrite removes them");
  const fs::path out = options.out;
  const bool there = !out.empty() && fs::exists(out);
  PRIDE_CHECK(!there || fs::is_directory(out), "--out ", options.out, ": is not a folder");
  if (there && has_contents(out) && !resumes_in_place(options)) {
    PRIDE_CHECK(options.overwrite, "--out ", options.out,
                ": the folder is not empty; --overwrite replaces the results in it");
    PRIDE_CHECK(
        options.resume.empty() || fs::weakly_canonical(options.resume) != fs::weakly_canonical(out),
        "--out ", options.out, ": --overwrite would remove what --resume needs");
  }
  // made last: one folder may be inside the other, and a run that cannot start leaves none behind
  make_folder("--tensorboard", options.tensorboard);
  make_folder("--out", options.out);
}

void make_room(const TrainOptions& o, std::int64_t step, std::vector<std::string>& notes) {
  if (resumes_in_place(o)) {
    remove_partial(fs::path(o.out) / "checkpoints");
    for (const std::string& name : drop_later(fs::path(o.out) / "checkpoints", step)) {
      notes.push_back(concat(name, " is of another course of the run: now ", name, ".dropped"));
    }
    return;
  }
  for (const char* name : kResults) {
    PRIDE_CHECK(o.overwrite || !fs::exists(fs::path(o.out) / name), "--out ", o.out,
                ": another run has left its ", name,
                " there since this one began; --overwrite replaces it");
    fs::remove_all(fs::path(o.out) / name);
  }
}

void check_shared_folder(Communicator& comm, const fs::path& folder) {
  const Communicator::Scope scope(comm, "check of --out");
  auto number = static_cast<std::uint64_t>(std::random_device()()) << 32 | std::random_device()();
  comm.broadcast(std::as_writable_bytes(std::span(&number, 1)), 0);
  // a new name, which no disk and no network cache has seen
  const fs::path file = folder / concat(".shared-", hex16(number));
  if (comm.rank() == 0) write_file(file, "");
  comm.barrier();
  const char sees = fs::exists(file) ? 1 : 0;
  std::vector<char> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&sees, 1)), std::as_writable_bytes(std::span(all)));
  if (comm.rank() == 0) fs::remove(file);
  const auto blind = std::ranges::find(all, 0);
  if (blind == all.end()) return;
  throw DataError(concat("--save-every: rank ", blind - all.begin(),
                         " does not see rank 0's --out ", folder.string(),
                         ": checkpoints need a folder that all machines share"));
}

std::shared_ptr<Observer> json_lines() { return std::make_shared<JsonLines>(); }

Observers observers_for(const TrainOptions& options) {
  Observers observers;
  if (!options.out.empty()) observers.push_back(json_lines());
  if (!options.tensorboard.empty()) observers.push_back(tensorboard_events());
  observers.push_back(options.quiet ? notices() : progress_line());
  return observers;
}

std::string summary_json(const TrainPlan& plan, const TrainResult& result) {
  const RunStart& start = result.start;
  nlohmann::ordered_json seconds = seconds_json(result.seconds);
  seconds.update({{"total", result.total_s}, {"evaluation", result.evaluation_s}});
  const auto samples = static_cast<double>(plan.samples_per_step());
  nlohmann::ordered_json summary = {
      {"versions", versions_json()},
      {"settings", to_json(plan.options)},
      {"task", plan.task->name()},
      {"data", data_json(plan.task->data())},
      {"model",
       {{"name", plan.task->model().name},
        {"size", to_json(plan.task->model().size)},
        {"parameters", start.n_parameters}}},
      {"method", method_json(plan)},
      {"state_floats", start.state_floats},
      {"world", plan.world},
      {"transport", start.transport},
      {"bucket_coords", plan.optimizer.bucket_coords},
      {"routes", start.routes},
      {"threads", thread_facts()},
      {"isa", active_isa()},
      {"samples_per_step", plan.samples_per_step()},
      {"steps", result.steps},
      {"steps_planned", plan.steps},
      {"steps_run", result.steps_run},
      {"steps_skipped", result.steps_skipped},
      {"notes", start.notes},
      {"epochs", static_cast<double>(result.steps) / plan.steps_per_epoch},
      {"interrupted", result.interrupted},
      {"bytes", bytes_json(result)},
      {"seconds", seconds},
      {"step_ms", result.step_s() * 1e3},
      {"samples_per_s", samples / result.step_s()},
      {"final", to_json(result.metrics)},
      {"param_hash", hex16(result.param_hash)}};
  if (result.sections.size() > 1) summary["sections"] = sections_json(plan, result);
  return summary.dump(2);
}

}  // namespace pride::train

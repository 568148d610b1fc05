// SPDX-License-Identifier: Apache-2.0
#include "train/recorder.h"

#include <unistd.h>

#include <map>
#include <string>

#include "build_info.h"
#include "commands.h"
#include "pride/cpu.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "train/checkpoint.h"
#include "train/files.h"
#include "train/hex.h"
#include "train/process.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

constexpr const char* kResults[] = {"metrics.jsonl", "summary.json", "model.safetensors",
                                    "config.json", "checkpoints"};

bool resumes_in_place(const TrainOptions& o) {
  if (o.resume.empty() || !fs::exists(o.out)) return false;
  const fs::path checkpoint = fs::weakly_canonical(find_checkpoint(o.resume));
  return checkpoint.parent_path().parent_path() == fs::weakly_canonical(o.out);
}

void remove_old_results(const TrainOptions& o) {
  if (!o.overwrite || resumes_in_place(o)) return;
  for (const char* name : kResults) fs::remove_all(fs::path(o.out) / name);
}

// A run that is resumed goes on in the folder; any other one would be mixed up with what is there.
void check_event_folder(const TrainOptions& o) {
  if (o.tensorboard.empty() || !o.resume.empty()) return;
  PRIDE_CHECK(o.overwrite || event_files_in(o.tensorboard).empty(), "--tensorboard ", o.tensorboard,
              ": the folder has event files of an earlier run; --overwrite removes them");
}

EventFile open_events(const TrainOptions& o, std::int64_t step) {
  if (o.resume.empty() && o.overwrite) {
    for (const fs::path& file : event_files_in(o.tensorboard)) fs::remove(file);
  }
  return EventFile(o.tensorboard, step);
}

void make_folder(const char* flag, const std::string& folder) {
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) throw DataError(concat(flag, " ", folder, ": ", error.message()));
}

ProgressOptions progress_options(const TrainPlan& plan) {
  return {.quiet = plan.options.quiet,
          .terminal = isatty(STDERR_FILENO) == 1,
          .log_every = plan.options.log_every,
          .total_steps = plan.steps,
          .samples_per_step = plan.samples_per_step()};
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
  return {{"data_s", s.data},
          {"backward_s", s.backward},
          {"encode_s", s.encode},
          {"exchange_s", s.exchange},
          {"apply_s", s.apply}};
}

// the hyper-parameters in force, the method's defaults filled in
nlohmann::ordered_json method_json(const TrainPlan& plan) {
  const MethodInfo info = method_info(plan.options.method, plan.world);
  const ParamGroup& group = plan.optimizer.groups.front();
  std::map<std::string, std::string> options = plan.optimizer.options;
  for (const MethodOption& option : info.options) {
    options.emplace(option.name, option.default_value);  // unless it was given
  }
  return {{"name", info.name},
          {"title", info.title},
          {"options", options},
          {"lr", plan.peak_lr},
          {"beta1", group.beta1.value_or(info.default_beta1)},
          {"beta2", group.beta2.value_or(info.default_beta2)},
          {"eps", group.eps.value_or(info.default_eps)},
          {"weight_decay", group.weight_decay.value_or(info.default_weight_decay)}};
}

nlohmann::ordered_json versions_json() {
  return {{"pride", kVersion},
          {"commit", kGitDescribe},
          {"torch", torch_version()},
          {"compiler", kCompiler},
          {"build", kBuildType}};
}

}  // namespace

void check_out_folder(const TrainOptions& options) {
  check_event_folder(options);
  const fs::path out = options.out;
  const bool there = !out.empty() && fs::exists(out);
  PRIDE_CHECK(!there || fs::is_directory(out), "--out ", options.out, ": is not a folder");
  if (there && !fs::is_empty(out) && !resumes_in_place(options)) {
    PRIDE_CHECK(options.overwrite, "--out ", options.out,
                ": the folder is not empty; --overwrite replaces the results in it");
    PRIDE_CHECK(
        options.resume.empty() || fs::weakly_canonical(options.resume) != fs::weakly_canonical(out),
        "--out ", options.out, ": --overwrite would remove what --resume needs");
  }
  // one may be in the other; and a run that cannot begin leaves no folder of results behind
  make_folder("--tensorboard", options.tensorboard);
  make_folder("--out", options.out);
}

Recorder::Recorder(const TrainPlan& plan)
    : plan_(plan),
      progress_(progress_options(plan)),
      began_(std::chrono::steady_clock::now()),
      sent_(static_cast<std::size_t>(plan.world)),
      received_(static_cast<std::size_t>(plan.world)) {}

void Recorder::start(const RunStart& start) {
  start_ = start;
  last_step_ = start.step;
  began_ = std::chrono::steady_clock::now();
  progress_ = Progress(progress_options(plan_));
  const TrainOptions& o = plan_.options;
  if (!o.out.empty()) {
    remove_old_results(o);
    const fs::path file = fs::path(o.out) / "metrics.jsonl";
    write_file(file, start.step > 0 ? kept_metrics(file, start.step) : "");
    metrics_.open(file, std::ios::app);
  }
  if (!o.tensorboard.empty()) events_.emplace(open_events(o, start.step));
  const nlohmann::json data = plan_.task->data_facts();
  note(concat("data: ", data.at("source").get<std::string>(), ", hash ",
              data.at("hash").get<std::string>()));
  note(concat(o.method, ", ", plan_.world, " workers (", start.transport, "), ",
              plan_.task->model_name(), " with ", start.n_parameters, " parameters, ", plan_.steps,
              " steps of ", plan_.samples_per_step(), " samples, ",
              bytes_text(static_cast<double>(start.cost.bytes())), " per step and worker"));
  for (const std::string& text : plan_.notes) note(text);
  for (const auto& [route, n] : start.routes) {
    note(concat("route: ", route, ", ", n, n == 1 ? " bucket" : " buckets"));
  }
  if (start.step > 0) note(concat("resumed after step ", start.step));
  if (start.saved_by > 0 && start.saved_by != plan_.world) {
    note(concat("the checkpoint is of ", start.saved_by, " workers: their local state, ",
                o.resume_local, "; data in the order of ", plan_.world, " workers from here on"));
  }
}

void Recorder::write(const nlohmann::ordered_json& record) {
  if (!metrics_.is_open()) return;
  metrics_ << record.dump() << '\n' << std::flush;
  if (!metrics_) throw DataError(concat(plan_.options.out, "/metrics.jsonl: cannot write"));
}

void Recorder::on_step(const WorldStep& step) {
  const bool skipped = step.ranks.front().skipped != 0;
  ++steps_run_;
  steps_skipped_ += skipped ? 1 : 0;
  last_step_ = step.step;
  last_loss_ = step.mean_loss();
  seconds_ += step.max_seconds();
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    sent_[r] += step.ranks[r].bytes_sent;
    received_[r] += step.ranks[r].bytes_received;
  }
  nlohmann::ordered_json record = {{"type", "step"},
                                   {"step", step.step},
                                   {"loss", last_loss_},
                                   {"lr", step.lr},
                                   {"bytes_sent", step.max_bytes_sent()},
                                   {"bytes_received", step.max_bytes_received()}};
  if (step.grad_norm) record["grad_norm"] = *step.grad_norm;
  record.update(seconds_json(step.max_seconds()));
  if (skipped) record["skipped"] = true;
  write(record);
  if (events_) write_events(step);
  if (!step.diagnostics.empty()) write(diagnostics_json(step));
  progress_.on_step(step);
  if (step.note.empty()) return;
  write({{"type", "choice"}, {"step", step.step}, {"text", step.note}});
  note(concat(plan_.options.method, ", step ", step.step, ": ", step.note));
}

void Recorder::write_events(const WorldStep& step) {
  const StageTimes seconds = step.max_seconds();
  Scalars scalars = {{"train/loss", step.mean_loss()},
                     {"train/lr", step.lr},
                     {"bytes/sent", static_cast<double>(step.max_bytes_sent())},
                     {"bytes/received", static_cast<double>(step.max_bytes_received())},
                     {"ms/data", seconds.data * 1e3},
                     {"ms/backward", seconds.backward * 1e3},
                     {"ms/encode", seconds.encode * 1e3},
                     {"ms/exchange", seconds.exchange * 1e3},
                     {"ms/apply", seconds.apply * 1e3}};
  if (step.grad_norm) scalars.emplace_back("train/grad_norm", *step.grad_norm);
  events_->write(step.step, scalars);
}

// By tensor, and the mean over the coordinates of all that have samples.
nlohmann::ordered_json Recorder::diagnostics_json(const WorldStep& step) const {
  constexpr std::pair<const char*, double TensorDiagnostics::*> kShares[] = {
      {"unanimous", &TensorDiagnostics::unanimous},
      {"momentum_variance", &TensorDiagnostics::momentum_variance},
      {"vote_error", &TensorDiagnostics::vote_error},
      {"sign_vote_error", &TensorDiagnostics::sign_vote_error},
      {"vote_loss", &TensorDiagnostics::vote_loss},
      {"sign_vote_loss", &TensorDiagnostics::sign_vote_loss}};
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  double n = 0, n_sampled = 0;
  for (const TensorDiagnostics& d : step.diagnostics) {
    const auto size = static_cast<double>(start_.tensors.at(d.tensor).n);
    n += size;
    n_sampled += d.samples > 0 ? size : 0;  // the shares of the others mean nothing
  }
  for (const TensorDiagnostics& d : step.diagnostics) {
    const TensorSlot& slot = start_.tensors.at(d.tensor);
    nlohmann::ordered_json record = {{"name", slot.spec.name}, {"samples", d.samples}};
    for (const auto& [name, member] : kShares) {
      record[name] = d.*member;
      const bool variance = member == &TensorDiagnostics::momentum_variance;
      const double whole = variance ? n : std::max(n_sampled, 1.0);
      all[name] = all.value(name, 0.0) + d.*member * static_cast<double>(slot.n) / whole;
    }
    tensors.push_back(std::move(record));
  }
  return {{"type", "diagnostics"}, {"step", step.step}, {"all", all}, {"tensors", tensors}};
}

void Recorder::on_eval(std::int64_t step, const EvalSums& sums, double seconds) {
  last_eval_ = plan_.task->eval_metrics(sums);
  eval_seconds_ += seconds;
  nlohmann::ordered_json record = {{"type", "eval"}, {"step", step}, {"seconds", seconds}};
  record.update(last_eval_);
  write(record);
  if (events_) {
    Scalars scalars;
    for (const auto& [name, value] : last_eval_.items()) {
      if (value.is_number()) scalars.emplace_back("eval/" + name, value.get<double>());
    }
    events_->write(step, scalars);
  }
  note(concat("evaluation after step ", step, ":", metric_text(last_eval_)));
}

nlohmann::ordered_json Recorder::bytes_json() const {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  const double steps = static_cast<double>(std::max<std::int64_t>(steps_run_, 1));
  for (std::size_t r = 0; r < sent_.size(); ++r) {
    ranks.push_back({{"rank", r},
                     {"sent", sent_[r]},
                     {"received", received_[r]},
                     {"sent_per_step", static_cast<double>(sent_[r]) / steps},
                     {"received_per_step", static_cast<double>(received_[r]) / steps}});
  }
  return {{"ranks", ranks},
          {"cost_up", start_.cost.bytes_up},
          {"cost_down", start_.cost.bytes_down},
          {"cost_exact", start_.cost.exact},
          {"cost_bound", start_.cost.bound}};
}

const nlohmann::ordered_json& Recorder::finish(std::uint64_t param_hash, bool interrupted) {
  using Seconds = std::chrono::duration<double>;
  const double total = Seconds(std::chrono::steady_clock::now() - began_).count();
  const double steps = static_cast<double>(std::max<std::int64_t>(steps_run_, 1));
  const double training = std::max(total - eval_seconds_, 1e-9);
  nlohmann::ordered_json seconds = seconds_json(seconds_);
  seconds.update({{"total", total}, {"evaluation", eval_seconds_}});
  nlohmann::ordered_json final_metrics = last_eval_;
  if (steps_run_ > 0) final_metrics["train_loss"] = last_loss_;
  summary_ = {{"versions", versions_json()},
              {"settings", to_json(plan_.options)},
              {"task", plan_.task->name()},
              {"data", plan_.task->data_facts()},
              {"model",
               {{"name", plan_.task->model_name()},
                {"size", plan_.task->model_size()},
                {"parameters", start_.n_parameters}}},
              {"method", method_json(plan_)},
              {"state_floats", start_.state_floats},
              {"world", plan_.world},
              {"transport", start_.transport},
              {"bucket_coords", plan_.optimizer.bucket_coords},
              {"routes", start_.routes},
              {"threads", thread_facts()},
              {"isa", active_isa()},
              {"samples_per_step", plan_.samples_per_step()},
              {"steps", last_step_},
              {"steps_planned", plan_.steps},
              {"steps_run", steps_run_},
              {"steps_skipped", steps_skipped_},
              {"epochs", static_cast<double>(last_step_) / plan_.steps_per_epoch},
              {"interrupted", interrupted},
              {"bytes", bytes_json()},
              {"seconds", seconds},
              {"step_ms", training * 1e3 / steps},
              {"samples_per_s", static_cast<double>(plan_.samples_per_step()) * steps / training},
              {"final", final_metrics},
              {"param_hash", hex16(param_hash)}};
  if (!plan_.options.out.empty()) {
    write_file(fs::path(plan_.options.out) / "summary.json", summary_.dump(2) + "\n");
  }
  return summary_;
}

}  // namespace pride::app

// Help from the registries, the check of a run's settings, its plan, and the agreement of the ranks
// before training.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <type_traits>

#include "pride/error.h"
#include "pride/registry.h"
#include "pride/train/flags.h"
#include "pride/train/model.h"
#include "pride/train/plan.h"
#include "pride/train/task.h"
#include "pride/train/trainer.h"
#include "program/settings.h"
#include "program/utf8.h"
#include "train/facts_json.h"
#include "train/process.h"
#include "train/settings/varying.h"
#include "train/torch_errors.h"

namespace pride::train {
namespace {

constexpr double kBucketMb = 4;
constexpr const char* kFreezeSteps = "freeze_steps";

OptimizerOptions optimizer_options(const TrainOptions& o) {
  OptimizerOptions options;
  options.method = o.method;
  options.options = parse_method_options(o.method_options);
  options.groups = groups_of(o);
  options.non_finite = o.non_finite == "skip" ? NonFinitePolicy::kSkip : NonFinitePolicy::kRaise;
  const auto from_size =
      static_cast<std::int64_t>(o.bucket_mb.value_or(kBucketMb) * 0x1p20 / sizeof(float));
  options.bucket_coords =
      static_cast<std::size_t>(std::max<std::int64_t>(o.bucket_coords.value_or(from_size), 1));
  options.clip_global_norm = o.clip_global_norm;
  options.overlap = o.overlap.value_or(false);
  options.exchange_threads = o.exchange_threads;
  options.seed = o.seed;
  return options;
}

std::int64_t planned_steps(const TrainOptions& o, double steps_per_epoch) {
  if (o.steps) return *o.steps;
  const double steps = std::round(o.epochs.value_or(1) * steps_per_epoch);
  PRIDE_CHECK(steps < 0x1p40, "--epochs ", *o.epochs, ": more steps than can be counted");
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(steps));
}

// Adds the line unless it is the last one: both groups of a method have the same.
void note_once(TrainPlan& plan, const std::string& text) {
  if (plan.notes.empty() || plan.notes.back() != text) plan.notes.push_back(text);
}

void fill_freeze_steps(TrainPlan& plan) {
  const auto fill = [&](const std::string& method, auto& options, const char* flag) {
    const auto steps = default_freeze_steps(method_info(method, plan.world), options, plan.steps);
    if (!steps) return;
    options[kFreezeSteps] = std::to_string(*steps);
    note_once(plan, concat(method, ": ", kFreezeSteps, "=", *steps, ", 20 % of ", plan.steps,
                           " steps; ", flag, " ", kFreezeSteps, "=N sets another number"));
  };
  fill(plan.options.method, plan.optimizer.options, "--method-opt");
  for (ParamGroup& group : plan.optimizer.groups) {
    if (!group.method.empty()) fill(group.method, group.options, "in --groups");
  }
}

// Steps of signs and of Adam are as large as the rate, so these methods take the model's scale.
void fill_rates(TrainPlan& plan) {
  constexpr double kLargestOfSuchMethods = 1e-3;
  const ModelMaker& model = plan.task->model();
  for (ParamGroup& group : plan.optimizer.groups) {
    const bool own = !group.method.empty();
    const MethodInfo method = method_info(own ? group.method : plan.options.method, plan.world);
    const double scale = method.default_lr <= kLargestOfSuchMethods ? model.lr_scale : 1;
    if (!group.lr && scale != 1) {
      note_once(plan, concat(own ? "--groups lr=" : "--lr ", scale * method.default_lr, ": ", scale,
                             " times the default of ", method.name, ", for a model as small as ",
                             model.name));
    }
    group.lr = group.lr.value_or(scale * method.default_lr);
  }
  plan.peak_lr = *plan.optimizer.groups.front().lr;
}

void check_participation(const TrainOptions& o, int world, const TrainPlan& plan) {
  const bool replays = o.absent == "replay";
  PRIDE_CHECK(o.coordinator.empty() || (o.participation == 1 && replays),
              "--participation and --absent with --coordinator: its workers join and leave by "
              "themselves and replay missed rounds");
  PRIDE_CHECK(replays || o.save_every == 0, "--absent ", o.absent,
              " with --save-every: a checkpoint has the parameters that all workers share");
  PRIDE_CHECK(replays || method_info(o.method, world, plan.optimizer.options).period == 1,
              "--absent ", o.absent,
              ": not with methods of local steps, which continue from the last result");
}

void check_virtual_workers(const TrainOptions& o) {
  const std::string flag = concat("--virtual-workers ", o.virtual_workers);
  PRIDE_CHECK(o.coordinator.empty(), flag,
              " with --coordinator: a process is one worker of a coordinator");
  PRIDE_CHECK(!o.overlap.value_or(false), flag, " with --overlap: there is no exchange to overlap");
  PRIDE_CHECK(o.absent == "replay", flag, " with --absent ", o.absent,
              ": all workers share one copy of the parameters");
}

// With a coordinator the data are divided into --shards, or not at all.
void deal_data(TrainPlan& plan) {
  const TrainOptions& o = plan.options;
  plan.sharding = parse_sharding(o.sharding);
  plan.shards = plan.world;
  if (o.coordinator.empty()) return;
  PRIDE_CHECK(plan.world == 1, "--coordinator: this process is one worker of its run, not ",
              plan.world);
  PRIDE_CHECK(o.hierarchical.empty(),
              "--hierarchical with --coordinator: its workers form no nodes");
  plan.shards = o.shards.value_or(1);
  PRIDE_CHECK(!o.shard || *o.shard < plan.shards, "--shard ", *o.shard, " of ", plan.shards,
              ", counted from 0");
  const bool dirichlet = plan.sharding.kind == Sharding::Kind::kDirichlet;
  PRIDE_CHECK(!dirichlet || o.shards, "--sharding ", o.sharding, " with --coordinator needs ",
              "--shards");
  PRIDE_CHECK(!dirichlet || o.vote_weight == "equal" || o.shard, "--vote-weight samples with ",
              "--sharding ", o.sharding, " and --coordinator needs --shard");
  if (o.shards || plan.sharding.kind == Sharding::Kind::kReplicate) return;
  plan.sharding.kind = Sharding::Kind::kReplicate;
  plan.notes.push_back(
      "this worker draws from all of its data; --shards N divides them into N parts");
}

// Checks each value as the step that has it would.
void check_varying(const TrainPlan& plan) {
  const MethodInfo info = method_info(plan.options.method, plan.world, plan.optimizer.options);
  const auto all = parse_varying(plan.options.vary);
  ParamGroup group = plan.optimizer.groups.front();
  for (const Varying& each : all) {
    each.check(plan.steps);
    group.*each.member = each.points.front().value;
  }
  try {
    with_defaults(group, info);
    for (const Varying& each : all) {
      ParamGroup at_point = group;
      for (const Varying::Point& point : each.points) {
        at_point.*each.member = point.value;
        with_defaults(at_point, info);
      }
    }
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("--vary: ", error.what()));
  }
}

// Settings that must be equal on all workers of a coordinator's run, in addition to those of the
// optimizer.
std::string run_settings(const TrainPlan& plan) {
  const TrainOptions& o = plan.options;
  nlohmann::ordered_json settings = {{"task", plan.task->name()},
                                     {"steps", plan.steps},
                                     {"lr", plan.peak_lr},
                                     {"schedule", o.schedule},
                                     {"warmup", o.warmup},
                                     {"final-lr-factor", o.final_lr_factor},
                                     {"vary", o.vary}};
  const auto size = to_json(plan.task->model().size);
  for (const auto& [name, value] : size.items()) settings["model " + name] = value;
  const auto& groups = plan.optimizer.groups;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].method.empty()) settings[concat("lr of group ", g)] = *groups[g].lr;
  }
  if (o.shards) {
    settings.update(
        {{"data", plan.task->data().hash}, {"sharding", o.sharding}, {"shards", plan.shards}});
  }
  std::string lines;
  for (const auto& [name, value] : settings.items()) {
    lines += concat(name, "=", value.is_string() ? value.get<std::string>() : value.dump(), "\n");
  }
  return lines;
}

}  // namespace

std::optional<std::int64_t> default_freeze_steps(const MethodInfo& method,
                                                 const std::map<std::string, std::string>& given,
                                                 std::int64_t steps) {
  const auto is_it = [](const MethodOption& option) { return option.name == kFreezeSteps; };
  const bool declared = std::any_of(method.options.begin(), method.options.end(), is_it);
  if (!declared || given.contains(kFreezeSteps)) return std::nullopt;
  return std::max<std::int64_t>(1, std::llround(0.2 * static_cast<double>(steps)));
}

TrainPlan make_plan(const TrainOptions& options, int world, std::shared_ptr<const Task> task) {
  constexpr std::int64_t kBatch = 32;  // of a task that is not registered
  TrainPlan plan;
  plan.options = options;
  const bool registered = !task || std::ranges::count(tasks(), task->name(), &TaskInfo::name) > 0;
  if (!registered) plan.options.task = "";
  check(plan.options);
  plan.world = world;
  plan.options.workers = world;
  method_info(options.method, world);  // refuses an unknown method before the task loads its data
  plan.optimizer = optimizer_options(options);
  check_participation(options, world, plan);
  PRIDE_CHECK(options.groups.empty() || options.personal.empty(),
              "--groups with --personal: personal tensors are trained by one method");
  if (options.virtual_workers > 0) check_virtual_workers(options);

  plan.task = std::move(task);
  if (!plan.task) {
    const EndsAtOnce loading;
    plan.task = with_short_errors([&] { return make_task(options); });
  }
  plan.notes = plan.task->notes();
  deal_data(plan);
  plan.options.task = plan.task->name();
  fill_rates(plan);
  if (plan.options.batch == 0) {
    plan.options.batch = registered ? task_info(plan.options.task).default_batch : kBatch;
  }
  const std::size_t n = plan.task->n_samples();
  const bool all = plan.sharding.kind == Sharding::Kind::kReplicate;
  const double per_worker = static_cast<double>(n) / (all ? 1 : plan.shards);
  PRIDE_CHECK(static_cast<double>(plan.options.batch) <= per_worker, "--batch ", plan.options.batch,
              ": a worker has ", static_cast<std::uint64_t>(per_worker), " training samples");
  plan.steps_per_epoch =
      per_worker / static_cast<double>(plan.options.batch * plan.options.accumulate);
  plan.steps = planned_steps(options, plan.steps_per_epoch);
  fill_freeze_steps(plan);
  plan.schedule = {.kind = schedule_kind(options.schedule),
                   .total_steps = plan.steps,
                   .warmup_steps = options.warmup,
                   .final_factor = options.final_lr_factor};
  PRIDE_CHECK(plan.schedule.kind == ScheduleKind::kConstant || options.warmup < plan.steps,
              "--warmup ", options.warmup, ": the run has ", plan.steps,
              " steps in all; only --schedule constant can warm up to the end");
  if (!options.vary.empty()) check_varying(plan);
  if (!options.coordinator.empty()) plan.run_settings = run_settings(plan);
  return plan;
}

namespace {

// The texts of `all`, separated by `between`.
template <typename Item, typename Text = std::identity>
std::string joined(const std::vector<Item>& all, const char* between = ", ",
                   const Text& text = {}) {
  std::string list;
  for (const Item& item : all) list += (list.empty() ? "" : between) + text(item);
  return list;
}

template <typename T>
constexpr bool kIsOptional = false;
template <typename T>
constexpr bool kIsOptional<std::optional<T>> = true;

void check_number(const Flag& flag, double value) {
  const std::string which = concat("--", flag.name, " ", value, ": must be ");
  PRIDE_CHECK(std::isfinite(value), which, "finite");
  PRIDE_CHECK(flag.rules.above ? value > flag.rules.lowest : value >= flag.rules.lowest, which,
              flag.rules.above ? concat("more than ", flag.rules.lowest)
                               : concat(flag.rules.lowest, " or more"));
  PRIDE_CHECK(flag.rules.below ? value < flag.rules.highest : value <= flag.rules.highest, which,
              flag.rules.below ? "less than " : "at most ", flag.rules.highest);
}

void check_text(const Flag& flag, const std::string& value) {
  check_utf8("--" + flag.name, value);
  PRIDE_CHECK(flag.rules.choices.empty() || std::ranges::count(flag.rules.choices, value) > 0, "--",
              flag.name, " ", value, ": must be one of ", joined(flag.rules.choices));
  const std::string wrong = flag.rules.wrong != nullptr ? flag.rules.wrong(value) : "";
  PRIDE_CHECK(wrong.empty(), "--", flag.name, ": ", wrong);
}

template <typename T>
void check_value(const Flag& flag, const T& value) {
  if constexpr (kIsOptional<T>) {
    if (value) check_value(flag, *value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    check_text(flag, value);
  } else if constexpr (!std::is_same_v<T, bool> && std::is_arithmetic_v<T>) {
    check_number(flag, static_cast<double>(value));
  }
}

// A flag of some tasks is refused for the others.
void check_task_has(const Flag& flag, const TaskInfo& task) {
  std::vector<std::string> names;
  for (const TaskInfo& other : tasks()) {
    if (std::ranges::count(other.flags, flag.name) > 0) names.push_back(other.name);
  }
  PRIDE_CHECK(names.empty() || std::ranges::count(task.flags, flag.name) > 0, "--", flag.name,
              " is for ", joined(names, " and "), " only");
}

}  // namespace

std::string help_of(const Flag& flag) {
  const auto named = [](const auto& info) { return concat(info.name, " (", info.about, ")"); };
  if (flag.name == "task") return joined(tasks(), ", ", named);
  if (flag.name == "model") return joined(models(), ", ", named);
  if (flag.name == "data") {
    return joined(tasks(), ". ", [](const TaskInfo& t) { return concat(t.name, ": ", t.data); });
  }
  if (flag.name != "batch") return flag.help;
  const auto batch = [](const TaskInfo& t) { return concat(t.default_batch, " for ", t.name); };
  return "Samples per worker and backward pass. Default: " + joined(tasks(), ", ", batch);
}

void check(const TrainOptions& options) {
  const TaskInfo* task = options.task.empty() ? nullptr : &task_info(options.task);
  for (const Flag& flag : Flag::table()) {
    if (!flag.given(options)) continue;
    std::visit([&](auto member) { check_value(flag, options.*member); }, flag.member);
    if (task != nullptr) check_task_has(flag, *task);
    const Flag* rival = Flag::find(flag.rules.rival);
    PRIDE_CHECK(rival == nullptr || !rival->given(options), "--", flag.name, " and --",
                flag.rules.rival, ": give one of them");
    const Flag* needed = Flag::find(flag.rules.needs);
    PRIDE_CHECK(needed == nullptr || needed->given(options), "--", flag.name, " needs --",
                flag.rules.needs);
  }
}

namespace {

Settings settings_of(const TrainPlan& plan) {
  Settings settings;
  const nlohmann::ordered_json flags = to_json(plan.options);
  for (const auto& [key, value] : flags.items()) {
    // the path may differ between machines; the hash of the data counts
    if (!Flag::find(key)->rules.may_differ) settings.emplace_back("--" + key, value.dump());
  }
  settings.emplace_back("--out", plan.options.save_every > 0 ? plan.options.out : "");
  settings.emplace_back("the data (--data)", plan.task->data().hash);
  settings.emplace_back("the model (--init)", to_json(plan.task->model().size).dump());
  settings.emplace_back("the number of steps", std::to_string(plan.steps));
  return settings;
}

}  // namespace

void prepare(Communicator& comm, TrainPlan& plan) {
  const std::chrono::duration<double> timeout(plan.options.timeout_s);
  comm.set_timeout(std::chrono::ceil<std::chrono::milliseconds>(timeout));
  check_same_settings(comm, settings_of(plan));
  plan.optimizer.nodes = plan.options.virtual_workers > 0
                             ? nodes_of_threads(plan.world, plan.options.hierarchical)
                             : nodes_of(comm, plan.options.hierarchical);
}

}  // namespace pride::train

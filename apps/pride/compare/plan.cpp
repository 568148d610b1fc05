// SPDX-License-Identifier: Apache-2.0
#include "compare/plan.h"

#include <algorithm>

#include "compare/dry_run.h"
#include "compare/rate_search.h"
#include "flag_sets.h"
#include "method_options.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "text/utf8.h"
#include "train/files.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

constexpr int kWorkers = 4;  // pride train's own default

// what --set may not touch: a comparison has one task, and runs of a seed have the same batches
const FlagSet kShared = {
    "task",       "data",          "vocab",   "examples",  "shots",  "skip-long",    "init",
    "init-std",   "embedding-std", "model",   "layers",    "heads",  "width",        "context",
    "patch",      "image-size",    "workers", "batch",     "epochs", "steps",        "seed",
    "accumulate", "sharding",      "method",  "out",       "config", "eval-batches", "overwrite",
    "resume",     "json",          "quiet",   "log-every", "help",   "help-all",     "save-every"};

// A run of other values is the same run. --bucket-mb is none of these: a frame or more a bucket.
bool may_differ(const std::string& flag) {
  return kPlaceFlags.contains(flag) || kIdleFlags.contains(flag) || kWatchingFlags.contains(flag);
}

constexpr const char* kMethodOption = "method-opt";
constexpr const char* kOwnFile = "compare.json";  // with any ending while it is written

// Values of --method-opt: those that all have, but for the keys that are set anew, and these.
std::vector<std::string> merged(const std::vector<std::string>& shared,
                                const std::vector<std::string>& own) {
  const auto key = [](const std::string& text) { return text.substr(0, text.find('=')); };
  std::vector<std::string> all;
  for (const std::string& text : shared) {
    const auto same_key = [&](const std::string& other) { return key(other) == key(text); };
    if (std::none_of(own.begin(), own.end(), same_key)) all.push_back(text);
  }
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

bool can_name_a_folder(const std::string& label) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  return !label.empty() && label.front() != '.' && std::all_of(label.begin(), label.end(), allowed);
}

}  // namespace

ComparePlan::ComparePlan(CompareOptions options, const FlagValues& given)
    : options_(std::move(options)), shared_(given) {
  shared_.emplace("workers", std::vector{std::to_string(kWorkers)});
  const auto& seeds = options_.seeds;
  for (auto at = seeds.begin(); at != seeds.end(); ++at) {
    PRIDE_CHECK(std::find(seeds.begin(), at, *at) == at, "--seeds: ", *at, " is given twice");
    PRIDE_CHECK(!options_.tune || *at != options_.tune_seed, "--tune-seed ", *at,
                ": is one of --seeds; rates must be chosen on a seed that is not shown");
  }
  PRIDE_CHECK(options_.tune || (!options_.tune_epochs && !options_.tune_steps),
              "--tune-epochs and --tune-steps need --tune");
  for (const std::string& text : options_.methods) {
    if (text != "all") {
      add_contender(text);
    } else {
      for (const std::string& name : method_names()) add_contender(name);
    }
  }
  for (const std::string& text : options_.set) apply_set(text);
  for (Contender& who : contenders_) check_contender(who);
  check_runs();
  check_folder();
  if (options_.overwrite) return;
  for (const Contender& who : contenders_) check_earlier_runs(who);
}

void ComparePlan::add_contender(const std::string& text) {
  const std::size_t equals = text.find('=');
  Contender who;
  who.label = text.substr(0, equals);
  who.method = equals == std::string::npos ? text : text.substr(equals + 1);
  PRIDE_CHECK(can_name_a_folder(who.label), "--methods ", text,
              ": a label is made of letters, digits, '-', '_' and '.'");
  PRIDE_CHECK(!who.label.starts_with(kOwnFile), "--methods ", text, ": ", kOwnFile,
              " is the name of a file of the comparison");
  for (const Contender& other : contenders_) {
    PRIDE_CHECK(other.label != who.label, "--methods: '", who.label, "' is given twice");
  }
  who.rate = method_info(who.method, 1).default_lr;
  who.flags = shared_;
  contenders_.push_back(std::move(who));
}

void ComparePlan::apply_set(const std::string& text) {
  const std::size_t colon = text.find(':'), equals = text.find('=', colon);
  PRIDE_CHECK(colon != std::string::npos && equals != std::string::npos && equals > colon + 1,
              "--set ", text, ": must be METHOD:FLAG=VALUE");
  const std::string label = text.substr(0, colon);
  const std::string flag = text.substr(colon + 1, equals - colon - 1);
  const auto who = std::find_if(contenders_.begin(), contenders_.end(),
                                [&](const Contender& c) { return c.label == label; });
  PRIDE_CHECK(who != contenders_.end(), "--set ", text, ": '", label, "' is not in --methods");
  PRIDE_CHECK(!kShared.contains(flag), "--set ", text, ": --", flag,
              " is the same for all methods of a comparison");
  auto& own = who->own[flag];
  PRIDE_CHECK(own.empty() || flag == kMethodOption, "--set ", text, ": --", flag, " is set twice");
  own.push_back(text.substr(equals + 1));
  const auto all = shared_.find(flag);
  const bool merge = flag == kMethodOption && all != shared_.end();
  who->flags[flag] = merge ? merged(all->second, own) : own;
}

// What can be seen without the data.
void ComparePlan::check_contender(Contender& who) const {
  try {
    const TrainOptions train = parse_train(arguments_of(who.flags));
    if (train.lr) who.rate = *train.lr;
    if (options_.tune) nearest_grid_point(who.rate);
    parse_method_options(train.method_options);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat(who.label, ": ", error.what()));
  }
}

void ComparePlan::check_runs() {
  std::shared_ptr<const Task> task;  // the same for all of them, loaded once
  for (const Contender& who : contenders_) {
    for (const std::uint64_t seed : options_.seeds) task = check_run(who, seed, task);
    if (options_.tune) task = check_run(who, options_.tune_seed, task);
  }
  data_hash_ = task->data_facts().at("hash");
  model_size_ = task->model_size();
}

std::shared_ptr<const Task> ComparePlan::check_run(const Contender& who, std::uint64_t seed,
                                                   std::shared_ptr<const Task> task) const {
  try {
    const TrainOptions options = parse_train(run(who, who.rate, seed).arguments);
    const TrainPlan plan = dry_run(options, std::move(task));
    return plan.task;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat(who.label, ": ", error.what()));
  }
}

// A folder holds one comparison, or one sweep: `compare.json` is written anew.
void ComparePlan::check_folder() const {
  check_utf8("--out", options_.out);
  const fs::path out = options_.out, own = out / kOwnFile;
  PRIDE_CHECK(!fs::exists(out / "sweep.json"), out.string(),
              ": holds the runs of a sweep; choose another --out");
  if (options_.overwrite || !fs::exists(own)) return;
  std::string hash;
  try {
    const nlohmann::json earlier = read_json(own);
    const nlohmann::json& data = earlier.at("data");
    if (data.is_null()) return;  // no run was made
    hash = data.at("hash");
  } catch (const nlohmann::json::exception& error) {
    throw DataError(concat(own.string(), ": not what `pride compare` writes: ", error.what()));
  }
  PRIDE_CHECK(hash == data_hash_, own.string(), ": an earlier comparison had data of hash ", hash,
              " instead of ", data_hash_, "; choose another --out, or --overwrite to replace it");
}

void ComparePlan::check_earlier_runs(const Contender& who) const {
  const fs::path folder = fs::path(options_.out) / who.label;
  if (!fs::is_directory(folder)) return;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path file = entry.path() / "summary.json";
    std::string what;
    try {
      const nlohmann::json summary = read_json(file), settings = summary.at("settings");
      const Run wanted = run(who, settings.at("lr"), settings.at("seed"));
      if (wanted.folder != entry.path() || same_run(summary, wanted, what)) continue;
    } catch (const std::exception&) {
      continue;  // no run of a comparison, or one that will be made anew
    }
    throw InvalidArgument(
        concat(file.string(), ": an earlier run had ", what,
               "; choose another --out, or --overwrite to replace runs of other settings or data"));
  }
}

Run ComparePlan::run(const Contender& who, double rate, std::uint64_t seed) const {
  Run run{.label = who.label, .rate = rate, .seed = seed};
  run.tuning = options_.tune && seed == options_.tune_seed;
  FlagValues flags = who.flags;
  flags["method"] = {who.method};
  flags["lr"] = {rate_text(rate)};
  flags["seed"] = {std::to_string(seed)};
  if (run.tuning && (options_.tune_epochs || options_.tune_steps)) {
    flags.erase("epochs");
    flags.erase("steps");
    if (options_.tune_epochs) flags["epochs"] = {concat(*options_.tune_epochs)};
    if (options_.tune_steps) flags["steps"] = {concat(*options_.tune_steps)};
  }
  run.arguments = arguments_of(flags);
  run.settings = settings_json(parse_train(run.arguments));
  run.data_hash = data_hash_;
  run.model_size = model_size_;
  run.folder = fs::path(options_.out) / who.label / concat(rate_text(rate), "-seed", seed);
  return run;
}

bool same_run(const nlohmann::json& summary, const Run& wanted, std::string& what) {
  const nlohmann::json defaults = settings_json(TrainOptions());
  const nlohmann::json& recorded = summary.at("settings");
  for (const auto& [name, value] : wanted.settings.items()) {
    if (may_differ(name)) continue;
    const auto at = recorded.find(name);
    const nlohmann::json& had = at != recorded.end() ? *at : defaults.at(name);
    if (had == value) continue;
    what = concat("--", name, " ", had.dump(), " instead of ", value.dump());
    return false;
  }
  const std::string hash = summary.at("data").at("hash");
  what = concat("data of hash ", hash, " instead of ", wanted.data_hash);
  if (hash != wanted.data_hash) return false;
  const nlohmann::json size = summary.at("model").value("size", nlohmann::json::object());
  what = concat("a model of ", size.dump(), " instead of ", wanted.model_size.dump());
  return size == wanted.model_size;
}

}  // namespace pride::app

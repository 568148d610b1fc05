// Settings: flags, TOML files, and refusals.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "pride/error.h"
#include "pride/train/plan.h"
#include "pride/train/task.h"
#include "support/temp_folder.h"
#include "support/texts.h"
#include "train/facts_json.h"
#include "train/flags.h"
#include "train_names.h"

namespace pride::app {
namespace {

using test::expect_contains;

class Config : public testing::Test {
 protected:
  // the options after `arguments` on the command line and `toml` in a file
  TrainOptions read(std::vector<std::string> arguments, const std::string& toml) {
    TrainOptions options;
    CLI::App app;
    add_train_flags(app, options);
    std::ranges::reverse(arguments);
    app.parse(arguments);
    std::ofstream(file_) << toml;
    apply_config(app, file_);
    return options;
  }

  std::string refusal(const std::string& toml) {
    try {
      read({}, toml);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  test::TempFolder folder_;
  std::string file_ = (folder_.path() / "run.toml").string();
};

TEST_F(Config, FillsInWhatTheCommandLineLeftOut) {
  const TrainOptions o = read({"--lr", "0.5", "--steps", "7"},
                              "task = \"cifar10\"  # a comment\n"
                              "lr = 1e-3\nepochs = 3\nbatch = 16\noverlap = true\n"
                              "method-opt = [\"tie=zero\", \"a=b\"]\n");
  EXPECT_EQ(o.task, "cifar10");
  EXPECT_EQ(o.lr, 0.5) << "the command line wins";
  EXPECT_EQ(o.steps, 7);
  EXPECT_FALSE(o.epochs) << "--steps on the command line stands against epochs in the file";
  EXPECT_EQ(o.batch, 16);
  EXPECT_TRUE(o.overlap);
  EXPECT_EQ(o.method_options, (std::vector<std::string>{"tie=zero", "a=b"}));
}

TEST_F(Config, ReadsATableCalledTrain) { EXPECT_EQ(read({}, "[train]\nseed = 42\n").seed, 42U); }

TEST_F(Config, NamesFileLineAndKeyOfWhatItRefuses) {
  expect_contains(refusal("seed = 1\nfoo = 2\n"), "run.toml:2: unknown key 'foo'");
  expect_contains(refusal("config = \"x\"\n"), "unknown key 'config'");
  expect_contains(refusal("steps = \"many\"\n"), "run.toml:1");
  expect_contains(refusal("lr = { a = 1 }\n"), "'lr' must be a number");
  expect_contains(refusal("steps = = 1\n"), "not TOML");
}

TEST_F(Config, RefusesTheWrongKindOfValue) {
  const auto expect = [&](const std::string& toml, const std::string& part) {
    expect_contains(refusal(toml), part);
  };
  expect("quiet = 3", "run.toml:1: 'quiet' must be true or false");
  expect("quiet = \"true\"", "'quiet' must be true or false");
  expect("out = 5", "'out' must be a string");
  expect("steps = 5.0", "'steps' must be an integer");
  expect("lr = \"high\"", "'lr' must be a number");
  expect("lr = [1, 2]", "'lr' must be a number");
  expect("method-opt = [1]", "'method-opt' must be a string");
  expect("seed = -1", "--seed: -1 is not an integer from 0 to 18446744073709551615");
  expect("help = true", "unknown key 'help'");
  expect("hierarchical = true", "'hierarchical' must be an integer or \"auto\"");
  EXPECT_EQ(read({}, "lr = 1\n").lr, 1.0);
  EXPECT_EQ(read({}, "lr = \"4\"\n").lr, 4.0);
  EXPECT_EQ(read({}, "no-overlap = true\n").overlap, false);
  EXPECT_EQ(read({}, "no-overlap = false\n").overlap, true);
  EXPECT_EQ(read({}, "hierarchical = \"auto\"\n").hierarchical, "auto");
  EXPECT_EQ(read({}, "hierarchical = 2\n").hierarchical, "2");
}

// As the command line's help names it.
std::string toml_of_its_kind(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "true";
  const std::string type = option.get_type_name();
  if (type.starts_with("TEXT")) return "\"x\"";
  if (type.starts_with("FLOAT")) return "0.5";
  return type.find("INT") != std::string::npos ? "1" : "\"auto\"";
}

TEST_F(Config, TakesForEveryFlagTheKindThatItsHelpNames) {
  TrainOptions options;
  CLI::App app;
  add_train_flags(app, options);
  int flags = 0;
  for (const CLI::Option* option : app.get_options()) {
    const std::string key = option->get_lnames().empty() ? "" : option->get_lnames().front();
    if (key.empty() || key == "help" || key == "config") continue;
    const std::string said = refusal(concat(key, " = ", toml_of_its_kind(*option), "\n"));
    EXPECT_EQ(said.find(concat("'", key, "' must be")), std::string::npos) << said;
    EXPECT_EQ(said.find("unknown"), std::string::npos) << said;
    ++flags;
  }
  EXPECT_GT(flags, 40);
}

TEST_F(Config, TakesAStringForAFlagWithChoices) {
  const auto transport_of = [&](const std::string& toml) {
    std::string transport = "auto";
    CLI::App app;
    app.add_option("--transport", transport)->check(CLI::IsMember({"auto", "threads"}));
    std::ofstream(file_) << toml;
    apply_config(app, file_);
    return transport;
  };
  EXPECT_EQ(transport_of("transport = \"threads\"\n"), "threads");
  EXPECT_THROW(transport_of("transport = 3\n"), InvalidArgument);
  EXPECT_THROW(transport_of("transport = \"smoke\"\n"), InvalidArgument);
}

TEST_F(Config, RefusesNumbersThatDoNotFit) {
  const auto refused = [&](std::vector<std::string> arguments, const std::string& part) {
    texts::expect_error<CLI::ParseError>([&] { read(arguments, ""); }, {part});
  };
  refused({"--seed", "-1"}, "--seed: -1 is not");
  refused({"--seed", "18446744073709551616"}, "--seed");
  refused({"--steps", "99999999999999999999"}, "--steps");
  refused({"--steps", "1.5"}, "--steps");
  refused({"--workers", "0"}, "--workers: 0 is not an integer from 1 to 1024");
  refused({"--batch", "0"}, "--batch: 0 is not an integer from 1");
  refused({"--context", "4611686018427387904"}, "--context");
  refused({"--lr", "1e-400"}, "--lr: 1e-400 is too small for a number");
  refused({"--timeout", "1e400"}, "--timeout: 1e400 is too large for a number");
  refused({"--eps", ""}, "--eps: '' is not a number");
  EXPECT_EQ(read({"--seed", "18446744073709551615"}, "").seed, UINT64_MAX);
}

TEST(Options, RefuseValuesThatNoRunCanHave) {
  const auto refused = [](auto change) {
    TrainOptions o;
    change(o);
    EXPECT_THROW(check(o), InvalidArgument);
  };
  refused([](TrainOptions& o) { o.task = "speech"; });
  refused([](TrainOptions& o) { o.steps = 0; });
  refused([](TrainOptions& o) { o.epochs = -1; });
  refused([](TrainOptions& o) { o.steps = 1, o.epochs = 1; });
  refused([](TrainOptions& o) { o.workers = -1; });
  refused([](TrainOptions& o) { o.lr = -1; });
  refused([](TrainOptions& o) { o.init_std = 0; });
  refused([](TrainOptions& o) { o.embedding_std = -1; });
  refused([](TrainOptions& o) { o.device = "tpu"; });
  refused([](TrainOptions& o) { o.device = ""; });
  refused([](TrainOptions& o) { o.vote_weight = ""; });
  refused([](TrainOptions& o) { o.warmup = std::int64_t{1} << 62; });
  refused([](TrainOptions& o) { o.schedule = "steep"; });
  refused([](TrainOptions& o) { o.non_finite = "hope"; });
  refused([](TrainOptions& o) { o.save_every = 5; });
  refused([](TrainOptions& o) { o.timeout_s = 1e9; });
  refused([](TrainOptions& o) { o.timeout_s = std::numeric_limits<double>::infinity(); });
  refused([](TrainOptions& o) { o.bucket_mb = 1e300; });
  EXPECT_NO_THROW(check(TrainOptions{}));
}

// A value other than the default, as a command line has it.
std::vector<std::string> argument_of(const Flag& flag) {
  const std::string name = "--" + flag.name;
  return std::visit(
      [&](auto member) -> std::vector<std::string> {
        using Value = std::remove_cvref_t<decltype(TrainOptions().*member)>;
        if constexpr (std::is_same_v<Value, bool> || std::is_same_v<Value, std::optional<bool>>) {
          return {name};
        } else if constexpr (std::is_same_v<Value, std::string>) {
          const auto& choices = flag.rules.choices;
          if (flag.name == "groups") return {name, "vectors: lion"};
          if (flag.name == "vary") return {name, "beta1=0.5@0"};
          return {name, choices.empty() ? "2" : choices.back()};
        } else if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
          return {name, "a=b"};
        } else {
          const bool whole =
              !std::is_same_v<Value, double> && !std::is_same_v<Value, std::optional<double>>;
          return {name, whole ? "7" : "0.25"};
        }
      },
      flag.member);
}

// One row of the table reaches one member, one key of the settings and nothing else.
TEST(Flags, AreOneMemberAndOneSettingEach) {
  const nlohmann::ordered_json defaults = to_json(TrainOptions());
  std::set<std::string> names;
  for (const Flag& flag : Flag::table()) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name << " stands twice in the table";
    TrainOptions options;
    CLI::App app;
    add_train_flags(app, options);
    std::vector<std::string> arguments = argument_of(flag);
    std::ranges::reverse(arguments);
    app.parse(arguments);
    for (const Flag& other : Flag::table()) {
      EXPECT_EQ(other.given(options), &other == &flag) << flag.name << " sets " << other.name;
    }
    const nlohmann::ordered_json written = to_json(options);
    EXPECT_EQ(written.size(), defaults.size());
    for (const auto& [key, value] : written.items()) {
      EXPECT_EQ(value != defaults.at(key), key == flag.name) << flag.name << " changes " << key;
    }
    EXPECT_EQ(written.contains(flag.name), flag.role != Role::kOutput) << flag.name;
  }
}

// The other way: what the program takes stands in the table.
TEST(Flags, AreAllOfTheProgram) {
  TrainOptions options;
  CLI::App app;
  add_train_flags(app, options);
  for (const CLI::Option* option : app.get_options()) {
    if (option == app.get_help_ptr()) continue;
    const std::string& name = option->get_lnames().front();
    const Flag* flag = Flag::find(name);
    ASSERT_NE(flag, nullptr) << name;
    EXPECT_FALSE(option->get_description().empty()) << name;
    EXPECT_EQ(option->get_group(), flag->group) << name;
  }
  EXPECT_EQ(app.get_options().size(), Flag::table().size() + 1) << "and --help";
}

TEST(Flags, OfOneTaskAreRefusedByTheOthers) {
  for (const TaskInfo& task : tasks()) {
    for (const std::string& name : task.flags) EXPECT_NE(Flag::find(name), nullptr) << name;
  }
  TrainOptions options;
  options.patch = 4;
  test::expect_error<InvalidArgument>([&] { check(options); },
                                      {"--patch is for cifar10 and imagenet only"});
  options.task = "cifar10";
  EXPECT_NO_THROW(check(options));
  options.embedding_std = 1;
  test::expect_error<InvalidArgument>([&] { check(options); },
                                      {"--embedding-std is for lm and fewshot only"});
}

TEST(FreezeSteps, AreAFifthOfTheRunUnlessGiven) {
  MethodInfo method;
  method.options = {{"freeze_steps", "1000", "dense steps"}};
  EXPECT_EQ(default_freeze_steps(method, {}, 500), 100);
  EXPECT_EQ(default_freeze_steps(method, {}, 1), 1);
  EXPECT_EQ(default_freeze_steps(method, {{"freeze_steps", "7"}}, 500), std::nullopt);
  EXPECT_EQ(default_freeze_steps(method_info("onebit-adam", 4), {}, 500), 100);
  for (const char* name : {"lion", "dlion-vote"}) {
    EXPECT_EQ(default_freeze_steps(method_info(name, 4), {}, 500), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace pride::app

// Experiment files: their cells, and refusals with the line. The oracle is the list that a reader
// of the file would write down. Tables and warnings, on results made up here.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>

#include "experiments/runner.h"
#include "pride/error.h"
#include "support/temp_folder.h"
#include "train_names.h"

namespace pride::app {
namespace {

using test::expect_contains;

namespace fs = std::filesystem;

const std::string kGrid = "[grid]\nmethod = [\"lion\", \"dgc\"]\nseed = [1, 2]\n";

class ExperimentFile : public testing::Test {
 protected:
  Experiment read(const std::string& text) const {
    return read_experiment(folder_.write("try.toml", text));
  }

  // Of the common grid and what follows it.
  std::vector<Cell> cells(const std::string& more, const FlagValues& given = {}) const {
    return cells_of(read(kGrid + more), given);
  }

  void expect_refusal(const std::string& text, const std::string& part) const {
    test::expect_error<Error>([&] { read(text); }, {part});
  }

  test::TempFolder folder_;
};

std::string value(const Cell& cell, const std::string& flag) {
  const auto found = cell.flags.find(flag);
  return found != cell.flags.end() ? found->second.front() : "";
}

TEST_F(ExperimentFile, RunsEveryCombinationOfItsAxes) {
  const auto all = cells("workers = [2, 4]\nbatch = [8, 16, 32]\n");
  ASSERT_EQ(all.size(), 2U * 2 * 3);
  std::set<std::string> seen;
  for (const Cell& cell : all) {
    seen.insert(value(cell, "method") + " " + value(cell, "workers") + " " + value(cell, "batch"));
    EXPECT_EQ(cell.seeds, (std::vector<std::uint64_t>{1, 2}));
    EXPECT_EQ(cell.varied.size(), 2U);
  }
  EXPECT_EQ(seen.size(), all.size());
  EXPECT_TRUE(seen.contains("dgc 4 16"));
}

TEST_F(ExperimentFile, LetsAMethodHaveItsOwnValues) {
  const auto found = cells(R"(lr = [1e-4, 3e-4]
[train]
weight-decay = 0.1
[method.dgc]
lr = 0.03
weight-decay = 0
method-opt = ["ratio=0.04"]
)");
  ASSERT_EQ(found.size(), 3U) << "dgc has one rate";
  EXPECT_EQ(value(found[0], "lr"), "1e-4");
  EXPECT_EQ(value(found[1], "weight-decay"), "0.1");
  EXPECT_EQ(value(found[2], "lr"), "0.03");
  EXPECT_EQ(value(found[2], "weight-decay"), "0");
  EXPECT_EQ(value(found[2], "method-opt"), "ratio=0.04");
  EXPECT_EQ(value(found[0], "method-opt"), "");
}

TEST_F(ExperimentFile, TakesTheNegativeFormOfAFlag) {
  const auto found = cells("no-overlap = [true, false]\n");
  ASSERT_EQ(found.size(), 2U * 2);
  EXPECT_EQ(value(found[0], "overlap"), "false");
  EXPECT_EQ(value(found[1], "overlap"), "true");
}

// Nine million runs would have no answer and fill the memory.
TEST_F(ExperimentFile, RefusesMoreRunsThanAnExperimentMayHave) {
  std::string axis = "[0.1";
  for (int i = 2; i <= 1500; ++i) axis += concat(", ", i, ".5");
  const Experiment grid = read(concat(kGrid, "lr = ", axis, "]\nweight-decay = ", axis, "]\n"));
  test::expect_error<InvalidArgument>([&] { cells_of(grid, {}); },
                                      {"try.toml: means 9,000,000 runs", "at most 10,000"});
  const Experiment tune = read(concat(kGrid, "[tune]\nsearch = \"climb\"\n[tune.grid]\nlr = ", axis,
                                      "]\nweight-decay = ", axis, "]\n"));
  test::expect_error<InvalidArgument>([&] { cells_of(tune, {}); },
                                      {"of lion has 2,250,000 points"});
}

TEST_F(ExperimentFile, GivesWayToTheCommandLine) {
  const auto found = cells("epochs = [1, 2]\n", {{"steps", {"3"}}});
  EXPECT_EQ(found.size(), 2U) << "one of each method";
  for (const Cell& cell : found) {
    EXPECT_TRUE(cell.varied.empty());
    EXPECT_EQ(value(cell, "steps"), "3");
    EXPECT_EQ(value(cell, "epochs"), "") << "the two exclude each other";
  }
}

TEST_F(ExperimentFile, TellsTheCellsOfSeveralGridsApart) {
  const auto cells = cells_of(read(R"([[grid]]
method = "lion"
seed = 1
width = 16
steps = 1
[[grid]]
method = ["lion", "dgc"]
seed = [1, 2]
width = 16
steps = 2
lr = 0.5
[[grid]]
method = "lion"
seed = 3
width = 16
steps = 1
)"),
                              {});
  ASSERT_EQ(cells.size(), 3U) << "the third grid repeats the first one's cell";
  EXPECT_EQ(cells[0].varied, (Point{{"steps", "1"}}));
  EXPECT_EQ(cells[0].seeds, (std::vector<std::uint64_t>{1, 3}));
  EXPECT_EQ(cells[1].varied, (Point{{"lr", "0.5"}, {"steps", "2"}}));
  EXPECT_EQ(cells[2].varied, Point{}) << "dgc has one";
}

TEST_F(ExperimentFile, NamesNoValueThatARunHasNot) {
  const auto found = cells("steps = [1, 2]\n[method.lion]\nepochs = 0.5\n");
  ASSERT_EQ(found.size(), 1U + 2U);
  EXPECT_EQ(found[0].varied, Point{}) << "its own epochs take the place of both steps";
  EXPECT_EQ(value(found[0], "epochs"), "0.5");
  EXPECT_EQ(found[1].varied, (Point{{"steps", "1"}}));
}

TEST_F(ExperimentFile, TriesEveryPointOfTheTuningGrid) {
  const auto found = cells(R"([tune]
seed = 9
steps = 5
[tune.grid]
lr = [1e-3, 1e-2]
weight-decay = [0, 0.1, 1]
[method.dgc.tune]
lr = [0.1]
)");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(combinations(found[0].tune).size(), 6U);
  EXPECT_EQ(combinations(found[1].tune).size(), 3U);
  EXPECT_EQ(combinations(found[1].tune)[0].front(),
            (std::pair<std::string, std::string>("lr", "0.1")));
}

TEST_F(ExperimentFile, RefusesWhatItDoesNotKnowNamingTheLine) {
  expect_refusal(kGrid + "wrokers = [2]\n", "try.toml:4: unknown key 'wrokers'");
  expect_refusal(kGrid + "[trian]\nbatch = 2\n", "unknown key 'trian'");
  expect_refusal(kGrid + "out = \"x\"\n", "'out' cannot be set here");
  expect_refusal(kGrid + "batch = []\n", "'batch' is an empty list");
  expect_refusal(kGrid + "batch = [2, 2]\n", "'batch' has 2 twice");
  expect_refusal(kGrid + "batch = { a = 1 }\n", "'batch' must be a string");
  expect_refusal(kGrid + "method-opt = [\"a=1\"]\n", "cannot be an axis");
  expect_refusal(kGrid + "[train]\nbatch = [2, 4]\n", "move it to [grid]");
  expect_refusal(kGrid + "[method.lyon]\nlr = 1\n",
                 "try.toml:4: [method.lyon]: no grid has this method");
  expect_refusal(kGrid + "[tune]\nseed = 1\ngrid.lr = [1]\n",
                 "on a seed that is not in the results");
  expect_refusal(kGrid + "[tune]\nseed = 3\n", "[tune] has no 'grid'");
  expect_refusal(kGrid + "[tune]\nseed = 3\nby = \"luck\"\ngrid.lr = [1]\n", "must be \"loss\"");
  expect_refusal("[grid]\nmethod = [\"../x\"]\nseed = 1\n", "a label is made of");
  expect_refusal("[grid]\nmethod = \"lion\"\nseed = -1\n", "seed -1: must be a whole number");
  expect_refusal("[grid]\nmethod = \"lion\"\nseed = 1.5\n", "seed 1.5: must be a whole number");
  expect_refusal("[grid]\nmethod = \"" + std::string(101, 'x') + "\"\nseed = 1\n", "at most 100");
  expect_refusal("[grid]\nmethod = \"lion\"\n", "has no 'seed'");
  expect_refusal("title = \"x\"\n", "has no [grid]");
  expect_refusal("title = 3\n" + kGrid, "try.toml:1: 'title' must be a string");
  expect_refusal(kGrid + "[train]\nsteps = \"x\"\n", "try.toml:5: ");
  expect_refusal(kGrid + "[train]\noverlap = \"maybe\"\n",
                 "try.toml:5: --overlap: maybe is neither");
  expect_refusal(kGrid + "[train]\ninit = \"\"\n", "try.toml:5: --init: an empty value");
  expect_refusal(kGrid + "[method.lion]\nlr = [1e-3, \"high\"]\n", "--lr");
  expect_refusal(kGrid + "[tune]\nseed = 3\ngrid.lr = [\"low\"]\n", "--lr");
  expect_refusal("title = \n", "try.toml:1: not TOML");
  expect_refusal(kGrid + "no-overlap = \"maybe\"\n", "--overlap: ");
  expect_refusal(kGrid + "no-batch = true\n", "unknown key 'no-batch'");
  const std::string climb = "[tune]\nseed = 3\nsearch = \"climb\"\ngrid.lr = ";
  expect_refusal(kGrid + climb + "[1e-3, 1e-4]\n",
                 "'lr' has 1e-4: search = \"climb\" needs numbers that ascend");
  expect_refusal(kGrid + "[tune]\nsearch = \"luck\"\ngrid.lr = [1]\n",
                 "[tune] search = \"luck\": must be \"grid\" or \"climb\"");
  test::expect_error<DataError>([&] { read_experiment(folder_.path() / "none.toml"); },
                                {"none.toml: No such file"});
  test::expect_error<DataError>([&] { read_experiment(folder_.path()); }, {"it is a folder"});
}

TEST_F(ExperimentFile, ThatAreShippedCanBeRead) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(PRIDE_EXPERIMENTS)) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    const Experiment experiment = read_experiment(entry.path());
    EXPECT_FALSE(experiment.title.empty()) << entry.path();
    EXPECT_FALSE(cells_of(experiment, {}).empty()) << entry.path();
  }
  EXPECT_GE(files, 6);
}

TEST_F(ExperimentFile, OfThePaperHasItsRuns) {
  const Experiment paper = read_experiment(fs::path(PRIDE_EXPERIMENTS) / "cifar10.toml");
  const auto cells = cells_of(paper, {});
  std::size_t runs = 0, signum = 0;
  for (const Cell& cell : cells) {
    const bool of_figure_4 = cell.label.starts_with("signum");
    (of_figure_4 ? signum : runs) += cell.seeds.size();
    if (of_figure_4) {
      EXPECT_EQ(value(cell, "workers"), "4");
      EXPECT_EQ(value(cell, "beta1"), "0.99");
    }
    EXPECT_EQ(combinations(cell.tune).size(), 4U * 3) << "four rates, three decays";
    EXPECT_EQ(value(cell, "batch"), "32");
    EXPECT_EQ(value(cell, "epochs"), "200");
    EXPECT_EQ(value(cell, "sharding"), "replicate");
  }
  EXPECT_EQ(runs, 84U);
  EXPECT_EQ(signum, 6U);
}

Entry entry_of(const std::string& folder, std::uint64_t seed, double first_loss, int batch = 8) {
  return {.run = {.label = "lion",
                  .seed = seed,
                  .settings = {{"batch", batch}},
                  .varied = {{"batch", std::to_string(batch)}}},
          .state = Entry::State::kDone,
          .result = {.folder = folder,
                     .summary = {{"model", {{"parameters", 10}}}, {"world", 4}, {"step_ms", 2}},
                     .first_loss = first_loss}};
}

TEST(UnequalStarts, AreNoneWhereRunsOfASeedBeginAlike) {
  EXPECT_TRUE(
      unequal_starts({entry_of("a", 1, 5), entry_of("b", 2, 6), entry_of("c", 1, 5)}).empty());
  EXPECT_TRUE(unequal_starts({entry_of("a", 1, 5), entry_of("b", 1, 6, 16)}).empty())
      << "other batches";
}

TEST(UnequalStarts, NameRunsOfASeedWithOtherLosses) {
  for (const bool tuning : {false, true}) {
    Entry first = entry_of("a", 1, 5);
    first.run.tuning = tuning;
    const auto found = unequal_starts({first, entry_of("b", 1, 6)});
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0], "b and a have seed 1 and began with different losses");
  }
}

TEST(ExperimentTable, HasNoCellOfAMetricThatARunHasNot) {
  Entry text = entry_of("a", 1, 2), image = entry_of("b", 1, 2, 16);
  text.result.final["loss"] = 1.5;
  image.result.final = {{"loss", 1.5}, {"accuracy", 0.25}};
  const std::string table = experiment_table({.entries = {text, image}});
  expect_contains(table, "| 1.500 |    0.250 |");
  expect_contains(table, "| 1.500 |        - |");
}

}  // namespace

}  // namespace pride::app

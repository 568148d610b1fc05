// What the report reads, compares and says. The oracle is the list of runs that the test writes.
// SPDX-License-Identifier: Apache-2.0
#include "program/svg.h"
#include "report/report_runs.h"
#include "train_names.h"

namespace pride::app {
namespace {

TEST_F(Report, CountsASeedOnceAndNamesItsRepetition) {
  write_run("a", "lion", 4, 1, 0.5, 100);
  write_run("b", "lion", 4, 1, 0.5, 100);
  const auto found = sections({"a", "b"});
  ASSERT_EQ(found.at(0).groups.size(), 1U);
  EXPECT_EQ(found[0].groups[0].runs.size(), 1U);
  ASSERT_EQ(found[0].repeated.size(), 1U);
  const std::string html = page(found);
  EXPECT_PRED_FORMAT2(IsSubstring, "/b): the settings and the seed of ", html);
  EXPECT_PRED_FORMAT2(IsSubstring, ">1 run, by ", html);
}

// Runs of one seed that differ in what decides time alone are compared.
TEST_F(Report, ComparesTransportsAndSpeedsOfOneSeed) {
  const auto with = [&](const char* folder, int seed, const json& other) {
    write_run(folder, "lion", 4, seed, 0.5, 100, other);
  };
  with("a", 1, {{"transport", "threads"}});
  with("b", 2, {{"transport", "mpi"}, {"settings", {{"workers", 0}}}});
  with("c", 1, {{"transport", "mpi"}, {"settings", {{"workers", 0}}}});
  with("d", 2, {{"transport", "threads"}, {"settings", {{"timeout", 5}}}});
  with("e", 1, {{"transport", "threads"}, {"settings", {{"overlap", true}}}});
  const auto found = sections({"a", "b", "c", "d", "e"});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found[0].repeated.empty());
  ASSERT_EQ(found[0].groups.size(), 3U);
  EXPECT_EQ(found[0].groups[0].name, "lion, overlap default, transport threads");
  EXPECT_EQ(found[0].groups[1].row, "lion, overlap default, transport mpi");
  EXPECT_EQ(found[0].groups[2].name, "lion, overlap true, transport threads");
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(found[0].groups[i].color, i) << "alike";
  EXPECT_PRED_FORMAT2(IsSubstring, "lion, overlap default, transport mpi</button>", page(found));
  EXPECT_EQ(found[0].groups[0].runs.size(), 2U) << "a and d: a timeout is no speed";
  EXPECT_TRUE(found[0].varied.empty()) << "one chart for all";
}

TEST_F(Report, DrawsNoChartOfOnePointAndSpeaksOfNoDeviationOfOneSeed) {
  write_run("a", "lion", 4, 1, 0.5, 100);
  const auto one = sections({"a"});
  EXPECT_THROW(chart(charts_of(one.at(0)), "bits"), std::runtime_error);
  EXPECT_PRED_FORMAT2(IsNotSubstring, "deviation", page(one));
  EXPECT_PRED_FORMAT2(IsNotSubstring, "class=\"band", page(one));
  write_run("b", "lion", 4, 2, 0.6, 100);
  EXPECT_PRED_FORMAT2(IsSubstring, "the band is one standard deviation", page(sections({"b"})));
}

TEST_F(Report, TakesTheRunsInAFolder) {
  write_run("all/a", "lion", 4, 1, 0.5, 100);
  write_run("all/b", "dgc", 4, 1, 0.5, 100);
  folder_.write("all/notes/x", "");
  EXPECT_EQ(sections({"all"}).at(0).groups.size(), 2U);
}

TEST_F(Report, NamesARunThatFailedAndASweepThatIsNotComplete) {
  write_run("sw/runs/one", "dlion-vote", 4, 1, 0.5, 100);
  write_sweep("sw", {{"complete", false}},
              {{{"folder", "runs/one"}}, {{"folder", "runs/two"}, {"error", "NaN in step 3"}}});
  const auto found = sections({"sw"});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].groups.at(0).label, "mine");
  const std::string html = page(found);
  EXPECT_PRED_FORMAT2(IsSubstring, "NaN in step 3", html);
  EXPECT_PRED_FORMAT2(IsSubstring, "is not complete", html);
}

TEST_F(Report, NamesWhatItCannotRead) {
  const auto refuses = [&](const char* folder, const char* why) {
    test::expect_error<DataError>([&] { load_runs(folder_.path() / folder, loaded_); }, {why});
  };
  refuses("none", "none: no such folder");
  folder_.write("empty/x", "");
  refuses("empty", "neither sweep.json, summary.json nor metrics.jsonl");
  refuses("empty/x", "empty/x: no folder, and no file that a run's folder has");
  folder_.write("bad/sweep.json", "{\"title\": 3}");
  refuses("bad", "bad/sweep.json: ");
  folder_.write("sweep/sweep.json", "{}");
  for (const char* line : {"nonsense\n", "{\"id\": 1}\n"}) {
    folder_.write("sweep/sweep.jsonl", line);
    refuses("sweep", "sweep.jsonl:1: ");
  }
  folder_.write("young/metrics.jsonl", "");
  EXPECT_EQ(error_of("young"), "not finished: no summary.json");
  folder_.write("odd/summary.json", "{\"final\": {}, \"settings\": 3}");
  load_runs(folder_.path() / "odd", loaded_);
  EXPECT_FALSE(loaded_.runs.back().ok());
  EXPECT_TRUE(sections_of(loaded_).empty());
}

TEST_F(Report, CountsARunOnceHoweverOftenItIsGiven) {
  write_run("sw/runs/one", "lion", 4, 1, 0.5, 100);
  write_run("sw/runs/two", "lion", 4, 2, 0.7, 100);
  write_sweep("sw", {{"title", "both"}}, {{{"folder", "runs/one"}}, {{"folder", "runs/two"}}});
  std::filesystem::create_directory_symlink(folder_.path() / "sw", folder_.path() / "link");
  const auto found =
      sections({"sw/runs/one", "sw", "sw/", "link", "sw/runs/../runs/two", "sw/sweep.json"});
  EXPECT_EQ(loaded_.runs.size(), 2U);
  EXPECT_EQ(loaded_.sources.size(), 1U);
  ASSERT_EQ(found.size(), 1U);
  ASSERT_EQ(found[0].groups.size(), 1U);
  EXPECT_EQ(found[0].groups[0].runs.size(), 2U);
  EXPECT_EQ(found[0].groups[0].label, "mine") << "as the sweep calls it";
}

TEST_F(Report, PutsSeedsTogetherThatDifferInHarmlessFlagsAndPlacesOnly) {
  const auto with = [&](const std::string& folder, int seed, const json& settings,
                        const std::string& init_hash) {
    write_run(folder, "lion", 4, seed, 0.5, 100,
              {{"settings", settings}, {"model", {{"size", {{"init_hash", init_hash}}}}}});
  };
  with("a", 1, {{"loader-threads", 2}, {"init", "x/a"}, {"vocab", "v"}}, "1");
  with("b", 2, {{"loader-threads", 8}, {"init", "y/a"}, {"vocab", "w"}}, "1");
  with("c", 3, {{"bucket-mb", 1.0}, {"bucket-coords", nullptr}, {"hierarchical", "4"}}, "1");
  with("d", 1, {{"init", "x/a"}}, "2");
  const auto found = sections({"a", "b", "c", "d"});
  ASSERT_EQ(found.size(), 2U) << "two models";
  ASSERT_EQ(found[0].groups.size(), 1U);
  EXPECT_EQ(found[0].groups[0].runs.size(), 3U);
  EXPECT_NE(found[0].title, found[1].title);
}

TEST_F(Report, TakesAFlagThatAnOlderVersionHadNotForSwitchedOff) {
  const json off = {{"mixup", 0.0}, {"image-size", nullptr}, {"skip-long", false}};
  write_run("old", "lion", 4, 1, 0.5, 100);
  write_run("new", "lion", 4, 2, 0.5, 100, {{"settings", off}});
  write_run("mixed", "lion", 4, 3, 0.5, 100, {{"settings", {{"mixup", 0.5}}}});
  const auto found = sections({"old", "new", "mixed"});
  ASSERT_EQ(found.size(), 1U);
  ASSERT_EQ(found[0].groups.size(), 2U);
  EXPECT_EQ(found[0].groups[0].runs.size(), 2U) << "old and new";
  EXPECT_EQ(found[0].varied, std::vector<std::string>{"mixup"});
  EXPECT_EQ(found[0].groups[0].name, "lion, mixup default");
  EXPECT_EQ(found[0].groups[1].name, "lion, mixup 0.5");
}

TEST_F(Report, TakesTheMetricFromRunsThatHaveItAndSaysWhichDiverged) {
  const auto with_final = [&](const std::string& folder, const std::string& method, int seed,
                              const json& final) {
    write_run(folder, method, 4, seed, 0.5, 100);
    set(folder, "/final", final);
  };
  // e^800 is not finite, so that perplexity is null
  with_final("a", "lion", 1, {{"loss", 800.0}, {"perplexity", nullptr}});
  with_final("b", "lion", 2, {{"loss", 2.0}, {"perplexity", 7.4}, {"train_loss", nullptr}});
  with_final("c", "dgc", 1, {{"loss", nullptr}, {"perplexity", nullptr}});
  const auto found = sections({"a", "b", "c"});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].metric.key, "perplexity");
  EXPECT_EQ(loaded_.runs[0].error, "diverged: the final perplexity is not finite");
  EXPECT_TRUE(loaded_.runs[1].ok()) << "the last step alone was skipped";
  const std::string html = page(found);
  EXPECT_PRED_FORMAT2(IsSubstring, ">1 of 2 (1 diverged)<", html);
  EXPECT_PRED_FORMAT2(IsSubstring, ">diverged<", html) << "dgc's only run";
}

// One invalid summary must not cost the report of the others.
TEST_F(Report, LeavesOutARunWithAnOddSummaryAndSaysWhy) {
  const auto odd = [&](const std::string& name, const char* place, const json& value,
                       const std::string& why) {
    write_run(name, "lion", 4, 1, 0.5, 100);
    set(name, place, value);
    const std::string error = error_of(name);
    EXPECT_PRED_FORMAT2(IsSubstring, name + "/summary.json: ", error);
    EXPECT_PRED_FORMAT2(IsSubstring, why, error);
    EXPECT_PRED_FORMAT2(IsNotSubstring, "json.exception", error);
  };
  const json gone(json::value_t::discarded);
  odd("a", "/param_hash", 5, "'param_hash' is not a string");
  odd("b", "/settings/seed", gone, "'settings.seed' is missing");
  odd("c", "/model/name", json::array({"x"}), "'model.name' is not a string");
  odd("d", "/model/size", 7, "'model.size' is not an object");
  odd("e", "/seconds/data_s", "long", "'seconds.data_s' is not a number");
  odd("f", "/versions", json{{"commit", 1}}, "'versions.commit' is not a string");
  odd("g", "/interrupted", "no", "'interrupted' is not a boolean");
  odd("h", "/final", json{{"accuracy", 0.5}}, "'final.loss' is missing");
  odd("i", "/method/name", 3, "'method.name' is not a string");
  write_run("j", "lion", 4, 1, 0.5, 100);
  folder_.write("j/metrics.jsonl", "{\"type\": \"step\", \"step\": 1}\n");
  EXPECT_PRED_FORMAT2(IsSubstring, "j/metrics.jsonl: ", error_of("j"));
  write_run("k", "lion", 4, 1, 0.5, 100);
  folder_.write("k/metrics.jsonl", "{\"type\": \"note\"}\n{\"type\": \"st\n{\"type\": \"note\"}\n");
  EXPECT_PRED_FORMAT2(IsSubstring, "k/metrics.jsonl:2: not a JSON object", error_of("k"))
      << "only the last line may be cut short";
  const auto found = sections({"a"});
  EXPECT_TRUE(found.empty());
  write_run("good", "lion", 4, 1, 0.5, 100);
  const auto both = sections({"good"});
  ASSERT_EQ(both.size(), 1U);
  const std::string html = page(both);
  EXPECT_PRED_FORMAT2(IsSubstring, "is missing", html);
}

TEST_F(Report, LetsNoTextBecomeMarkup) {
  const std::string evil = "</script><img src=x onerror=alert(1)>&\"'";
  write_run("a", evil, 4, 1, 0.5, 100);
  const auto found = sections({"a"});
  const std::string html = page_of({.title = evil, .program = evil}, loaded_, found);
  EXPECT_PRED_FORMAT2(IsNotSubstring, "<img", html);
  EXPECT_PRED_FORMAT2(IsSubstring, "data-name=\"&lt;/script&gt;", html) << "in an attribute";
  EXPECT_PRED_FORMAT2(IsSubstring, "&lt;/script&gt;", html) << "in the text";
  EXPECT_EQ(svg_of(charts_of(found[0])[0]).find("<img"), std::string::npos);
}

}  // namespace
}  // namespace pride::app

// The report's numbers and its SVG. The oracle is arithmetic by hand on runs that the test writes.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/io/temp_folder.h"
#include "pride/error.h"
#include "report/charts.h"
#include "report/page.h"
#include "report/svg.h"

namespace pride::app {
namespace {

using nlohmann::json;
using testing::IsNotSubstring;
using testing::IsSubstring;

constexpr int kSteps = 250;
constexpr double kTolerance = 1e-12;  // sums in double

class Report : public testing::Test {
 protected:
  // Loss of step s is 3 - s / 250; accuracy is evaluated after steps 125 and 250. `other`: what the
  // summary has besides, or instead.
  void write_run(const std::string& folder, const std::string& method, int workers, int seed,
                 double accuracy, double bytes, const json& other = json::object()) const {
    std::string lines;
    for (int s = 1; s <= kSteps; ++s) {
      lines += json({{"type", "step"}, {"step", s}, {"loss", 3 - s / 250.0}, {"bytes_sent", bytes}})
                   .dump() +
               "\n";
      if (s % 125 != 0) continue;
      lines +=
          json({{"type", "eval"}, {"step", s}, {"accuracy", accuracy * s / kSteps}}).dump() + "\n";
    }
    folder_.write(folder + "/metrics.jsonl", lines + "{\"type\":\"step\",\"st");
    json summary = {
        {"settings", {{"method", method}, {"workers", workers}, {"seed", seed}, {"lr", nullptr}}},
        {"task", "cifar10"},
        {"data", {{"hash", "1"}, {"source", "x"}}},
        {"model", {{"name", "vit"}, {"parameters", 400}}},
        {"method", {{"name", method}, {"lr", 0.5}}},
        {"world", workers},
        {"steps", kSteps},
        {"steps_run", kSteps},
        {"epochs", 2.5},
        {"bytes", json::object()},
        {"seconds", {{"backward_s", 1.0}}},
        {"step_ms", 8.0},
        {"final", {{"loss", 2.0}, {"accuracy", accuracy}}}};
    summary.update(other, /*merge_objects=*/true);
    folder_.write(folder + "/summary.json", summary.dump());
  }

  // Records of runs that have the label "mine".
  void write_sweep(const std::string& folder, const json& overview,
                   const std::vector<json>& records) const {
    folder_.write(folder + "/sweep.json", overview.dump());
    std::string lines;
    for (json record : records) {
      record.update({{"label", "mine"}, {"phase", "run"}, {"command", "pride train"}});
      lines += record.dump() + "\n";
    }
    folder_.write(folder + "/sweep.jsonl", lines);
  }

  // A value of the summary; discarded: none.
  void set(const std::string& folder, const char* place, const json& value) const {
    const std::string file = folder + "/summary.json";
    json summary = json::parse(test::bytes_of(folder_.path() / file));
    const json::json_pointer at(place);
    if (value.is_discarded()) {
      summary[at.parent_pointer()].erase(at.back());
    } else {
      summary[at] = value;
    }
    folder_.write(file, summary.dump());
  }

  std::string error_of(const std::string& folder) {
    load_runs(folder_.path() / folder, loaded_);
    return loaded_.runs.back().error;
  }

  std::vector<Section> sections(const std::vector<std::string>& folders) {
    for (const std::string& folder : folders) load_runs(folder_.path() / folder, loaded_);
    return sections_of(loaded_);
  }

  const Chart& chart(const std::vector<Chart>& charts, const std::string& id) const {
    for (const Chart& one : charts) {
      if (one.id == id) return one;
    }
    throw std::runtime_error("no chart " + id);
  }

  test::TempFolder folder_;
  Loaded loaded_;
};

TEST_F(Report, CountsASeedOnceAndNamesItsRepetition) {
  write_run("a", "lion", 4, 1, 0.5, 100);
  write_run("b", "lion", 4, 1, 0.5, 100);
  const auto found = sections({"a", "b"});
  ASSERT_EQ(found.at(0).groups.size(), 1U);
  EXPECT_EQ(found[0].groups[0].runs.size(), 1U);
  ASSERT_EQ(found[0].repeated.size(), 1U);
  const std::string page = page_of({}, loaded_, found);
  EXPECT_PRED_FORMAT2(IsSubstring, "/b): the settings and the seed of ", page);
  EXPECT_PRED_FORMAT2(IsSubstring, ">1 run, by ", page);
}

// A rate for each number of workers is one line; several rates at one number are several.
TEST_F(Report, DrawsNoTwoPointsOfALineAtOnePlace) {
  int i = 0;
  for (const char* folder : {"a", "b", "c", "d"}) {
    const json rate = {{"method", {{"lr", i % 2 == 0 ? 0.1 : 0.2}}}};
    write_run(folder, "lion", i < 2 ? 2 : 4, 1, 0.5 + 0.1 * i, 100, rate);
    ++i;
  }
  const auto whole = charts_of(sections({"a", "b", "c", "d"}).at(0));
  const auto& lines = chart(whole, "workers").series;
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].name, "lion, lr 0.1");
  EXPECT_EQ(lines[1].name, "lion, lr 0.2");
  EXPECT_NEAR(lines[1].y.at(0), 60, 1e-9);
  EXPECT_NEAR(lines[1].y.at(1), 80, 1e-9);
  loaded_ = {};
  const auto chosen = charts_of(sections({"a", "d"}).at(0));
  ASSERT_EQ(chart(chosen, "workers").series.size(), 1U) << "a rate for each number of workers";
  EXPECT_EQ(chart(chosen, "workers").series[0].name, "lion");
}

TEST_F(Report, ShowsMeanAndDeviationOverTheSeeds) {
  write_run("a", "lion", 4, 1, 0.5, 100);
  write_run("b", "lion", 4, 2, 0.7, 100);
  const auto found = sections({"a", "b"});
  ASSERT_EQ(found.size(), 1U);
  ASSERT_EQ(found[0].groups.size(), 1U) << "they differ in the seed only";
  const auto charts = charts_of(found[0]);
  const Series& s = chart(charts, "epoch").series.at(0);
  ASSERT_EQ(s.x.size(), 2U);
  EXPECT_NEAR(s.x[0], 1.25, kTolerance);
  EXPECT_NEAR(s.x[1], 2.5, kTolerance);
  EXPECT_NEAR(s.y[1], 60, kTolerance) << "percent";
  EXPECT_NEAR(s.spread[1], 100 * std::sqrt(0.02), 1e-9) << "of the sample";
  const Series& bits = chart(charts, "bits").series.at(0);
  EXPECT_NEAR(bits.x[0], 100 * 8 / 400.0, kTolerance);
}

TEST_F(Report, AveragesTheTrainingLossOverStretches) {
  write_run("a", "lion", 4, 1, 0.5, 100);
  const auto found = sections({"a"});
  const auto charts = charts_of(found[0]);
  const Series& s = chart(charts, "loss").series.at(0);
  ASSERT_EQ(s.x.size(), 84U) << "250 steps in threes";
  EXPECT_NEAR(s.y[0], 3 - 2 / 250.0, kTolerance);
  EXPECT_NEAR(s.x[0], 2 / 100.0, kTolerance) << "100 steps an epoch";
}

TEST_F(Report, DrawsAgainstWorkersOnlyIfTheyDiffer) {
  write_run("a", "lion", 4, 1, 0.5, 100);
  write_run("b", "dgc", 4, 1, 0.4, 10);
  const auto one = charts_of(sections({"a", "b"})[0]);
  EXPECT_THROW(chart(one, "workers"), std::runtime_error);
  write_run("c", "lion", 16, 1, 0.6, 100);
  loaded_ = Loaded();
  const auto charts = charts_of(sections({"a", "b", "c"})[0]);
  const Chart& workers = chart(charts, "workers");
  EXPECT_EQ(workers.x.ticks, (std::vector<double>{4, 16}));
  ASSERT_EQ(workers.series.size(), 2U);
  EXPECT_EQ(workers.series[0].x, (std::vector<double>{4, 16}));
  EXPECT_EQ(workers.series[0].y, (std::vector<double>{50, 60}));
  EXPECT_EQ(chart(charts, "epoch-workers-4").series.size(), 2U);
  EXPECT_EQ(chart(charts, "epoch-workers-16").series.size(), 1U);
}

TEST_F(Report, NamesARunThatFailedAndASweepThatIsNotComplete) {
  write_run("sw/runs/one", "dlion-vote", 4, 1, 0.5, 100);
  write_sweep("sw", {{"complete", false}},
              {{{"folder", "runs/one"}}, {{"folder", "runs/two"}, {"error", "NaN in step 3"}}});
  const auto found = sections({"sw"});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].groups.at(0).label, "mine");
  const std::string page = page_of({.title = "t", .program = "p"}, loaded_, found);
  EXPECT_PRED_FORMAT2(IsSubstring, "NaN in step 3", page);
  EXPECT_PRED_FORMAT2(IsSubstring, "is not complete", page);
}

TEST_F(Report, NamesWhatItCannotRead) {
  EXPECT_THROW(load_runs(folder_.path() / "none", loaded_), DataError);
  folder_.write("empty/x", "");
  EXPECT_THROW(load_runs(folder_.path() / "empty", loaded_), DataError);
  folder_.write("bad/sweep.json", "{\"title\": 3}");
  EXPECT_THROW(load_runs(folder_.path() / "bad", loaded_), DataError);
  folder_.write("sweep/sweep.json", "{}");
  folder_.write("sweep/sweep.jsonl", "nonsense\n");
  EXPECT_THROW(load_runs(folder_.path() / "sweep", loaded_), DataError);
  folder_.write("sweep/sweep.jsonl", "{\"id\": 1}\n");
  test::expect_error<DataError>([&] { load_runs(folder_.path() / "sweep", loaded_); },
                                {"sweep.jsonl:1: "});
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

TEST_F(Report, GivesEveryChartAnIdOfItsOwn) {
  for (const char* value : {"a_1", "a-1", "a 1"}) {
    write_run(value, "lion", 4, 1, 0.5, 100, {{"settings", {{"sharding", value}}}});
  }
  const auto found = sections({"a_1", "a-1", "a 1"});
  std::set<std::string> ids;
  const auto charts = charts_of(found.at(0));
  for (const Chart& one : charts) EXPECT_TRUE(ids.insert(one.id).second) << one.id;
  EXPECT_TRUE(ids.contains("epoch-sharding-a-1"));
  EXPECT_TRUE(ids.contains("epoch-sharding-a-1-3"));
}

TEST_F(Report, FindsAChartOfAnySection) {
  write_run("a", "lion", 4, 1, 0.5, 100);
  write_run("b", "dgc", 4, 1, 0.5, 100, {{"data", {{"hash", "2"}}}});
  const auto found = sections({"a", "b"});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(chart_named(found, "loss").series.at(0).name, "lion");
  EXPECT_EQ(chart_named(found, "s1-loss").series.at(0).name, "lion");
  EXPECT_EQ(chart_named(found, "s2-loss").series.at(0).name, "dgc");
  EXPECT_EQ(chart_named(found, "").id, "epoch");
  test::expect_error<InvalidArgument>([&] { chart_named(found, "s3-loss"); },
                                      {"s3-loss", "s1-epoch", "s2-loss", "s2-bits"});
  test::expect_error<InvalidArgument>([&] { chart_named({found[0]}, "x"); }, {"there are epoch,"});
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
  const std::string page = page_of({.title = "t", .program = "p"}, loaded_, found);
  EXPECT_PRED_FORMAT2(IsSubstring, ">1 of 2 (1 diverged)<", page);
  EXPECT_PRED_FORMAT2(IsSubstring, ">diverged<", page) << "dgc's only run";
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
  const std::string page = page_of({.title = "t", .program = "p"}, loaded_, both);
  EXPECT_PRED_FORMAT2(IsSubstring, "is missing", page);
}

TEST_F(Report, LetsNoTextBecomeMarkup) {
  const std::string evil = "</script><img src=x onerror=alert(1)>&\"'";
  write_run("a", evil, 4, 1, 0.5, 100);
  const auto found = sections({"a"});
  const std::string page = page_of({.title = evil, .program = evil}, loaded_, found);
  EXPECT_PRED_FORMAT2(IsNotSubstring, "<img", page);
  EXPECT_PRED_FORMAT2(IsSubstring, "data-name=\"&lt;/script&gt;", page) << "in an attribute";
  EXPECT_PRED_FORMAT2(IsSubstring, "&lt;/script&gt;", page) << "in the text";
  EXPECT_EQ(svg_of(charts_of(found[0])[0]).find("<img"), std::string::npos);
}

TEST_F(Report, DrawsEverySeriesIntoTheFrameOfTheSvg) {
  write_run("a", "lion", 4, 1, 0.5, 100);
  write_run("b", "dgc", 4, 1, 0.4, 10);
  const auto charts = charts_of(sections({"a", "b"})[0]);
  const std::string lines = svg_file(chart(charts, "epoch"));
  const std::string points = svg_file(chart(charts, "bits"));
  for (const char* name : {">lion</text>", ">dgc</text>", "prefers-color-scheme:dark"}) {
    EXPECT_PRED_FORMAT2(IsSubstring, name, lines) << name;
    EXPECT_PRED_FORMAT2(IsSubstring, name, points) << name;
  }
  EXPECT_PRED_FORMAT2(IsSubstring, "data-name=\"dgc\" data-at=\"1.25 20 0,2.5 40 0\"", lines);
  EXPECT_PRED_FORMAT2(IsSubstring, "data-name=\"dgc\" data-at=\"0.2 40 0\"", points);
  EXPECT_PRED_FORMAT2(IsSubstring, "<circle", points);
  for (const std::string& svg : {lines, points}) {
    EXPECT_PRED_FORMAT2(IsNotSubstring, "nan", svg);
    EXPECT_PRED_FORMAT2(IsNotSubstring, "inf", svg);
  }
}

TEST_F(Report, DrawsAChartAgainFromItsNumbers) {
  write_run("a", "lion", 4, 1, 0.5, 100);
  write_run("b", "lion", 4, 2, 0.7, 100);
  write_run("c", "dgc", 4, 1, 0.4, 10);
  for (const Chart& one : charts_of(sections({"a", "b", "c"})[0])) {
    const Chart again = chart_of(json_of(one));
    EXPECT_EQ(svg_of(again), svg_of(one)) << one.id;
    EXPECT_EQ(json_of(again), json_of(one)) << one.id;
  }
}

// Of the pages in docs: what the drawer changes, it has to change there.
TEST(Figures, AreDrawnFromTheNumbersBesideThem) {
  int n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PRIDE_FIGURES)) {
    std::filesystem::path file = entry.path();
    if (file.extension() != ".svg") continue;
    const std::string picture = test::bytes_of(file);
    const std::string drawn = svg_file(chart_of(test::bytes_of(file.replace_extension("json"))));
    EXPECT_TRUE(drawn == picture) << "pride report --from " << file << " --svg ...";
    ++n;
  }
  EXPECT_GE(n, 7);
}

TEST(ChartOf, NamesWhatIsWrongWithNumbers) {
  const std::string good =
      R"({"x": {"label": "epochs"}, "y": {}, "series": [{"name": "a", "x": [1, 2], "y": [3, 4]}]})";
  EXPECT_EQ(chart_of(good).series.at(0).name, "a");
  const auto refuses = [&](const std::string& part, const std::string& by, const char* why) {
    std::string bad = good;
    bad.replace(bad.find(part), part.size(), by);
    test::expect_error<DataError>([&] { chart_of(bad); }, {why});
  };
  refuses("[3, 4]", "[3, null]", "not the numbers of a chart");
  refuses("[3, 4]", "[3]", "series 'a'");
  refuses("\"y\": [3, 4]", "\"y\": [3, 4], \"color\": -1", "series 'a'");
  refuses("\"epochs\"", "\"epochs\", \"log2\": true", "axis 'epochs': min <= 0");
  refuses("\"y\": {}", "\"y\": {\"min\": 2}", "min >= max");
  refuses("{\"name\": \"a\", \"x\": [1, 2], \"y\": [3, 4]}", "", "no series");
}

}  // namespace
}  // namespace pride::app

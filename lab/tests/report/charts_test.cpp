// Charts and their SVG. The oracle is arithmetic by hand on runs that the test writes.
// SPDX-License-Identifier: Apache-2.0
#include "report/charts.h"

#include <cmath>
#include <set>

#include "program/svg.h"
#include "report/report_runs.h"
#include "train_names.h"

namespace pride::app {
namespace {

TEST_F(Report, DrawsCurvesAgainstWhatIsAskedFor) {
  write_run("a", "onebit-adam", 4, 1, 0.5, 100);
  const auto found = sections({"a"});
  const std::vector<std::pair<Look, std::vector<double>>> kEnds = {
      {{.x = "epoch"}, {1.25, 2.5}},
      {{.x = "step"}, {125, 250}},
      {{.x = "time"}, {125 * 0.008, 250 * 0.008}},
      {{.x = "time", .link = "8kbit/s"}, {125 * (0.004 + 0.1), 250 * (0.004 + 0.1)}},
      {{.x = "bytes"}, {125 * 100 / 1e6, 250 * 100 / 1e6}}};
  for (const auto& [look, ends] : kEnds) {
    const auto charts = charts_of(found[0], look);
    const Series& curve = chart(charts, "epoch").series.at(0);
    for (const int i : {0, 1}) EXPECT_NEAR(curve.x.at(i), ends[i], 1e-9) << look.x;
  }
  const auto charts = charts_of(found[0], {.log_y = true});
  EXPECT_TRUE(chart(charts, "loss").y.log2);
  EXPECT_PRED_FORMAT2(IsSubstring, ">2</text>", svg_of(chart(charts, "loss")));
  EXPECT_NEAR(chart(charts, "rate").series.at(0).y.back(), 0.5, kTolerance);
  EXPECT_NEAR(chart(charts, "gradient").series.at(0).y.front(), 2, kTolerance) << "1, 2, 3";
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
  EXPECT_NEAR(found[0].groups[0].bits(), 100 * 8 / 400.0, kTolerance);
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
                                      {"s3-loss", "s1-epoch", "s2-loss", "s2-gradient"});
  test::expect_error<InvalidArgument>([&] { chart_named({found[0]}, "x"); }, {"there are epoch,"});
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
  for (const char* folder : {PRIDE_ROOT "/docs/figures", PRIDE_ROOT "/lab/docs/figures"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::filesystem::path file = entry.path();
      if (file.extension() != ".svg") continue;
      const std::string picture = test::bytes_of(file);
      const std::string drawn = svg_file(chart_of(test::bytes_of(file.replace_extension("json"))));
      EXPECT_TRUE(drawn == picture) << "pride report --from " << file << " --svg ...";
      ++n;
    }
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
  refuses("\"y\": {}", R"("y": {"min": 1, "max": 1.0000000000000007})", "too close");
  refuses("{\"name\": \"a\", \"x\": [1, 2], \"y\": [3, 4]}", "", "no series");
}

}  // namespace
}  // namespace pride::app

// Files of --metrics. The oracle is the lines that the test writes, and arithmetic by hand on them.
// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_file.h"

#include <cmath>

#include "report/report_runs.h"

namespace pride::app {
namespace {

constexpr const char* kHead =
    R"({"method": "lion", "workers": 4, "parameters": 400, "seed": 1, "data": "x", "model": "m"})";

class Metrics : public Report {
 protected:
  // Adds a file with these lines, each with its end.
  const RunData& add(const std::string& name, const std::vector<std::string>& lines,
                     const std::string& label = "") {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return add_text(name, text, label);
  }

  const RunData& add_text(const std::string& name, const std::string& text,
                          const std::string& label = "") {
    folder_.write(name, text);
    load_metrics((label.empty() ? "" : label + "=") + (folder_.path() / name).string(), loaded_);
    return loaded_.runs.back();
  }

  std::string notes() const {
    std::string all;
    for (const std::string& note : notes_of(loaded_, sections_of(loaded_))) all += note + "\n";
    return all;
  }
};

// Ten steps: loss 10 - s, half a second and 100 bytes each, an evaluation after the fifth and
// tenth.
std::vector<std::string> ten_steps(const std::string& head = kHead) {
  std::vector<std::string> lines = {head};
  for (int s = 1; s <= 10; ++s) {
    json line = {{"step", s},          {"loss", 10 - s},        {"lr", 0.5},
                 {"seconds", s * 0.5}, {"bytes_sent", s * 100}, {"epoch", s * 0.25}};
    lines.push_back(line.dump());
    if (s % 5 != 0) continue;
    lines.push_back(json({{"step", s}, {"val_loss", 20 - s}}).dump());
  }
  return lines;
}

TEST_F(Metrics, DrawTheChartsOfTheirValues) {
  add("a.jsonl", ten_steps());
  const auto found = sections_of(loaded_);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].title, "PyTorch: m, 400 parameters");
  const std::vector<std::pair<const char*, std::vector<double>>> kEnds = {
      {"", {1.25, 2.5}}, {"step", {5, 10}}, {"time", {2.5, 5}}, {"bytes", {500 / 1e6, 1000 / 1e6}}};
  for (const auto& [x, ends] : kEnds) {
    const auto charts = charts_of(found[0], {.x = x});
    const Series& s = chart(charts, "epoch").series.at(0);
    EXPECT_EQ(s.name, "lion");
    ASSERT_EQ(s.x.size(), 2U) << x;
    for (const int i : {0, 1}) EXPECT_NEAR(s.x[i], ends[i], kTolerance) << x;
    EXPECT_EQ(s.y, (std::vector<double>{15, 10}));
    EXPECT_EQ(chart(charts, "loss").series.at(0).y.size(), 10U);
    EXPECT_EQ(chart(charts, "loss").y.label, "training loss")
        << "nats or not: the file does not say";
  }
  const Group& group = found[0].groups.at(0);
  EXPECT_NEAR(group.bits(), 100 * 8 / 400.0, kTolerance);
  EXPECT_NEAR(group.runs.at(0)->step_ms(), 500, kTolerance);
  EXPECT_EQ(group.setting("workers"), "4");
  EXPECT_EQ(notes(), "");
  const std::string html = page(found);
  // loss, bits, bytes, share of a ring of 4 workers (600 * 4 bytes), ms
  EXPECT_PRED_FORMAT2(
      IsSubstring, "<td>10.000</td><td>2.00</td><td>100</td><td>1/24.0</td><td>500.0</td>", html);
  EXPECT_PRED_FORMAT2(IsNotSubstring, "counted", html);
  EXPECT_PRED_FORMAT2(IsNotSubstring, "Where a step's time goes", html);
}

TEST_F(Metrics, LeaveOpenWhatTheyDoNotSay) {
  add("bare.jsonl", {R"({"step": 10, "loss": 3})", R"({"step": 20, "loss": 2})"});
  const auto found = sections_of(loaded_);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].title, "PyTorch: model");
  const auto charts = charts_of(found[0]);
  ASSERT_EQ(charts.size(), 1U) << "nothing but the training loss";
  EXPECT_EQ(charts[0].id, "loss");
  EXPECT_EQ(charts[0].x.label, "steps") << "not epochs";
  EXPECT_EQ(charts[0].series.at(0).name, "bare") << "the file's name";
  EXPECT_EQ(charts[0].series.at(0).x, (std::vector<double>{10, 20}));
  for (const char* x : {"epoch", "time", "bytes"}) {
    const Look look = {.x = x};
    test::expect_error<InvalidArgument>([&] { charts_of(found[0], look); },
                                        {std::string("--x ") + x, "bare.jsonl has no '"});
  }
  EXPECT_EQ(final_of(found[0], found[0].groups.at(0)).mean, 2);
  const std::string html = page(found);
  EXPECT_PRED_FORMAT2(IsSubstring, "training loss, mean of the last tenth", html);
  EXPECT_PRED_FORMAT2(IsSubstring, "<td>-</td><td>-</td><td>-</td><td>-</td><td>-</td></tr>", html);
  for (const char* odd : {"nan", "inf<", "null"}) EXPECT_PRED_FORMAT2(IsNotSubstring, odd, html);
}

TEST_F(Metrics, RefuseALineWithFileAndNumber) {
  const auto refuses = [&](const std::string& line, const char* why) {
    test::expect_error<DataError>(
        [&] {
          add("bad.jsonl", {kHead, R"({"step": 1, "loss": 2})", line});
        },
        {"bad.jsonl:3: ", why});
    loaded_ = {};
  };
  refuses("loss 2.0", "not JSON");
  refuses(R"({"step": 2, "lo)", "not JSON");  // with its end: no cut last line
  refuses("[1, 2]", "not a JSON object");
  refuses(R"({"step": 2, "loss": 3, "loss": 2})", "\"loss\" appears twice");
  refuses(R"({"step": "2", "loss": 3})", "'step' is \"2\": must be a whole number");
  refuses(R"({"step": 1.5, "loss": 3})", "'step' is 1.5");
  refuses(R"({"step": -1, "loss": 3})", "'step' is -1");
  refuses(R"({"step": NaN, "loss": 3})", "'step' is null");
  refuses(R"({"step": 2, "loss": "3"})", "'loss' is \"3\": must be a number");
  refuses(R"({"step": 2, "lr": true})", "'lr' is true");
  refuses(R"({"step": 2, "accuracy": 43.5})", "'accuracy' is 43.5: must be a share, from 0 to 1");
  refuses(R"({"step": 2, "seconds": -1})", "'seconds' is -1: must be 0 or more");
  refuses(R"({"step": 2, "bytes_sent": NaN})", "'bytes_sent' is null: must be a number");
  refuses(R"({"workers": 0})", "'workers' is 0: must be a whole number from 1 to 65535");
  refuses(R"({"workers": 4294967299})", "'workers' is 4294967299");
  refuses("{\"settings\": " + std::string(100'000, '['), "more than 100 levels deep");
  refuses(R"({"parameters": 1.5})", "'parameters' is 1.5");
  refuses(R"({"seed": "one"})", "'seed' is \"one\": must be a number");
  refuses(R"({"data": 7})", "'data' is 7: must be a text");
  refuses(R"({"settings": 7})", "'settings' is not an object");
  refuses(R"({"method": "adamw"})", "'method' is \"adamw\", in line 1 it is \"lion\": a file has");
  refuses(R"({"type": "step", "step": 2, "loss": 1})", "it is a line of `pride train`");
}

TEST_F(Metrics, RefuseAFileWithoutSteps) {
  const auto refuses = [&](const std::string& text, const char* why) {
    test::expect_error<DataError>([&] { add_text("bad.jsonl", text); }, {"bad.jsonl: ", why});
    loaded_ = {};
  };
  refuses("", "it is empty");
  refuses("\n \n", "no line has 'step'");
  refuses(R"({"loss": 3})", "no line has 'step'");
  refuses(R"({"step": 3, "losses": 3})", "no line has 'step' and a loss");
  test::expect_error<DataError>([&] { load_metrics("x=/none.jsonl", loaded_); },
                                {"--metrics /none.jsonl: no such file"});
  test::expect_error<InvalidArgument>([&] { load_metrics("=x", loaded_); }, {"no name before ="});
  test::expect_error<InvalidArgument>([&] { load_metrics(folder_.path().string(), loaded_); },
                                      {"it is a folder"});
  add("a.jsonl", ten_steps());
  test::expect_error<InvalidArgument>(
      [&] { load_metrics("b=" + (folder_.path() / "." / "a.jsonl").string(), loaded_); },
      {"it is given twice"});
}

TEST_F(Metrics, DropACutLastLineWithANote) {
  const RunData& run = add_text("a.jsonl", R"({"step": 1, "loss": 3}
{"step": 2, "loss": 2}
{"step": 3, "loss": 1.)");
  EXPECT_EQ(run.n_steps, 2U);
  EXPECT_PRED_FORMAT2(IsSubstring, "a.jsonl: line 3 is incomplete and does not count", notes());
  EXPECT_PRED_FORMAT2(IsSubstring, "line 3 is incomplete", page(sections_of(loaded_)));
  EXPECT_EQ(add_text("b.jsonl", R"({"step": 3, "loss": 1})").notes.size(), 0U) << "it is whole";
}

// Killed in the middle of a line, resumed from step 1: with and without a new line of its own.
TEST_F(Metrics, DropACutLineThatAResumedRunFollows) {
  for (const char* end : {"\n", R"({"step": 2, "loss": 7})"
                                "\n"}) {
    const RunData& run = add_text("a.jsonl", concat(R"({"step": 1, "loss": 3}
{"step": 2, "loss": 2}
{"step": 3, "lo)",
                                                    end, R"({"step": 2, "loss": 1}
)"));
    EXPECT_EQ(run.n_steps, 2U);
    EXPECT_EQ(run.steps.at("loss").back().second, 1);
    EXPECT_PRED_FORMAT2(IsSubstring, "line 3 is incomplete", notes());
    loaded_ = {};
  }
}

TEST_F(Metrics, TakeNotFiniteValuesOutOfCurvesAndCallTheRunDivergedIfTheyAreTheLast) {
  add("gap.jsonl",
      {R"({"step": 1, "loss": 3, "task": "NaN \" NaN"})", R"({"step": 2, "loss": NaN})",
       R"({"step": 3, "loss": -Infinity, "lr":NaN})", R"({"step": 4, "loss": 1})"});
  EXPECT_EQ(loaded_.runs[0].summary.at("task"), "NaN \" NaN") << "a text stays";
  add("end.jsonl", {R"({"step": 1, "loss": 3})", R"({"step": 2, "loss": Infinity})"});
  add("eval.jsonl", {R"({"step": 1, "loss": 3})", R"({"step": 2, "val_loss": null})"});
  const auto found = sections_of(loaded_);
  const auto charts = charts_of(found.at(0));
  ASSERT_EQ(chart(charts, "loss").series.size(), 1U);
  EXPECT_EQ(chart(charts, "loss").series[0].x, (std::vector<double>{1, 4}));
  EXPECT_EQ(loaded_.runs[1].error, "diverged: the last training loss is not finite");
  EXPECT_EQ(loaded_.runs[2].error, "diverged: the last loss of the evaluations is not finite");
  EXPECT_PRED_FORMAT2(IsSubstring, ">diverged<", page(found));
}

// The process was killed after step 6 and went on from a checkpoint of step 4.
TEST_F(Metrics, ReplaceStepsThatAResumedRunRepeats) {
  std::vector<std::string> lines = {kHead};
  const auto steps = [&](int from, int to, double loss) {
    for (int s = from; s <= to; ++s) {
      lines.push_back(json({{"step", s}, {"loss", loss}, {"seconds", s}}).dump());
    }
  };
  steps(1, 6, 9);
  lines.emplace_back(R"({"step": 6, "val_loss": 1})");
  lines.emplace_back(kHead);
  steps(5, 8, 7);
  const RunData& run = add("a.jsonl", lines);
  EXPECT_EQ(run.steps.at("loss"), (Curve{{1.0, 9.0},
                                         {2.0, 9.0},
                                         {3.0, 9.0},
                                         {4.0, 9.0},
                                         {5.0, 7.0},
                                         {6.0, 7.0},
                                         {7.0, 7.0},
                                         {8.0, 7.0}}));
  EXPECT_FALSE(run.final.contains("loss")) << "an evaluation of the lost steps";
  EXPECT_NEAR(run.step_ms(), 1000, kTolerance);
  EXPECT_PRED_FORMAT2(IsSubstring, "line 10 goes back to step 5", notes());
}

// A clock that starts again, and an epoch's number in place of epochs done, are no axes.
TEST_F(Metrics, DoNotUseAValueThatDoesNotGrow) {
  add("a.jsonl", {R"({"step": 1, "loss": 3, "seconds": 5, "bytes_sent": 9, "epoch": 1})",
                  R"({"step": 2, "loss": 2, "seconds": 1, "bytes_sent": 9, "epoch": 1})"});
  const RunData& run = loaded_.runs[0];
  EXPECT_TRUE(std::isnan(run.step_ms()));
  EXPECT_TRUE(std::isnan(run.epochs()));
  EXPECT_EQ(run.bytes_per_step, 4.5) << "a step may send nothing";
  EXPECT_PRED_FORMAT2(IsSubstring, "line 2: 'seconds' falls from 5.0 to 1.0, so it is not used",
                      notes());
  EXPECT_PRED_FORMAT2(IsSubstring, "line 2: 'epoch' stays at 1.0, so it is not used", notes());
}

TEST_F(Metrics, TakeOneNameOfAValueAndSayWhich) {
  const RunData& run =
      add("a.jsonl", {R"({"optimizer": "DDP", "method": "adamw", "seed": 1, "world_size": 2})",
                      R"({"step": 1, "train_loss": 9, "learning_rate": 0.5, "test_loss": 7})",
                      R"({"step": 2, "loss": 3, "eval_loss": 2})"});
  EXPECT_EQ(run.label, "adamw");
  EXPECT_EQ(run.world(), 2);
  EXPECT_EQ(run.steps.at("loss"), (Curve{{2.0, 3.0}}));
  EXPECT_EQ(run.steps.at("lr"), (Curve{{1.0, 0.5}}));
  EXPECT_EQ(run.final.at("loss"), 2);
  for (const char* note :
       {"'train_loss' is not shown, but 'loss'", "'test_loss' is not shown, but 'eval_loss'",
        "'optimizer' is not shown, but 'method'"}) {
    EXPECT_PRED_FORMAT2(IsSubstring, note, notes());
  }
}

TEST_F(Metrics, AreGroupedAsRunsOfFoldersAre) {
  const auto head = [](int seed, double lr) {
    json all = json::parse(kHead);
    all.update({{"seed", seed}, {"settings", {{"lr", lr}, {"weight_decay", 0.1}}}});
    return all.dump();
  };
  add("a.jsonl", ten_steps(head(1, 0.1)));
  add("b.jsonl", ten_steps(head(2, 0.1)));
  add("c.jsonl", ten_steps(head(1, 0.2)));
  add("d.jsonl", ten_steps(head(2, 0.1)));
  add("e.jsonl", ten_steps(head(1, 0.1)), "mine");
  const auto found = sections_of(loaded_);
  ASSERT_EQ(found.size(), 1U);
  ASSERT_EQ(found[0].groups.size(), 3U);
  EXPECT_EQ(found[0].groups[0].runs.size(), 2U);
  EXPECT_EQ(found[0].groups[1].name, "lion, lr 0.2");
  EXPECT_EQ(found[0].groups[2].name, "mine");
  EXPECT_EQ(found[0].shared.at("weight-decay"), "0.1");
  ASSERT_EQ(found[0].repeated.size(), 1U) << "d has the seed of b";
  EXPECT_EQ(found[0].repeated[0].first, &loaded_.runs[3]);
}

// Without seeds two files are two runs; their names are one line only if the user says so.
TEST_F(Metrics, WithoutASeedAreRunsOfTheirOwn) {
  const std::vector<std::string> lines = {R"({"method": "lion"})", R"({"step": 1, "loss": 2})",
                                          R"({"step": 2, "loss": 1})"};
  for (const char* name : {"a.jsonl", "b.jsonl"}) add(name, lines);
  for (const char* name : {"c.jsonl", "d.jsonl"}) add(name, lines, "both");
  const auto found = sections_of(loaded_);
  ASSERT_EQ(found.at(0).groups.size(), 3U);
  EXPECT_EQ(found[0].groups[0].label, "a");
  EXPECT_EQ(found[0].groups[1].label, "b");
  EXPECT_EQ(found[0].groups[2].runs.size(), 2U);
  EXPECT_TRUE(found[0].repeated.empty());
}

TEST_F(Metrics, StandBesideRunsOfFoldersInSectionsOfTheirOwn) {
  write_run("train", "lion", 4, 1, 0.5, 100);
  load_runs(folder_.path() / "train", loaded_);
  add("a.jsonl", ten_steps());
  const auto found = sections_of(loaded_);
  ASSERT_EQ(found.size(), 2U) << "other task, model and data";
  EXPECT_EQ(chart_named(found, "s1-loss").y.label, "training loss, nats");
  EXPECT_EQ(chart_named(found, "s2-loss").y.label, "training loss");
  EXPECT_EQ(chart_named(found, "s2-epoch", {.x = "bytes"}).series.size(), 1U);
  const std::string html = page(found);
  EXPECT_PRED_FORMAT2(IsSubstring, "<section id=\"s2\">", html);
  EXPECT_PRED_FORMAT2(IsSubstring, ">2 runs, by ", html);
  EXPECT_PRED_FORMAT2(IsSubstring, "Bytes: counted", html);
  EXPECT_PRED_FORMAT2(IsSubstring, "Bytes and times: as the files say", html);
}

TEST_F(Metrics, SayWhatTheirComparisonDoesNotHaveInCommon) {
  const std::string other = R"({"method": "dgc", "workers": 4, "seed": 1})";
  add("a.jsonl", {R"({"method": "lion", "workers": 4, "seed": 1, "steps": 9})",
                  R"({"step": 2, "loss": 2, "bytes_sent": 8})"});
  add("b.jsonl", {other, R"({"step": 1, "loss": 3})", R"({"step": 3, "loss": 2})"});
  add("c.jsonl", {R"({"method": "sgdm", "workers": 4, "seed": 1})", R"({"step": 4, "loss": 3})"});
  EXPECT_PRED_FORMAT2(IsSubstring, "c.jsonl: without 'data', so they may", notes());
  EXPECT_PRED_FORMAT2(IsSubstring, "a.jsonl: it ends at step 2 of 9", notes());
  EXPECT_PRED_FORMAT2(IsSubstring, "steps default: runs end at different steps, 3 to 4", notes());
  const auto found = sections_of(loaded_);
  EXPECT_PRED_FORMAT2(IsSubstring, "To know of the numbers below:", page(found));

  loaded_ = {};
  auto lines = ten_steps();
  add("d.jsonl", lines);
  const auto with = [](const char* key, const json& value) {
    json all = json::parse(kHead);
    all[key] = value;
    return all.dump();
  };
  lines[0] = with("method", "sgdm");
  add("e.jsonl", lines);
  lines[0] = with("method", "dgc");
  for (std::string& line : lines) {
    json one = json::parse(line);
    one.erase("bytes_sent");
    if (one.contains("val_loss")) one["val_loss"] = 1 + one["val_loss"].get<int>();
    line = one.dump();
  }
  add("f.jsonl", lines);
  EXPECT_EQ(notes(), "");
  loaded_.runs[1].bytes_per_step = 50;
  const auto known = sections_of(loaded_);
  const auto charts = charts_of(known.at(0));
  EXPECT_EQ(chart(charts, "bits").series.size(), 2U);
  EXPECT_PRED_FORMAT2(IsSubstring, "Not shown, without bytes or parameters: dgc.",
                      chart(charts, "bits").note);
}

}  // namespace
}  // namespace pride::app

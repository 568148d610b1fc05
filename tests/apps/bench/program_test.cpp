// `pride bench` and `pride plan` from the command line: rows, JSON, and refusals.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "pride/cpu.h"
#include "support/run_here.h"

namespace pride::app {
namespace {

using nlohmann::json;
using namespace test;

Outcome pride(const std::string& arguments) { return test::run_here(test::words(arguments)); }

std::vector<json> lines_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return test::json_lines(outcome.out);
}

void expect_times(const json& line) {
  EXPECT_GT(line["min_s"], 0) << line;
  EXPECT_GE(line["median_s"], line["min_s"]) << line;
  EXPECT_GE(line["p99_s"], line["median_s"]) << line;
}

TEST(BenchProgram, NetworkSaysLatencyGoodputAndARowForEachPatternAndSize) {
  for (const int world : {1, 2}) {
    const auto lines =
        lines_of(pride(concat("bench network --seconds 0.01 --reps 2 --json --sizes "
                              "1,1000,100kB --workers ",
                              world)));
    ASSERT_EQ(lines.size(), world == 1 ? 1u : 1u + 5 * 3);
    EXPECT_EQ(lines[0]["workers"], world);
    EXPECT_EQ(lines[0]["transport"], "threads");
    EXPECT_GE(lines[0]["message_s"], 0);
    for (const char* key : {"latency_s", "goodput_bytes_per_s", "pair_goodput_bytes_per_s"}) {
      EXPECT_EQ(lines[0][key] > 0, world > 1) << key;
    }
    // of one byte: whole parts, whole numbers; and what of the data a rank sends
    const double others = (world - 1.0) / world;
    const std::map<std::string, std::pair<int, double>> patterns = {
        {"ping-pong", {1, 1}},
        {"shift", {1, 1}},
        {"all-to-all", {world, others}},
        {"all-gather", {world, others}},
        {"all-reduce", {4, 2 * others}}};
    for (std::size_t i = 1; i < lines.size(); ++i) {
      const auto& [bytes, share] = patterns.at(lines[i]["name"]);
      EXPECT_EQ(lines[i]["row"], "pattern");
      EXPECT_EQ(lines[i]["wrong_ranks"], 0) << lines[i];
      if (i % 3 == 1) {
        EXPECT_EQ(lines[i]["bytes"], bytes) << lines[i];
      }
      const double algorithm = lines[i]["algorithm_bytes_per_s"], bus = lines[i]["bus_bytes_per_s"];
      EXPECT_NEAR(bus / algorithm, share, 1e-9) << lines[i];
      expect_times(lines[i]);
    }
  }
  const Outcome text = pride("bench network --workers 2 --seconds 0.01 --sizes 64");
  expect_contains(text.out, {"pattern", "p99", "bus", "wrong", "all-to-all", "shift"});
  expect_contains(pride("bench network --workers 1").out, "one rank has no network");
}

TEST(BenchProgram, ExchangeHasARowForEachMethodSizeAndTheRival) {
  const auto lines = lines_of(
      pride("bench exchange --workers 2 --seconds 0.005 --reps 2 --sizes 100,5000 --methods "
            "dlion-vote,lion:dense=bf16 --exchange-threads 2 --json"));
  ASSERT_EQ(lines.size(), 1u + 2 * 5);
  EXPECT_EQ(lines[0]["row"], "network");
  EXPECT_EQ(lines[1]["route"], "one-shot") << "two ranks";
  EXPECT_EQ(lines[2]["route"], "sharded");
  EXPECT_EQ(lines[5]["bytes_sent"], 0);
  const std::pair<const char*, const char*> rows[] = {{"dlion-vote", "threads"},
                                                      {"lion:dense=bf16", "threads"},
                                                      {"threads all-reduce fp32", "the exact sum"},
                                                      {"threads all-reduce bf16", "the exact sum"},
                                                      {"memcpy", "its source"}};
  for (std::size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["coords"], i <= 5 ? 100 : 5000);
    EXPECT_EQ(lines[i]["name"], rows[(i - 1) % 5].first);
    EXPECT_EQ(lines[i]["checked_against"], rows[(i - 1) % 5].second);
    EXPECT_EQ(lines[i]["wrong_ranks"], 0) << lines[i];
    expect_times(lines[i]);
  }
  const auto alone = lines_of(
      pride("bench exchange --workers 1 --seconds 0.005 --sizes 1000 --exchange-threads 0 --json"));
  EXPECT_TRUE(alone.at(1)["limit_s"].is_null());
  EXPECT_EQ(alone.at(1)["bytes_sent"], 0);
  std::vector<std::string> names;
  for (const json& line : alone) names.push_back(line.value("name", ""));
  for (const char* rival : {"lion", "lion:dense=native", "lion:dense=bf16", "memcpy"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), rival), 1) << rival;
  }
}

TEST(BenchProgram, OptimizerHasEachMethodWithAndWithoutOverlapAndDenseStepsBesideThem) {
  const std::string flags =
      "bench optimizer --sizes 1000,5000 --methods dlion-vote,lion:dense=bf16 --bucket-coords 256 "
      "--seconds 0.001 --reps 2 --workers ";
  const std::pair<const char*, bool> rows[] = {
      {"no exchange", false},       {"dlion-vote", false},     {"dlion-vote", true},
      {"lion:dense=bf16", false},   {"lion:dense=bf16", true}, {"native all-reduce + lion", false},
      {"shared-memory lion", false}};
  for (const int world : {1, 3}) {
    const auto lines =
        lines_of(pride(concat(flags, world, " --tensors ", world, " --exchange-threads 2 --json")));
    ASSERT_EQ(lines.size(), 2u * 7);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const json& line = lines[i];
      const bool is_method = i % 7 > 0 && i % 7 < 5;
      EXPECT_EQ(line["row"], "optimizer");
      EXPECT_EQ(line["coords"], i < 7 ? 1000 : 5000);
      EXPECT_EQ(line["name"], rows[i % 7].first);
      EXPECT_EQ(line["overlap"], rows[i % 7].second);
      EXPECT_EQ(line["wrong_ranks"], is_method ? json(0) : json(nullptr)) << line;
      EXPECT_EQ(line["bytes_sent"] > 0, is_method && world > 1) << line;
      EXPECT_GE(line["measurements"], 2) << line;
      expect_times(line);
    }
  }
  for (const json& line : lines_of(pride(flags + "2 --exchange-threads 0 --json"))) {
    EXPECT_EQ(line["overlap"], false) << line;
  }
  const Outcome text = pride(flags + "2");
  expect_contains(text.out, {"x alone", "native all-reduce + lion", "encode ms", "wrong"});
}

TEST(BenchProgram, KernelsHasARowForEachSizeKernelAndInstructionSet) {
  const auto lines = lines_of(
      pride("bench kernels --sizes 100,5000 --filter ^(memcpy|apply_signs|vote/) --rows 3,8 "
            "--isa all --seconds 0.001 --reps 2 --json"));
  const std::size_t isas = available_isas().size();
  ASSERT_EQ(lines.size(), 2 * (1 + 3 * isas));
  EXPECT_EQ(lines[0]["name"], "memcpy");
  EXPECT_TRUE(lines[0]["isa"].is_null());
  EXPECT_EQ(lines[1]["name"], "apply_signs");
  EXPECT_EQ(lines[1]["isa"], available_isas().front());
  EXPECT_EQ(lines[1 + isas]["name"], "vote/3");
  EXPECT_EQ(lines.back()["name"], "vote/8");
  EXPECT_EQ(lines.back()["coords"], 5000);
  EXPECT_EQ(lines.back()["bytes_moved"], 5000 * 9 / 8);
  for (const json& line : lines) {
    const bool plain = line["isa"].is_null() || line["isa"] == "SCALAR";
    EXPECT_EQ(line["row"], "kernel");
    EXPECT_EQ(line["wrong_values"], plain ? json(nullptr) : json(0)) << line;
    EXPECT_GE(line["measurements"], 2) << line;
    const double ratio = line["memcpy_median_s"].get<double>() / line["median_s"].get<double>();
    EXPECT_NEAR(line["times_memcpy"], ratio, 1e-9 * ratio) << line;
    expect_times(line);
  }
}

TEST(BenchProgram, KernelsPrintsATableAndSaysWhatItIs) {
  const Outcome outcome =
      pride("bench kernels --sizes 1000 --filter adamw --seconds 0.001 --small-pages");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string isa = active_isa();
  expect_contains(outcome.out, {"x memcpy", "p99 us", "adamw", isa.c_str()});
  const Outcome none = pride("bench kernels --filter no-such");
  EXPECT_EQ(none.code, 2);
  expect_contains(none.err, "lion_sign_update");
  EXPECT_EQ(pride("bench kernels --isa NO_SUCH --sizes 10").code, 2);
  EXPECT_EQ(test::run_here({"bench", "kernels", "--isa", "", "--sizes", "10"}).code, 2);
  EXPECT_EQ(pride("bench kernels --sizes 0").code, 2);
  EXPECT_EQ(pride("bench kernels --rows 0").code, 2);
}

TEST(BenchProgram, RefusesWhatItDoesNotKnow) {
  for (const auto& [method, part] : {std::pair("no-such", "no-such"),
                                     {"lion:tie=zero", "lion: no option 'tie'"},
                                     {"lion:dense=x", "dense = 'x'"},
                                     {"dlion-vote:", "--methods dlion-vote:: '' must be key=value"},
                                     {"lion:dense=bf16:dense=native", "'dense' is given twice"}}) {
    for (const char* command : {"bench exchange --sizes 10", "bench optimizer --sizes 10",
                                "plan --seconds 100 --params 1000 --backward 1ms"}) {
      const Outcome outcome = pride(concat(command, " --workers 2 --methods ", method));
      EXPECT_EQ(outcome.code, 2) << command;
      expect_contains(outcome.err, part);
      EXPECT_EQ(outcome.out, "") << "before the network is measured";
    }
  }
  EXPECT_EQ(pride("bench").code, 2);
  EXPECT_EQ(pride("bench exchange --sizes 0").code, 2);
  EXPECT_EQ(pride("bench exchange --exchange-threads 17").code, 2);
}

#ifdef PRIDE_MPIEXEC
TEST(BenchProgram, RefusesAJobOfDifferentSettings) {
  const std::string common = concat(PRIDE_PROGRAM, " bench exchange --sizes 1000 --seconds 0.01 ");
  const auto run = [&](const std::string& first, const std::string& second) {
    return test::run_shell(
        concat("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
               "OMPI_MCA_rmaps_base_oversubscribe=1 "
               "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe timeout 60 ",
               PRIDE_MPIEXEC, " -n 1 ", first, " : -n 1 ", second));
  };
  const Outcome reps = run(common + "--reps 1", common + "--reps 2 --json --timeout 100");
  EXPECT_EQ(reps.code, 2) << reps.err;
  expect_contains(reps.err, "--reps differs: rank(s) 1");
  const Outcome other = run(common, concat(PRIDE_PROGRAM, " bench network --seconds 0.01"));
  EXPECT_EQ(other.code, 2) << other.err;
  expect_contains(other.err, "rank(s) 1 run another command");
}
#endif

json plan(const std::string& arguments) {
  return json_of(pride("plan --json --workers 1 --seconds 0.01 " + arguments));
}

json row_of(const json& plan, const std::string& method) {
  for (const json& row : plan["methods"]) {
    if (row["name"] == method) return row;
  }
  ADD_FAILURE() << "no row " << method << " in " << plan;
  return {{"overlapped_s", 0}};
}

double step_of(const json& plan, const std::string& method) {
  return row_of(plan, method)["overlapped_s"];
}

TEST(PlanProgram, SaysOnPaperThatCompressionPaysOnASlowNetwork) {
  const json p =
      plan("--world 1024 --bandwidth 100Mbit --latency 50us --params 100000000 --backward 100ms");
  EXPECT_EQ(p["workers"], 1024);
  EXPECT_EQ(p["measured_over"], "");
  // 800 MB of a ring, 25 MB of votes, at 12.5 MB/s
  EXPECT_GT(step_of(p, "lion"), 60);
  EXPECT_NEAR(step_of(p, "lion") / step_of(p, "lion:dense=bf16"), 2, 0.1);
  EXPECT_GT(step_of(p, "dlion-vote"), 1.9);
  EXPECT_LT(step_of(p, "dlion-vote"), 6);
  // the baseline of compression is the faster of the two
  expect_contains(p["verdict"].get<std::string>(),
                  {"Compression pays: dlion-vote", "of lion:dense=bf16."});
}

TEST(PlanProgram, CountsGradientsOfFewBitsAsCompressed) {
  const json p = plan(
      "--world 8 --bandwidth 100Mbit --latency 50us --params 10000000 --backward 100ms "
      "--methods lion,lion:dense=bf16,lion:dense=int4");
  expect_contains(p["verdict"].get<std::string>(),
                  {"Compression pays: lion:dense=int4", "of lion:dense=bf16."});
}

TEST(PlanProgram, PrintsTheRouteOfBuckets) {
  const std::string rest =
      " --bandwidth 1Gbit --params 10000000 --backward 100ms --methods "
      "lion,dlion-vote,dlion-vote:route=sharded";
  const json two = plan("--world 2 --latency 100us" + rest);
  EXPECT_EQ(row_of(two, "dlion-vote")["route"], "one-shot");
  EXPECT_EQ(row_of(two, "dlion-vote")["phases"], 1);
  EXPECT_EQ(row_of(two, "dlion-vote:route=sharded")["route"], "sharded");
  EXPECT_EQ(row_of(two, "dlion-vote:route=sharded")["phases"], 2);
  EXPECT_EQ(row_of(two, "lion")["route"], "sharded");
  EXPECT_EQ(row_of(plan("--world 4 --latency 100us" + rest), "dlion-vote")["route"], "sharded");
  // far apart, a phase is worth more than the bytes
  EXPECT_EQ(row_of(plan("--world 4 --latency 100ms" + rest), "dlion-vote")["route"], "one-shot");
}

TEST(PlanProgram, NamesTheFlagWhoseNumberHasNoUnit) {
  for (const char* flag : {"--bandwidth", "--latency", "--message", "--backward"}) {
    const Outcome outcome = pride(concat("plan ", flag, " 1parsec"));
    EXPECT_EQ(outcome.code, 2) << flag;
    expect_contains(outcome.err, concat(flag, ": '1parsec' is not a "));
  }
}

TEST(PlanProgram, SaysPlainlyWhenCompressionWillNotHelp) {
  const json p =
      plan("--world 4 --bandwidth 400Gbit --latency 2us --params 1000000 --backward 10s");
  expect_contains(p["verdict"].get<std::string>(), "will not help");
  EXPECT_NEAR(step_of(p, "lion") / step_of(p, "dlion-vote"), 1, 0.02);
}

// the result for each number of ranks must equal that of a plan for that number alone
TEST(PlanProgram, SeveralNumbersOfRanksMakeATableAndAChart) {
  const std::string network =
      "--bandwidth 1Gbit --latency 50us --params 2000000 --backward 200ms --methods "
      "lion,dlion-vote ";  // too few parameters for buckets by measured arithmetic
  const test::TempFolder folder;
  const std::string svg = (folder.path() / "scaling.svg").string();
  const json both = plan(network + "--world 4,512 --svg " + svg);
  ASSERT_EQ(both["worlds"].size(), 2u);
  EXPECT_EQ(both["worlds"][0]["workers"], 4);
  EXPECT_EQ(both["worlds"][1]["workers"], 512);
  const json alone = plan(network + "--world 512");
  for (const char* method : {"lion", "dlion-vote"}) {
    // arithmetic is measured again; bytes are not
    EXPECT_NEAR(step_of(both["worlds"][1], method) / step_of(alone, method), 1, 0.5) << method;
  }
  EXPECT_EQ(both["worlds"][1]["methods"][1]["bytes_sent"], alone["methods"][1]["bytes_sent"]);
  EXPECT_GT(step_of(both["worlds"][1], "lion"), step_of(both["worlds"][0], "lion"));

  const std::string picture = test::bytes_of(svg);
  EXPECT_EQ(picture.rfind("<svg", 0), 0u);
  expect_contains(picture, "dlion-vote");
  EXPECT_EQ(pride("plan --workers 1 " + network + "--world 512,4").code, 2);
  EXPECT_EQ(pride("plan --workers 1 " + network + "--world 4 --svg x.svg").code, 2);
}

// one bucket is best here, but the largest possible bucket is 2^33 coordinates
TEST(PlanProgram, PlansNoLargerBucketsThanThereCanBe) {
  const json p = plan(
      "--world 4 --bandwidth 100Gbit --latency 10s --params 1000000000000 --backward 1ms "
      "--methods dlion-vote");
  EXPECT_LE(row_of(p, "dlion-vote")["bucket_coords"].get<double>(), 0x1p33);
  EXPECT_GT(row_of(p, "dlion-vote")["bucket_coords"].get<double>(), 0x1p31)
      << "few phases are best";
}

TEST(PlanProgram, SaysThatParametersAreAWholeNumber) {
  expect_contains(pride("plan --help").out, "--params INT");
  EXPECT_EQ(pride("plan --params 1.5 --backward 1s").code, 2);
}

TEST(PlanProgram, RefusesHalfAPlan) {
  EXPECT_EQ(pride("plan --world 8 --params 10 --backward 1s").code, 2);
  EXPECT_EQ(pride("plan --params 1000").code, 2);
  expect_contains(pride("plan").err, "to measure a model it needs pride-lab");
}

}  // namespace
}  // namespace pride::app

// `pride train` with threads as workers: learning, equal bits, resuming, records, and errors.
// SPDX-License-Identifier: Apache-2.0
#include "train_program.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "program/io/safetensors.h"
#include "train_names.h"

namespace pride::app {
namespace {

TEST_F(Train, LowersTheLossByEveryMethod) {
  for (const std::string method : kMethods) {
    const json s = summary({"--method", method, "--steps", "60", "--lr", "3e-3"});
    // a uniform guess is ln 256 = 5.55 nats
    EXPECT_LT(s["final"]["loss"].get<double>(), 3.5) << method;
    const double nats = s["final"]["loss"];
    EXPECT_NEAR(s["final"]["bits_per_byte"].get<double>(), nats / std::log(2.0), 1e-9);
    EXPECT_NEAR(s["final"]["perplexity"].get<double>(), std::exp(nats), 1e-6);
  }
}

TEST_F(Train, LearnsWithGradientsSentInBf16AndSendsHalfTheBytes) {
  const auto run = [&](const char* how) {
    return summary({"--method", "lion", "--method-opt", concat("dense=", how), "--workers", "2",
                    "--steps", "60", "--lr", "3e-3"});
  };
  const json narrow = run("bf16"), wide = run("ordered");
  EXPECT_LT(narrow["final"]["loss"].get<double>(), 3.5);
  EXPECT_NE(narrow["param_hash"], wide["param_hash"]);
  EXPECT_EQ(narrow["method"]["options"],
            json({{"cautious_decay", "no"}, {"dense", "bf16"}, {"momentum_dtype", "float32"}}));
  const auto sent = [](const json& s) {
    return s["bytes"]["ranks"][0]["sent_per_step"].get<double>();
  };
  EXPECT_NEAR(sent(narrow) / sent(wide), 0.5, 0.02);
}

TEST_F(Train, RecordsTheBetasThatAMomentumStandsFor) {
  const json sgdm = summary({"--method", "sgdm", "--momentum", "0.5", "--steps", "2"})["method"];
  EXPECT_EQ(sgdm["beta1"], 0.5);
  EXPECT_EQ(sgdm["momentum"], 0);
  const json vote = summary({"--method", "signum-vote", "--steps", "2"})["method"];
  EXPECT_EQ(vote["beta1"], 0.99);
}

TEST_F(Train, RecordsWhatHappened) {
  const json s = summary(words("--steps 6 --workers 3 --eval-every 3 --out ", path("out"),
                               " --accumulate 2 --clip-norm 1"));
  EXPECT_EQ(json::parse(bytes_of(path("out") + "/summary.json")), s);
  EXPECT_EQ(s["world"], 3);
  EXPECT_EQ(s["steps"], 6);
  EXPECT_EQ(s["samples_per_step"], 3 * 4 * 2);
  EXPECT_FALSE(s["interrupted"].get<bool>());
  EXPECT_EQ(s["param_hash"].get<std::string>().size(), 16U);
  for (const auto& [library, threads] : s["threads"].items()) EXPECT_EQ(threads, 1) << library;
  ASSERT_EQ(s["bytes"]["ranks"].size(), 3U);

  int steps = 0, evals = 0;
  std::uint64_t sent = 0;
  for (const json& record : metrics("out")) {
    if (record["type"] == "step") {
      EXPECT_EQ(record["step"], ++steps);
      sent += record["bytes_sent"].get<std::uint64_t>();
      for (const char* key :
           {"loss", "lr", "data_s", "backward_s", "encode_s", "exchange_s", "apply_s"}) {
        EXPECT_GE(record.at(key).get<double>(), 0) << key;
      }
    } else {
      EXPECT_EQ(record["step"], ++evals * 3);
      EXPECT_GT(record["bits_per_byte"].get<double>(), 0);
    }
  }
  EXPECT_EQ(steps, 6);
  EXPECT_EQ(evals, 2);
  // not given: the defaults
  EXPECT_EQ(s["method"]["options"], json({{"cautious_decay", "no"},
                                          {"tie", "hash"},
                                          {"route", "auto"},
                                          {"bandwidth_delay_bytes", "12500"},
                                          {"momentum_dtype", "float32"}}));
  EXPECT_EQ(s["routes"], json({{"one-shot", 1}})) << "a small model is one small bucket";
  EXPECT_EQ(s["bytes"]["cost_bound"], true);
  const double cost = s["bytes"]["cost_up"].get<double>() + s["bytes"]["cost_down"].get<double>();
  EXPECT_DOUBLE_EQ(s["bytes"]["ranks"][0]["sent_per_step"].get<double>(), cost);
  EXPECT_GE(sent, s["bytes"]["ranks"][0]["sent"].get<std::uint64_t>());

  const auto tensors = read_safetensors(path("out") + "/model.safetensors");
  EXPECT_EQ(tensors.at("h.0.attn.c_attn.weight").shape, (std::vector<std::int64_t>{32, 96}));
  std::size_t n = 0;
  for (const auto& [name, tensor] : tensors) n += tensor.values.size();
  EXPECT_EQ(s["model"]["parameters"], n);
}

TEST_F(Train, GivesTheSameBitsInTwoLevels) {
  for (const std::string method : {"dlion-vote", "dlion-avg"}) {
    const json one = summary({"--steps", "5", "--method", method});
    const json two = summary({"--steps", "5", "--method", method, "--hierarchical", "2"});
    EXPECT_EQ(one["param_hash"], two["param_hash"]) << method;
    EXPECT_NE(one["bytes"], two["bytes"]) << method;
    const json alone = summary({"--steps", "5", "--method", method, "--hierarchical", "auto"});
    EXPECT_EQ(one["bytes"], alone["bytes"]) << "threads share one host";
  }
}

TEST_F(Train, NamesTensorRankAndStepOfANonFiniteGradient) {
  expect_error({"--steps", "5", "--lr", "1e30"}, "NaN or Inf in the gradient of", 1);
  const json skipped =
      summary({"--steps", "5", "--lr", "1e30", "--non-finite", "skip", "--eval-batches", "1"});
  EXPECT_GT(skipped["steps_skipped"].get<int>(), 0);
  EXPECT_TRUE(skipped["final"]["loss"].is_null()) << "JSON knows no NaN";
  EXPECT_TRUE(skipped["final"]["bits_per_byte"].is_null());
  const Arguments endless = words("--steps 50 --lr 1e30 --non-finite skip --workers 2");
  expect_error(endless, "20 steps in a row were skipped, up to step 2", 1);
}

TEST_F(Train, RefusesWhatCannotBe) {
  folder_.write("full/file", "x");
  expect_error({"--steps", "2", "--out", path("full")}, "the folder is not empty");
  expect_error({"--sharding", "dirichlet:0.5"}, "needs a task with labels");
  expect_error({"--method", "sgd"}, "dlion-vote");
  expect_error({"--steps", "5", "--warmup", "5"}, "warm");
  expect_error({"--method-opt", "tie"}, "must be key=value");
  expect_error({"--lr", "inf"}, "--lr inf: must be finite");
  EXPECT_EQ(train({"--steps", "2", "--epochs", "1"}).code, 2);
}

// A GPU rounds otherwise; the ranks' parameters are equal there, too, or the run would fail.
TEST_F(Train, TrainsOnAGpuOrSaysThatThereIsNone) {
  const Arguments run = tiny(words("--steps 20 --workers 2 --method dlion-vote --json"));
  const Outcome outcome = test::run_here(plus(plus({"train"}, run), {"--device", "cuda"}));
  if (outcome.code != 0) {
    EXPECT_EQ(outcome.code, 2);
    expect_contains(outcome.err, "--device cuda: this libtorch ");
    GTEST_SKIP() << outcome.err;
  }
  const json host = json_of(test::run_here(plus({"train"}, run)));
  EXPECT_NEAR(json_of(outcome)["final"]["loss"].get<double>(), host["final"]["loss"].get<double>(),
              0.02);
}

// Names that JSON cannot hold are refused before any work, not when the records are written.
TEST_F(Train, RefusesNamesThatAreNotUtf8) {
  expect_error({"--steps", "1", "--out", path("bad\xFF")}, "not UTF-8");
  EXPECT_FALSE(std::filesystem::exists(path("bad\xFF")));
}

TEST_F(Train, WritesItsEventsIntoTheFolderOfItsResults) {
  summary({"--steps", "1", "--tensorboard", path("out/events"), "--out", path("out")});
  EXPECT_FALSE(std::filesystem::is_empty(path("out/events")));
}

TEST_F(Train, MakesNoFolderOfResultsWhereEventsCannotGo) {
  expect_error({"--steps", "1", "--tensorboard", path("text") + "/x", "--out", path("out")},
               "--tensorboard " + path("text"), 1);
  EXPECT_FALSE(std::filesystem::exists(path("out")));
}

TEST_F(Train, StartsWithTheDeviationsOfItsModelOrThoseGiven) {
  const auto with = [&](const Arguments& more) {
    return summary(plus({"--steps", "1", "--lr", "0"}, more));
  };
  const json own = with({});
  EXPECT_DOUBLE_EQ(own["model"]["size"].value("init_std", 0.0), 1 / std::sqrt(3 * 32.0));
  EXPECT_DOUBLE_EQ(own["model"]["size"].value("embedding_std", 0.0), 1 / std::sqrt(32.0));
  EXPECT_GT(own["final"]["loss"].get<double>(), std::log(256) + 0.1) << "scores of deviation 1";
  const Arguments given = {"--init-std", "0.02", "--embedding-std", "0.02"};
  for (const Arguments& flags : {given, Arguments{"--model", "gpt2"}}) {
    const json s = with(flags);
    EXPECT_FALSE(s["model"]["size"].contains("init_std"));
    EXPECT_FALSE(s["model"]["size"].contains("embedding_std"));
    EXPECT_NEAR(s["final"]["loss"].get<double>(), std::log(256), 0.03) << "scores near 0";
  }
  EXPECT_EQ(with(given)["param_hash"], with({"--model", "gpt2"})["param_hash"]);
  const json two = with({"--init-std", "0.03", "--embedding-std", "0.07"});
  EXPECT_EQ(two["model"]["size"].value("init_std", 0.0), 0.03);
  EXPECT_EQ(two["model"]["size"].value("embedding_std", 0.0), 0.07);
  EXPECT_EQ(two["settings"]["init-std"], 0.03);
  EXPECT_EQ(two["settings"]["embedding-std"], 0.07);
}

TEST_F(Train, TakesLargerDefaultRatesForSmallModels) {
  const auto rate = [&](const Arguments& more) {
    return summary(plus({"--steps", "1", "--eval-batches", "1"}, more))["method"]["lr"]
        .get<double>();
  };
  EXPECT_DOUBLE_EQ(rate({}), 1e-3);
  EXPECT_DOUBLE_EQ(rate({"--method", "adamw"}), 1e-2);
  EXPECT_DOUBLE_EQ(rate({"--lr", "2e-4"}), 2e-4);
  EXPECT_DOUBLE_EQ(rate({"--model", "gpt2"}), 1e-4) << "a large model's preset, made narrow";
  EXPECT_DOUBLE_EQ(rate({"--method", "sgdm"}), 0.1) << "its steps are as large as the gradient";
}

TEST_F(Train, SaysWhatTorchSaysInOneLine) {
  // attention's mask of 640 GB
  folder_.write("long", std::string(4'200'000, 'a'));
  const Outcome outcome = train(words(
      "--data ", path("long"),
      " --width 8 --heads 1 --layers 1 --context 400000 --workers 1 --batch 1 --steps 1 --quiet"));
  EXPECT_EQ(outcome.code, 1);
  expect_contains(outcome.err, "pride: error: torch: ");
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
}

// The first fragment is exchanged in steps 2 and 6, the second in steps 4 and 8.
TEST_F(Train, SaysWhichStepsOfAFragmentNoExchangeFollows) {
  const Outcome outcome = train(words(
      "--data ", path("text"), " --layers 1 --heads 1 --width 8 --context 16 --batch 2",
      " --workers 2 --steps 8 --method local-vote --method-opt h=4", " --method-opt fragments=2"));
  expect_contains(outcome.err, "the last 2 of 8 are never exchanged");
}

TEST_F(Train, SaysOfALineOfProgressWhatItsBytesAre) {
  const Outcome outcome = train(words("--data ", path("text"), " --layers 1 --heads 1 --width 8 ",
                                      "--context 16 --batch 2 --workers 2 --steps 1"));
  expect_contains(outcome.err, {"step 1/1  loss ", "B/s sent  0:00 left"});
}

TEST_F(Train, SaysWhatEachMethodOfGroupsSends) {
  const Arguments run = words("--data ", path("text"), " --layers 1 --heads 1 --width 8 ",
                              "--context 16 --batch 2 --workers 2 --steps 2 --method dlion-muon");
  const Outcome outcome =
      train(plus(run, {"--groups", "embeddings: adamw lr=3e-3; vectors: lion dense=bf16"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  // matrices of attention 8 x 24, 8 x 8 and of feed-forward 8 x 32, 32 x 8; 256 + 16 rows of 8
  expect_contains(outcome.err, {"dlion-muon: 768 parameters, ", "adamw: 2176 parameters, ",
                                "dlion-muon: matrices: h.0.attn.c_proj.weight"});
  expect_contains(outcome.out, {"| method ", "| dlion-muon ", "| adamw ", "| lion ", "param_hash"});
  const Outcome plain = train(run);
  EXPECT_EQ(plain.out.find("| method "), std::string::npos) << plain.out;
}

TEST_F(Train, StopsTogetherOnAnInterrupt) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string command = concat(
        "exec ", command_line(tiny({"--steps", "1000000", "--out", path("out")})), " >/dev/null");
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  const std::string file = path("out") + "/metrics.jsonl";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (bytes_of(file).size() < 1000 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 130);
  const json s = json::parse(bytes_of(path("out") + "/summary.json"));
  EXPECT_TRUE(s["interrupted"].get<bool>());
  EXPECT_GT(s["steps"].get<int>(), 0);
  EXPECT_EQ(s["steps"], metrics("out").back()["step"]);
}

// The folder of CIFAR-10, or nothing.
std::string real_images() {
  const char* set = std::getenv("PRIDE_DATA");
  const std::string data =
      set != nullptr ? set : concat(PRIDE_SOURCE_DIR, "/../shared/data/cifar10");
  return std::filesystem::exists(data) ? data : "";
}

constexpr const char* kNoImages = "no CIFAR-10: set PRIDE_DATA to a folder with its binary files";

TEST_F(Train, LearnsRealImages) {
  const std::string data = real_images();
  if (data.empty()) GTEST_SKIP() << kNoImages;
  const Outcome outcome = train(words("--task cifar10 --data ", data,
                                      " --steps 40 --lr 1e-3 --eval-batches 4 --layers 2 --width "
                                      "64 --sharding dirichlet:10 --quiet --json"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // a guess is right once in ten
  EXPECT_GT(json::parse(outcome.out)["final"]["accuracy"].get<double>(), 0.18);
}

}  // namespace
}  // namespace pride::app

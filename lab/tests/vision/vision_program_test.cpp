// The task imagenet from the command line, on small folders of images that the tests write.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "support/run_here.h"
#include "train_names.h"
#include "vision/jpeg_files.h"

namespace pride::app {
namespace {

using nlohmann::json;
using namespace test;
using Arguments = std::vector<std::string>;

// Noise that is redder or bluer: two classes that a small model tells apart.
std::string noise_jpeg(int label, unsigned seed) {
  std::mt19937 random(seed * 2 + static_cast<unsigned>(label));
  const int width = 40 + static_cast<int>(seed % 9), height = 44 - static_cast<int>(seed % 5);
  return test::make_jpeg({.width = width, .height = height, .progressive = seed % 3 == 0},
                         [&](int, int, int c) {
                           const unsigned bright = c == (label == 0 ? 0 : 2) ? 90 : 0;
                           return static_cast<std::uint8_t>(random() % 160 + bright);
                         });
}

class ImageNet : public testing::Test {
 protected:
  ImageNet() {
    for (int label = 0; label < 2; ++label) {
      const std::string name = label == 0 ? "red" : "blue";
      for (unsigned i = 0; i < 24; ++i) write(concat("train/", name, "/", i, ".JPEG"), label, i);
      for (unsigned i = 0; i < 10; ++i) write(concat("val/", name, "/", i, ".jpg"), label, 100 + i);
    }
  }

  void write(const std::string& name, int label, unsigned seed) const {
    folder_.write("data/" + name, noise_jpeg(label, seed));
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  Arguments tiny(const Arguments& more) const {
    return plus(words("train --task imagenet --data ", path("data"),
                      " --model vit-small --layers 1 --heads 2 --width 32 --image-size 32 --batch "
                      "4 --workers 2 --lr 3e-3 --quiet --json"),
                more);
  }

  json summary(const Arguments& more) const { return json_of(run_here(tiny(more))); }

  void expect_error(const Arguments& more, std::initializer_list<std::string> parts,
                    int code = 2) const {
    const Outcome outcome = run_here(tiny(more));
    EXPECT_EQ(outcome.code, code) << outcome.err;
    for (const std::string& part : parts) {
      expect_contains(outcome.err, part);
    }
  }

  test::TempFolder folder_;
};

TEST_F(ImageNet, LearnsToTellTwoColoursApart) {
  for (const char* method : {"dlion-vote", "adamw"}) {
    const json s = summary({"--method", method, "--epochs", "8"});
    EXPECT_EQ(s["final"]["images"], 20);
    EXPECT_GE(s["final"]["accuracy"].get<double>(), 0.9) << method;
  }
}

TEST_F(ImageNet, HasTheSameBitsForAnyNumberOfLoaderThreads) {
  const auto hash = [&](const char* threads) {
    return summary(
        words("--steps 9 --accumulate 2 --eval-every 4 --loader-threads ", threads))["param_hash"];
  };
  const json alone = hash("0");
  for (const char* threads : {"1", "2", "5"}) EXPECT_EQ(hash(threads), alone) << threads;
}

TEST_F(ImageNet, ResumesInTheMiddleOfAnEpochToTheSameBits) {
  // an epoch is 6 steps of 2 workers x 4 images
  const Arguments flags = {"--steps", "14", "--mixup", "0.5", "--label-smoothing", "0.1"};
  const auto with = [&](const Arguments& more) { return summary(plus(flags, more)); };
  const json whole = with({"--out", path("whole"), "--save-every", "5", "--loader-threads", "3"});
  for (const char* step : {"step-5", "step-10"}) {
    const json rest =
        with({"--resume", path("whole/checkpoints/") + step, "--loader-threads", "1"});
    EXPECT_EQ(rest["param_hash"], whole["param_hash"]) << step;
  }
  write("train/red/more.jpg", 0, 77);
  expect_error({"--steps", "14", "--resume", path("whole/checkpoints/step-5")},
               {"the checkpoint has data"});
}

TEST_F(ImageNet, NamesTheImageThatCannotBeRead) {
  const std::string whole = noise_jpeg(0, 500);
  for (const char* threads : {"0", "2"}) {
    const Arguments flags = {"--epochs", "1", "--loader-threads", threads};
    const auto bad = folder_.write("data/train/red/bad.jpg", whole.substr(0, whole.size() / 2));
    expect_error(flags, {bad.string(), "bad JPEG"}, 1);
    folder_.write("data/train/red/bad.jpg", "\x89PNG\r\n\x1a\n");
    expect_error(flags, {bad.string(), "a PNG, not a JPEG"}, 1);
    std::filesystem::remove(bad);
    const auto val = folder_.write("data/val/blue/bad.jpg", "");
    expect_error(flags, {val.string(), "an empty file"}, 1);
    std::filesystem::remove(val);
  }
}

TEST_F(ImageNet, RecordsItsClassesDataAndTheTimeWaitedForThem) {
  folder_.write("data/train/red/notes.txt", "x");
  const json s = summary({"--steps", "3", "--out", path("out")});
  EXPECT_EQ(s["task"], "imagenet");
  EXPECT_EQ(s["data"]["classes"], 2);
  EXPECT_EQ(s["data"]["train_images"], 48);
  EXPECT_EQ(s["data"]["test_images"], 20);
  EXPECT_EQ(s["data"]["other_files"], 1);
  EXPECT_EQ(s["model"]["size"]["image"], 32);
  EXPECT_EQ(s["model"]["size"]["classes"], 2);
  EXPECT_GT(s["seconds"]["data_s"].get<double>(), 0);
  for (const json& record : test::json_lines(test::bytes_of(path("out/metrics.jsonl")))) {
    if (record["type"] != "step") continue;
    EXPECT_GE(record["data_s"].get<double>(), 0);
    EXPECT_GT(record["backward_s"].get<double>(), 0);
  }
  const json config = json::parse(test::bytes_of(folder_.path() / "out/config.json"));
  EXPECT_EQ(config["label_names"], json({"blue", "red"}));
  EXPECT_EQ(config["num_classes"], 2);
  EXPECT_EQ(config["model_args"]["img_size"], 32);
}

TEST_F(ImageNet, MixUpAndSmoothingChangeTrainingOnly) {
  const Arguments steps = {"--steps", "4"};
  const json plain = summary(steps);
  const json smooth = summary({"--steps", "4", "--label-smoothing", "0.2"});
  const json mixed = summary({"--steps", "4", "--mixup", "0.5"});
  EXPECT_NE(plain["param_hash"], smooth["param_hash"]);
  EXPECT_NE(plain["param_hash"], mixed["param_hash"]);
  EXPECT_EQ(mixed["param_hash"], summary({"--steps", "4", "--mixup", "0.5"})["param_hash"]);
}

TEST_F(ImageNet, StartsWithTheDeviationItIsGiven) {
  const json own = summary({"--steps", "1"});
  const json wide = summary({"--steps", "1", "--init-std", "0.5"});
  EXPECT_FALSE(own["model"]["size"].contains("init_std"));
  EXPECT_EQ(wide["model"]["size"].value("init_std", 0.0), 0.5);
  EXPECT_NE(own["param_hash"], wide["param_hash"]);
}

TEST_F(ImageNet, DealsSkewedClassesToItsWorkers) {
  // with so small a parameter a class goes to one worker: both to the same with some seeds, which
  // leaves the other without samples, and each to its own with others
  int unequal = 0, refused = 0;
  const json even = summary({"--steps", "2"});
  for (const char* seed : {"0", "1", "2", "3", "4", "5"}) {
    const Outcome outcome =
        run_here(tiny({"--steps", "2", "--sharding", "dirichlet:1e-6", "--seed", seed}));
    if (outcome.code == 0) {
      const json skewed = json::parse(outcome.out);
      unequal += skewed["param_hash"] != even["param_hash"] ? 1 : 0;
    } else {
      refused += outcome.err.find("leaves worker") != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_EQ(unequal + refused, 6);
  EXPECT_GT(unequal, 0);
  EXPECT_GT(refused, 0);
}

// Workers of unequal parts: other votes, and on equal parts the same.
TEST_F(ImageNet, WeighsVotesBySamples) {
  const auto hash = [&](const char* sharding, const char* weight) {
    return summary({"--steps", "3", "--sharding", sharding, "--vote-weight", weight})["param_hash"];
  };
  EXPECT_NE(hash("dirichlet:1", "samples"), hash("dirichlet:1", "equal"));
  EXPECT_EQ(hash("replicate", "samples"), hash("replicate", "equal"));
  expect_error(
      {"--steps", "1", "--method", "lion", "--sharding", "dirichlet:1", "--vote-weight", "samples"},
      {"lion"});
}

TEST_F(ImageNet, RefusesWhatDoesNotFit) {
  expect_error({"--context", "8"}, {"--context is for lm and fewshot only"});
  expect_error({"--embedding-std", "1"}, {"--embedding-std is for lm and fewshot only"});
  expect_error({"--patch", "5"}, {"do not tile an image of 32"});
  expect_error({"--label-smoothing", "1"}, {"--label-smoothing 1"});
  expect_error({"--mixup", "-1"}, {"--mixup -1"});
  test::expect_usage(
      {"train", "--task", "imagenet", "--data", path("data"), "--image-size", "4096"},
      "an image of 4096 pixels has 65536 patches of 16, at most 4096");
  test::expect_usage({"train", "--loader-threads", "2"}, "--loader-threads is for imagenet only");
  test::expect_usage({"train", "--mixup", "0.5"}, "--mixup is for cifar10 and imagenet only");
  test::expect_failure({"train", "--task", "imagenet", "--data", path("nowhere")},
                       "train is not a folder");
}

TEST_F(ImageNet, BenchLoaderMeasuresAndChecks) {
  const Outcome rows = run_here(
      {"bench", "loader", "--data", path("data"), "--images", "10", "--threads", "1,2", "--json"});
  EXPECT_EQ(rows.code, 0) << rows.err;
  int n = 0;
  for (const json& row : test::json_lines(rows.out)) {
    EXPECT_EQ(row["threads"], ++n);
    EXPECT_EQ(row["images"], 10);
    EXPECT_GT(row["images_per_s"].get<double>(), 0);
    EXPECT_GT(row["decode_ms"].get<double>(), 0);
  }
  EXPECT_EQ(n, 2);
  const Arguments check = {"bench", "loader", "--data", path("data"), "--check", "--threads", "2"};
  const Outcome good = run_here(check);
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(good.out, "all 68 images can be read\n");
  folder_.write("data/train/red/a.jpg", "GIF89a");
  folder_.write("data/val/red/b.jpg", "");
  const Outcome bad = run_here(check);
  EXPECT_EQ(bad.code, 1);
  expect_contains(bad.err, "2 of 70 images cannot be read");
  expect_contains(bad.out, "train/red/a.jpg: a GIF");
  expect_contains(bad.out, "val/red/b.jpg: an empty file");
}

}  // namespace
}  // namespace pride::app

// --virtual-workers: one process plays all workers of a run. The oracle is the run of as many
// threads: losses, bytes, evaluations, parameters and checkpoints are equal.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "pride/error.h"
#include "support/temp_folder.h"
#include "support/texts.h"
#include "train/small_run.h"
#include "train_names.h"

namespace pride::app::test {
namespace {

namespace fs = std::filesystem;

// With labels, which dirichlet deals unequally.
class Labelled final : public Signs {
 public:
  explicit Labelled(const Signs& like) : Signs(like) {
    for (std::size_t i = 0; i < n_samples(); ++i) labels_.push_back(i < n_samples() / 4 ? 0 : 1);
  }
  std::span<const std::uint16_t> labels() const override { return labels_; }

 private:
  std::vector<std::uint16_t> labels_;
};

struct Ran {
  std::string log;
  std::uint64_t hash;
};

Ran ran(TrainOptions options, bool as_players) {
  register_line();
  if (as_players) options.virtual_workers = std::exchange(options.workers, 0);
  const auto log = std::make_shared<Log>();
  const std::uint64_t hash =
      run(options, std::make_shared<Labelled>(*signs(options)), {log}).param_hash;
  return {log->text, hash};
}

void expect_same(const TrainOptions& options, const std::string& what) {
  const Ran threads = ran(options, false), players = ran(options, true);
  EXPECT_EQ(players.log, threads.log) << what;
  EXPECT_EQ(players.hash, threads.hash) << what;
}

TrainOptions run_of(const std::string& method, std::vector<std::string> method_options = {}) {
  TrainOptions options = small_run();
  options.method = method;
  options.method_options = std::move(method_options);
  options.steps = 7;
  return options;
}

TEST(VirtualPlayers, TrainAsThreadsDo) {
  for (const char* method : {"dlion-vote", "dlion-avg", "adamw", "terngrad", "dgc", "signsgd-ef"}) {
    expect_same(run_of(method), method);
  }
  expect_same(run_of("local-vote", {"h=3"}), "local-vote");
  expect_same(run_of("local-ef", {"h=2"}), "local-ef");
  expect_same(run_of("diloco", {"h=4", "fragments=2"}), "diloco");
}

TEST(VirtualPlayers, HaveTheSettingsOfWorkers) {
  TrainOptions options = run_of("dlion-vote");
  options.clip_norm = 0.01;
  options.accumulate = 2;
  options.mixup = 0.5;
  expect_same(options, "clipping, accumulation, mixup");
  options = run_of("dlion-vote");
  options.sharding = "dirichlet:0.3";
  options.vote_weight = "samples";
  options.batch = 1;
  expect_same(options, "unequal votes");
  options = run_of("lion");
  options.participation = 0.6;
  expect_same(options, "participation");
  options = run_of("dlion-vote");
  options.dtype = "bfloat16";
  expect_same(options, "bfloat16");
  options = run_of("dlion-vote");
  options.workers = 4;
  options.hierarchical = "2";
  expect_same(options, "two nodes of two");
}

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Either resumes from the other's checkpoint; the states are equal, byte for byte.
TEST(VirtualPlayers, ResumeWhatThreadsSavedAndTheOtherWayRound) {
  for (const char* method : {"dlion-vote", "signsgd-ef", "local-vote"}) {
    const TempFolder folder;
    TrainOptions options = run_of(method);
    if (options.method == "local-vote") options.method_options = {"h=2"};
    const Ran whole = ran(options, false);
    options.save_every = 3;
    for (const bool as_players : {false, true}) {
      options.out = (folder.path() / (as_players ? "players" : "threads")).string();
      ran(options, as_players);
    }
    const fs::path players = folder.path() / "players/checkpoints/step-3",
                   threads = folder.path() / "threads/checkpoints/step-3";
    for (const char* file : {"state-rank0.safetensors", "state-rank1.safetensors",
                             "state-rank2.safetensors", "model.safetensors"}) {
      EXPECT_EQ(bytes_of(players / file), bytes_of(threads / file)) << method << ": " << file;
      EXPECT_NE(bytes_of(players / file), "") << method << ": " << file;
    }
    options.out.clear();
    options.save_every = 0;
    options.resume = threads.string();
    EXPECT_EQ(ran(options, true).hash, whole.hash) << method << ": players after threads";
    options.resume = players.string();
    EXPECT_EQ(ran(options, false).hash, whole.hash) << method << ": threads after players";
    options.workers = 5;
    options.resume_local = "average";
    const Ran more = ran(options, false);
    EXPECT_EQ(ran(options, true).hash, more.hash) << method << ": five after three";
  }
}

TEST(VirtualPlayers, RefuseWhatOneProcessCannotPlay) {
  const auto refused = [](const std::function<void(TrainOptions&)>& change) {
    TrainOptions options = run_of("dlion-vote");
    options.virtual_workers = std::exchange(options.workers, 0);
    change(options);
    return texts::error_of<InvalidArgument>([&] { ran(options, false); });
  };
  EXPECT_EQ(refused([](TrainOptions& o) { o.workers = 3; }),
            "--virtual-workers and --workers: give one of them");
  EXPECT_EQ(refused([](TrainOptions& o) { o.overlap = true; }),
            "--virtual-workers 3 with --overlap: there is no exchange to overlap");
  EXPECT_EQ(
      refused([](TrainOptions& o) { o.absent = "stale"; }),
      "--virtual-workers 3 with --absent stale: all workers share one copy of the parameters");
}

}  // namespace
}  // namespace pride::app::test

// The description of a run as bytes, and the differences of two descriptions.
// SPDX-License-Identifier: Apache-2.0
#include "coord/run_message.h"

#include <gtest/gtest.h>

#include <functional>

#include "coord/coord.pb.h"
#include "rig.h"
#include "support/texts.h"

namespace pride::coord::test {
namespace {

RunDescription example() {
  return {.method = "dlion-vote",
          .options = {{"a", "1"}, {"b", "2"}},
          .tensors = {{"w", {3, 4}, 0}, {"v", {}, 1}},
          .groups = {{.beta1 = 0.9, .weight_decay = 0.1}, {.beta1 = 0.9, .eps = 1e-8}},
          .bucket_coords = 64,
          .seed = ~std::uint64_t{0},
          .settings = "batch 8"};
}

TEST(RunMessage, ComesBackAsItWas) {
  const RunDescription run = example(), back = decode_run(encode_run(run));
  EXPECT_EQ(difference(run, back), std::nullopt);
  EXPECT_EQ(back.tensors[0].shape, run.tensors[0].shape);
  EXPECT_EQ(encode_run(back), encode_run(run));
}

TEST(RunMessage, NamesEveryDifference) {
  const std::vector<std::pair<std::function<void(RunDescription&)>, std::string>> changes = {
      {[](auto& r) { r.method = "lion"; }, "method: the run has dlion-vote, this worker lion"},
      {[](auto& r) { r.options["a"] = "3"; }, "option a: the run has 1, this worker 3"},
      {[](auto& r) { r.options.erase("b"); }, "option b: the run has 2, this worker none"},
      {[](auto& r) { r.options["c"] = "3"; }, "option c: the run has none, this worker 3"},
      {[](auto& r) { r.tensors.pop_back(); },
       "the number of tensors: the run has 2, this worker 1"},
      {[](auto& r) { r.tensors[1].name = "u"; },
       "the name of tensor 1: the run has v, this worker u"},
      {[](auto& r) {
         r.tensors[0].shape = {4, 3};
       },
       "the shape of w: the run has [3, 4], this worker [4, 3]"},
      {[](auto& r) { r.tensors[0].group = 1; }, "the group of w: the run has 0, this worker 1"},
      {[](auto& r) { r.groups.emplace_back(); },
       "the number of groups: the run has 2, this worker 3"},
      {[](auto& r) { r.groups[0].weight_decay = 0.2; },
       "weight decay of group 0: the run has 0.1, this worker 0.2"},
      {[](auto& r) { r.groups[1].beta1 = 0.95; },
       "beta1 of group 1: the run has 0.9, this worker 0.95"},
      {[](auto& r) { r.groups[1].beta2 = 0.5; },
       "beta2 of group 1: the run has none, this worker 0.5"},
      {[](auto& r) { r.groups[1].eps.reset(); },
       "eps of group 1: the run has 1e-08, this worker none"},
      {[](auto& r) { r.bucket_coords = 65; },
       "coordinates of a bucket: the run has 64, this worker 65"},
      {[](auto& r) { r.seed = 1; }, "seed: the run has"},
      {[](auto& r) { r.settings = "batch 9"; },
       "settings: the run has batch 8, this worker batch 9"}};
  for (const auto& [change, text] : changes) {
    RunDescription other = example();
    change(other);
    EXPECT_TRUE(has(difference(example(), other).value_or(""), text));
  }
}

// Long texts are shortened to the place where they differ.
TEST(RunMessage, NamesTheSettingThatDiffers) {
  const auto difference_of = [](const std::string& a, const std::string& b) {
    RunDescription here = example(), there = example();
    here.settings = a, there.settings = b;
    return difference(here, there).value_or("");
  };
  const std::string much = "data=" + std::string(1000, 'x') + "\n";
  EXPECT_EQ(
      difference_of(much + "lr=1\nsteps=5\n", much + "lr=2\nsteps=6\n"),
      "setting lr: the run has 1, this worker 2; setting steps: the run has 5, this worker 6");
  EXPECT_EQ(difference_of("a=1\nb=2\n", "a=2\nb=3\n"),
            "setting a: the run has 1, this worker 2; setting b: the run has 2, this worker 3");
  EXPECT_EQ(difference_of(much + "shards=4\n", much),
            "setting shards: the run has 4, this worker none");
  EXPECT_EQ(difference_of(much, much + "shards=4\n"),
            "setting shards: the run has none, this worker 4");
  EXPECT_LT(difference_of("data=y\n", much).size(), 200U);
  const std::string text(1000, 'x');
  EXPECT_EQ(difference_of(text + " lr 1", text + " lr 2"),
            "settings: the run has ...xxxxxxxxxxxxxxxx lr 1, this worker ...xxxxxxxxxxxxxxxx lr 2");
}

TEST(RunMessage, RefusesWhatIsNoRun) {
  const std::vector<std::pair<std::function<void(coord::Run&)>, std::string>> changes = {
      {[](coord::Run& r) { r.clear_tensors(); }, "no tensors"},
      {[](coord::Run& r) { r.clear_groups(); }, "0 groups"},
      {[](coord::Run& r) {
         while (r.groups_size() < 5000) r.add_groups();
       },
       "5000 groups"},
      {[](coord::Run& r) { r.set_bucket_coords(0); }, "buckets"},
      {[](coord::Run& r) { r.mutable_tensors(0)->set_group(2); }, "of group 2 of 2"},
      {[](coord::Run& r) { r.mutable_tensors(0)->set_shape(0, -1); }, "shape"},
      {[](coord::Run& r) {
         r.mutable_tensors(0)->set_shape(0, std::int64_t{1} << 40);
         r.mutable_tensors(0)->set_shape(1, std::int64_t{1} << 40);
       },
       "too many coordinates"},
      {[](coord::Run& r) { r.mutable_tensors(0)->set_shape(0, std::int64_t{1} << 36); },
       "buckets"}};
  for (const auto& [change, text] : changes) {
    coord::Run message;
    ASSERT_TRUE(message.ParseFromString(encode_run(example())));
    change(message);
    texts::expect_error<InvalidArgument>([&] { decode_run(message.SerializeAsString()); }, {text});
  }
  EXPECT_THROW(decode_run("\x0a\xff\xff"), InvalidArgument);
  EXPECT_THROW(decode_run(std::string(kMostRunBytes + 1, 'x')), InvalidArgument);
}

}  // namespace
}  // namespace pride::coord::test

// The description of a run as bytes, and where two differ.
// SPDX-License-Identifier: Apache-2.0
#include "coord/run_message.h"

#include <gtest/gtest.h>

#include <functional>

#include "coord/coord.pb.h"
#include "coord/rig.h"

namespace pride::coord::test {
namespace {

RunDescription example() {
  return {.method = "dlion-vote",
          .options = {{"a", "1"}, {"b", "2"}},
          .tensors = {{"w", {3, 4}, 0}, {"v", {}, 1}},
          .groups = 2,
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

TEST(RunMessage, NamesTheFirstDifference) {
  const std::vector<std::pair<std::function<void(RunDescription&)>, std::string>> changes = {
      {[](auto& r) { r.method = "lion"; }, "method is dlion-vote here and lion there"},
      {[](auto& r) { r.options["a"] = "3"; }, "option a is 1 here and 3 there"},
      {[](auto& r) { r.options.erase("b"); }, "option b is 2 here and not set there"},
      {[](auto& r) { r.options["c"] = "3"; }, "option c is not set here and 3 there"},
      {[](auto& r) { r.tensors.pop_back(); }, "the number of tensors is 2 here and 1 there"},
      {[](auto& r) { r.tensors[1].name = "u"; }, "the name of tensor 1 is v here and u there"},
      {[](auto& r) {
         r.tensors[0].shape = {4, 3};
       },
       "the shape of w is [3, 4] here and [4, 3]"},
      {[](auto& r) { r.tensors[0].group = 1; }, "the group of w is 0 here and 1 there"},
      {[](auto& r) { r.groups = 3; }, "the number of groups is 2 here and 3 there"},
      {[](auto& r) { r.bucket_coords = 65; }, "coordinates of a bucket is 64 here and 65 there"},
      {[](auto& r) { r.seed = 1; }, "seed is"},
      {[](auto& r) { r.settings = "batch 9"; }, "settings is batch 8 here and batch 9 there"}};
  for (const auto& [change, text] : changes) {
    RunDescription other = example();
    change(other);
    EXPECT_TRUE(has(difference(example(), other).value_or(""), text));
  }
}

TEST(RunMessage, RefusesWhatIsNoRun) {
  const std::vector<std::pair<std::function<void(coord::Run&)>, std::string>> changes = {
      {[](coord::Run& r) { r.clear_tensors(); }, "no tensors"},
      {[](coord::Run& r) { r.set_groups(0); }, "0 groups"},
      {[](coord::Run& r) { r.set_groups(1 << 20); }, "groups"},
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
    try {
      decode_run(message.SerializeAsString());
      ADD_FAILURE() << "taken: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_TRUE(has(error.what(), text));
    }
  }
  EXPECT_THROW(decode_run("\x0a\xff\xff"), InvalidArgument);
  EXPECT_THROW(decode_run(std::string(kMostRunBytes + 1, 'x')), InvalidArgument);
}

}  // namespace
}  // namespace pride::coord::test

// Which tensors are matrices: by AsMatrix, by name, and what is refused. The oracle is the list.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "methods/registry.h"
#include "rules/orthogonalise.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::matrices_test {
namespace {

using enum MatrixForm;

const std::vector<TensorSpec> kModel = {{"wte", {40, 8}},
                                        {"blocks.0.c_attn", {8, 24}},
                                        {"blocks.0.proj", {8, 8}},
                                        {"blocks.0.bias", {8}},
                                        {"blocks.1.c_attn", {8, 24}},
                                        {"blocks.1.proj", {8, 8}},
                                        {"blocks.1.bias", {8}},
                                        {"proj", {40, 8}}};
const std::vector<MatrixForm> kByName = {kNone,  kSplit, kWhole, kNone,
                                         kSplit, kWhole, kNone,  kWhole};
constexpr const char* kMethods[] = {"dlion-muon", "dlion-muon-avg", "muon",
                                    "local-muon", "turn-muon",      "local-vote"};

using Options = std::map<std::string, std::string>;

Options with_muon(const std::string& method, Options options = {}) {
  if (method == "local-vote") options["local"] = "muon";
  return options;
}

std::vector<TensorSpec> changed(std::size_t tensor, AsMatrix as) {
  auto model = kModel;
  model[tensor].as_matrix = as;
  return model;
}

class MatricesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  }
};

TEST_F(MatricesTest, AreChosenByNameUnlessTheCallerSays) {
  for (const std::string method : kMethods) {
    const auto forms = [&](const std::vector<TensorSpec>& model, const Options& options = {}) {
      return matrices_of(method, Layout(model), with_muon(method, options)).forms;
    };
    EXPECT_EQ(forms(kModel), kByName) << method;
    auto expected = kByName;
    expected[7] = kNone;
    EXPECT_EQ(forms(changed(7, AsMatrix::kNo)), expected) << method;
    EXPECT_EQ(forms(kModel, {{"not_matrices", "wte, =proj"}}), expected) << method;
    expected[2] = expected[5] = kNone;
    EXPECT_EQ(forms(kModel, {{"not_matrices", "wte,proj"}}), expected) << method;
    expected = kByName;
    expected[0] = kWhole;
    EXPECT_EQ(forms(changed(0, AsMatrix::kYes)), expected) << method;
    EXPECT_EQ(forms(kModel, {{"not_matrices", "none"}}), expected) << method;
    EXPECT_EQ(forms(changed(3, AsMatrix::kYes)), kByName) << method << ": a bias has one dimension";
    EXPECT_EQ(forms(changed(3, AsMatrix::kUnnamed)), kByName) << method;
  }
  EXPECT_TRUE(matrices_of("dlion-vote", Layout(kModel), {}).forms.empty());
  EXPECT_TRUE(matrices_of("local-vote", Layout(kModel), {}).text.empty());
}

TEST_F(MatricesTest, ALineTellsThem) {
  EXPECT_EQ(
      matrices_of("dlion-muon", Layout(kModel), {}).text,
      "dlion-muon: matrices: blocks.*.proj (2), proj; split: blocks.*.c_attn (2, 3 blocks each); "
      "no matrices: wte and 2 of one dimension. If 'proj' makes the model's output, exclude "
      "it: it is a matrix by its name alone");
  auto blocks = kModel;
  blocks.pop_back();
  EXPECT_EQ(
      matrices_of("dlion-muon", Layout(blocks), {}).text,
      "dlion-muon: matrices: blocks.*.proj (2); split: blocks.*.c_attn (2, 3 blocks each); no "
      "matrices: wte and 2 of one dimension");
  EXPECT_EQ(matrices_of("muon", Layout(changed(7, AsMatrix::kNo)), {{"split", "none"}}).text,
            "muon: matrices: blocks.*.c_attn (2), blocks.*.proj (2); no matrices: wte, proj and 2 "
            "of one dimension");
  EXPECT_EQ(
      matrices_of("muon", Layout(blocks), {{"split", "c_attn, =blocks.1.c_attn=4*2+16"}}).text,
      "muon: matrices: blocks.*.proj (2); split: blocks.0.c_attn (3 blocks), blocks.1.c_attn (5 "
      "blocks); no matrices: wte and 2 of one dimension");
  std::vector<TensorSpec> many;
  for (char letter = 'a'; letter <= 'k'; ++letter) {
    many.push_back({std::string(1, letter), {2, 2}, 0, {}, AsMatrix::kYes});
  }
  EXPECT_EQ(matrices_of("muon", Layout(many), {}).text,
            "muon: matrices: a, b, c, d, e, f, g, h and 3 more");
}

// In matrices_of(), and in the constructor on every rank.
void expect_refused(const std::string& method, const Options& options,
                    std::initializer_list<std::string_view> texts) {
  const Options all = with_muon(method, options);
  texts::expect_error<InvalidArgument>([&] { matrices_of(method, Layout(kModel), all); }, texts);
  testing::Training run{.world = 2, .steps = 1};
  run.options = {.method = method, .options = all};
  const auto errors = testing::errors_of<InvalidArgument>(
      2, [&](Communicator& comm) { testing::train_rank(comm, Layout(kModel), run); });
  ASSERT_EQ(errors.size(), 2u) << method;
  for (const std::string& error : errors) texts::expect_contains(error, texts);
}

TEST_F(MatricesTest, AWordThatNamesNoTensorIsRefused) {
  for (const std::string method : kMethods) {
    const std::pair<Options, const char*> cases[] = {
        {{{"not_matrices", "wte,hd"}}, "option not_matrices: no tensor's name contains 'hd'"},
        {{{"not_matrices", "=blocks"}}, "option not_matrices: no tensor's name is 'blocks'"},
        {{{"split", "c_atn"}}, "option split: no tensor's name contains 'c_atn'"},
        {{{"split", "qkv=8+16"}}, "option split: no tensor's name contains 'qkv'"},
        {{{"split", "=blocks=8"}}, "option split: no tensor's name is 'blocks'"},
        {{{"split", "==8"}}, "option split: no tensor's name is ''"}};
    for (const auto& [options, text] : cases) {
      expect_refused(method, options, {text, "the first tensor's is 'wte'"});
    }
  }
  // a part of a model: the word may name a tensor of another part
  auto part = kModel;
  for (TensorSpec& spec : part) spec.first_coord = 0;
  part.resize(1);
  testing::Training run{.world = 1, .steps = 1};
  run.options = {.method = "dlion-muon", .options = {{"not_matrices", "c_attn"}}};
  EXPECT_EQ(testing::train(Layout(part), run).size(), 1u);
}

TEST_F(MatricesTest, SizesThatDoNotFitAreRefused) {
  for (const std::string method : kMethods) {
    expect_refused(method, {{"split", "c_attn=8+2*4"}},
                   {method + ": option split: the sizes of 'c_attn=8+2*4' add up to 16, but tensor "
                             "'blocks.0.c_attn' of shape (8, 24) has 8 rows and 24 columns"});
    expect_refused(method, {{"split", "attn=3*8,proj,=blocks.1.c_attn=8"}},
                   {"'attn=3*8' and '=blocks.1.c_attn=8' both name tensor 'blocks.1.c_attn'"});
  }
  const auto shaped = [](const std::string& split) {
    return matrices_of("muon", Layout(kModel), {{"split", split}}).forms;
  };
  EXPECT_EQ(shaped("c_attn=3*8"), kByName);
  expect_refused("muon", {{"split", "c_attn=24*1,wte=7"}},
                 {"muon: option split: 'wte=7' names no matrix of this method"});
  EXPECT_EQ(shaped("c_attn=24"), shaped("none"));
}

TEST_F(MatricesTest, SizesThatAreNoneAreRefused) {
  for (const std::string sizes : {"",
                                  "+",
                                  "8+",
                                  "+24",
                                  "8++16",
                                  "0",
                                  "0+24",
                                  "0*8+24",
                                  "3*0",
                                  "3*",
                                  "*8",
                                  "3*8*1",
                                  "-8",
                                  "+8",
                                  "8.0",
                                  "8+16x",
                                  " 24",
                                  "2 4",
                                  "0x18",
                                  "3x8",
                                  "qkv",
                                  "8-16",
                                  "2147483648",
                                  "2147483647+1",
                                  "2147483647*2147483647",
                                  "4294967296*4294967296",
                                  "18446744073709551640",
                                  "99999999999999999999999999",
                                  "2305843009213693952*8+24"}) {
    const std::string item = "c_attn=" + sizes;
    expect_refused("dlion-muon", {{"split", "qkv," + item}},
                   {"dlion-muon: option split = 'qkv," + item + "': the sizes of '" + item +
                    "' must be n or k*n, joined by '+'"});
  }
}

TEST_F(MatricesTest, ATensorWithoutANameIsRefused) {
  for (const std::string method : kMethods) {
    auto model = changed(1, AsMatrix::kUnnamed);
    model[4].as_matrix = AsMatrix::kUnnamed;
    testing::Training run{.world = 2, .steps = 1};
    run.options = {.method = method, .options = with_muon(method)};
    const auto errors = testing::errors_of<InvalidArgument>(
        2, [&](Communicator& comm) { testing::train_rank(comm, Layout(model), run); });
    ASSERT_EQ(errors.size(), 2u) << method;
    for (const std::string& error : errors) {
      texts::expect_contains(error, {"tensors without a name: blocks.*.c_attn (2)", "\"matrix\""});
    }
    run.options = {.method = "dlion-vote"};
    EXPECT_EQ(testing::train(Layout(model), run).size(), 2u);
  }
}

TEST_F(MatricesTest, RanksAgreeOnThem) {
  testing::Training run{.world = 2, .steps = 1};
  run.options = {.method = "dlion-muon"};
  const auto errors = testing::errors_of<InvalidArgument>(2, [&](Communicator& comm) {
    testing::train_rank(comm, Layout(changed(2, comm.rank() == 0 ? AsMatrix::kYes : AsMatrix::kNo)),
                        run);
  });
  ASSERT_EQ(errors.size(), 2u);
  for (const std::string& error : errors) texts::expect_contains(error, "'blocks.0.proj' of shape");
  EXPECT_TRUE(std::ranges::any_of(errors, [](const std::string& error) {
    return error.find("group 0, no matrix") != error.npos;
  }));
}

}  // namespace
}  // namespace pride::matrices_test

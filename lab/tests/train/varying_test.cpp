// --vary: the values of a step, errors, and a run against the groups of a loop.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pride/error.h"
#include "signs.h"
#include "small_run.h"
#include "support/texts.h"
#include "train/settings/groups.h"
#include "train/settings/varying.h"

namespace pride::train::varying_test {
namespace {

using app::test::small_run;

Varying one(const std::string& text) { return parse_varying(text).at(0); }

TEST(Varying, IsALineOrHalfACosineBetweenPoints) {
  const Varying line = one("momentum=0.85@10,0.97@30,0.9@100%");
  EXPECT_EQ(line.at(0, 100), 0.85);
  EXPECT_EQ(line.at(10, 100), 0.85);
  EXPECT_DOUBLE_EQ(line.at(15, 100), 0.88);
  EXPECT_DOUBLE_EQ(line.at(30, 100), 0.97);
  EXPECT_DOUBLE_EQ(line.at(65, 100), 0.935);
  EXPECT_DOUBLE_EQ(line.at(100, 100), 0.9);
  EXPECT_DOUBLE_EQ(line.at(1000, 100), 0.9);
  EXPECT_DOUBLE_EQ(line.at(65, 200), 0.97 - 0.07 * 35 / 170);
  const Varying cosine = one(" weight-decay=0.28@0,0@50%  cosine ");
  EXPECT_DOUBLE_EQ(cosine.at(25, 100), 0.14);
  EXPECT_DOUBLE_EQ(cosine.at(10, 60), 0.28 * 0.75);
  EXPECT_DOUBLE_EQ(cosine.at(50, 100), 0);
  EXPECT_EQ(one("beta2=0.9@7").at(0, 10), 0.9);
  EXPECT_EQ(parse_varying("beta1=0.9@0; beta2=0.9@0").size(), 2u);
  EXPECT_TRUE(parse_varying("").empty());
}

TEST(Varying, OtherTextsAreRefusedByName) {
  for (const auto& [text, error] : std::initializer_list<std::pair<const char*, const char*>>{
           {"momentum", "'NAME=VALUE@STEP"},
           {";", "no entry"},
           {"momentum=", "'NAME=VALUE@STEP"},
           {"momentum=0.9@0 linear", "'NAME=VALUE@STEP"},
           {"momentum=0.9@0 cosine cosine", "'NAME=VALUE@STEP"},
           {"lr=0.1@0", "no name 'lr'; names are beta1, beta2, momentum, weight-decay"},
           {"beta1=0.9", "STEP must be"},
           {"beta1=0.9@", "STEP must be"},
           {"beta1=0.9@1.5", "STEP must be"},
           {"beta1=0.9@101%", "STEP must be"},
           {"beta1=0.9@-1", "STEP must be"},
           {"beta1=x@1", "VALUE must be"},
           {"beta1=nan@1", "VALUE must be"},
           {"beta1=-0.5@1", "VALUE must be"},
           {"beta1=0.9@0;beta1=0.8@5", "beta1 is given twice"}}) {
    texts::expect_error<InvalidArgument>([&] { parse_varying(text); }, {error});
    EXPECT_NE(wrong<parse_varying>(text).find(error), std::string::npos) << text;
  }
  texts::expect_error<InvalidArgument>(
      [] { one("beta1=0.9@0,0.9@10,0.8@50%").check(20); },
      {"--vary: beta1: its points must ascend", "20 steps", "step 10 and the next at 10"});
}

std::shared_ptr<Signs> line_of_signs() {
  return std::make_shared<Signs>(ModelMaker{
      .name = "line", .lr_scale = 10, .make = [] { return std::make_unique<app::test::Line>(); }});
}

TrainOptions run_of(const std::string& method, const std::string& vary) {
  TrainOptions options = small_run();
  options.method = method;
  options.weight_decay = 0.5;
  options.vary = vary;
  return options;
}

std::vector<ParamGroup> groups_of(const TrainOptions& options, std::int64_t step) {
  return make_plan(options, options.workers, line_of_signs()).groups_at(step);
}

TEST(Varying, ChangesTheGroupsOfTheMethodAndNoDecayThatIsOff) {
  TrainOptions options = run_of("dlion-vote", "beta1=0.5@0;weight-decay=2@0,1@2");
  const auto plan = make_plan(options, options.workers, line_of_signs());
  ASSERT_EQ(plan.optimizer.groups.size(), 2u);
  const auto now = plan.groups_at(1);
  EXPECT_EQ(now[0].weight_decay, 1.5);
  EXPECT_FALSE(now[1].weight_decay) << "its tensors do not decay";
  EXPECT_EQ(now[0].beta1, 0.5);
  EXPECT_EQ(now[1].beta1, 0.5);
  EXPECT_FALSE(now[0].beta2);
  EXPECT_EQ(now[0].lr, *plan.optimizer.groups[0].lr * plan.schedule.factor(1));
}

TEST(Varying, RefusesAtTheStartWhatAStepWould) {
  const auto refused = [](const std::string& method, const std::string& vary,
                          const std::string& error) {
    texts::expect_error<InvalidArgument>([&] { groups_of(run_of(method, vary), 0); },
                                         {"--vary: ", error});
  };
  refused("dlion-vote", "momentum=0.5@0", "dlion-vote has no momentum: give betas");
  refused("sgdm", "beta2=0.5@0", "sgdm has no beta2");
  refused("graddrop", "beta1=0.5@0", "graddrop has no beta1");
  refused("adamw", "momentum=0.5@0", "adamw has no momentum");
  refused("sgdm", "momentum=0.5@0;beta1=0.5@0", "both betas and momentum are given");
  refused("sgdm", "momentum=0.5@0,1@50%", "momentum = 1 is not in [0, 1)");
  refused("lion", "weight-decay=0@0,1e300@2", "weight decay = 1e+300");
  refused("lion", "beta1=0.5@0,0.6@9,0.7@5", "its points must ascend");
  EXPECT_EQ(groups_of(run_of("signum-vote", "momentum=0.5@0"), 0)[0].momentum, 0.5);
  TrainOptions both = run_of("sgdm", "momentum=0.5@0");
  both.beta1 = 0.5;
  EXPECT_THROW(groups_of(both, 0), InvalidArgument);
  TrainOptions off = run_of("lion", "weight-decay=2@0");
  off.weight_decay = 0;  // until --vary changes it
  EXPECT_EQ(groups_of(off, 0)[0].weight_decay, 2);
}

// A value that stays is the flag of this value; one that moves is another run.
TEST(Varying, ARunFollowsIt) {
  const auto hash = [](const TrainOptions& options) {
    return run(options, line_of_signs()).param_hash;
  };
  TrainOptions flags = run_of("dlion-vote", "");
  flags.beta1 = 0.5;
  flags.weight_decay = 2;
  EXPECT_EQ(hash(run_of("dlion-vote", "beta1=0.5@0;weight-decay=2@0")), hash(flags));
  EXPECT_NE(hash(run_of("dlion-vote", "beta1=0.5@0;weight-decay=2@0,0@2")), hash(flags));
  EXPECT_NE(hash(run_of("sgdm", "momentum=0.5@0,0.1@2")), hash(run_of("sgdm", "beta1=0.5@0")));
}

}  // namespace
}  // namespace pride::train::varying_test

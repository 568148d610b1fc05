// Signals that stop a run.
// SPDX-License-Identifier: Apache-2.0
#include "train/process.h"
#include "pride/train/plan.h"
#include "pride/train/trainer.h"
#include "train_names.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace pride::app {
namespace {

TEST(Interrupts, LeaveIgnoredWhatWasInheritedAsIgnored) {
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_DFL);
  catch_interrupts();
  std::raise(SIGINT);
  EXPECT_FALSE(interrupted());
  std::raise(SIGTERM);
  EXPECT_TRUE(interrupted());
  std::signal(SIGINT, SIG_DFL);
  train::forget_interrupts();  // or the next run in this process would stop at once
}

// A terminal that is gone may send several, and every write to it is a SIGPIPE.
TEST(Interrupts, OfALostTerminalDoNotEndTheProcess) {
  const auto body = [] {
    catch_interrupts();
    for (const int signal : {SIGHUP, SIGPIPE, SIGHUP, SIGPIPE}) std::raise(signal);
    std::_Exit(interrupted() ? 0 : 1);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "");
}

// Data may take minutes to load: the signal does not wait for them.
TEST(Interrupts, EndTheProcessAtOnceWhileDataLoad) {
  const auto load = [] {
    catch_interrupts();
    const train::EndsAtOnce loading;
    std::raise(SIGINT);
    std::_Exit(0);
  };
  EXPECT_EXIT(load(), ::testing::KilledBySignal(SIGINT), "");
}

TEST(Interrupts, ThatCameBeforeDataLoadKeepThemFromIt) {
  const auto load = [] {
    catch_interrupts();
    std::raise(SIGTERM);
    if (!interrupted()) std::_Exit(1);
    train::make_plan({}, 1);
    std::_Exit(0);
  };
  EXPECT_EXIT(load(), ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace pride::app

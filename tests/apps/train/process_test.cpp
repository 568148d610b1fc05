// Signals that stop a run.
// SPDX-License-Identifier: Apache-2.0
#include "train/process.h"
#include "pride/train/trainer.h"
#include "train_names.h"

#include <gtest/gtest.h>

#include <csignal>

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

}  // namespace
}  // namespace pride::app

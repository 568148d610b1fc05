// The methods that exchange signs, with the options that change their frames, for parameterised
// tests; and gradients with many zeros.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "support/training.h"

namespace pride::testing {

struct SignCase {
  std::string method;
  std::map<std::string, std::string> options = {};
};

inline void PrintTo(const SignCase& c, std::ostream* out) { *out << c.method; }

inline const std::vector<SignCase> kSignCases = {
    {"dlion-vote"},  {"dlion-vote", {{"tie", "zero"}}},
    {"dlion-avg"},   {"dlion-avg", {{"counts", "planes"}}},
    {"signum-vote"}, {"signum-avg"}};

inline std::string sign_case_name(const ::testing::TestParamInfo<SignCase>& info) {
  std::string name = info.param.method;
  for (const auto& [option, value] : info.param.options) name += "_" + value;
  return test_name(name);
}

// Zero in two thirds of the embedding's blocks, a different selection on every rank.
inline float sparse_gradient(int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
  const bool hidden = tensor == 0 && mix64(index / 64, static_cast<std::uint64_t>(rank)) % 3 != 0;
  return hidden ? 0 : gradient(rank, step, tensor, index);
}

}  // namespace pride::testing

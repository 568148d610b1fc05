// Diagnostics: agreement between the ranks, from a shared sample of coordinates.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace pride {

// Values of one tensor at one step. Shares are of the sampled coordinates whose mean blend is not
// 0. The blend u = beta1 m + (1-beta1) g is the quantity behind a rank's vote.
struct TensorDiagnostics {
  std::size_t tensor = 0;  // index in the layout
  std::size_t samples = 0;
  double unanimous = 0;  // share where the blends of all participating ranks have one sign
  // Variance of momentum over the ranks, as a share of its mean square: 0 if all are equal, (N-1)/N
  // if they are uncorrelated. Summed over the samples before the division.
  double momentum_variance = 0;
  double vote_error = 0;       // share where the vote differs from sign(mean of the blends)
  double sign_vote_error = 0;  // the same for the vote of one bit each; a tie counts one half
  // The same, each coordinate weighted with the size of its mean blend: the cost of a wrong vote.
  double vote_loss = 0, sign_vote_loss = 0;
};

}  // namespace pride

// Diagnostics: how much the ranks agree, from a sample of coordinates that they tell each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace pride {

// Of one tensor at one step; shares are of the sampled coordinates whose mean blend is not 0. The
// blend u = beta1 m + (1-beta1) g is what a rank votes for.
struct TensorDiagnostics {
  std::size_t tensor = 0;  // index in the layout
  std::size_t samples = 0;
  double unanimous = 0;  // share where the blends of all present ranks have one sign
  // Variance of momentum over the ranks, as a share of its mean square: 0 if all have the same,
  // (N-1)/N if they have nothing in common. Summed over the samples before it is divided.
  double momentum_variance = 0;
  double vote_error =
      0;  // share where the vote that was taken differs from sign(mean of the blends)
  double sign_vote_error = 0;  // the same for the vote of one bit each; a tie counts one half
  // The same, each coordinate weighted with the size of its mean blend: what a wrong vote costs.
  double vote_loss = 0, sign_vote_loss = 0;
};

}  // namespace pride

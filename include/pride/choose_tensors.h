// Tensors chosen by name or kind: lion-cub's `sync`, and --personal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "pride/layout.h"

namespace pride {

// By tensor, 1 if one of the comma-separated items of `text` matches it: a pattern of the tensor's
// name with * for any characters, or none, all, vectors (one dimension or none: norms and biases),
// embeddings ("emb", "wte", "wpe" or "pos" in the name), first and last (of the tensors with two
// dimensions or more). A kind may match no tensor; a pattern that matches none throws
// InvalidArgument, whose text begins with `option`.
std::vector<char> choose_tensors(const std::string& option, const Layout& layout,
                                 const std::string& text);

}  // namespace pride

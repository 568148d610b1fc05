// Which tensors are matrices to methods that orthogonalise, and the blocks of each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "pride/layout.h"
#include "pride/registry.h"

namespace pride::methods {

// Defaults of the options `not_matrices` and `split`.
inline constexpr const char* kNotMatrices = "embed,wte,wpe,lm_head,head,position";
inline constexpr const char* kSplit = "c_attn,qkv,in_proj,query_key_value";

// A part of a matrix that is orthogonalised by itself.
struct MatrixBlock {
  std::size_t begin = 0;  // its first value, counted from the matrix's first
  std::size_t rows = 0, cols = 0;
};

// A tensor as a matrix: its first dimension, and all others as one.
struct Matrix {
  std::size_t tensor = 0, rows = 0, cols = 0;
  std::vector<MatrixBlock> blocks = {};  // one: the whole matrix. Together they have all values

  MatrixForm form() const noexcept {
    return blocks.size() == 1 ? MatrixForm::kWhole : MatrixForm::kSplit;
  }
};

// Tensors with two dimensions or more that have several rows and columns as matrices. AsMatrix
// decides; by name: those whose names hold none of the words of the option `not_matrices` (for
// embeddings and output layers). Words are separated by commas; "=name" is a whole name, "none" is
// no word.
//
// The option `split` has items, separated by commas; "none" is no item. "WORD": a matrix whose name
// holds the word, and whose longer side is three times the shorter, has three equal blocks (query,
// key and value). "WORD=SIZES", with block sizes "n" or "k*n" (k blocks of n) joined by '+': blocks
// of these rows if they add up to the matrix's rows, else of columns. An item with sizes goes
// before one without.
//
// Throws InvalidArgument, which begins with `method`, if such a tensor is AsMatrix::kUnnamed, if an
// item cannot be read, if two with sizes name a matrix, and if sizes add up to neither side.
std::vector<Matrix> matrices_of(const std::string& method, const Layout& layout,
                                const OptionMap& options);

// Throws InvalidArgument if a word of these options is not a default one and names no tensor.
// `layout`: of the whole model.
void check_words(const std::string& method, const OptionMap& options, const Layout& layout);

// "dlion-muon: matrices: blocks.*.proj.weight (2); split: ...; no matrices: ...". Throws as
// matrices_of().
std::string text_of(const std::string& method, const Layout& layout, const OptionMap& options);

}  // namespace pride::methods

// The bits of zeros and ties. They are part of the wire format: every implementation must compute
// the same bits (docs/wire_format.md, "Zeros and ties").
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/bucket.h"
#include "base/step.h"
#include "kernels/kernels.h"

namespace pride::methods {

// The bits of cells in a piece, for bits towards their centres. `scale`: a voted step is that many
// learning rates.
kernels::SharedBits cell_bits_of(const SharedContext& shared, const Piece& piece, float scale = 1);

// The bits of a worker's zeros in a piece.
kernels::SharedBits zero_bits_of(const StepContext& ctx, const Piece& piece, float scale = 1);

// The bits of ties in a piece, equal on all ranks. `cells`: their words, if the server cannot read
// the parameters, which are on a device. REQUIRES: one of them.
kernels::SharedBits tie_bits_of(const SharedContext& shared, const Piece& piece, float scale = 1,
                                std::span<const std::uint64_t> cells = {});

// The same without parameters: a coordinator has only frames. The bits of one of them, `rows` from
// the piece's first word on.
kernels::SharedBits tie_bits_of(const SharedContext& shared,
                                std::span<const std::uint64_t* const> rows);

}  // namespace pride::methods

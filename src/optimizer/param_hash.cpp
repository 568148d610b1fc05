// Digest of the parameters.
// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"
#include "pride/error.h"
#include "pride/optimizer.h"

namespace pride {

std::uint64_t param_hash(const Layout& layout, std::span<const float> params) {
  PRIDE_CHECK(params.size() == layout.flat_size(), "param_hash: ", params.size(),
              " floats given, the layout has ", layout.flat_size());
  Digest digest;
  for (const TensorSlot& slot : layout.tensors()) {
    digest.bytes(std::as_bytes(params.subspan(slot.offset, slot.n)));
  }
  return digest.value();
}

}  // namespace pride

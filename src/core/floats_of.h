// The floats that the bytes of a wire hold.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "pride/wire.h"

namespace pride {

inline std::span<float> floats_of(ByteBuffer& bytes) {
  return {reinterpret_cast<float*>(bytes.span().data()), bytes.size() / sizeof(float)};
}
inline std::span<const float> floats_of(const ByteBuffer& bytes) {
  return {reinterpret_cast<const float*>(bytes.span().data()), bytes.size() / sizeof(float)};
}

}  // namespace pride

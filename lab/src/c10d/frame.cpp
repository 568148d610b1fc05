// SPDX-License-Identifier: Apache-2.0
#include "c10d/frame.h"

#include <ATen/ATen.h>

#include <cstring>

#include "pride/error.h"

namespace pride::process_group {

static_assert(sizeof(Header) == 512);

// c10d takes send buffers as non-const
at::Tensor view(const std::byte* bytes, std::size_t size) {
  return at::from_blob(const_cast<std::byte*>(bytes), {static_cast<std::int64_t>(size)}, at::kByte);
}

at::Tensor copy_of(const void* bytes, std::size_t size) {
  at::Tensor copy = at::empty({static_cast<std::int64_t>(size)}, at::kByte);
  std::memcpy(copy.data_ptr(), bytes, size);
  return copy;
}

std::string trouble_of(::c10d::Work& work) {
  try {
    return work.wait(kForever) ? "" : "aborted";
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
}

void finish(::c10d::Work& work) {
  const std::string trouble = trouble_of(work);
  if (!trouble.empty()) throw CommError(trouble);
}

}  // namespace pride::process_group

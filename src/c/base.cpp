// Errors, versions and layouts of the C interface.
// SPDX-License-Identifier: Apache-2.0
#include "c/handles.h"
#include "pride/cpu.h"
#include "pride/digest.h"

namespace pride::c {
namespace {

thread_local std::string last_error;

}  // namespace

int failed(int code, const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
  return code;
}

TensorSpec spec_of(const pride_tensor& tensor) {
  PRIDE_CHECK(tensor.n_dims >= 0 && (tensor.n_dims == 0 || tensor.shape != nullptr), "a tensor of ",
              tensor.n_dims, " dimensions without a shape");
  return {.name = &given(tensor.name, "the name of a tensor"),
          .shape = {tensor.shape, tensor.shape + tensor.n_dims},
          .group = tensor.group};
}

std::vector<TensorSpec> specs_of(const Layout& layout) {
  std::vector<TensorSpec> specs;
  for (const TensorSlot& slot : layout.tensors()) specs.push_back(slot.spec);
  return specs;
}

std::vector<TensorSpec> specs_of(const pride_tensor* tensors, const std::uint64_t* first_coords,
                                 std::uint64_t n) {
  PRIDE_CHECK(n == 0 || tensors != nullptr, n, " tensors at NULL");
  std::vector<TensorSpec> specs;
  for (std::uint64_t i = 0; i < n; ++i) {
    specs.push_back(spec_of(tensors[i]));
    if (first_coords != nullptr) specs.back().first_coord = first_coords[i];
  }
  return specs;
}

}  // namespace pride::c

using namespace pride::c;

const char* pride_last_error(void) { return last_error.c_str(); }
uint32_t pride_c_version(void) { return PRIDE_C_VERSION; }
const char* pride_version(void) { return PRIDE_VERSION; }

const char* pride_isa(void) {
  thread_local std::string name;
  guarded([] { name = pride::active_isa(); });
  return name.c_str();
}

int pride_layout_create(const pride_tensor* tensors, uint64_t n, pride_layout** out) {
  return pride_layout_create_at(tensors, nullptr, n, out);
}
int pride_layout_create_at(const pride_tensor* tensors, const uint64_t* first_coords, uint64_t n,
                           pride_layout** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    *out = new pride_layout{pride::Layout(specs_of(tensors, first_coords, n))};
  });
}
int pride_layout_set_matrices(pride_layout* layout, const int32_t* as_matrix, uint64_t n) {
  return guarded([&] {
    std::vector<pride::TensorSpec> specs = specs_of(given(layout, "layout").layout);
    PRIDE_CHECK(n == specs.size(), n, " values, the layout has ", specs.size(), " tensors");
    PRIDE_CHECK(n == 0 || as_matrix != nullptr, "as_matrix is NULL");
    for (uint64_t i = 0; i < n; ++i) {
      PRIDE_CHECK(as_matrix[i] >= PRIDE_BY_NAME && as_matrix[i] <= PRIDE_UNNAMED, "as_matrix of '",
                  specs[i].name, "' is ", as_matrix[i], ", must be from 0 to ", PRIDE_UNNAMED);
      specs[i].as_matrix = static_cast<pride::AsMatrix>(as_matrix[i]);
    }
    layout->layout = pride::Layout(std::move(specs));
  });
}
void pride_layout_destroy(pride_layout* layout) { delete layout; }
uint64_t pride_layout_tensors(const pride_layout* layout) {
  return layout ? layout->layout.tensors().size() : 0;
}
uint64_t pride_layout_coords(const pride_layout* layout) {
  return layout ? layout->layout.n_coords() : 0;
}
uint64_t pride_layout_flat_size(const pride_layout* layout) {
  return layout ? layout->layout.flat_size() : 0;
}
uint64_t pride_layout_digest(const pride_layout* layout) {
  return layout ? layout->layout.digest() : 0;
}

int pride_layout_slot(const pride_layout* layout, uint64_t tensor, uint64_t* offset, uint64_t* n) {
  return guarded([&] {
    const auto& slots = given(layout, "layout").layout.tensors();
    PRIDE_CHECK(tensor < slots.size(), "tensor ", tensor, " of ", slots.size());
    given(offset, "offset") = slots[tensor].offset;
    given(n, "n") = slots[tensor].n;
  });
}

int pride_hash(const pride_layout* layout, const float* values, uint64_t* out) {
  return guarded([&] {
    const pride::Layout& shape = given(layout, "layout").layout;
    PRIDE_CHECK(values != nullptr || shape.flat_size() == 0, "values is NULL");
    given(out, "out") = pride::param_hash(shape, {values, shape.flat_size()});
  });
}

int pride_hash_tensors(const pride_array* tensors, uint64_t n, uint64_t* out) {
  return guarded([&] {
    PRIDE_CHECK(n == 0 || tensors != nullptr, "tensors is NULL");
    pride::Digest digest;
    for (uint64_t i = 0; i < n; ++i) {
      const pride_array& t = tensors[i];
      PRIDE_CHECK(t.device == PRIDE_CPU, "tensor ", i, ": device ", t.device,
                  ", must lie in CPU memory");
      if (t.data == nullptr) continue;
      const std::size_t width = t.dtype == PRIDE_FLOAT32 ? sizeof(float) : sizeof(pride::BFloat16);
      digest.bytes({static_cast<const std::byte*>(t.data), width * t.n});
    }
    given(out, "out") = digest.value();
  });
}

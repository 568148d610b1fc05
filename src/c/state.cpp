// Saved state in the C interface.
// SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "c/handles.h"

using namespace pride::c;

namespace {

// Throws InvalidArgument beyond the last.
const pride::StateBuffer& buffer_of(pride_optimizer* optimizer, uint64_t index) {
  pride::Replica& all = unlocked(optimizer);
  if (optimizer->buffers.empty()) optimizer->buffers = all.state_buffers();
  PRIDE_CHECK(index < optimizer->buffers.size(), "buffer ", index, " of ",
              optimizer->buffers.size());
  return optimizer->buffers[index];
}

}  // namespace

int pride_optimizer_state_buffer(pride_optimizer* optimizer, uint64_t index,
                                 pride_state_buffer* out) {
  return guarded([&] {
    const pride::StateBuffer& buffer = buffer_of(optimizer, index);
    given(out, "buffer") = {
        .name = buffer.name.c_str(),
        .data = buffer.values.data(),
        .kind = static_cast<int32_t>(buffer.kind),
        .dtype = buffer.dtype == pride::DType::kBFloat16 ? PRIDE_BFLOAT16 : PRIDE_FLOAT32,
        .section = buffer.section,
        .reserved = 0};
  });
}

int pride_optimizer_state_memory(pride_optimizer* optimizer, pride_memory** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    *out = new pride_memory{unlocked(optimizer).state_buffers()};
  });
}
void pride_memory_destroy(pride_memory* memory) { delete memory; }

int pride_optimizer_memory(const pride_optimizer* optimizer, pride_memory_use* use) {
  return guarded([&] {
    PRIDE_CHECK(given(use, "use").struct_size >= sizeof *use, "pride_memory_use: struct_size is ",
                use->struct_size, ", must be ", sizeof *use, " or more");
    const pride::MemoryUse now = unlocked(optimizer).memory();
    *use = {.struct_size = use->struct_size,
            .reserved = 0,
            .state = now.state,
            .masters = now.masters,
            .frames = now.frames,
            .scratch = now.scratch};
  });
}

int pride_optimizer_save(const pride_optimizer* optimizer, pride_state** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    *out = new pride_state{idle(optimizer).save()};
  });
}

int pride_optimizer_load(pride_optimizer* optimizer, const pride_state* state) {
  return guarded([&] { idle(optimizer).load(given(state, "state").state); });
}

int pride_optimizer_load_all(pride_optimizer* optimizer, const pride_state* const* states,
                             uint64_t n, int32_t local) {
  return guarded([&] {
    PRIDE_CHECK(n == 0 || states != nullptr, n, " states at NULL");
    PRIDE_CHECK(local >= PRIDE_LOCAL_KEEP && local <= PRIDE_LOCAL_RESET, "local is ", local);
    std::vector<pride::StateDict> all;
    for (uint64_t i = 0; i < n; ++i) all.push_back(given(states[i], "a state").state);
    idle(optimizer).load(std::move(all), static_cast<pride::LocalState>(local));
  });
}

int pride_state_create(pride_state** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    *out = new pride_state{};
  });
}
void pride_state_destroy(pride_state* state) { delete state; }
uint64_t pride_state_tensors(const pride_state* state) {
  return state ? state->state.tensors.size() : 0;
}
uint64_t pride_state_texts(const pride_state* state) {
  return state ? state->state.scalars.size() : 0;
}

int pride_state_tensor(const pride_state* state, uint64_t index, pride_tensor* tensor,
                       const float** values) {
  return guarded([&] {
    const auto& all = given(state, "state").tensors;
    PRIDE_CHECK(index < all.size(), "tensor ", index, " of ", all.size());
    const auto& [name, found] = *all[index];
    given(tensor, "tensor") = {.name = name.c_str(),
                               .shape = found.shape.data(),
                               .n_dims = static_cast<int32_t>(found.shape.size()),
                               .group = 0};
    given(values, "values") = found.values.data();
  });
}

int pride_state_set_tensor(pride_state* state, const pride_tensor* tensor, const float* values) {
  return guarded([&] {
    pride::TensorSpec spec = spec_of(given(tensor, "tensor"));
    const std::size_t n = pride::Layout({spec}).n_coords();  // checks name and shape
    PRIDE_CHECK(n == 0 || values != nullptr, n, " values at NULL");
    pride_state& into = given(state, "state");
    const auto [place, is_new] = into.state.tensors.try_emplace(spec.name);
    if (is_new) into.tensors.push_back(&*place);
    place->second = {std::move(spec.shape), {values, values + n}};
  });
}

int pride_state_text(const pride_state* state, uint64_t index, const char** name,
                     const char** value) {
  return guarded([&] {
    const auto& all = given(state, "state").state.scalars;
    PRIDE_CHECK(index < all.size(), "text ", index, " of ", all.size());
    const auto& [key, text] = *std::next(all.begin(), static_cast<std::ptrdiff_t>(index));
    given(name, "name") = key.c_str();
    given(value, "value") = text.c_str();
  });
}

int pride_state_set_text(pride_state* state, const char* name, const char* value) {
  return guarded(
      [&] { given(state, "state").state.scalars[&given(name, "name")] = &given(value, "value"); });
}

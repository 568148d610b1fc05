// Optimizers of the C interface.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <utility>

#include "c/handles.h"
#include "pride/agreement.h"

namespace pride::c {
namespace {

const char* place_of(std::int32_t device) {
  return device == PRIDE_CPU ? "CPU memory" : device == PRIDE_CUDA ? "a GPU's memory" : "?";
}

void check_array(const pride_optimizer& optimizer, const pride_array& array, const char* name) {
  const std::int32_t wanted = optimizer.on_device ? PRIDE_CUDA : PRIDE_CPU;
  PRIDE_CHECK(array.device == wanted || array.data == nullptr, name, " lies in ",
              place_of(array.device), " (device ", array.device, "), the optimizer takes ",
              place_of(wanted), ": copy it there");
  PRIDE_CHECK(array.n == 0 || array.data != nullptr, name, ": ", array.n, " values at NULL");
}

}  // namespace

DType dtype_of(const pride_array& array, const char* name) {
  PRIDE_CHECK(array.dtype >= PRIDE_FLOAT32 && array.dtype <= PRIDE_FLOAT16, name, ": dtype ",
              array.dtype, ", must be float32, bfloat16 or float16");
  return static_cast<DType>(array.dtype);
}

Tensor tensor_of(const pride_optimizer& optimizer, const pride_array& array, const char* name) {
  check_array(optimizer, array, name);
  return {array.data, array.n, dtype_of(array, name)};
}

ConstTensor gradient_of(const pride_optimizer& optimizer, const pride_array& array) {
  if (array.data == nullptr) return {nullptr, array.n, DType{}};
  check_array(optimizer, array, "grads");
  return {array.data, array.n, dtype_of(array, "grads")};
}

std::unique_ptr<bool[]> flags_of(const std::uint8_t* flags, std::size_t n) {
  auto out = std::make_unique<bool[]>(n);
  for (std::size_t i = 0; flags != nullptr && i < n; ++i) out[i] = flags[i] != 0;
  return out;
}

Parameters params_of(const pride_optimizer& optimizer, const pride_array* array) {
  if (array == nullptr) {
    PRIDE_CHECK(!optimizer.params.empty(), "params is NULL");
    return std::span<const Tensor>(optimizer.params);
  }
  check_array(optimizer, *array, "params");
  PRIDE_CHECK(
      dtype_of(*array, "params") == DType::kFloat32, "params: dtype ", array->dtype,
      ", a flat buffer must be float32; for other dtypes use pride_optimizer_set_parameters()");
  return std::span(static_cast<float*>(array->data), array->n);
}

Gradients grads_of(const pride_optimizer& optimizer, const pride_array* array) {
  check_array(optimizer, given(array, "grads"), "grads");
  switch (dtype_of(*array, "grads")) {
    case DType::kBFloat16:
      return std::span(static_cast<const BFloat16*>(array->data), array->n);
    case DType::kFloat16:
      return std::span(static_cast<const Float16*>(array->data), array->n);
    case DType::kFloat32:
      break;
  }
  return std::span(static_cast<const float*>(array->data), array->n);
}

Replica& unlocked(const pride_optimizer* handle) {
  const pride_optimizer& optimizer = given(handle, "optimizer");
  PRIDE_CHECK(!optimizer.finishing.valid(), "optimizer: a step is being finished");
  return *optimizer.replica;
}

Replica& idle(const pride_optimizer* handle) {
  Replica& replica = unlocked(handle);
  PRIDE_CHECK(!handle->gradients.begun, "optimizer: a call in the middle of a step");
  return replica;
}

}  // namespace pride::c

using namespace pride::c;

int pride_optimizer_check_memory(const pride_layout* layout, const pride_options* options,
                                 uint64_t master_bytes) {
  return guarded([&] {
    const pride_options& asked = given(options, "options");
    pride::check_device_memory(given(layout, "layout").layout, options_of(asked, 1), master_bytes,
                               virtual_workers_of(asked));
  });
}

int pride_optimizer_create(pride_comm* comm, const pride_layout* layout,
                           const pride_options* options, pride_optimizer** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    pride::Communicator& world = *given(comm, "comm").comm;
    const pride::Layout& tensors = given(layout, "layout").layout;
    auto all = options_of(given(options, "options"), world.size());
    const int workers = virtual_workers_of(*options);
    if (workers != 0 && world.size() > 1) {
      // the other ranks wait in their constructors
      pride::check_accepted(world, pride::Call::kConstruct, true);
      throw pride::InvalidArgument(
          pride::concat("optimizer: virtual_workers = ", workers, " on a communicator of size ",
                        world.size(), ", must be 1: one process runs all virtual workers"));
    }
    const bool on_device = all.device != nullptr;
    std::unique_ptr<pride::Replica> made;
    if (workers == 0) {
      made = std::make_unique<pride::Optimizer>(world, tensors, std::move(all));
    } else {
      made = std::make_unique<pride::VirtualWorkers>(tensors, std::move(all),
                                                     pride::VirtualWorkersOptions{workers});
    }
    *out = new pride_optimizer{.replica = std::move(made), .comm = &world, .on_device = on_device};
  });
}

void pride_optimizer_destroy(pride_optimizer* optimizer) {
  if (optimizer == nullptr) return;
  if (optimizer->finishing.valid()) {
    if (optimizer->comm)
      optimizer->comm->fail("the optimizer was destroyed in the middle of a step");
    if (optimizer->coordinator) optimizer->coordinator->interrupt();
    optimizer->finishing.wait();
  }
  delete optimizer;
}

int pride_optimizer_set_parameters(pride_optimizer* optimizer, const pride_array* params,
                                   uint64_t n) {
  return guarded([&] {
    pride::Replica& all = idle(optimizer);
    const auto& tensors = all.layout().tensors();
    PRIDE_CHECK(n == tensors.size() && params != nullptr, "params: ", n,
                " tensors given, the layout has ", tensors.size());
    std::vector<pride::Tensor> given;
    for (uint64_t i = 0; i < n; ++i) {
      given.push_back(tensor_of(*optimizer, params[i], tensors[i].spec.name.c_str()));
    }
    all.place(std::span<const pride::Tensor>(given));
    optimizer->params = std::move(given);
  });
}

int pride_optimizer_set_frozen(pride_optimizer* optimizer, const uint8_t* frozen) {
  return guarded([&] {
    pride::Replica& all = idle(optimizer);
    const std::size_t n = frozen == nullptr ? 0 : all.layout().tensors().size();
    all.set_frozen({flags_of(frozen, n).get(), n});
  });
}

int pride_optimizer_set_gradient_factor(pride_optimizer* optimizer, float factor) {
  return guarded([&] { idle(optimizer).set_gradient_factor(factor); });
}

int pride_optimizer_set_stream(pride_optimizer* optimizer, void* stream) {
  return guarded([&] { unlocked(optimizer).set_stream(stream); });
}

int pride_optimizer_hash(pride_optimizer* optimizer, uint64_t* out) {
  return guarded([&] { given(out, "out") = idle(optimizer).hash(params_of(*optimizer, nullptr)); });
}

int pride_optimizer_read(const pride_optimizer* optimizer, uint64_t tensor, uint64_t begin,
                         uint64_t n, float* values) {
  return guarded([&] {
    PRIDE_CHECK(n == 0 || values != nullptr, n, " values at NULL");
    idle(optimizer).read(tensor, begin, std::span(values, n));
  });
}

int pride_optimizer_set_group(pride_optimizer* optimizer, int32_t group,
                              const pride_group* values) {
  return guarded([&] { idle(optimizer).set_group(group_of(given(values, "values")), group); });
}

int pride_optimizer_get_group(const pride_optimizer* optimizer, int32_t group,
                              pride_group* values) {
  return guarded([&] {
    given(values, "values") = group_of(given(optimizer, "optimizer").replica->group(group));
  });
}

int pride_optimizer_add(pride_optimizer* optimizer, const pride_layout* layout,
                        const pride_group* groups, uint64_t n_groups) {
  return guarded([&] {
    auto tensors = specs_of(given(layout, "layout").layout);
    PRIDE_CHECK(n_groups == 0 || groups != nullptr, n_groups, " groups at NULL");
    std::vector<pride::ParamGroup> more;
    for (std::uint64_t g = 0; g < n_groups; ++g) more.push_back(group_of(groups[g]));
    if (auto* const workers = door<pride::VirtualWorkers>(optimizer)) {
      workers->add(std::move(tensors), std::move(more));
    } else {
      auto* const all = door<pride::Optimizer>(optimizer);
      PRIDE_CHECK(all != nullptr,
                  "optimizer: add() is not supported with a coordinator: its run has the tensors "
                  "that it began with");
      all->add(std::move(tensors), std::move(more));
    }
    optimizer->buffers.clear();
    optimizer->params.clear();
  });
}

int pride_optimizer_broadcast(pride_optimizer* optimizer, const pride_array* params) {
  return guarded([&] {
    pride::Replica& all = idle(optimizer);
    const pride::Parameters here = params_of(*optimizer, params);
    if (auto* const worker = door<pride::RunWorker>(optimizer)) return worker->join(here);
    if (auto* const ranks = door<pride::Optimizer>(optimizer)) return ranks->broadcast(here);
    all.place(here);  // one process has all virtual workers
  });
}

int pride_optimizer_to_common(const pride_optimizer* optimizer, const pride_array* params) {
  return guarded([&] { idle(optimizer).to_common(params_of(*optimizer, params)); });
}

int pride_optimizer_to_local(const pride_optimizer* optimizer, const pride_array* params) {
  return guarded([&] { idle(optimizer).to_local(params_of(*optimizer, params)); });
}

int pride_optimizer_routes(const pride_optimizer* optimizer, const char** text) {
  thread_local std::string routes;
  return guarded([&] {
    given(text, "text") = "";
    routes.clear();
    for (const auto& [name, n] : unlocked(optimizer).routes()) {
      routes += pride::concat(routes.empty() ? "" : ", ", name, " (", n,
                              n == 1 ? " bucket)" : " buckets)");
    }
    *text = routes.c_str();
  });
}

const char* pride_optimizer_note(const pride_optimizer* optimizer) {
  return optimizer ? optimizer->note.c_str() : "";
}

int64_t pride_optimizer_period(const pride_optimizer* optimizer) {
  return optimizer == nullptr ? -1 : optimizer->replica->method().period;
}

int64_t pride_optimizer_steps_done(const pride_optimizer* optimizer) {
  if (optimizer == nullptr) return -1;
  return optimizer->finishing.valid() ? optimizer->steps_done : optimizer->replica->steps_done();
}

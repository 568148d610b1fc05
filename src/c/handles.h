// Shared by the files of the C interface: the handles, and the conversion of exceptions to codes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <future>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "pride/c/pride.h"
#include "pride/coordinator.h"
#include "pride/error.h"
#include "pride/layout.h"
#include "pride/optimizer.h"
#include "pride/result_follower.h"
#include "pride/run_worker.h"
#include "pride/virtual_workers.h"

struct pride_layout {
  pride::Layout layout;
};

struct pride_comm {
  std::unique_ptr<pride::Communicator> comm;
};

struct pride_coordinator {
  std::shared_ptr<pride::CoordinatorClient> client;
};

struct pride_device {
  std::shared_ptr<pride::Device> device;
  std::string name;
};

// The gradients of a step in parts, for a door that takes all at once.
struct pride_gradients {
  bool begun = false;
  std::optional<pride::Parameters> params = {};
  std::optional<pride::ConstTensor> flat = {};
  std::vector<pride::ConstTensor> each = {};
  std::vector<char> reported = {};
};

// One of the front doors.
struct pride_optimizer {
  std::unique_ptr<pride::Replica> replica;
  pride::Communicator* comm = nullptr;                                 // of an Optimizer
  std::shared_ptr<pride::CoordinatorClient> coordinator = nullptr;     // of a RunWorker
  std::vector<std::unique_ptr<pride::ResultFollower>> followers = {};  // by part
  std::vector<pride::StateBuffer> buffers = {};  // the texts of pride_optimizer_state_buffer()
  std::vector<pride::Tensor> params = {};        // of pride_optimizer_set_parameters()
  pride_gradients gradients = {};                // of a RunWorker
  bool on_device = false;
  std::string note = {};
  std::optional<pride::RoundReport> round = {};   // of the last step
  std::int64_t steps_done = 0;                    // when `finishing` began
  std::future<pride::StepReport> finishing = {};  // last: its thread uses the optimizer
};

struct pride_memory {
  std::vector<pride::StateBuffer> buffers;
};

struct pride_state {
  explicit pride_state(pride::StateDict made = {}) : state(std::move(made)) {
    for (const auto& entry : state.tensors) tensors.push_back(&entry);
  }

  pride::StateDict state;
  // its tensors by index: to walk the map for each would take the square of their number
  std::vector<const decltype(pride::StateDict::tensors)::value_type*> tensors;
};

namespace pride::c {

inline constexpr double kNotSet = std::numeric_limits<double>::quiet_NaN();

// Keeps the text for pride_last_error().
int failed(int code, const char* text) noexcept;

// Runs the body of an exported function.
template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return PRIDE_OK;
  } catch (const InvalidArgument& e) {
    return failed(PRIDE_INVALID, e.what());
  } catch (const CommError& e) {
    return failed(PRIDE_COMM_ERROR, e.what());
  } catch (const NonFiniteGradient& e) {
    return failed(PRIDE_NON_FINITE, e.what());
  } catch (const DataError& e) {
    return failed(PRIDE_DATA_ERROR, e.what());
  } catch (const OutOfMemory& e) {
    return failed(PRIDE_NO_DEVICE_MEMORY, e.what());
  } catch (const std::bad_alloc&) {
    return failed(PRIDE_NO_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return failed(PRIDE_INTERNAL_ERROR, e.what());
  } catch (...) {
    return failed(PRIDE_INTERNAL_ERROR, "an exception of unknown type");
  }
}

template <typename T>
const T& given(const T* pointer, const char* name) {
  PRIDE_CHECK(pointer != nullptr, name, " is NULL");
  return *pointer;
}
template <typename T>
T& given(T* pointer, const char* name) {
  PRIDE_CHECK(pointer != nullptr, name, " is NULL");
  return *pointer;
}

// Throws InvalidArgument while a step is being finished on a thread.
Replica& unlocked(const pride_optimizer* optimizer);
// Also in a coordinator's worker's step in parts, of which the RunWorker does not know.
Replica& idle(const pride_optimizer* optimizer);
// The same; null if it is another front door.
template <typename Door>
Door* door(const pride_optimizer* optimizer) {
  return dynamic_cast<Door*>(&idle(optimizer));
}

// ---- Arguments.

Tensor tensor_of(const pride_optimizer& optimizer, const pride_array& array, const char* name);
ConstTensor gradient_of(const pride_optimizer& optimizer, const pride_array& array);
// The caller's flat buffer; NULL: the tensors of pride_optimizer_set_parameters().
Parameters params_of(const pride_optimizer& optimizer, const pride_array* array);
Gradients grads_of(const pride_optimizer& optimizer, const pride_array* array);
std::unique_ptr<bool[]> flags_of(const std::uint8_t* flags, std::size_t n);  // NULL: none is set

DType dtype_of(const pride_array& array, const char* name);
TensorSpec spec_of(const pride_tensor& tensor);
std::vector<TensorSpec> specs_of(const Layout& layout);
std::vector<TensorSpec> specs_of(const pride_tensor* tensors, const std::uint64_t* first_coords,
                                 std::uint64_t n);
ParamGroup group_of(const pride_group& values);
pride_group group_of(const ParamGroup& values);
Orthogonalise orthogonalise_of(pride_orthogonalise function, void* user);
OptimizerOptions options_of(const pride_options& given, int world);
int virtual_workers_of(const pride_options& given);

}  // namespace pride::c

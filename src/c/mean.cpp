// The mean of gradients of the C interface.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "c/handles.h"
#include "pride/gradient_mean.h"

struct pride_mean {
  pride_mean(pride::Communicator& comm, const pride::GradientMeanOptions& options)
      : on_device(options.device != nullptr), mean(comm, options) {}
  bool on_device;
  pride::GradientMean mean;
  std::atomic<std::uint64_t> sent = 0;
};

using namespace pride::c;

int pride_mean_create(pride_comm* comm, const char* dense, pride_device* device, pride_mean** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    pride::GradientMeanOptions options{.dense = &given(dense, "dense")};
    if (device != nullptr) options.device = device->device;
    *out = new pride_mean(*given(comm, "comm").comm, options);
  });
}

void pride_mean_destroy(pride_mean* mean) { delete mean; }

int pride_mean_run(pride_mean* mean, const pride_array* values, const uint64_t* sizes,
                   uint64_t n_sizes, int32_t* finite) {
  return guarded([&] {
    pride_mean& of = given(mean, "mean");
    const pride_array& array = given(values, "values");
    PRIDE_CHECK((array.device != PRIDE_CPU) == of.on_device, "values: on ",
                array.device == PRIDE_CPU ? "the host" : "a device", ", the mean takes ",
                of.on_device ? "its device" : "the host");
    const std::vector<std::size_t> each(sizes, sizes == nullptr ? sizes : sizes + n_sizes);
    const bool good =
        of.mean.run({array.data, array.n, dtype_of(array, "values")}, each, array.stream);
    of.sent = of.mean.bytes_sent();
    if (finite != nullptr) *finite = good ? 1 : 0;
  });
}

uint64_t pride_mean_bytes_sent(const pride_mean* mean) {
  return mean == nullptr ? 0 : mean->sent.load();
}

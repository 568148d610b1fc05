// A method's arithmetic on a GPU, from the GPU's rates; and a planned step on another network.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "pride/error.h"
#include "pride/plan.h"

namespace pride {
namespace {

constexpr double kFloat = sizeof(float);

}  // namespace

bool is_uncompressed(const PlanMethod& method, int world) {
  const MethodInfo info = method_info(method.name, world, method.options);
  return info.period == 1 && info.link_bits_up >= 16;  // bfloat16
}

MethodModel on_device(const DeviceModel& device, MethodModel model, const PlanMethod& method,
                      int world, double d, double operations) {
  PRIDE_CHECK(device.bytes_per_s > 0 && device.host_bytes_per_s > 0,
              "plan: the device's rates are ", device.bytes_per_s, " and ", device.host_bytes_per_s,
              " bytes per second, must be above 0");
  const MethodInfo info = method_info(method.name, world, method.options);
  const auto copied = [&](double bytes) { return d * bytes / device.host_bytes_per_s; };
  const bool dense = is_uncompressed(method, world);
  if (!dense && !why_host_only(method.name, method.options).empty()) {
    model.encode_s += copied(kFloat);
    model.apply_s += copied(kFloat);
    if (model.period > 1) model.local_s += copied(2 * kFloat);
    return model;
  }
  PRIDE_CHECK(operations == 0 || device.operations_per_s > 0, "plan: ", method.name,
              " multiplies matrices: give the device's multiplications and additions per second "
              "(--device-operations; in Python DeviceRates.operations)");
  const auto moved = [&](double bytes) { return d * bytes / device.bytes_per_s; };
  const double state = 2 * state_of(method.name, Layout({{"w", {1}}}), method.options).bytes,
               parameter = 2 * kFloat;
  model.matrix_s = operations > 0 ? operations / device.operations_per_s : 0;
  model.local_s = model.period > 1 ? moved(kFloat + state + parameter) + model.matrix_s : 0;
  if (dense) {
    model.encode_s = model.matrix_s;
    model.vote_s = moved(2 * kFloat);
    model.apply_s = moved(kFloat + state + parameter);
    return model;
  }
  model.encode_s = moved(kFloat * (model.whole_gradient ? 2 : 1) + state) +
                   copied(info.link_bits_up / 8) + model.matrix_s;
  model.apply_s = moved(parameter) + copied(info.link_bits_down / 8);
  return model;
}

double step_on(const NetworkModel& network, const PlanFacts& facts, const PlanRow& row) {
  const StepModel step{.world = facts.world,
                       .compute_s = facts.compute_s,
                       .buckets = row.buckets,
                       .exchange_threads = facts.exchange_threads,
                       .cores = facts.cores};
  return std::min(predict(network, row.method, step, false).step_s,
                  predict(network, row.method, step, true).step_s);
}

}  // namespace pride

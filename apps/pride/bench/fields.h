// Rows of the benchmarks of methods and kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "bench/device/gpu.h"
#include "bench/exchange.h"
#include "bench/kernels/measure.h"
#include "pride/communicator.h"
#include "pride/device.h"
#include "program/bench/fields.h"

namespace pride::app {

Fields fields_of(const Communicator& comm, const ExchangeCell& cell);
// `base`: the reference row.
Fields optimizer_fields(const Communicator& comm, const StepRow& row, const StepRow& base,
                        std::size_t coords);
Fields fields_of(const KernelCell& cell);
Fields fields_of(const CopyRates& rates, const std::string& gpu);  // JSON only
std::string rates_text(const CopyRates& rates, const std::string& gpu);
Fields fields_of(const GpuCell& cell);

}  // namespace pride::app

// Rows of `pride bench` as JSON lines or as a table: each field is described once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/device/gpu.h"
#include "bench/exchange.h"
#include "bench/kernels/measure.h"
#include "bench/loader.h"
#include "bench/network.h"
#include "pride/communicator.h"
#include "pride/device.h"

namespace pride::app {

struct Field {
  std::string key;  // in JSON; empty: in the table only
  nlohmann::ordered_json value = {};
  std::string head = {};  // of the column; empty: in JSON only
  int width = 0;          // of the column; negative: flush left
  std::string text = {};  // in the table; empty: the value
};
using Fields = std::vector<Field>;

Fields fields_of(const Communicator& comm, const NetworkFacts& facts);  // JSON only
std::string network_text(const Communicator& comm, const NetworkFacts& facts);
Fields fields_of(const Communicator& comm, const PatternCell& cell);
Fields fields_of(const Communicator& comm, const ExchangeCell& cell);
// `base`, `backward`: the reference row.
Fields optimizer_fields(const Communicator& comm, const StepRow& row, const StepRow& base,
                        std::size_t coords);
Fields step_fields(const Communicator& comm, const StepRow& row, const StepRow& backward);
Fields fields_of(const KernelCell& cell);
Fields fields_of(const CopyRates& rates, const std::string& gpu);  // JSON only
std::string rates_text(const CopyRates& rates, const std::string& gpu);
Fields fields_of(const GpuCell& cell);
Fields fields_of(const LoaderRow& row);

// Prints each row immediately, and a table's head before its first row.
class RowPrinter {
 public:
  explicit RowPrinter(bool json, bool silent = false) : json_(json), silent_(silent) {}

  void row(const Fields& fields);
  void note(const std::string& text);  // only with a table

 private:
  bool json_, silent_;
  std::string head_ = {};  // printed last
};

}  // namespace pride::app

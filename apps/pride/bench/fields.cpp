// The fields of each kind of row.
// SPDX-License-Identifier: Apache-2.0
#include "bench/fields.h"

#include "pride/error.h"
#include "program/json.h"
#include "program/table.h"

namespace pride::app {

using Json = nlohmann::ordered_json;

Fields fields_of(const Communicator& comm, const ExchangeCell& cell) {
  std::optional<double> limit_s, times_limit;
  if (comm.size() > 1) limit_s = cell.limit_s;
  if (cell.limit_s > 0) times_limit = cell.times.median_s / cell.limit_s;
  return kind_field("exchange") +
         Fields{{"name", cell.name, "exchange", -24}, {"coords", cell.coords, "coordinates", 13}} +
         rank_fields(comm) + time_fields(cell.times, "ms") +
         Fields{{"bytes_sent", cell.bytes, "bytes sent", 14,
                 (cell.counted ? "" : "~") + grouped(cell.bytes)},
                {"bytes_counted", cell.counted},
                {"route", cell.route.empty() ? Json(nullptr) : Json(cell.route), "route", -12},
                {"bytes_off_node", or_null(cell.bytes_off_node), "off a node", 14}} +
         bandwidth_fields(cell.algorithm_bandwidth(), cell.bus_bandwidth()) +
         Fields{{"limit_s", or_null(limit_s)},
                {"times_limit", or_null(times_limit), "x limit", 8,
                 times_limit ? decimals(*times_limit, 2) : "-"}} +
         wrong_field(cell.wrong_ranks) + Fields{{"checked_against", cell.checked_against}};
}

Fields optimizer_fields(const Communicator& comm, const StepRow& row, const StepRow& base,
                        std::size_t coords) {
  const char* name = base.name == kNoExchange ? "alone" : "copy";
  return kind_field("optimizer") + Fields{{"coords", coords, "coordinates", 13}} +
         step_fields(comm, row, name, base.times.median_s);
}

Fields fields_of(const KernelCell& cell) {
  const Times& copy = cell.memcpy_times;
  return kind_field("kernel") +
         Fields{{"name", cell.name, "kernel", -42},
                {"coords", cell.coords, "coordinates", 13},
                {"isa", cell.isa.empty() ? Json(nullptr) : Json(cell.isa), "isa", -8}} +
         time_fields(cell.times, "us") +
         Fields{
             {"bytes_moved", cell.bytes},
             {"bytes_per_s", cell.bytes_per_s(), "GB/s", 8, decimals(cell.bytes_per_s() * 1e-9, 2)},
             {"memcpy_min_s", copy.min_s},
             {"memcpy_median_s", copy.median_s},
             {"memcpy_p99_s", copy.p99_s},
             {"times_memcpy", cell.of_memcpy(), "x memcpy", 9, decimals(cell.of_memcpy(), 2)},
             {"wrong_values", or_null(cell.wrong_values), "wrong", 8},
             {"checked_against", cell.wrong_values ? Json("SCALAR") : Json(nullptr)}};
}

Fields fields_of(const CopyRates& rates, const std::string& gpu) {
  return kind_field("gpu copies") + Fields{{"gpu", gpu},
                                           {"memory_bytes_per_s", rates.memory},
                                           {"to_host_bytes_per_s", rates.to_host},
                                           {"from_host_bytes_per_s", rates.from_host}};
}

std::string rates_text(const CopyRates& rates, const std::string& gpu) {
  const auto gigabytes = [](double rate) { return decimals(rate * 1e-9, 1) + " GB/s"; };
  return concat(gpu, ": copies within its memory ", gigabytes(rates.memory),
                ", read and written; to the host ", gigabytes(rates.to_host), ", from there ",
                gigabytes(rates.from_host));
}

Fields fields_of(const GpuCell& cell) {
  return kind_field("gpu kernel") +
         Fields{{"name", cell.name, "kernel", -18},
                {"dtype", cell.dtype, "dtype", -8},
                {"coords", cell.coords, "coordinates", 13}} +
         time_fields(cell.times, "us") +
         Fields{
             {"bytes_moved", cell.bytes},
             {"bytes_per_s", cell.bytes_per_s(), "GB/s", 8, decimals(cell.bytes_per_s() * 1e-9, 1)},
             {"times_copy", cell.of_copy(), "of copy", 8, decimals(cell.of_copy(), 3)},
             {"wrong_arrays", cell.wrong_arrays, "wrong", 6}};
}

}  // namespace pride::app

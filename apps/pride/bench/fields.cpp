// The fields of each kind of row, and their printing.
// SPDX-License-Identifier: Apache-2.0
#include "bench/fields.h"

#include <cstdlib>
#include <iostream>

#include "plan/units.h"
#include "pride/error.h"
#include "text/json.h"
#include "text/table.h"

namespace pride::app {
namespace {

std::string text_of(const Field& field) {
  const auto& value = field.value;
  if (!field.text.empty()) return field.text;
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value ? "yes" : "no";
  return value.is_string() ? value.get<std::string>() : grouped(value.get<double>());
}

std::string cell(const std::string& text, int width) {
  return padded(text, static_cast<std::size_t>(std::abs(width)), width > 0);
}

std::string time_in(const std::string& unit, double seconds) {
  if (unit == "us") return decimals(seconds * 1e6, 2);
  return unit == "ms" ? decimals(seconds * 1e3, 3) : time_text(seconds);
}

using Json = nlohmann::ordered_json;

Fields operator+(Fields a, const Fields& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Fields kind_field(const char* kind) { return {{"row", kind}}; }

Fields rank_fields(const Communicator& comm) {
  return {{"workers", comm.size()}, {"transport", comm.transport()}};
}

Fields time_fields(const Times& times, const std::string& unit) {
  const auto field = [&](const char* key, const std::string& head, double seconds) {
    return Field{key, seconds, unit.empty() ? head : head + " " + unit, 10, time_in(unit, seconds)};
  };
  return {{"measurements", times.n},
          field("min_s", "min", times.min_s),
          field("median_s", "median", times.median_s),
          field("p99_s", "p99", times.p99_s)};
}

Fields bandwidth_fields(double algorithm, double bus) {
  return {{"algorithm_bytes_per_s", algorithm, "algorithm", 14, bandwidth_text(algorithm)},
          {"bus_bytes_per_s", bus, "bus", 14, bandwidth_text(bus)}};
}

Fields wrong_field(int ranks) { return {{"wrong_ranks", ranks, "wrong", 6}}; }

// `base`: the name of the reference row.
Fields common_step_fields(const Communicator& comm, const StepRow& row, const char* base,
                          double base_s) {
  const auto ms = [](const char* key, const char* head, double seconds) {
    return Field{key, seconds, head, 10, decimals(seconds * 1e3, 3)};
  };
  const double times_base = row.times.median_s / base_s;
  return Fields{{"name", row.name, "step", -24}, {"overlap", row.overlap, "overlap", 7}} +
         rank_fields(comm) + time_fields(row.times, "ms") +
         Fields{
             {"bucket_coords", row.bucket_coords},
             ms("encode_s", "encode ms", row.encode_s),
             ms("exchange_s", "wait ms", row.exchange_s),
             ms("apply_s", "apply ms", row.apply_s),
             {concat("times_", base), times_base, concat("x ", base), 10, decimals(times_base, 2)},
             {"bytes_sent", row.bytes, "bytes sent", 14},
             {"wrong_ranks", or_null(row.wrong_ranks), "wrong", 6}};
}

}  // namespace

void RowPrinter::row(const Fields& fields) {
  nlohmann::ordered_json json;
  std::string head, line;
  for (const Field& field : fields) {
    if (!field.key.empty()) json[field.key] = field.value;
    if (field.head.empty()) continue;
    const char* gap = head.empty() ? "" : " ";
    head += gap + cell(field.head, field.width);
    line += gap + cell(text_of(field), field.width);
  }
  if (silent_) return;
  if (json_) {
    std::cout << json << std::endl;
    return;
  }
  if (head.empty()) return;
  if (head != head_) std::cout << head << "\n";
  head_ = head;
  std::cout << line << std::endl;
}

void RowPrinter::note(const std::string& text) {
  if (!silent_ && !json_) std::cout << text << std::endl;
}

Fields fields_of(const Communicator& comm, const NetworkFacts& facts) {
  return kind_field("network") + rank_fields(comm) +
         Fields{{"latency_s", facts.latency_s},
                {"message_s", facts.message_s},
                {"goodput_bytes_per_s", facts.goodput},
                {"cpu_s_per_byte", facts.cpu_s_per_byte},
                {"pair_goodput_bytes_per_s", facts.pair_goodput}};
}

std::string network_text(const Communicator& comm, const NetworkFacts& facts) {
  const std::string ranks = concat(comm.size(), " ranks (", comm.transport(), "): ");
  if (comm.size() == 1) return ranks + "one rank has no network";
  return concat(ranks, "latency ", time_text(facts.latency_s), " one way, goodput ",
                bandwidth_text(facts.goodput), " a rank when all send to all, ",
                bandwidth_text(facts.pair_goodput), " from the first to the last");
}

Fields fields_of(const Communicator& comm, const PatternCell& cell) {
  return kind_field("pattern") +
         Fields{{"name", cell.name, "pattern", -12}, {"bytes", cell.bytes, "bytes", 14}} +
         rank_fields(comm) + time_fields(cell.times, "") +
         bandwidth_fields(cell.algorithm_bandwidth(), cell.bus_bandwidth()) +
         wrong_field(cell.wrong_ranks);
}

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
         common_step_fields(comm, row, name, base.times.median_s);
}

Fields step_fields(const Communicator& comm, const StepRow& row, const StepRow& backward) {
  return kind_field("step") + common_step_fields(comm, row, "backward", backward.times.median_s) +
         Fields{
             {"samples_per_s", row.samples_per_s, "samples/s", 12, decimals(row.samples_per_s, 1)}};
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

Fields fields_of(const LoaderRow& row) {
  const double rate = static_cast<double>(row.images) / row.seconds;
  const double bytes = static_cast<double>(row.bytes) / row.seconds;
  const auto number = [](const char* key, const char* head, double value) {
    return Field{key, value, head, 10, decimals(value, 1)};
  };
  return kind_field("loader") +
         Fields{{"threads", row.threads, "threads", 7},
                {"images", row.images, "images", 9},
                {"seconds", row.seconds},
                number("images_per_s", "images/s", rate),
                number("images_per_s_and_thread", "per thread", rate / row.threads),
                {"bytes_per_s", bytes, "MB/s", 8, decimals(bytes * 1e-6, 1)},
                number("decode_ms", "decode ms", row.decode_ms),
                number("view_ms", "crop ms", row.view_ms)};
}

}  // namespace pride::app

// The fields of each kind of row, and their printing.
// SPDX-License-Identifier: Apache-2.0
#include "program/bench/fields.h"

#include <cstdlib>
#include <iostream>

#include "pride/error.h"
#include "program/json.h"
#include "program/table.h"
#include "program/units.h"

namespace pride::inline program {
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

}  // namespace

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

Fields step_fields(const Communicator& comm, const StepRow& row, const char* base, double base_s) {
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

}  // namespace pride::inline program

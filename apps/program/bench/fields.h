// Rows of `pride bench` as JSON lines or as a table: each field is described once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pride/communicator.h"
#include "program/bench/network.h"
#include "program/bench/timing.h"

namespace pride::inline program {

struct Field {
  std::string key;  // in JSON; empty: in the table only
  nlohmann::ordered_json value = {};
  std::string head = {};  // of the column; empty: in JSON only
  int width = 0;          // of the column; negative: flush left
  std::string text = {};  // in the table; empty: the value
};
using Fields = std::vector<Field>;
Fields operator+(Fields a, const Fields& b);

// Parts of rows.
Fields kind_field(const char* kind);
Fields rank_fields(const Communicator& comm);
Fields time_fields(const Times& times, const std::string& unit);
Fields bandwidth_fields(double algorithm, double bus);
Fields wrong_field(int ranks);
// `base`: the name of the reference row.
Fields step_fields(const Communicator& comm, const StepRow& row, const char* base, double base_s);

Fields fields_of(const Communicator& comm, const NetworkFacts& facts);  // JSON only
std::string network_text(const Communicator& comm, const NetworkFacts& facts);
Fields fields_of(const Communicator& comm, const PatternCell& cell);

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

}  // namespace pride::inline program

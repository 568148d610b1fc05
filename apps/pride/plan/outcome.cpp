// Tables, verdicts and charts of plans.
// SPDX-License-Identifier: Apache-2.0
#include "plan/outcome.h"

#include <cmath>
#include <fstream>
#include <iostream>

#include "plan/scaling.h"
#include "plan/units.h"
#include "pride/error.h"
#include "report/svg.h"
#include "text/table.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kWorthIt = 1.03;  // times the steps per second of the fastest dense method

const PlanRow* best_of(const std::vector<PlanRow>& rows, bool dense) {
  const PlanRow* best = nullptr;
  for (const PlanRow& row : rows) {
    if (row.dense == dense && (best == nullptr || row.best_s() < best->best_s())) best = &row;
  }
  return best;
}

Json row_json(const PlanRow& row, const PlanFacts& facts) {
  return {{"row", "plan"},
          {"name", row.method.name},
          {"bytes_sent", row.method.bytes},
          {"in_order_s", row.in_order.step_s},
          {"overlapped_s", row.overlapped.step_s},
          {"network_s", row.in_order.network_s},
          {"arithmetic_s", row.in_order.arithmetic_s},
          {"newton_schulz_s", row.method.matrix_s},
          {"no_network_s", row.no_network_s},
          {"hidden_s", row.overlapped.hidden_s},
          {"bottleneck", row.overlapped.bottleneck},
          {"bucket_coords", std::ceil(facts.params / row.buckets)},
          {"route", row.route},
          {"rounds", row.method.rounds}};
}

std::vector<WorldSteps> steps_of(const std::vector<Plan>& plans) {
  std::vector<WorldSteps> worlds;
  for (const Plan& plan : plans) {
    worlds.push_back({plan.facts.world});
    for (const PlanRow& row : plan.rows) worlds.back().step_s.push_back(row.best_s());
  }
  return worlds;
}

std::string title_of(const PlanFacts& facts) {
  return concat(grouped(facts.params), " parameters, ", time_text(facts.compute_s),
                " forward and backward, ", bandwidth_text(facts.network.bytes_per_s));
}

std::string number(double times) { return concat(std::round(times * 100) / 100); }

std::string arithmetic_text(const PlanRow& row) {
  const double matrix_s = row.method.matrix_s;
  return concat(row.method.name, " computes ", time_text(row.in_order.arithmetic_s),
                matrix_s > 0 ? concat(" (Newton-Schulz: ", time_text(matrix_s), ")") : "");
}

}  // namespace

std::string verdict(const Plan& plan) {
  const auto& [facts, rows] = plan;
  const PlanRow* dense = best_of(rows, true);
  const PlanRow* small = best_of(rows, false);
  if (dense == nullptr || small == nullptr) return "";
  const double gain = dense->best_s() / small->best_s();
  const double by_arithmetic = dense->no_network_s / small->no_network_s;
  const double by_network = gain / by_arithmetic;
  const std::string gain_text = number(gain);
  std::string text;
  if (gain >= kWorthIt && by_network >= kWorthIt) {
    const auto coords = grouped(std::ceil(facts.params / small->buckets));
    text = concat("Compression pays: ", small->method.name, " in buckets of ", coords,
                  " coordinates makes ", gain_text, " times the steps per second of ",
                  dense->method.name, ".");
  } else if (gain >= kWorthIt) {
    text = concat("Compression will not help here: ", small->method.name, " makes ", gain_text,
                  " times the steps per second of ", dense->method.name,
                  ", but by its arithmetic, not by its bytes.");
  } else {
    text = concat("Compression will not help here: ", dense->method.name, " takes ",
                  time_text(dense->best_s()), " a step, of which forward and backward are ",
                  time_text(facts.compute_s), "; the best compressed method (", small->method.name,
                  ") makes ", gain_text, " times its steps per second",
                  by_arithmetic * kWorthIt <= 1 ? ", for its arithmetic." : ".");
  }
  if (std::max(by_arithmetic, 1 / by_arithmetic) < kWorthIt) return text;
  return concat(text, " On a network that takes no time it would make ", number(by_arithmetic),
                " times as many: ", arithmetic_text(*small), ", ", arithmetic_text(*dense),
                " a step.");
}

void print(const Plan& plan) {
  const auto& [facts, rows] = plan;
  std::cout << facts.world << " ranks, " << grouped(facts.params)
            << " parameters, forward and backward " << time_text(facts.compute_s) << "; network "
            << (facts.transport.empty() ? "as given" : "measured over " + facts.transport) << ": "
            << time_text(facts.network.latency_s) << " latency, "
            << (facts.world == 1 ? "none" : bandwidth_text(facts.network.bytes_per_s))
            << " goodput a rank\n\n";
  const PlanRow* dense = best_of(rows, true);
  std::vector<std::vector<std::string>> table = {{"method", "bytes sent per step", "in order",
                                                  "overlapped", "steps/s against dense", "bucket",
                                                  "route", "bottleneck"}};
  for (const PlanRow& row : rows) {
    const double gain = dense == nullptr ? 0 : dense->best_s() / row.best_s();
    table.push_back({row.method.name, grouped(row.method.bytes), time_text(row.in_order.step_s),
                     time_text(row.overlapped.step_s),
                     dense == nullptr ? "-" : concat(std::round(gain * 100) / 100),
                     grouped(std::ceil(facts.params / row.buckets)), row.route,
                     row.overlapped.bottleneck});
  }
  std::cout << markdown_table(table, 1) << '\n' << verdict(plan) << '\n';
}

nlohmann::ordered_json to_json(const Plan& plan) {
  const PlanFacts& facts = plan.facts;
  Json all = {{"workers", facts.world},
              {"params", facts.params},
              {"compute_s", facts.compute_s},
              {"cores_per_rank", facts.cores},
              {"latency_s", facts.network.latency_s},
              {"message_s", facts.network.message_s},
              {"goodput_bytes_per_s", facts.network.bytes_per_s},
              {"cpu_s_per_byte", facts.network.cpu_s},
              {"measured_over", facts.transport},
              {"methods", Json::array()},
              {"verdict", verdict(plan)}};
  for (const PlanRow& row : plan.rows) all["methods"].push_back(row_json(row, facts));
  return all;
}

void print_scaling(const std::vector<Plan>& plans, const std::vector<std::string>& methods) {
  const PlanFacts& facts = plans.front().facts;
  std::cout << title_of(facts) << " goodput a rank, " << time_text(facts.network.latency_s)
            << " latency: step time (share of forward and backward)\n\n"
            << scaling_table(methods, facts.compute_s, steps_of(plans)) << '\n';
  for (const Plan& plan : plans) {
    std::cout << grouped(plan.facts.world) << " ranks: " << verdict(plan) << '\n';
  }
}

void write_svg(const std::vector<Plan>& plans, const std::vector<std::string>& methods,
               const std::string& file) {
  const PlanFacts& facts = plans.front().facts;
  std::ofstream out(file, std::ios::binary);
  out << svg_file(scaling_chart(title_of(facts), methods, facts.compute_s, steps_of(plans)));
  out.close();
  if (!out) throw DataError(concat(file, ": cannot write"));
}

}  // namespace pride::app

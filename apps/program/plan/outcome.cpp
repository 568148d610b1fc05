// Tables, verdicts and charts of plans.
// SPDX-License-Identifier: Apache-2.0
#include "program/plan/outcome.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <utility>

#include "pride/error.h"
#include "program/plan/fewer_bits.h"
#include "program/svg.h"
#include "program/table.h"
#include "program/units.h"

namespace pride::inline program {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kWorthIt = 1.03;  // times the steps per second of the fastest dense method
constexpr double kFastest = 1e14;  // bytes per second; no link is faster

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
          {"phases", row.method.phases}};
}

// Share of forward and backward in a step, in per cent: 100 for one rank and a method without
// arithmetic. Batch and work per rank are fixed (weak scaling).
double efficiency(const PlanFacts& facts, const PlanRow& row) {
  return 100 * facts.compute_s / row.best_s();
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

std::string measured_text(const Measured& on) {
  return concat(on.ranks, on.ranks == 1 ? " rank with " : " ranks that share ", on.cores,
                on.cores == 1 ? " core" : " cores");
}

// A note if ranks share cores: their steps are slower than on separate machines, so more of the
// network's time hides behind them. Empty otherwise.
std::string measured_note(const Plan& plan) {
  const Measured& on = plan.measured;
  if (on.ranks <= std::max(1, on.cores)) return "";
  return concat("Forward and backward were measured on ", measured_text(on),
                ", and the verdict is for these. For ranks with their own cores give --backward, "
                "or --bandwidth and --latency (one rank is then measured).\n");
}

// A note if backward needs the cores that move bytes: the network was measured between idle ranks.
std::string not_modelled(const PlanFacts& facts) {
  if (facts.cores >= 2 || facts.world == 1) return "";
  return "Not in the model: here backward needs the cores that move bytes. With fewer than two "
         "cores per rank, as here, steps of the methods that send most took up to 1.6 times as "
         "long as predicted. Compression then pays more than this plan says.\n";
}

Json or_null(auto value) { return value > 0 ? Json(value) : Json(nullptr); }

Json fewer_json(const Plan& plan) {
  const FewerBits found = fewer_bits(plan);
  return {{"needed", found.needed}, {"turns", or_null(found.turns)}, {"h", or_null(found.h)}};
}

// A compressed and a dense method, and their step times.
struct Rivals {
  const PlanRow *dense = nullptr, *small = nullptr;
  double dense_s = 0, small_s = 0;

  double gain() const { return dense_s / small_s; }
  double by_arithmetic() const { return dense->no_network_s / small->no_network_s; }
  bool pays() const { return gain() >= kWorthIt && gain() / by_arithmetic() >= kWorthIt; }
};

// The fastest of each at this goodput. REQUIRES: the plan has both.
Rivals rivals_at(const Plan& plan, double bytes_per_s) {
  NetworkModel network = plan.facts.network;
  network.bytes_per_s = bytes_per_s;
  Rivals rivals;
  for (const PlanRow& row : plan.rows) {
    const double seconds = step_on(network, plan.facts, row);
    const PlanRow*& best = row.dense ? rivals.dense : rivals.small;
    double& least = row.dense ? rivals.dense_s : rivals.small_s;
    if (best != nullptr && seconds >= least) continue;
    best = &row;
    least = seconds;
  }
  return rivals;
}

std::string pays_text(const Plan& plan) {
  if (plan.facts.world == 1 || verdict(plan).empty()) return "";
  const double most = pays_up_to(plan);
  if (most == 0) return "It pays on no links, however slow.\n";
  if (most == kFastest) return "It pays on all links, however fast.\n";
  return concat("It pays on links of up to ", bandwidth_text(most), " a rank.\n");
}

}  // namespace

double pays_up_to(const Plan& plan) {
  constexpr double kSlowest = 1e2, kStep = 1.5, kClose = 1.001;
  if (best_of(plan.rows, true) == nullptr || best_of(plan.rows, false) == nullptr) return 0;
  double above = kFastest, at = kFastest;
  while (at > kSlowest && !rivals_at(plan, at).pays()) above = std::exchange(at, at / kStep);
  if (at <= kSlowest) return 0;
  while (above > at * kClose) {
    const double middle = std::sqrt(at * above);
    (rivals_at(plan, middle).pays() ? at : above) = middle;
  }
  return at;
}

std::string notes_on(const Plan& plan) { return measured_note(plan) + not_modelled(plan.facts); }

std::string verdict(const Plan& plan) {
  const auto& [facts, rows, measured, has_groups] = plan;
  const PlanRow* dense = best_of(rows, true);
  const PlanRow* small = best_of(rows, false);
  if (dense == nullptr || small == nullptr) return "";
  const Rivals rivals{dense, small, dense->best_s(), small->best_s()};
  const double gain = rivals.gain(), by_arithmetic = rivals.by_arithmetic();
  const std::string gain_text = number(gain);
  std::string text;
  if (rivals.pays()) {
    const auto coords = grouped(std::ceil(facts.params / small->buckets));
    text = concat("Compression pays: ", small->method.name, " in buckets of ", coords,
                  " coordinates makes ", gain_text, " times the steps per second of ",
                  dense->method.name, ".");
  } else if (gain >= kWorthIt) {
    text = concat("Compression will not help here: ", small->method.name, " makes ", gain_text,
                  " times the steps per second of ", dense->method.name,
                  ", because of its arithmetic, not its bytes.");
  } else {
    text = concat("Compression will not help here: ", dense->method.name, " takes ",
                  time_text(dense->best_s()), " a step, of which forward and backward are ",
                  time_text(facts.compute_s), "; the best compressed method (", small->method.name,
                  ") makes ", gain_text, " times its steps per second",
                  by_arithmetic * kWorthIt <= 1 ? ", because of its arithmetic." : ".");
  }
  if (std::max(by_arithmetic, 1 / by_arithmetic) < kWorthIt) return text;
  return concat(text, " With a network that takes no time it would make ", number(by_arithmetic),
                " times as many: ", arithmetic_text(*small), ", ", arithmetic_text(*dense),
                " a step.");
}

void print(const Plan& plan) {
  const auto& [facts, rows, measured, has_groups] = plan;
  std::cout << facts.world << " ranks, " << grouped(facts.params)
            << " parameters, forward and backward " << time_text(facts.compute_s)
            << (measured.ranks > 0 ? concat(" (measured on ", measured_text(measured), ")") : "")
            << "; network "
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
  std::cout << markdown_table(table, 1) << '\n'
            << verdict(plan) << '\n'
            << pays_text(plan) << advice_on(plan) << notes_on(plan);
}

nlohmann::ordered_json to_json(const Plan& plan) {
  const PlanFacts& facts = plan.facts;
  Json all = {{"workers", facts.world},
              {"params", facts.params},
              {"compute_s", facts.compute_s},
              {"compute_measured_on_ranks", or_null(plan.measured.ranks)},
              {"compute_measured_on_cores", or_null(plan.measured.cores)},
              {"cores_per_rank", facts.cores},
              {"latency_s", facts.network.latency_s},
              {"message_s", facts.network.message_s},
              {"goodput_bytes_per_s", facts.network.bytes_per_s},
              {"cpu_s_per_byte", facts.network.cpu_s},
              {"measured_over", facts.transport},
              {"methods", Json::array()},
              {"device_bytes_per_s", or_null(facts.device.bytes_per_s)},
              {"device_host_bytes_per_s", or_null(facts.device.host_bytes_per_s)},
              {"device_operations_per_s", or_null(facts.device.operations_per_s)},
              {"verdict", verdict(plan)},
              {"pays_up_to_bytes_per_s", or_null(facts.world == 1 ? 0 : pays_up_to(plan))},
              {"fewer_bits", fewer_json(plan)},
              {"notes", notes_on(plan)}};
  for (const PlanRow& row : plan.rows) all["methods"].push_back(row_json(row, facts));
  return all;
}

std::string scaling_table(const std::vector<Plan>& plans) {
  std::vector<std::vector<std::string>> table = {{"ranks"}};
  for (const PlanRow& row : plans.front().rows) table[0].push_back(row.method.name);
  for (const auto& [facts, rows, measured, has_groups] : plans) {
    std::vector<std::string>& line = table.emplace_back(1, grouped(facts.world));
    for (const PlanRow& row : rows) {
      line.push_back(
          concat(time_text(row.best_s()), " (", std::round(efficiency(facts, row)), " %)"));
    }
  }
  return markdown_table(table, 1);
}

Chart scaling_chart(const std::vector<Plan>& plans) {
  PRIDE_CHECK(plans.size() >= 2, "a chart over numbers of ranks needs two of them, not ",
              plans.size());
  Chart chart{.id = "scaling",
              .title = title_of(plans.front().facts),
              .x = {.label = "ranks",
                    .log2 = true,
                    .min = static_cast<double>(plans.front().facts.world),
                    .max = static_cast<double>(plans.back().facts.world)},
              .y = {.label = "forward and backward, % of the step", .min = 0, .max = 100}};
  for (const Plan& plan : plans) {
    chart.x.ticks.push_back(plan.facts.world);
    chart.series.resize(plan.rows.size());
    for (std::size_t m = 0; m < plan.rows.size(); ++m) {
      Series& series = chart.series[m];
      series.name = plan.rows[m].method.name;
      series.color = static_cast<int>(m);
      series.x.push_back(plan.facts.world);
      series.y.push_back(efficiency(plan.facts, plan.rows[m]));
    }
  }
  return chart;
}

void print_scaling(const std::vector<Plan>& plans) {
  const PlanFacts& facts = plans.front().facts;
  std::cout << title_of(facts) << " goodput a rank, " << time_text(facts.network.latency_s)
            << " latency: step time (share of forward and backward)\n\n"
            << scaling_table(plans) << '\n';
  for (const Plan& plan : plans) {
    std::cout << grouped(plan.facts.world) << " ranks: " << verdict(plan) << '\n'
              << pays_text(plan) << advice_on(plan);
  }
  std::cout << notes_on(plans.front());
}

void write_svg(const std::vector<Plan>& plans, const std::string& file) {
  std::ofstream out(file, std::ios::binary);
  out << svg_file(scaling_chart(plans));
  out.close();
  if (!out) throw DataError(concat(file, ": cannot write"));
}

}  // namespace pride::inline program

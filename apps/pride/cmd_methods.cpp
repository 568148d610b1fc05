// `pride methods`: the cost of each method for any number of workers and parameters.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "pride/error.h"
#include "pride/plan.h"
#include "pride/registry.h"
#include "program/flag_values.h"
#include "program/program.h"
#include "program/settings.h"
#include "program/table.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostWorkers = 65535;
constexpr double kMostParams = 0x1p50;
constexpr std::int64_t kMostBuckets = 1000;              // bytes are counted bucket by bucket
constexpr std::int64_t kSteady = std::int64_t{1} << 40;  // a step after every method's first phase

struct MethodsArguments {
  int workers = 4;
  std::int64_t params = 10'000'000;
  std::string method;  // empty: all, as a table
  std::vector<std::string> method_options;
  std::optional<int> ranks_per_node;
  bool json = false;
};

// The default size; larger if there would be more than kMostBuckets.
std::size_t bucket_coords(const MethodsArguments& args) {
  const auto least = static_cast<std::size_t>(args.params / kMostBuckets + 1);
  return std::max(CostQuery{}.bucket_coords, least);
}

CostQuery query(const MethodsArguments& args, std::int64_t step) {
  return {.options = parse_method_options(args.method_options),
          .world = args.workers,
          .step = step,
          .mean = true,
          .bucket_coords = bucket_coords(args),
          .ranks_per_node = args.ranks_per_node.value_or(0)};
}

// True if options differ from the defaults, for which the paper counts bits. The bits follow
// `dense`, so it does not count.
bool has_own_options(const MethodInfo& info, const MethodsArguments& args) {
  const auto given = parse_method_options(args.method_options);
  return std::ranges::any_of(info.options, [&](const MethodOption& option) {
    const auto at = given.find(option.name);
    return at != given.end() && at->second != option.default_value && option.name != "dense";
  });
}

Json options_json(const MethodInfo& info) {
  Json options = Json::array();
  for (const MethodOption& option : info.options) {
    options.push_back(
        {{"name", option.name}, {"default", option.default_value}, {"help", option.help}});
  }
  return options;
}

Json describe(const std::string& name, const MethodsArguments& args) {
  const MethodInfo info =
      method_info(name, args.workers, parse_method_options(args.method_options));
  const Layout layout({{"w", {args.params}}});
  // of the rank that sends most
  const Cost cost = largest_cost(name, layout, query(args, kSteady));
  const Cost first = largest_cost(name, layout, query(args, 0));
  const auto routes = bucket_routes(name, layout, query(args, kSteady));
  const BucketRoute route = std::ranges::max(routes, {}, &BucketRoute::phases);
  const double ring = fp32_ring_bytes(static_cast<double>(args.params), args.workers);
  const auto bytes = static_cast<double>(cost.bytes());
  const double operations = matrix_operations(
      name, transformer_layout(static_cast<double>(args.params)), query(args, kSteady));
  return {
      {"name", info.name},
      {"title", info.title},
      {"source", info.source},
      {"bits_up", info.bits_up},
      {"bits_down", info.bits_down},
      {"bits_of_these_options", !has_own_options(info, args)},
      {"bytes_up", cost.bytes_up},
      {"bytes_down", cost.bytes_down},
      {"bytes_per_step", cost.bytes()},
      {"bytes_off_node", args.ranks_per_node ? Json(cost.bytes_off_node()) : Json(nullptr)},
      {"exact", cost.exact},
      {"bound", cost.bound},
      {"bytes_of_first_step", first.bytes()},
      {"ratio_to_fp32_ring", ring > 0 ? Json(bytes / ring) : Json(nullptr)},
      {"growth", info.growth},
      {"matrix_operations", operations},
      {"route", route.name},
      {"phases", route.phases},
      {"max_workers", info.max_world},
      {"state_floats", state_of(name, layout, parse_method_options(args.method_options)).floats},
      {"on_device", info.on_device},
      {"defaults",
       {{"lr", info.default_lr},
        {"beta1", info.default_beta1},
        {"beta2", info.default_beta2},
        {"eps", info.default_eps},
        {"weight_decay", info.default_weight_decay},
        {"momentum", info.default_momentum}}},
      {"options", options_json(info)}};
}

std::string number_text(double number) { return concat(std::round(number * 1000) / 1000); }

std::string bytes_cell(const Json& method) {
  const std::string bytes = grouped(method["bytes_per_step"].get<double>());
  if (method["exact"]) return bytes;
  return (method["bound"] ? "<= " : "about ") + bytes;
}

// The reason why this world cannot use the method; empty: it can.
std::string refusal(const Json& all, const Json& method) {
  if (all["workers"] <= method["max_workers"]) return "";
  return concat(method["name"].get<std::string>(), " refuses more than ",
                method["max_workers"].dump(), " workers.");
}

bool begins_differently(const Json& method) {
  return method["bytes_of_first_step"] != method["bytes_per_step"];
}

std::string beginning(const Json& method) {
  return concat("begins with other steps: the first sends ",
                grouped(method["bytes_of_first_step"].get<double>()), " bytes");
}

std::string matrix_text(const Json& all, const Json& method) {
  const double operations = method["matrix_operations"];
  const bool large = operations >= 1e10;
  return concat("Newton-Schulz: about ", grouped(std::round(operations / (large ? 1e9 : 1e6))),
                large ? " GFLOP" : " MFLOP",
                " a step on each rank, for a transformer of this size (",
                number_text(operations / all["params"].get<double>()), " a parameter)");
}

void print_table(const Json& all) {
  const double ring = all["fp32_ring_bytes"];
  std::vector<std::vector<std::string>> rows = {
      {"method", "bits up", "bits down", "bytes sent per step", "of fp32 ring", "grows with N",
       "route", "phases", "floats of state"}};
  for (const Json& method : all["methods"]) {
    rows.push_back({method["name"], number_text(method["bits_up"]),
                    number_text(method["bits_down"]), bytes_cell(method),
                    ratio_text(method["bytes_per_step"], ring), method["growth"], method["route"],
                    method["phases"].dump(), method["state_floats"].dump()});
  }
  std::cout << all["workers"] << " workers, " << grouped(all["params"].get<double>())
            << " parameters in buckets of " << grouped(all["bucket_coords"].get<double>())
            << "; an fp32 ring all-reduce sends " << grouped(ring)
            << " bytes per rank and step.\n\n"
            << markdown_table(rows, 1)
            << "\nBits are the paper's count per coordinate and worker. Bytes are those of the "
               "rank that sends most, with frames and padding\n(<=: a bound, because they depend "
               "on the data). State is per parameter.\n";
  for (const Json& method : all["methods"]) {
    if (!refusal(all, method).empty()) std::cout << refusal(all, method) << '\n';
    const std::string name = method["name"];
    if (method["matrix_operations"] > 0) {
      std::cout << name << ": " << matrix_text(all, method) << ".\n";
    }
    if (begins_differently(method)) std::cout << name << ' ' << beginning(method) << ".\n";
  }
}

void labelled(const char* label, const std::string& value) {
  std::cout << padded(label, 10) << value << '\n';
}

void print_method(const Json& all) {
  const Json& method = all["methods"][0];
  const double ring = all["fp32_ring_bytes"];
  std::cout << method["name"].get<std::string>() << ": " << method["title"].get<std::string>()
            << "\n\n";
  labelled("source", method["source"]);
  // bits are those of the default options
  const char* whose = method["bits_of_these_options"] ? "" : " with default options";
  labelled("bits", concat(number_text(method["bits_up"]), " up, ", number_text(method["bits_down"]),
                          " down per coordinate and worker", whose));
  labelled("bytes", concat(bytes_cell(method), " sent per step by the rank with most: ",
                           ratio_text(method["bytes_per_step"], ring), " of an fp32 ring (",
                           all["workers"].dump(), " workers, ",
                           grouped(all["params"].get<double>()), " parameters)"));
  if (!method["bytes_off_node"].is_null()) {
    labelled("", concat("of these, ", grouped(method["bytes_off_node"].get<double>()),
                        " to ranks of other nodes"));
  }
  if (begins_differently(method)) labelled("", beginning(method));
  if (!method["exact"] && !method["bound"]) {
    labelled("", "no bound: this is what threads send; the transport's own sum may differ");
  }
  if (method["matrix_operations"] > 0) labelled("matrices", matrix_text(all, method));
  labelled("growth", concat("with N: ", method["growth"].get<std::string>()));
  labelled("route", concat(method["route"].get<std::string>(), ": a bucket waits for ",
                           method["phases"].dump(), " messages, one after the other"));
  labelled("state", concat(method["state_floats"].dump(), " floats per parameter"));
  labelled("GPU", method["on_device"] ? "runs where the tensors are" : "runs on the host");
  if (!refusal(all, method).empty()) labelled("workers", refusal(all, method));
  std::string defaults;
  for (const auto& [name, value] : method["defaults"].items()) {
    defaults += concat(defaults.empty() ? "" : " ", name, "=", value.get<double>());
  }
  labelled("defaults", defaults);
  for (const Json& option : method["options"]) {
    labelled("option",
             concat(option["name"].get<std::string>(), "=", option["default"].get<std::string>(),
                    "  ", option["help"].get<std::string>()));
  }
}

void run_methods(MethodsArguments& args) {
  const std::vector<std::string> names =
      args.method.empty() ? method_names() : std::vector{args.method};
  Json methods = Json::array();
  for (const std::string& name : names) methods.push_back(describe(name, args));
  const Json all = {
      {"workers", args.workers},
      {"params", args.params},
      {"bucket_coords", bucket_coords(args)},
      {"fp32_ring_bytes", fp32_ring_bytes(static_cast<double>(args.params), args.workers)},
      {"methods", std::move(methods)}};
  if (args.json) {
    std::cout << all.dump(2) << '\n';
  } else {
    args.method.empty() ? print_table(all) : print_method(all);
  }
}

}  // namespace

void add_methods(CLI::App& command) {
  MethodsArguments& args = arguments_of(command, run_methods);
  add_value(command, "--workers", args.workers, "World size N", {1, kMostWorkers});
  add_value(command, "--params", args.params,
            "Parameters, such as 1e7 or 10M, in one tensor and buckets of 1,048,576; above a "
            "thousand million in a thousand buckets",
            {1, kMostParams});
  CLI::Option* method =
      command.add_option("--method", args.method, "One method only, with its options");
  command
      .add_option("--method-opt", args.method_options,
                  "An option of that method, as key=value; may be repeated")
      ->allow_extra_args(false)
      ->needs(method);
  add_value(command, "--hierarchical", args.ranks_per_node,
            "Ranks per node: prints the cost on the hierarchical route", {1, kMostWorkers})
      ->needs(method);
  command.add_flag("--json", args.json, "Print JSON, options included");
}

}  // namespace pride::app

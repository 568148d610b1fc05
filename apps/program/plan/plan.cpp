// Predicted step times of each method on a network, and whether compression pays.
// SPDX-License-Identifier: Apache-2.0
#include "program/plan/plan.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "pride/device.h"
#include "pride/error.h"
#include "pride/plan.h"
#include "program/bench/network.h"
#include "program/blas.h"
#include "program/flag_values.h"
#include "program/plan/outcome.h"
#include "program/program.h"
#include "program/settings.h"
#include "program/units.h"
#include "program/world.h"

namespace pride::inline program {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kCopied = std::size_t{1} << 30;  // bytes, to measure a GPU's rates

struct PlanArguments {
  Workers workers;
  Settings settings;  // must be equal on all ranks
  std::vector<int> worlds;
  std::string bandwidth, latency, message, backward, svg, device_memory, device_link;
  std::optional<double> device_operations;
  std::optional<std::int64_t> params;
  std::optional<double> cores;
  int exchange_threads = 4;
  double seconds = 1;
  std::vector<std::string> methods = {"lion", "lion:dense=bf16", "dlion-vote", "dlion-avg",
                                      "lion-cub"};
  bool json = false;
  bool one_measured = false;         // one rank is measured, whatever the planned number
  std::shared_ptr<PlanModel> model;  // null: there is none to measure
};

NetworkModel network_of(Communicator& comm, const PlanArguments& args) {
  if (args.bandwidth.empty()) {
    if (comm.size() == 1) return {};
    const NetworkFacts facts = measure_network(comm, args.seconds);
    return {facts.latency_s, facts.message_s, facts.goodput, facts.cpu_s_per_byte};
  }
  return {.latency_s = parse_time(args.latency),
          .message_s = args.message.empty() ? 0 : parse_time(args.message),
          .bytes_per_s = parse_rate(args.bandwidth)};
}

// The GPU's rates: given by flags, or measured if the model is on a GPU.
DeviceModel gpu_of(Communicator& comm, const PlanArguments& args) {
  const double operations = args.device_operations.value_or(0);
  const bool is_there = args.model && args.model->is_on_gpu() && !args.model->runs_on_host();
  if (is_there && args.device_memory.empty()) {
    const CopyRates rates = measure_copies(*gpu_of_rank(comm), kCopied, args.seconds / 4, 3);
    return {.bytes_per_s = rates.memory,
            .host_bytes_per_s = rates.link(),
            .operations_per_s = operations};
  }
  if (args.device_memory.empty()) return {};
  return {.bytes_per_s = parse_rate(args.device_memory),
          .host_bytes_per_s = parse_rate(args.device_link),
          .operations_per_s = operations};
}

Plan gather(Communicator& comm, const PlanArguments& args) {
  Plan plan;
  PlanFacts& facts = plan.facts;
  facts.exchange_threads = args.exchange_threads;
  facts.device = gpu_of(comm, args);
  facts.network = network_of(comm, args);
  if (args.bandwidth.empty()) facts.transport = comm.transport();
  const int beside = ranks_on_this_host(comm);
  const auto all = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  facts.cores = args.cores.value_or(static_cast<double>(all) / beside);
  if (args.backward.empty()) plan.measured = {beside, all};
  if (!args.params) facts.tensors = args.model->layout();
  facts.params = args.params ? static_cast<double>(*args.params)
                             : static_cast<double>(facts.tensors.n_coords());
  facts.compute_s =
      args.backward.empty() ? args.model->step_s(comm, args.seconds) : parse_time(args.backward);
  return plan;
}

PlanRow planned(Communicator& comm, const std::vector<ParamGroup>& groups, const std::string& text,
                PlanFacts& facts) {
  const MethodChoice choice = parse_method(text);
  PlanRow row = plan_step(comm, {choice.name, checked_options(choice), groups}, facts);
  row.method.name = text;
  return row;
}

void check_plan(const PlanArguments& args) {
  PRIDE_CHECK(args.model || (args.params && !args.backward.empty()),
              "pride plan: give --params and --backward; to measure a model it needs pride-lab, "
              "built with libtorch");
  PRIDE_CHECK(!args.params || !args.backward.empty(),
              "--params needs --backward: there is no model to measure");
  PRIDE_CHECK(!args.params || !args.model || args.model->groups().empty(),
              "--groups with --params: there are no tensors to choose from; name a model");
  PRIDE_CHECK(args.bandwidth.empty() == args.latency.empty(),
              "--bandwidth and --latency need each other; without both the network is measured");
  PRIDE_CHECK(args.message.empty() || !args.bandwidth.empty(),
              "--message needs --bandwidth and --latency");
  PRIDE_CHECK(args.device_memory.empty() == args.device_link.empty(),
              "--device-memory and --device-link go together: a GPU has both rates");
  const bool on_gpu = !args.device_memory.empty() || (args.model && args.model->is_on_gpu());
  PRIDE_CHECK(!args.device_operations || on_gpu,
              "--device-operations is of a GPU: give --device-memory and --device-link, too");
  PRIDE_CHECK(!args.methods.empty(), "--methods: none given");
  PRIDE_CHECK(args.worlds.empty() || !args.bandwidth.empty(),
              "--world needs --bandwidth: a measured network has only the ranks that run");
  PRIDE_CHECK(std::is_sorted(args.worlds.begin(), args.worlds.end(), std::less_equal<>()),
              "--world: numbers of ranks must ascend, without repetition");
  PRIDE_CHECK(args.svg.empty() || args.worlds.size() > 1,
              "--svg: a chart over ranks needs two or more numbers, such as --world 4,64");
}

std::vector<Plan> all_plans(Communicator& comm, const PlanArguments& args) {
  std::vector<int> worlds = args.worlds;
  if (worlds.empty()) worlds = {args.one_measured ? kDefaultWorkers : comm.size()};
  for (const std::string& name : args.methods) {
    for (const int world : worlds) check_method(name, world);  // before anything takes time
  }
  Plan known = gather(comm, args);
  const auto groups = args.model ? args.model->groups() : std::vector<ParamGroup>();
  std::vector<Plan> plans;
  for (const int world : worlds) {
    known.facts.world = world;
    Plan& plan = plans.emplace_back(known);
    plan.has_groups = !groups.empty();
    for (const std::string& name : args.methods) {
      plan.rows.push_back(planned(comm, groups, name, known.facts));
    }
  }
  return plans;
}

void run_plan(PlanArguments& args) {
  check_plan(args);
  // planned ranks have one machine each: measure one rank, not several that compete for cores
  args.one_measured = !args.bandwidth.empty() && args.workers.total == 0 && !launched_as_job();
  if (args.one_measured) args.workers.total = 1;
  pin_blas();
  run_ranks(args.workers, [&](Communicator& comm, bool) {
    check_same_settings(comm, args.settings);
    const std::vector<Plan> plans = all_plans(comm, args);
    if (comm.rank() != 0) return;
    if (!args.svg.empty()) write_svg(plans, args.svg);
    if (plans.size() == 1) {
      if (!args.json) return print(plans[0]);
      std::cout << to_json(plans[0]).dump(2) << std::endl;
      return;
    }
    if (!args.json) return print_scaling(plans);
    Json all = {{"worlds", Json::array()}};
    for (const Plan& plan : plans) all["worlds"].push_back(to_json(plan));
    std::cout << all.dump(2) << std::endl;
  });
}

}  // namespace

void add_plan(CLI::App& command, std::shared_ptr<PlanModel> model) {
  const auto args = std::make_shared<PlanArguments>();
  args->model = std::move(model);
  const char* group = "Network";
  add_rank_flags(command, args->workers);
  add_value(
      command, "--world", args->worlds,
      "Ranks to plan for; several, ascending, print a table over them. Default: the measured ranks",
      {1, 65535})
      ->group(group);
  add_value(command, "--svg", args->svg,
            "With several numbers in --world: write a chart to this file");
  add_value(command, "--bandwidth", args->bandwidth,
            "Goodput of each rank in each direction: 1Gbit/s, 1Gbps or 12.5MB/s. Default: measured")
      ->check(unit_check(parse_rate))
      ->group(group);
  add_value(command, "--latency", args->latency,
            "One-way latency of a message, such as 50us; with --bandwidth")
      ->check(unit_check(parse_time))
      ->group(group);
  add_value(
      command, "--message", args->message,
      "With --bandwidth: time of each further message if a rank sends several at once. Default: 0")
      ->check(unit_check(parse_time))
      ->group(group);
  if (args->model) args->model->add_flags(command);
  add_value(command, "--params", args->params, "Parameters, instead of the model's; 1e7 or 10M",
            {1, 0x1p40})
      ->group("Model");
  add_value(command, "--backward", args->backward,
            "Time of a step's forward and backward, such as 120ms. Default: measured")
      ->check(unit_check(parse_time))
      ->group("Model");
  add_value(command, "--device-memory", args->device_memory,
            "The methods run on a GPU: bytes that it reads and writes per second in a copy within "
            "its memory, as 3TB/s. `pride bench kernels --device cuda` measures this rate and the "
            "next, as this command does with --device cuda. Default: they run on the host")
      ->check(unit_check(parse_rate))
      ->group("GPU");
  add_value(command, "--device-link", args->device_link,
            "With --device-memory: of copies between the memories of GPU and host, as 25GB/s")
      ->check(unit_check(parse_rate))
      ->group("GPU");
  add_value(
      command, "--device-operations", args->device_operations,
      "On a GPU, for methods that orthogonalise: multiplications and additions of Newton-Schulz "
      "per second, about half of the GPU's rate in products of matrices; as 2e13",
      {1, 0x1p80})
      ->group("GPU");
  add_value(command, "--cores", args->cores,
            "Cores of each rank; below 2, votes and backward do not overlap. Default: this "
            "machine's, divided by the ranks on it",
            {0.01, 1024})
      ->group("Network");
  add_value(command, "--methods", args->methods, kMethodsHelp)->delimiter(',');
  add_value(command, "--exchange-threads", args->exchange_threads, "Buckets in flight", {1, 16});
  add_value(command, "--seconds", args->seconds, "Minimum seconds per measurement", {0.001, 3600});
  command.add_flag("--json", args->json, "Print JSON");
  command.footer(
      "\"It pays on links of up to ...\" compares steps per second with other goodputs. It leaves\n"
      "out that latency, buckets and routes would be others there, what the transport costs at\n"
      "that rate, links that ranks share, and steps that a method needs more for the same loss.\n");
  command.callback([args, &command] {
    args->settings = settings_of(command);
    run_plan(*args);
  });
}

}  // namespace pride::inline program

// The program `pride`.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "commands.h"
#include "houses.h"
#include "pride/registry.h"
#include "program/blas.h"
#include "program/plan/plan.h"
#include "program/program.h"

namespace pride::app {
namespace {

std::vector<Command> commands() {
  std::vector<Command> all = {
      {"replay",
       "Apply a method to recorded gradients, with threads as workers",
       {"--method dlion-vote --input grads.safetensors --output params.safetensors"},
       add_replay},
      {"methods",
       "List the methods: their bytes, state and options",
       {"--workers 8 --params 124M", "--method dlion-vote --method-opt tie=zero"},
       add_methods},
      {"bench",
       "Measure this machine and this network",
       {"network --workers 4", "exchange --sizes 1M,10M --methods lion,dlion-vote", "kernels"},
       add_bench},
      {"plan",
       "Predict step times by method and network: does compression pay?",
       {"--params 10M --backward 120ms --bandwidth 1Gbit --latency 50us --world 4",
        "--params 124M --backward 1s --bandwidth 10Gbit --latency 30us --world 8,64,512"},
       [](CLI::App& command) { add_plan(command, nullptr); }},
      {"info",
       "Print this build's version and what it can use on this machine",
       {"--json"},
       add_info},
  };
  std::ranges::move(commands_of_houses(), std::back_inserter(all));
  return all;
}

std::map<std::string, std::vector<std::string>> values() { return {{"method", method_names()}}; }

}  // namespace
}  // namespace pride::app

int pride_main(int argc, char** argv) {
  using namespace pride::app;
  static const pride::Program program{.commands = commands(),
                                      .values = values,
                                      .before = become_house,
                                      .others = output_of_houses,
                                      .is_elsewhere = is_of_house};
  return run_program(program, argc, argv);
}

int main(int argc, char** argv) {
  pride::use_kernels_of_this_cpu(argv);
  return pride_main(argc, argv);
}

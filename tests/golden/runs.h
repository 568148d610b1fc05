// The runs of the golden table: every method, alone and on 2, 3, 4 and 8 ranks, on every route that
// it has, with and without overlap, in small buckets and in one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <iomanip>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "pride/optimizer.h"
#include "pride/random_bits.h"

namespace pride::golden {

using Options = std::map<std::string, std::string>;

struct Case {
  std::string method;
  std::string label;  // what the options stand for: "", "tie=zero", ...
  Options options = {};
  std::string route = {};  // "two-shot", "one-shot", "hierarchical", "native"; empty: the only one
  int world = 1, per_node = 0;
  std::size_t bucket_coords = 0;
  bool overlap = false;

  // The row's key in the table, with and without overlap: overlap changes nothing of a row.
  std::string key() const {
    return concat(method, " ", label.empty() ? "-" : label, " ", route.empty() ? "-" : route,
                  " N=", world, " L=", per_node, " bucket=", bucket_coords);
  }
};

struct Variant {
  std::string method, label;
  Options options = {};
};

inline const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      {"adamw", ""},
      {"adamw", "bf16", {{"dense", "bf16"}}},
      {"adamw", "int8", {{"dense", "int8"}}},
      {"adamw", "int4", {{"dense", "int4"}}},
      {"adamw", "int2", {{"dense", "int2"}}},
      {"sgdm", ""},
      {"sgdm", "nesterov", {{"nesterov", "yes"}}},
      {"lion", ""},
      {"lion", "bf16", {{"dense", "bf16"}}},
      {"lion", "native", {{"dense", "native"}}},
      {"dlion-vote", ""},
      {"dlion-vote", "tie=zero", {{"tie", "zero"}}},
      {"dlion-avg", ""},
      {"dlion-avg", "planes", {{"counts", "planes"}}},
      {"signum-vote", ""},
      {"signum-avg", ""},
      {"lion-cub", ""},
      {"lion-cub", "bits=1", {{"bits", "1"}}},
      {"lion-cub", "bits=8,max,tie=zero", {{"bits", "8"}, {"scale", "max"}, {"tie", "zero"}}},
      {"lion-cub",
       "block,feedback",
       {{"granularity", "block"},
        {"shared", "no"},
        {"feedback", "yes"},
        {"scale", "l2"},
        {"sync_format", "bf16"}}},
      {"lion-cub",
       "stochastic,fp32",
       {{"rounding", "stochastic"},
        {"sync", "vectors,first"},
        {"sync_every", "2"},
        {"sync_format", "fp32"}}},
      {"lion-cub",
       "l0,doubling",
       {{"scale", "l0"}, {"sync_schedule", "exponential"}, {"sync_doubling", "1"}}},
      {"terngrad", ""},
      {"terngrad", "clip=0,nesterov", {{"clip", "0"}, {"nesterov", "yes"}}},
      {"dgc", "", {{"warmup_steps", "3"}, {"clip", "10"}}},
      {"dgc", "nesterov", {{"masking", "no"}, {"nesterov", "yes"}, {"ratio", "0.3"}}},
      {"graddrop", ""},
      {"graddrop", "global", {{"threshold", "global"}}},
      {"signsgd-ef", ""},
      {"signsgd-ef", "momentum", {{"momentum", "0.9"}}},
      {"onebit-adam", "", {{"freeze_steps", "3"}}},
      {"local-vote", "h=2", {{"h", "2"}}},
      {"local-vote", "h=1,lion", {{"h", "1"}, {"local", "lion"}}},
      {"local-vote", "h=2,feedback", {{"h", "2"}, {"drift_feedback", "0.5"}}},
      {"local-ef", "h=2", {{"h", "2"}}},
      {"dsm", "h=2,sgdm", {{"h", "2"}, {"local", "sgdm"}}},
      {"diloco", "h=2", {{"h", "2"}}},
  };
  return all;
}

// The routes that a variant can be told to take; the empty name leaves it the choice, if it has
// one.
inline std::vector<std::string> routes_of(const Variant& v) {
  const bool signs =
      v.method.starts_with("dlion-") || v.method.starts_with("signum-") || v.method == "local-vote";
  if (signs) return {"", "two-shot", "one-shot", "hierarchical"};
  const bool levels = v.method == "lion-cub" && v.label != "bits=1";
  return levels ? std::vector<std::string>{"", "two-shot", "native"} : std::vector<std::string>{""};
}

// Sets the route in the options of the optimizer.
inline void set_route(Case& run) {
  if (run.route == "two-shot") run.options["route"] = "sharded";
  if (run.route == "one-shot" || run.route == "native") run.options["route"] = run.route;
}

inline std::vector<Case> runs_of(const Variant& v, const std::vector<int>& worlds) {
  std::vector<Case> runs;
  for (const int world : worlds) {
    for (const std::string& route : routes_of(v)) {
      for (int per_node = 0; per_node < world; ++per_node) {
        const bool nodes = per_node > 1 && world % per_node == 0;
        if (route == "hierarchical" ? !nodes : per_node > 0) continue;
        for (const std::size_t bucket : {std::size_t{3000}, std::size_t{1} << 20}) {
          for (const bool overlap : {false, true}) {
            runs.push_back({v.method, v.label, v.options, route, world, per_node, bucket, overlap});
            set_route(runs.back());
          }
        }
      }
    }
  }
  return runs;
}

inline Layout layout() {
  return Layout({{"rows", {97, 8}},
                 {"w1", {65, 131}},
                 {"b1", {65}, 1},
                 {"w2", {60, 150}},
                 {"never", {7}, 1},
                 {"scalar", {}}});
}

inline float noise(std::uint64_t a, std::uint64_t b, std::size_t tensor, std::size_t index) {
  const std::uint64_t h = mix64(mix64(a, b), tensor * 1'000'003 + index);
  return h % 10 == 0 ? 0.0f : (static_cast<float>(h >> 40) - 0x1p23f) * 0x1p-21f;
}

// One tensor now and then, and one always, without a gradient.
inline bool unused(int rank, std::int64_t step, std::size_t tensor) {
  return (tensor == 3 && (rank + step) % 3 == 0) || tensor == 4;
}

// Gradients of one rank and step.
inline void fill_gradients(const Layout& layout, int rank, std::int64_t step,
                           std::span<float> grads) {
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    for (std::size_t i = 0; i < slot.n; ++i) {
      grads[slot.offset + i] =
          noise(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(rank + 1), t, i);
    }
  }
}

inline void fill_params(const Layout& layout, std::span<float> params) {
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    for (std::size_t i = 0; i < slot.n; ++i) params[slot.offset + i] = noise(7, 0, t, i);
  }
}

inline OptimizerOptions optimizer_options(const Case& run) {
  OptimizerOptions options;
  options.method = run.method;
  options.options = run.options;
  options.groups = {{.lr = 0.01, .weight_decay = 0.1}, {.lr = 0.003}};
  options.bucket_coords = run.bucket_coords;
  options.overlap = run.overlap;
  options.exchange_threads = 2;
  if (run.per_node > 0) options.nodes = Nodes::of_size(run.world, run.per_node);
  options.seed = 5;
  return options;
}

inline constexpr std::int64_t kSteps = 5;  // of a run

inline StepReport step(Optimizer& optimizer, int rank, std::int64_t number,
                       std::span<float> params) {
  const Layout& layout = optimizer.layout();
  FlatBuffer grads(layout.flat_size());
  fill_gradients(layout, rank, number, grads.span());
  const std::size_t n = layout.tensors().size();
  const auto flags = std::make_unique<bool[]>(n);
  for (std::size_t t = 0; t < n; ++t) flags[t] = unused(rank, number, t);
  return optimizer.step(params, grads.span(), {flags.get(), n});
}

// What is recorded: of all ranks together, but for the hash.
struct Row {
  std::uint64_t hash = 0, bytes = 0, messages = 0;
  bool bound = true;  // false: the transport's own all-reduce counts its bytes in its own way

  std::string text() const {
    std::ostringstream out;
    out << "hash=" << std::hex << std::setw(16) << std::setfill('0') << hash << std::dec
        << " bytes=" << bytes << " messages=" << messages;
    return out.str();
  }
};

// This rank's part of a run.
inline Row run_rank(Communicator& comm, const Case& run) {
  Optimizer optimizer(comm, layout(), optimizer_options(run));
  FlatBuffer params(optimizer.layout().flat_size());
  fill_params(optimizer.layout(), params.span());
  Row row;
  row.bound = optimizer.cost().bound;
  for (std::int64_t s = 0; s < kSteps; ++s) {
    const StepReport report = step(optimizer, comm.rank(), s, params.span());
    row.bytes += report.bytes_sent;
    row.messages += report.messages_sent;
  }
  optimizer.to_common(params.span());
  row.hash = param_hash(optimizer.layout(), params.span());
  return row;
}

// The sum over the ranks. Throws Error if their hashes differ.
inline Row combined(Communicator& comm, const Row& mine) {
  std::vector<Row> rows(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(rows)));
  Row sum = rows[0];
  for (std::size_t r = 1; r < rows.size(); ++r) {
    if (rows[r].hash != sum.hash) throw Error(concat("rank ", r, " has another hash than rank 0"));
    sum.bytes += rows[r].bytes;
    sum.messages += rows[r].messages;
  }
  return sum;
}

inline Row run_on_threads(const Case& run) {
  Row row;
  run_world(run.world, [&](Communicator& comm) {
    const Row sum = combined(comm, run_rank(comm, run));
    if (comm.rank() == 0) row = sum;
  });
  return row;
}

// The recorded rows, by key. Throws Error on a file that cannot be read.
inline std::map<std::string, std::string> read_table(const std::string& path) {
  std::ifstream in(path);
  std::map<std::string, std::string> table;
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(": ");
    if (!line.empty() && line[0] != '#') table[line.substr(0, colon)] = line.substr(colon + 2);
  }
  if (table.empty()) throw Error(concat("golden table '", path, "' is missing or empty"));
  return table;
}

}  // namespace pride::golden

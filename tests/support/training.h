// A small training world for tests: layouts, repeatable gradients, and a run on threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "pride/optimizer.h"
#include "pride/random_bits.h"
#include "pride/registry.h"

namespace pride::testing {

// Of several sizes. By unused() the last never has a gradient, and w2 not in every step.
inline const std::vector<TensorSpec> kTensors = {
    {"embedding", {97, 8}}, {"w1", {65, 31}}, {"b1", {65}}, {"w2", {7, 65}}, {"b2", {7}}};

inline bool unused(int rank, std::int64_t step, std::size_t tensor) {
  return (tensor == 3 && (rank + step) % 3 == 0) || tensor == 4;
}

// Gradient of (rank, step, tensor, index): repeatable, about a tenth of them exact zeros.
inline float gradient(int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
  const std::uint64_t h =
      mix64(mix64(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(rank)),
            tensor * 1'000'003 + index);
  if (h % 10 == 0) return 0;
  return (static_cast<float>(h >> 40) - 0x1p23f) * 0x1p-20f;
}

inline float initial(std::size_t tensor, std::size_t index) {
  return (static_cast<float>(mix64(7, tensor * 1'000'003 + index) >> 40) - 0x1p23f) * 0x1p-24f;
}

// Results of one rank.
struct RankResult {
  std::vector<float> params;  // flat
  std::vector<StepReport> reports;
  std::vector<Cost> costs;  // of each step, stated before it
  Cost cost;                // of the first step
  Cost last_cost;           // of the last
  std::uint64_t hash = 0;
};

struct Training {
  int world = 1;
  int steps = 3;
  OptimizerOptions options = {};
  std::vector<int> weights = {};  // vote_weight of each rank; empty: that of `options`
  // true: this rank has no gradient of the tensor in this step
  std::function<bool(int rank, std::int64_t step, std::size_t tensor)> unused = nullptr;
  std::function<float(int rank, std::int64_t step, std::size_t tensor, std::size_t index)> grad =
      gradient;
};

// Options with which a method exchanges in every step.
inline std::map<std::string, std::string> in_every_step(const std::string& method) {
  if (method_info(method, 1).period == 1) return {};
  return {{"h", "1"}};
}

// "dlion-vote", or with an option "dlion-vote:route=sharded"; without one, exchanges in every step.
inline void set_method(OptimizerOptions& options, const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  options.method = text.substr(0, colon);
  options.options = in_every_step(options.method);
  for (std::size_t at = colon; at < text.size();) {
    const std::size_t equals = text.find('=', at),
                      end = std::min(text.find(',', at + 1), text.size());
    options.options[text.substr(at + 1, equals - at - 1)] =
        text.substr(equals + 1, end - equals - 1);
    at = end;
  }
}

// All methods; variants with the sharded route, local steps and bfloat16 momenta.
inline std::vector<std::string> method_variants() {
  std::vector<std::string> all = method_names();
  for (const char* method : {"dlion-vote", "dlion-avg", "signum-vote", "signum-avg"}) {
    all.push_back(std::string(method) + ":route=sharded");
  }
  all.insert(all.end(), {"local-vote:h=2", "local-vote:drift_feedback=0.9", "diloco:h=3",
                         "dlion-vote:momentum_dtype=bfloat16", "lion:momentum_dtype=bfloat16",
                         "dlion-vote:cautious_decay=yes"});
  if (std::ranges::count(all, "dlion-muon") > 0) {  // the build has BLAS
    all.emplace_back("dlion-muon:momentum_dtype=bfloat16");
  }
  return all;
}

// Bit for bit.
inline bool same(const StateDict& a, const StateDict& b) {
  if (a.scalars != b.scalars || a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [key, tensor] : a.tensors) {
    const auto other = b.tensors.find(key);
    if (other == b.tensors.end() || other->second.shape != tensor.shape ||
        std::memcmp(other->second.values.data(), tensor.values.data(),
                    tensor.values.size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

// Bytes that the optimizer reports in the memory of the tensors.
inline std::uint64_t held_with_tensors(Optimizer& optimizer) {
  const MemoryUse use = optimizer.memory();
  std::uint64_t bytes = use.state + use.masters + use.scratch;
  for (const StateBuffer& buffer : optimizer.state_buffers()) {  // server state lies on the host
    if (buffer.kind == StateKind::kServer) bytes -= buffer.values.size_bytes();
  }
  return bytes;
}

// The text as a part of a test's name.
inline std::string test_name(std::string text) {
  for (char& ch : text)
    ch = std::string_view("-:=.,+*").find(ch) != std::string_view::npos ? '_' : ch;
  return text;
}

inline void fill(const Layout& layout, FlatBuffer& flat,
                 const std::function<float(std::size_t, std::size_t)>& value) {
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    for (std::size_t i = 0; i < slot.n; ++i) flat.span()[slot.offset + i] = value(t, i);
  }
}

// One rank's part of a run, on any transport.
inline RankResult train_rank(Communicator& comm, const Layout& layout, const Training& run) {
  OptimizerOptions options = run.options;
  if (!run.weights.empty()) {
    options.vote_weight = run.weights[static_cast<std::size_t>(comm.rank())];
  }
  Optimizer optimizer(comm, layout, options);
  FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
  fill(layout, params, initial);
  RankResult result;
  const std::size_t n = layout.tensors().size();
  for (std::int64_t step = 0; step < run.steps; ++step) {
    fill(layout, grads,
         [&](std::size_t t, std::size_t i) { return run.grad(comm.rank(), step, t, i); });
    const auto flags = std::make_unique<bool[]>(n);
    for (std::size_t t = 0; t < n; ++t) flags[t] = run.unused && run.unused(comm.rank(), step, t);
    result.costs.push_back(optimizer.cost(step));
    result.reports.push_back(optimizer.step(params.span(), grads.span(), {flags.get(), n}));
  }
  optimizer.to_common(params.span());
  result.params.assign(params.span().begin(), params.span().end());
  result.cost = optimizer.cost();
  result.last_cost = optimizer.cost(run.steps - 1);
  result.hash = param_hash(layout, params.span());
  return result;
}

inline std::vector<RankResult> train(const Layout& layout, const Training& run) {
  std::vector<RankResult> results(static_cast<std::size_t>(run.world));
  run_world(run.world, [&](Communicator& comm) {
    results[static_cast<std::size_t>(comm.rank())] = train_rank(comm, layout, run);
  });
  return results;
}

inline std::vector<float> initial_of(const Layout& layout, std::size_t tensor) {
  std::vector<float> x(layout.tensors()[tensor].n);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = initial(tensor, i);
  return x;
}

// Runs a scalar oracle of this tensor for the run's steps. "": all ranks have its bits; otherwise
// the first difference.
template <typename Oracle>
std::string difference(Oracle oracle, const Layout& layout, std::size_t tensor, const Training& run,
                       const std::vector<RankResult>& ranks) {
  const TensorSlot& slot = layout.tensors()[tensor];
  for (std::int64_t step = 0; step < run.steps; ++step) {
    std::vector<std::vector<float>> grads;
    std::vector<bool> missing;
    for (int r = 0; r < run.world; ++r) {
      missing.push_back(run.unused && run.unused(r, step, tensor));
      auto& g = grads.emplace_back(slot.n);
      for (std::size_t i = 0; i < slot.n; ++i) g[i] = run.grad(r, step, tensor, i);
    }
    oracle.step(grads, missing);
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t i = 0; i < slot.n; ++i) {
      const float got = ranks[r].params[slot.offset + i], want = oracle.x()[i];
      if (std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(want)) continue;
      return concat(run.options.method, " rank ", r, " of ", run.world, ", ", slot.spec.name, "[",
                    i, "]: got ", got, ", oracle ", want);
    }
  }
  return "";
}

// Text of the exception of type E that each rank throws in body; "" if it throws none.
template <typename E>
std::vector<std::string> errors_of(int world, const std::function<void(Communicator&)>& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(world));
  run_world(world, [&](Communicator& comm) {
    try {
      body(comm);
    } catch (const E& e) {
      texts[static_cast<std::size_t>(comm.rank())] = e.what();
    }
  });
  return texts;
}

// errors_of() a run in which these ranks have a NaN in coordinate 1234 of tensor 1.
inline std::vector<std::string> errors_with_nan(const Layout& layout, Training run,
                                                const std::vector<int>& ranks) {
  run.grad = [=](int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
    const bool bad = tensor == 1 && index == 1234 && std::ranges::count(ranks, rank) > 0;
    return bad ? std::numeric_limits<float>::quiet_NaN() : gradient(rank, step, tensor, index);
  };
  return errors_of<NonFiniteGradient>(run.world,
                                      [&](Communicator& comm) { train_rank(comm, layout, run); });
}

}  // namespace pride::testing

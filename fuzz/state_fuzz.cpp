// A saved state with hostile contents: load() refuses it and changes nothing, or takes it, and then
// the optimizer holds exactly that state and its next step is finite.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "fuzz_input.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "support/training.h"

namespace pride::fuzz {
namespace {

const Layout& layout() {
  static const Layout tensors({{"w", {2, 5}}, {"e", {70}}, {"s", {}}});
  return tensors;
}

OptimizerOptions options_of(const std::string& method) { return {.method = method}; }

// An optimizer that is alone in its world, with its parameters.
struct Trained {
  explicit Trained(const std::string& method)
      : comm(std::move(make_thread_world(1).front())),
        optimizer(*comm, layout(), options_of(method)),
        params(layout().flat_size()),
        grads(layout().flat_size()) {
    testing::fill(layout(), params, testing::initial);
    step();
  }

  void step() {
    testing::fill(layout(), grads, [&](std::size_t t, std::size_t i) {
      return testing::gradient(0, optimizer.steps_done(), t, i);
    });
    optimizer.step(params.span(), grads.span());
  }

  std::unique_ptr<Communicator> comm;
  Optimizer optimizer;
  FlatBuffer params, grads;
};

bool equal(const StateDict& a, const StateDict& b) {
  return a.scalars == b.scalars && a.tensors.size() == b.tensors.size() &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(),
                    [](const auto& x, const auto& y) {
                      return x.first == y.first && x.second.shape == y.second.shape &&
                             x.second.values == y.second.values;
                    });
}

std::string next_text(Input& input) {
  std::string text(input.below(24), '\0');
  input.fill(std::as_writable_bytes(std::span(text)));
  return text;
}

void change_tensor(Input& input, StateDict::Tensor& tensor) {
  switch (input.below(4)) {
    case 0:
      tensor.values.resize(input.below(200), 1.0f);
      break;
    case 1:
      tensor.shape.push_back(input.number<std::int64_t>());
      break;
    case 2:
      tensor.shape.assign(1, input.number<std::int16_t>());
      break;
    default:
      if (tensor.values.empty()) return;
      tensor.values[input.below(tensor.values.size())] = input.number<float>();
  }
}

void change_state(Input& input, StateDict& state) {
  const std::size_t kind = input.below(5);
  if (kind < 2 && !state.tensors.empty()) {
    auto at = state.tensors.begin();
    std::advance(at, input.below(state.tensors.size()));
    if (kind == 0) return change_tensor(input, at->second);
    const StateDict::Tensor kept = at->second;
    state.tensors.erase(at);
    state.tensors[next_text(input)] = kept;
  } else if (!state.scalars.empty()) {
    auto at = state.scalars.begin();
    std::advance(at, input.below(state.scalars.size()));
    if (kind == 3) return void(state.scalars.erase(at));
    at->second = kind == 4 ? std::to_string(input.number<std::int64_t>()) : next_text(input);
  }
}

// What is saved after this state was taken; `before` is one of the same optimizer.
StateDict as_saved_again(StateDict state, const StateDict& before) {
  std::string& step = state.scalars["step"];
  step = std::to_string(std::stoll(step));             // "007"
  std::string& start = state.scalars["group starts"];  // may be missing
  start = std::to_string(start.empty() ? 0 : std::stoll(start));
  for (const auto& [name, value] : before.scalars) {
    // kinds may be missing; buckets are the optimizer's
    if (name.starts_with("kind.") || name == "bucket size") state.scalars[name] = value;
  }
  // " ", or a default that was written out: load() has compared what the options say
  state.scalars["options"] = before.scalars.at("options");
  return state;
}

// Values that a run could have come to; others may well lead to an overflow.
bool plausible(const StateDict& state) {
  return std::all_of(state.tensors.begin(), state.tensors.end(), [](const auto& entry) {
    const std::vector<float>& values = entry.second.values;
    return std::all_of(values.begin(), values.end(), [](float x) { return std::abs(x) <= 1e6f; });
  });
}

bool finite(const FlatBuffer& values) {
  return std::all_of(values.span().begin(), values.span().end(),
                     [](float x) { return std::isfinite(x); });
}

void one_input(Input input) {
  const auto names = method_names();
  Trained trained(names[input.below(names.size())]);
  const StateDict before = trained.optimizer.save();
  StateDict hostile = before;
  const bool as_all_ranks = input.number<std::uint8_t>() % 2 == 1;
  const bool honest = input.empty();
  for (int n = 0; n < 6 && !input.empty(); ++n) change_state(input, hostile);
  try {
    if (as_all_ranks) {
      trained.optimizer.load(std::vector<StateDict>{hostile});
    } else {
      trained.optimizer.load(hostile);
    }
  } catch (const InvalidArgument& e) {
    must(!honest, concat("an honest state is refused: ", e.what()));
    must(contains(e.what(), "load: "), concat("what was wrong? ", e.what()));
    return must(equal(trained.optimizer.save(), before), "a state that was refused left traces");
  }
  must(equal(trained.optimizer.save(), as_saved_again(hostile, before)),
       "load() took another state than it was given");
  if (!plausible(hostile)) return;
  trained.step();
  must(finite(trained.params), "a state that was accepted makes parameters that are not finite");
}

}  // namespace
}  // namespace pride::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  pride::fuzz::one_input({data, size});
  return 0;
}

// What an optimizer saves and loads.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <sstream>

#include "optimizer/optimizer_impl.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr int kStateVersion = 2;  // version 0.1 wrote none

std::string hex(std::uint64_t v) {
  std::ostringstream text;
  text << std::hex << v;
  return text.str();
}

// "tie=hash": a method's options in the order of their names, those left out that no result depends
// on.
std::string text_of(const std::map<std::string, std::string>& options, const MethodInfo& info) {
  std::string text;
  for (const auto& [name, value] : options) {
    const auto known = std::ranges::find(info.options, name, &MethodOption::name);
    if (known != info.options.end() && known->wire_only) continue;
    text += concat(text.empty() ? "" : " ", name, "=", value);
  }
  return text;
}

// "form=auto scale=l1" without the options that no result depends on now.
std::string without_wire_options(const std::string& text, const MethodInfo& info) {
  std::istringstream words(text);
  std::string word, kept;
  while (words >> word) {
    const std::string name = word.substr(0, word.find('='));
    const auto known = std::ranges::find(info.options, name, &MethodOption::name);
    if (name == "form" || (known != info.options.end() && known->wire_only)) continue;
    kept += concat(kept.empty() ? "" : " ", word);
  }
  return kept;
}

// A state of version 0.1 as this version would have saved it.
StateDict of_this_version(StateDict state, const MethodInfo& info) {
  const auto version = state.scalars.find("version");
  if (version != state.scalars.end()) {
    PRIDE_CHECK(version->second == std::to_string(kStateVersion), "load: the state has version ",
                version->second, ", this program reads 2 and that of pride 0.1");
    return state;
  }
  const auto options = state.scalars.find("options");
  if (options != state.scalars.end()) options->second = without_wire_options(options->second, info);
  constexpr std::string_view kOld = "owner_error/";
  std::vector<std::string> renamed;
  for (const auto& [key, tensor] : state.tensors) {
    if (key.starts_with(kOld)) renamed.push_back(key);
  }
  for (const std::string& key : renamed) {
    auto node = state.tensors.extract(key);
    node.key() = "server_error/" + key.substr(kOld.size());
    state.tensors.insert(std::move(node));
  }
  return state;
}

}  // namespace

StateDict Optimizer::save() const {
  PRIDE_CHECK(!impl_->in_step, "optimizer: save() in the middle of a step");
  PRIDE_CHECK(impl_->refusal.empty(),
              "optimizer: save() after a step that failed: ", impl_->refusal);
  StateDict state;
  state.scalars = {{"version", std::to_string(kStateVersion)},
                   {"method", impl_->options.method},
                   {"layout", hex(impl_->layout.digest())},
                   {"rank", std::to_string(impl_->comms.front()->rank())},
                   {"world", std::to_string(impl_->comms.front()->size())},
                   {"seed", std::to_string(impl_->options.seed)},
                   {"options", text_of(impl_->options.options, impl_->info)},
                   {"step", std::to_string(impl_->steps_done)}};
  impl_->method->state().save(impl_->layout, state);
  if (impl_->method->state().has(StateKind::kServer)) {
    state.scalars["bucket size"] = std::to_string(impl_->options.bucket_coords);
  }
  return state;
}

void Optimizer::load(const StateDict& saved) {
  PRIDE_CHECK(!impl_->in_step, "optimizer: load() in the middle of a step");
  const StateDict state = of_this_version(saved, impl_->info);
  const auto must_be = [&](const std::string& key, const std::string& want) {
    const auto found = state.scalars.find(key);
    PRIDE_CHECK(found != state.scalars.end(), "load: the state has no ", key);
    PRIDE_CHECK(found->second == want, "load: the state is for ", key, " ", found->second,
                ", this optimizer has ", want);
  };
  must_be("method", impl_->options.method);
  must_be("layout", hex(impl_->layout.digest()));
  must_be("rank", std::to_string(impl_->comms.front()->rank()));
  must_be("world", std::to_string(impl_->comms.front()->size()));
  must_be("seed", std::to_string(impl_->options.seed));
  must_be("options", text_of(impl_->options.options, impl_->info));
  if (impl_->method->state().has(StateKind::kServer)) {
    must_be("bucket size", std::to_string(impl_->options.bucket_coords));
  }
  const auto step = state.scalars.find("step");
  PRIDE_CHECK(step != state.scalars.end() && !step->second.empty() && step->second.size() < 19 &&
                  step->second.find_first_not_of("0123456789") == std::string::npos,
              "load: the state's step counter is missing or not a number");

  impl_->method->state().load(impl_->layout, state);
  impl_->steps_done = std::stoll(step->second);
  impl_->refusal.clear();
}

}  // namespace pride

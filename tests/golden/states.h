// States that version 0.1 saved, as text: what a later version must still read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <iostream>

#include "golden/runs.h"

namespace pride::golden {

constexpr int kStateWorld = 2;
constexpr std::int64_t kSavedAfter = 3, kStepsInAll = 5;

inline Layout small_layout() { return Layout({{"w", {5, 7}}, {"b", {5}, 1}}); }

inline std::vector<Variant> state_variants() {
  std::vector<Variant> few;
  for (const Variant& v : variants()) {
    if (v.options.contains("h")) continue;  // local steps are younger than version 0.1
    const bool first = few.empty() || few.back().method != v.method;
    if (first || v.label == "block,feedback") few.push_back(v);
  }
  return few;
}

inline Case state_run(const Variant& v) {
  return {v.method, v.label, v.options, "", kStateWorld, 0, std::size_t{1} << 20, false};
}

// The states of all ranks in the middle of a run, and the hash at its end.
struct SavedRun {
  std::vector<StateDict> states;
  std::vector<float> params;  // when saved, flat
  std::uint64_t hash = 0;
};

inline SavedRun save_run(const Variant& v) {
  SavedRun saved;
  saved.states.resize(kStateWorld);
  run_world(kStateWorld, [&](Communicator& comm) {
    Optimizer optimizer(comm, small_layout(), optimizer_options(state_run(v)));
    FlatBuffer params(optimizer.layout().flat_size());
    fill_params(optimizer.layout(), params.span());
    for (std::int64_t s = 0; s < kStepsInAll; ++s) {
      if (s == kSavedAfter) {
        saved.states[static_cast<std::size_t>(comm.rank())] = optimizer.save();
        if (comm.rank() == 0) saved.params.assign(params.span().begin(), params.span().end());
      }
      step(optimizer, comm.rank(), s, params.span());
    }
    if (comm.rank() == 0) saved.hash = param_hash(optimizer.layout(), params.span());
  });
  return saved;
}

// The hash at the end of the run that goes on from the states.
inline std::uint64_t hash_from(const Variant& v, const SavedRun& saved) {
  std::uint64_t hash = 0;
  run_world(kStateWorld, [&](Communicator& comm) {
    Optimizer optimizer(comm, small_layout(), optimizer_options(state_run(v)));
    optimizer.load(saved.states[static_cast<std::size_t>(comm.rank())]);
    FlatBuffer params(optimizer.layout().flat_size());
    std::copy(saved.params.begin(), saved.params.end(), params.span().begin());
    for (std::int64_t s = kSavedAfter; s < kStepsInAll; ++s) {
      step(optimizer, comm.rank(), s, params.span());
    }
    if (comm.rank() == 0) hash = param_hash(optimizer.layout(), params.span());
  });
  return hash;
}

inline void write_floats(std::ostream& out, std::span<const float> values) {
  for (const float x : values)
    out << ' ' << std::hex << std::bit_cast<std::uint32_t>(x) << std::dec;
  out << '\n';
}

inline std::vector<float> read_floats(std::istream& in) {
  std::vector<float> values;
  for (std::string word; in >> word;) {
    values.push_back(
        std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(word, nullptr, 16))));
  }
  return values;
}

// Lines: "run METHOD LABEL", "params", "rank R", "scalar KEY VALUE", "tensor KEY SHAPE", "hash".
inline void write(std::ostream& out, const Variant& v, const SavedRun& saved) {
  out << "run " << v.method << ' ' << (v.label.empty() ? "-" : v.label) << "\nparams";
  write_floats(out, saved.params);
  for (std::size_t r = 0; r < saved.states.size(); ++r) {
    out << "rank " << r << '\n';
    for (const auto& [key, value] : saved.states[r].scalars) {
      out << "scalar " << key << '\t' << value << '\n';
    }
    for (const auto& [key, tensor] : saved.states[r].tensors) {
      out << "tensor " << key << ' ' << tensor.shape.size();
      for (const auto extent : tensor.shape) out << ' ' << extent;
      write_floats(out, tensor.values);
    }
  }
  out << "hash " << std::hex << saved.hash << std::dec << '\n';
}

// By "METHOD LABEL".
inline std::map<std::string, SavedRun> read_states(const std::string& path) {
  std::ifstream in(path);
  std::map<std::string, SavedRun> runs;
  SavedRun* run = nullptr;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string kind, key;
    words >> kind;
    if (kind == "run") {
      run = &runs[line.substr(4)];
    } else if (kind == "params") {
      run->params = read_floats(words);
    } else if (kind == "rank") {
      run->states.emplace_back();
    } else if (kind == "scalar") {
      const std::size_t tab = line.find('\t');
      run->states.back().scalars[line.substr(7, tab - 7)] = line.substr(tab + 1);
    } else if (kind == "tensor") {
      std::size_t rank = 0;
      words >> key >> rank;
      StateDict::Tensor tensor;
      tensor.shape.resize(rank);
      for (auto& extent : tensor.shape) words >> extent;
      tensor.values = read_floats(words);
      run->states.back().tensors[key] = std::move(tensor);
    } else if (kind == "hash") {
      words >> std::hex >> run->hash;
    }
  }
  if (runs.empty()) throw Error(concat("saved states '", path, "' are missing or empty"));
  return runs;
}

}  // namespace pride::golden

// SPDX-License-Identifier: Apache-2.0
#include "optimizer/run_values.h"

#include <algorithm>
#include <utility>

#include "methods/local_parameters.h"
#include "pride/digest.h"
#include "pride/error.h"
#include "pride/replica.h"

namespace pride {
namespace {

ConstFloats values_of(const Layout& layout, ConstView x, std::size_t tensor) {
  const TensorSlot& slot = layout.tensors()[tensor];
  return x.f32(tensor, slot.offset, slot.offset + slot.n);
}

}  // namespace

std::uint64_t param_hash(const Layout& layout, std::span<const float> params) {
  PRIDE_CHECK(params.size() == layout.flat_size(), "param_hash: ", params.size(),
              " floats given, the layout has ", layout.flat_size());
  Digest digest;
  for (const TensorSlot& slot : layout.tensors()) {
    digest.bytes(std::as_bytes(params.subspan(slot.offset, slot.n)));
  }
  return digest.value();
}

void scatter(const Layout& layout, std::span<const float> flat, View x) {
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    x.memory->write(flat.subspan(slot.offset, slot.n), x.f32(t, slot.offset, slot.offset + slot.n));
  }
}

void gather(const Layout& layout, ConstView x, std::span<float> flat) {
  std::vector<float> room;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    std::ranges::copy(on_host(*x.memory, values_of(layout, x, t), room),
                      flat.subspan(layout.tensors()[t].offset).begin());
  }
}

// --- The parts of a row. -------------------------------------------------------------------------

RunValues::Part RunValues::common(View x) const {
  struct Views {
    std::vector<std::vector<ParameterPlace>> own, common;  // addresses
    std::vector<ConstView> of;                             // by section
  };
  const auto views = std::make_shared<Views>();
  views->own.resize(steps_.size());
  views->common.resize(steps_.size());
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const View own = steps_[s].section->view(x, views->own[s]);
    const LocalParameters* const local = steps_[s].method->local();
    views->of.push_back(local ? local->common(own, views->common[s]) : ConstView(own));
  }
  return {&layout_, x.memory, [this, views](std::size_t tensor) {
            const auto& [section, index] = sections_.by_tensor()[tensor];
            return values_of(sections_[section].layout, views->of[section], index);
          }};
}

std::vector<RunValues::Part> RunValues::parts(View x) const {
  std::vector<Part> parts = {common(x)};
  for (const SectionStep& step : steps_) {
    const Layout& own = step.section->layout;
    const StateTable& state = std::as_const(*step.method).state();
    for (const ConstFloats buffer : state.shared_buffers()) {
      parts.push_back({&own, &state.where(), [&own, buffer](std::size_t tensor) {
                         return values_of(own, {.flat = buffer}, tensor);
                       }});
    }
  }
  return parts;
}

std::uint64_t RunValues::hash_of(const Part& part) {
  Digest digest;
  std::vector<float> room;
  for (std::size_t t = 0; t < part.layout->tensors().size(); ++t) {
    digest.bytes(std::as_bytes(on_host(*part.memory, part.values(t), room)));
  }
  return digest.value();
}

// The parts' hashes do not cover padding.
std::uint64_t RunValues::hash_of(std::span<const Part> parts) {
  if (parts.size() == 1) return hash_of(parts[0]);
  Digest digest;
  for (const Part& part : parts) digest.number(hash_of(part));
  return digest.value();
}

// --- Rows. ---------------------------------------------------------------------------------------

std::size_t RunValues::floats() const {
  std::size_t n = layout_.flat_size();
  for (const SectionStep& step : steps_) {
    n += step.section->layout.flat_size() * std::as_const(*step.method).state().n_shared_buffers();
  }
  return n;
}

std::uint64_t RunValues::hash(std::span<const float> row) const {
  std::vector<Part> all;
  const auto add = [&](const Layout& own) {
    const auto values = row.first(own.flat_size());
    all.push_back({&own, &Memory::host(), [&own, values](std::size_t tensor) {
                     return values_of(own, {.flat = values}, tensor);
                   }});
    row = row.subspan(values.size());
  };
  add(layout_);
  for (const SectionStep& step : steps_) {
    for (std::size_t i = 0; i < std::as_const(*step.method).state().n_shared_buffers(); ++i) {
      add(step.section->layout);
    }
  }
  return hash_of(all);
}

std::uint64_t RunValues::hash(View x) const { return hash_of(parts(x)); }
std::uint64_t RunValues::params_hash(View x) const { return hash_of(common(x)); }

FlatBuffer RunValues::copy(View x) const {
  FlatBuffer row(floats());
  auto rest = row.span();
  std::vector<float> room;
  for (const Part& part : parts(x)) {
    for (std::size_t t = 0; t < part.layout->tensors().size(); ++t) {
      std::ranges::copy(on_host(*part.memory, part.values(t), room),
                        rest.subspan(part.layout->tensors()[t].offset).begin());
    }
    rest = rest.subspan(part.layout->flat_size());
  }
  return row;
}

void RunValues::take(std::span<const float> row, View x) const {
  scatter(layout_, row, x);
  row = row.subspan(layout_.flat_size());
  std::vector<ParameterPlace> room;
  for (const SectionStep& step : steps_) {
    if (step.is_local()) step.method->local()->rebase(step.section->view(x, room));
    for (const auto buffer : step.method->state().shared_buffers()) {
      step.method->state().where().write(row.first(buffer.size()), buffer);
      row = row.subspan(step.section->layout.flat_size());
    }
  }
}

}  // namespace pride

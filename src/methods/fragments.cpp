// SPDX-License-Identifier: Apache-2.0
#include "methods/fragments.h"

#include <algorithm>
#include <sstream>

#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr std::int64_t kMostFragments = 10'000;

// The start of a tensor that is nearest to i/n of the layout, or the end; the lower if two are.
std::size_t cut(const Layout& layout, std::size_t i, std::size_t n) {
  const std::size_t want = i * layout.flat_size();
  const auto distance = [&](std::size_t at) {
    return at * n > want ? at * n - want : want - at * n;
  };
  std::size_t best = 0;
  for (const TensorSlot& slot : layout.tensors()) {
    if (distance(slot.offset) < distance(best)) best = slot.offset;
  }
  return distance(layout.flat_size()) < distance(best) ? layout.flat_size() : best;
}

}  // namespace

std::vector<MethodOption> Fragments::options() {
  return {{"fragments", "1",
           "number of parts of the model, of whole tensors and about equal size; one is exchanged "
           "every h / fragments steps"},
          {"delay", "0",
           "steps from sending a fragment to adopting its result, below h; the exchange overlaps "
           "with them (above 0: 2 floats of state)"}};
}

std::string Fragments::host_only(const OptionValues& options) {
  if (options.text("fragments") == "1" && options.text("delay") == "0") return "";
  return needs_host(options, "fragments or delay");
}

Fragments::Fragments(const MethodContext& ctx, std::int64_t period, StateTable& state)
    : space_(ctx.space),
      period_(period),
      delay_(ctx.options.whole("delay", 0, period - 1)),
      end_(ctx.layout.flat_size()) {
  const auto n =
      static_cast<std::size_t>(ctx.options.whole("fragments", 1, std::min(period, kMostFragments)));
  for (std::size_t f = 0; f < n; ++f) {
    first_coords_.push_back(cut(ctx.layout, f, n));
    steps_.push_back(static_cast<std::int64_t>(f + 1) * period / static_cast<std::int64_t>(n) - 1);
  }
  where_.resize(n, Where::kHome);
  why_.resize(n);
  if (delay_ == 0) return;
  before_ = &state.add("before", StateKind::kShared);
  sent_ = &state.add("sent", StateKind::kLocal);
  state.add_text(
      "fragments", [this] { return text(); },
      [this](const std::string& text, std::size_t n_tensors, bool commit) {
        read(text, n_tensors, commit);
      });
}

// "home sent dropped 1 4": a word for each fragment; after "dropped" the rank and the tensor that
// was not finite.
std::string Fragments::text() const {
  std::string text;
  for (std::size_t f = 0; f < where_.size(); ++f) {
    text += f > 0 ? " " : "";
    if (where_[f] == Where::kHome) text += "home";
    if (where_[f] == Where::kSent) text += "sent";
    if (where_[f] == Where::kDropped) text += concat("dropped ", why_[f].rank, " ", why_[f].tensor);
  }
  return text;
}

void Fragments::read(const std::string& text, std::size_t n_tensors, bool commit) {
  std::istringstream words(text);
  std::vector<Where> where(where_.size());
  std::vector<NonFinite> why(why_.size());
  std::string word;
  bool good = true;
  for (std::size_t f = 0; f < where.size(); ++f) {
    good = good && words >> word && (word == "home" || word == "sent" || word == "dropped");
    where[f] = word == "home" ? Where::kHome : word == "sent" ? Where::kSent : Where::kDropped;
    if (!good || where[f] != Where::kDropped) continue;
    good = words >> why[f].rank >> why[f].tensor && why[f].rank >= NonFinite::kSum &&
           why[f].tensor < n_tensors;
  }
  PRIDE_CHECK(good && !(words >> word), "load: the state's method.fragments is '", text,
              "', not 'home', 'sent' or 'dropped RANK TENSOR' for each of ", where.size());
  if (!commit) return;
  where_ = std::move(where);
  why_ = std::move(why);
}

// If several fragments begin at the same coordinate, the last one: the others are empty.
std::size_t Fragments::of(std::size_t coord) const {
  const auto next = std::ranges::upper_bound(first_coords_, coord);
  return static_cast<std::size_t>(next - first_coords_.begin()) - 1;
}

std::optional<std::size_t> Fragments::sent_in(std::int64_t step) const {
  const auto found = std::ranges::lower_bound(steps_, step % period_);
  if (found == steps_.end() || *found != step % period_) return std::nullopt;
  return static_cast<std::size_t>(found - steps_.begin());
}

Fragments::Range Fragments::sent_range(std::int64_t step) const {
  const std::size_t f = *sent_in(step);
  return {first_coords_[f], f + 1 < first_coords_.size() ? first_coords_[f + 1] : end_};
}

void Fragments::send(std::size_t begin, std::span<const float> common, std::span<float> drift) {
  space_.run(kernels::Copy{common, before_->span().subspan(begin, common.size())});
  space_.run(kernels::Copy{drift, sent_->span().subspan(begin, drift.size())});
  space_.run(kernels::Fill{drift, 0});
  where_[of(begin)] = Where::kSent;
}

std::span<const float> Fragments::before(std::size_t begin, std::size_t n) const {
  return before_->span().subspan(begin, n);
}

std::span<const float> Fragments::sent(std::size_t begin, std::size_t n) const {
  return sent_->span().subspan(begin, n);
}

void Fragments::drop(std::int64_t step, const NonFinite& why) {
  const std::size_t f = *sent_in(step);
  where_[f] = Where::kDropped;
  why_[f] = why;
}

void Fragments::place(std::size_t begin, std::span<const float> common, std::span<float> drift,
                      Floats x, std::int64_t step) {
  take_back(begin, drift, step);
  write(begin, common, drift, x, step);
}

void Fragments::take_back(std::size_t begin, std::span<float> drift, std::int64_t step) const {
  const std::size_t f = of(begin);
  if (adopts(f, step) && where_[f] == Where::kDropped) {
    space_.run(kernels::Sum{sent(begin, drift.size()), drift, drift});
  }
}

void Fragments::write(std::size_t begin, std::span<const float> common,
                      std::span<const float> drift, Floats x, std::int64_t step) const {
  if (adopts(of(begin), step)) return space_.run(kernels::Sum{common, drift, x});
  place(begin, common, drift, x);
}

bool Fragments::adopts(std::size_t f, std::int64_t step) const {
  return away(f) && step >= delay_ && sent_in(step - delay_) == f;
}

void Fragments::place(std::size_t begin, std::span<const float> common,
                      std::span<const float> drift, Floats x) const {
  if (!away(of(begin))) return space_.run(kernels::Sum{common, drift, x});
  space_.run(kernels::Sum{before(begin, x.size()), sent(begin, x.size()), x});
  space_.run(kernels::Sum{x, drift, x});
}

std::optional<Fragments::Adopted> Fragments::end_step(std::int64_t step) {
  if (step < delay_) return std::nullopt;
  const auto f = sent_in(step - delay_);
  if (!f) return std::nullopt;
  Adopted adopted{.step = step - delay_, .dropped = std::nullopt};
  if (where_[*f] == Where::kDropped) adopted.dropped = why_[*f];
  where_[*f] = Where::kHome;
  return adopted;
}

}  // namespace pride::methods

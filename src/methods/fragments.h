// Fragments: parts of a model that are exchanged in turn, each in its own step of a period, and the
// drifts that were sent but whose results are not adopted yet.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "methods/method.h"

namespace pride::methods {

// Source: Douillard et al. 2025, arXiv:2501.18512 (Streaming DiLoCo), Algorithm 2. Fragment f of n
// is sent in steps t with t mod h = floor((f+1) h / n) - 1, and adopted `delay` steps later, before
// its next turn. It is a run of whole tensors: the cuts are the beginnings of tensors that are
// nearest to even parts, so that they depend on the layout and n alone.
//
// With a delay, a worker's parameters are x + y_sent + y until the result is adopted: x the common
// parameters before the exchange (buffer `before`), y_sent the drift that was sent (buffer `sent`),
// y the drift since.
class Fragments {
 public:
  static std::vector<MethodOption> options();
  static std::string host_only(const OptionValues& options);  // MethodEntry::host_only

  // Throws InvalidArgument, naming the method, on bad options. Adds its buffers to the table.
  Fragments(const MethodContext& ctx, std::int64_t period, StateTable& state);
  Fragments(const Fragments&) = delete;
  Fragments& operator=(const Fragments&) = delete;

  // True with several fragments or a delay: each rank then handles its non-finite values alone.
  bool stream() const noexcept { return first_coords_.size() > 1 || delay_ > 0; }
  std::int64_t delay() const noexcept { return delay_; }
  std::span<const std::size_t> cuts() const noexcept { return std::span(first_coords_).subspan(1); }

  // Steps of a period in which a fragment is sent, ascending.
  const std::vector<std::int64_t>& steps() const noexcept { return steps_; }
  bool sends(std::int64_t step) const { return sent_in(step).has_value(); }
  bool sends(std::size_t coord, std::int64_t step) const { return sent_in(step) == of(coord); }
  struct Range {
    std::size_t begin, end;
  };
  Range sent_range(std::int64_t step) const;  // REQUIRES: sends(step)

  // The following are for coordinates [begin, begin + drift.size()) of one fragment.
  // With a delay: keeps the common parameters and the drift, and sets `drift` to 0.
  void send(std::size_t begin, std::span<const float> common, std::span<float> drift);
  std::span<const float> before(std::size_t begin, std::size_t n) const;
  std::span<const float> sent(std::size_t begin, std::size_t n) const;

  // Notes that the exchange begun in that step was dropped.
  void drop(std::int64_t step, const NonFinite& why);

  // x = the worker's parameters. In a step that adopts the fragment: those after adopting it; if
  // its exchange was dropped, `drift` gets back what was sent. Without a step: between steps.
  void place(std::size_t begin, std::span<const float> common, std::span<float> drift, Floats x,
             std::int64_t step);
  void place(std::size_t begin, std::span<const float> common, std::span<const float> drift,
             Floats x) const;
  // Only gives a dropped exchange's drift back.
  void take_back(std::size_t begin, std::span<float> drift, std::int64_t step) const;
  // As place() in a step, after take_back().
  void write(std::size_t begin, std::span<const float> common, std::span<const float> drift,
             Floats x, std::int64_t step) const;

  // Called after the last place() of a step. Returns the exchange that the step adopted, if any.
  struct Adopted {
    std::int64_t step;  // in which it was begun
    std::optional<NonFinite> dropped;
  };
  std::optional<Adopted> end_step(std::int64_t step);

 private:
  enum class Where { kHome, kSent, kDropped };  // the last two: not adopted yet

  std::size_t of(std::size_t coord) const;
  std::optional<std::size_t> sent_in(std::int64_t step) const;
  bool away(std::size_t fragment) const { return where_[fragment] != Where::kHome; }
  bool adopts(std::size_t fragment, std::int64_t step) const;
  std::string text() const;
  void read(const std::string& text, std::size_t n_tensors, bool commit);

  Space& space_;
  std::int64_t period_, delay_;
  std::vector<std::size_t> first_coords_;  // of each fragment
  std::size_t end_;
  std::vector<std::int64_t> steps_;  // of each fragment, in its period
  std::vector<Where> where_;
  std::vector<NonFinite> why_;  // of dropped fragments
  FlatBuffer *before_ = nullptr, *sent_ = nullptr;
};

}  // namespace pride::methods

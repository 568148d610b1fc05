// Lion Cub within a budget: bits and synchronised momenta chosen from measurements of the first
// steps.
// SPDX-License-Identifier: Apache-2.0
// Source    Ishikawa et al. 2024, arXiv:2411.16462; the choice is pride's own.
// Cost      on average over the steps, at most budget_bits sent per coordinate and rank; an upper
//           bound until the choice is made.
// State     that of lion-cub, and the choice.
// Deviates  as lion-cub.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iterator>
#include <map>
#include <numeric>
#include <sstream>

#include "methods/lion_cub.h"
#include "methods/options.h"
#include "methods/registry.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr int kProbes = 8;  // measured steps, in the second half of measure_steps
constexpr std::size_t kBucket = std::size_t{1} << 20, kMostBuckets = 1024;  // for cost estimates

// The options of lion-cub that this method chooses itself.
MethodContext with_choices(MethodContext ctx) {
  ctx.options["bits"] = "1";
  ctx.options["sync"] = "none";
  ctx.options["feedback"] = "no";
  return ctx;
}

class LionCubAuto final : public Method {
 public:
  LionCubAuto(const std::string& name, const MethodContext& ctx)
      : name_(name),
        layout_(ctx.layout),
        world_(ctx.world),
        budget_(number_option(name, ctx, "budget_bits", 0, 1000)),
        measure_steps_(whole_option(name, ctx, "measure_steps", 2 * kProbes, 1'000'000)),
        cub_(name, with_choices(ctx),
             [this](std::int64_t step) { return !chosen_ && measures(step); }),
        variance_(layout_.tensors().size()) {
    const double least = 2.0 * (world_ - 1) / world_;
    PRIDE_CHECK(budget_ >= least, name, ": option budget_bits = ", budget_,
                ": a vote of one bit each sends ", least, " bits per parameter on ", world_,
                " ranks");
    PRIDE_CHECK(cub_.schedule().synchronises(measure_steps_), name,
                ": option sync_until = ", cub_.schedule().until(),
                ": momenta are synchronised only after the first measure_steps = ", measure_steps_);
    // until the buckets in use are known
    buckets_ = make_buckets(layout_, std::max(kBucket, layout_.flat_size() / kMostBuckets), world_,
                            cub_.protocol({}).alignment);
    // more frequent samples during the measurement
    const double sampled =
        std::max(cub_.probe_rate(), double{kProbes} / static_cast<double>(measure_steps_));
    int bits = 1;
    while (bits < 4 && bits_of(with_bits(bits + 1), sampled) <= budget_) ++bits;
    cub_.set_plan(with_bits(bits));
    cub_.state().add_text(
        "choice", [this] { return choice_text(); },
        [this](const std::string& text, std::size_t n_tensors, bool commit) {
          read_choice(text, n_tensors, commit);
        });
  }

  StateTable& state() noexcept override { return cub_.state(); }
  Protocol protocol(const Round& round) const override;
  std::vector<Part> parts(const Bucket& b, const Round& round) const override {
    return cub_.parts(b, round);
  }
  void prepare(const StepContext& ctx, GradientView g, Wire& before) override {
    cub_.prepare(ctx, g, before);
  }
  void take_before(const StepContext& ctx, const Wire& before) override {
    cub_.take_before(ctx, before);
  }
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override {
    if (!chosen_) seen_[b.index] = b;
    cub_.encode(b, ctx, flight);
  }
  void serve(const Part& part, const Shard& shard, const Ballots& up, const Round& round,
             Reply& reply) const override {
    cub_.serve(part, shard, up, round, reply);
  }
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override {
    cub_.apply(b, flight, ctx, x);
  }
  StepNotes end_step(const StepContext& ctx) override {
    StepNotes notes = cub_.end_step(ctx);
    if (!chosen_ && measures(ctx.step)) add_measurement(notes.diagnostics);
    if (!chosen_ && ctx.step + 1 >= measure_steps_) notes.note = choose();
    return notes;
  }

 private:
  using Plan = LionCub::Plan;

  bool measures(std::int64_t step) const;
  Plan with_bits(int bits) const { return {bits, std::vector<char>(layout_.tensors().size(), 0)}; }
  double bits_of(const Plan& plan, double sampled) const;
  bool fits(const Plan& plan) const {
    return bits_of(plan, cub_.probe_rate()) <= budget_ || world_ == 1;
  }
  void add_measurement(std::span<const TensorDiagnostics> diagnostics);
  std::string choose();
  int choose_bits(Plan plan) const;
  std::vector<std::size_t> by_variance() const;
  std::string tensors_text(const Plan& plan) const;
  std::string choice_text() const;
  void read_choice(const std::string& text, std::size_t n_tensors, bool commit);

  std::string name_;
  Layout layout_;
  int world_;
  double budget_;
  std::int64_t measure_steps_;
  bool chosen_ = false;
  LionCub cub_;
  std::vector<Bucket> buckets_;  // for cost estimates
  std::map<int, Bucket> seen_;
  // measured so far
  VoteProbe::Loss loss_;
  std::vector<double> variance_;  // by tensor, summed over the measured steps
};

// Eight steps, spread evenly over the second half: at first all momenta are near zero.
bool LionCubAuto::measures(std::int64_t step) const {
  const std::int64_t half = measure_steps_ / 2;
  if (step < half || step >= measure_steps_) return false;
  const std::int64_t length = measure_steps_ - half;
  const std::int64_t before = (step - half) * kProbes / length;
  return step - half == (before * length + kProbes - 1) / kProbes;
}

// Bits sent per coordinate, step and rank, averaged over ranks and over the first interval of
// synchronisation after the measurement; later intervals are not shorter, and cost no more.
double LionCubAuto::bits_of(const Plan& plan, double sampled) const {
  const auto d = static_cast<double>(layout_.n_coords());
  return 8 * cub_.bytes_of(plan, buckets_, sampled, measure_steps_) / (d * world_);
}

void LionCubAuto::add_measurement(std::span<const TensorDiagnostics> diagnostics) {
  if (world_ == 1) return;
  const VoteProbe::Loss now = cub_.probe().losses(cub_.quantiser_options());
  for (std::size_t p = 0; p < now.lost.size(); ++p) loss_.lost[p] += now.lost[p];
  loss_.all += now.all;
  for (const TensorDiagnostics& d : diagnostics) variance_[d.tensor] += d.momentum_variance;
}

// For the plan's synchronised momenta: the fewest bits with nine tenths of the gain of the best
// affordable number of bits.
int LionCubAuto::choose_bits(Plan plan) const {
  std::vector<int> affordable;
  for (int bits = 1; bits <= kernels::kMaxLevelBits; ++bits) {
    plan.bits = bits;
    if (bits == 1 || fits(plan)) affordable.push_back(bits);
  }
  const auto lost = [&](int bits) { return loss_.lost[static_cast<std::size_t>(bits - 1)]; };
  double least = lost(1);
  for (const int bits : affordable) least = std::min(least, lost(bits));
  const auto enough = [&](int bits) { return lost(bits) - least <= 0.1 * (lost(1) - least); };
  return *std::ranges::find_if(affordable, enough);
}

// Tensors in descending order of their momenta's variance over the ranks.
std::vector<std::size_t> LionCubAuto::by_variance() const {
  std::vector<std::size_t> order(variance_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return variance_[a] > variance_[b]; });
  return order;
}

// "all", "none", or names.
std::string LionCubAuto::tensors_text(const Plan& plan) const {
  const auto n = static_cast<std::size_t>(std::ranges::count(plan.synced, 1));
  if (n == 0) return "none";
  if (n == plan.synced.size()) return "all";
  std::string names;
  for (std::size_t t = 0; t < plan.synced.size(); ++t) {
    if (plan.synced[t] == 0) continue;
    names += concat(names.empty() ? "" : ",", layout_.tensors()[t].spec.name);
  }
  return names;
}

// Momenta come first: in measurements a bit spent on them brings more than one spent on levels
// (docs/methods/lion-cub.md). All ranks have the same samples and make the same choice.
std::string LionCubAuto::choose() {
  chosen_ = true;
  if (world_ == 1) return {};
  buckets_.clear();
  for (auto& [index, bucket] : seen_) buckets_.push_back(std::move(bucket));
  seen_.clear();
  Plan plan = with_bits(1);
  for (const std::size_t t : by_variance()) {
    plan.synced[t] = 1;
    if (!fits(plan)) plan.synced[t] = 0;
  }
  plan.bits = choose_bits(plan);
  std::ostringstream text;
  text << std::setprecision(3) << "bits=" << plan.bits << " sync=" << tensors_text(plan) << ": "
       << bits_of(plan, cub_.probe_rate()) << " of " << budget_
       << " bits per parameter and step; a vote of p = 1, 2, ... bits lost, of sum |mean blend|,";
  for (const double lost : loss_.lost) {
    text << ' ' << 100 * lost / std::max(loss_.all, 1e-300) << '%';
  }
  cub_.set_plan(std::move(plan));
  return text.str();
}

// If the choice is made, steps before it have no bound: their plan is not known. If it is not made,
// steps after it have this bound: the parts of the present plan, whose frames may exceed any
// budget; twice the average of the budget, as slices of momenta differ; samples; and differences
// between shards and frames.
Protocol LionCubAuto::protocol(const Round& round) const {
  Protocol p = cub_.protocol(round);
  if (round.step < measure_steps_) {
    if (chosen_) p.exact = p.bound = false;
    return p;
  }
  if (chosen_) return p;
  const auto budget =
      static_cast<std::uint64_t>(2 * budget_ * static_cast<double>(layout_.n_coords()) / 8);
  const auto peers = static_cast<std::uint64_t>(round.voters - 1);
  const std::uint64_t of_bucket = peers * (5 * 128 + 2 * p.alignment);
  const std::uint64_t samples = peers * 9 * cub_.probe().size();
  p.slack = [=](std::size_t, std::size_t n_buckets) {
    return budget + of_bucket * n_buckets + samples;
  };
  return p;
}

// --- The choice in a checkpoint: bits, the synchronised tensors, and the measurements. -----------

std::string LionCubAuto::choice_text() const {
  std::ostringstream text;
  text << std::hexfloat << (chosen_ ? 1 : 0) << ' ' << cub_.plan().bits;
  for (const char synced : cub_.plan().synced) text << ' ' << int{synced};
  for (const double lost : loss_.lost) text << ' ' << lost;
  text << ' ' << loss_.all;
  for (const double v : variance_) text << ' ' << v;
  return text.str();
}

void LionCubAuto::read_choice(const std::string& saved, std::size_t known, bool commit) {
  std::istringstream text(saved);
  const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
  // tensors added since then are not synchronised and have no measurements
  PRIDE_CHECK(known <= variance_.size() && words.size() == 3 + loss_.lost.size() + 2 * known,
              "load: ", name_, ": the choice in the state is damaged: ", words.size(),
              " numbers for ", known, " tensors");
  std::size_t next = 0;
  const auto number = [&] {
    const std::string& word = words[next++];
    char* end = nullptr;  // streams do not read hexadecimal floats
    const double value = std::strtod(word.c_str(), &end);
    PRIDE_CHECK(*end == '\0' && std::isfinite(value), "load: ", name_,
                ": the choice in the state is damaged: '", word, "'");
    return value;
  };
  const bool was_chosen = number() != 0;
  const double bits = number();
  PRIDE_CHECK(bits >= 1 && bits <= kernels::kMaxLevelBits && bits == std::floor(bits),
              "load: ", name_, ": bits = ", bits, ", must be a whole number from 1 to ",
              kernels::kMaxLevelBits);
  Plan loaded = with_bits(static_cast<int>(bits));
  for (std::size_t t = 0; t < known; ++t) loaded.synced[t] = number() != 0 ? 1 : 0;
  VoteProbe::Loss loss;
  for (double& lost : loss.lost) lost = number();
  loss.all = number();
  std::vector<double> variance(variance_.size());
  for (std::size_t t = 0; t < known; ++t) variance[t] = number();
  if (!commit) return;
  // on more ranks the same plan may exceed the budget: then the choice is made again
  chosen_ = was_chosen && fits(loaded);
  if (chosen_ || !was_chosen) cub_.set_plan(std::move(loaded));
  loss_ = loss;
  variance_ = std::move(variance);
}

}  // namespace

extern const MethodEntry kLionCubAuto = {
    "lion-cub-auto", make<LionCubAuto>, [](int) {
      MethodInfo info = lion_cub_base_info();
      info.title = "Lion Cub within a budget";
      info.source += "; the choice is pride's own";
      std::erase_if(info.options, [](const MethodOption& o) { return o.name == "feedback"; });
      info.options.insert(
          info.options.begin(),
          {{"budget_bits", "8",
            "most bits sent per parameter, step and rank, averaged over steps; "
            "includes synchronisation and samples; a vote of one bit sends "
            "2 (N-1)/N"},
           {"measure_steps", "64",
            "number of first steps; measurements in their second half decide the choice"}});
      return info;
    }};

}  // namespace pride::methods

// Lion Cub within a budget: picks bits and synchronised momenta from what the first steps measure.
// SPDX-License-Identifier: Apache-2.0
// Source    Ishikawa et al. 2024, arXiv:2411.16462; the choice is pride's own.
// Cost      on average over the steps, at most budget_bits sent per coordinate and rank; an upper
//           bound until the choice is made.
// State     that of lion-cub, and the choice.
// Deviates  as lion-cub.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <numeric>
#include <sstream>

#include "methods/lion_cub.h"
#include "methods/options.h"
#include "pride/error.h"
#include "pride/methods/lion_cub.h"

namespace pride::methods {
namespace {

constexpr const char* kName = "lion-cub-auto";
constexpr int kProbes = 8;  // measured steps, in the second half of the first ones

// The options that lion-cub has and this method chooses itself.
MethodContext with_choices(MethodContext ctx) {
  ctx.options["bits"] = "1";
  ctx.options["sync"] = "none";
  ctx.options["feedback"] = "no";
  return ctx;
}

class LionCubAuto final : public LionCub {
 public:
  explicit LionCubAuto(const MethodContext& ctx)
      : LionCub(kName, with_choices(ctx)),
        budget_(number_option(kName, ctx, "budget_bits", 0, 1000)),
        measure_steps_(whole_option(kName, ctx, "measure_steps", 2 * kProbes, 1'000'000)),
        buckets_(make_buckets(layout(), std::size_t{1} << 20, world(), alignment())),
        variance_(layout().tensors().size()) {
    const double least = 2.0 * (world() - 1) / world();
    PRIDE_CHECK(budget_ >= least, kName, ": option budget_bits = ", budget_,
                ": a vote of one bit each sends ", least, " bits per parameter on ", world(),
                " ranks");
    // samples are the more frequent while it measures
    const double sampled =
        std::max(probe_rate(), double{kProbes} / static_cast<double>(measure_steps_));
    int bits = 1;
    while (bits < 4 && bits_of(with_bits(bits + 1), sampled) <= budget_) ++bits;
    set_plan(with_bits(bits));
  }

  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override {
    if (!chosen_) seen_[b.index] = b;
    LionCub::encode(b, g, ctx, w);
  }

  void end_step(const StepContext& ctx) override {
    LionCub::end_step(ctx);
    note_.clear();
    if (chosen_) return;
    if (measures(ctx.step)) add_measurement();
    if (ctx.step + 1 >= measure_steps_) choose();
  }
  std::string note() const override { return note_; }

  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const override;
  void save(StateWriter& out) const override;
  void load(StateReader& in) override;

 private:
  bool probes(std::int64_t step) const override {
    return (!chosen_ && world() > 1 && measures(step)) || LionCub::probes(step);
  }
  bool measures(std::int64_t step) const;
  Plan with_bits(int bits) const { return {bits, std::vector<char>(layout().tensors().size(), 0)}; }
  double bits_of(const Plan& plan, double sampled) const;
  bool fits(const Plan& plan) const {
    return bits_of(plan, probe_rate()) <= budget_ || world() == 1;
  }
  void add_measurement();
  void choose();
  int choose_bits(Plan plan) const;
  std::vector<std::size_t> by_variance() const;
  std::string tensors_text(const Plan& plan) const;

  double budget_;
  std::int64_t measure_steps_;
  std::vector<Bucket> buckets_;  // for prices: of the default size, until those in use are known
  std::map<int, Bucket> seen_;
  // measured so far
  VoteProbe::Loss loss_;
  std::vector<double> variance_;  // by tensor, summed over the measured steps
  bool chosen_ = false;
  std::string note_;
};

// Eight steps, evenly over the second half: at first all momenta are near zero.
bool LionCubAuto::measures(std::int64_t step) const {
  const std::int64_t half = measure_steps_ / 2;
  if (step < half || step >= measure_steps_) return false;
  const std::int64_t length = measure_steps_ - half;
  const std::int64_t before = (step - half) * kProbes / length;
  return step - half == (before * length + kProbes - 1) / kProbes;
}

// Sent per coordinate, step and rank, on average over ranks and steps.
double LionCubAuto::bits_of(const Plan& plan, double sampled) const {
  const auto d = static_cast<double>(layout().n_coords());
  return 8 * bytes_of(plan, buckets_, sampled) / (d * world());
}

void LionCubAuto::add_measurement() {
  const VoteProbe::Loss now = probe().losses(quantiser_options());
  for (std::size_t p = 0; p < now.lost.size(); ++p) loss_.lost[p] += now.lost[p];
  loss_.all += now.all;
  for (const TensorDiagnostics& d : diagnostics()) variance_[d.tensor] += d.momentum_variance;
}

// With what is synchronised already: the fewest bits that bring nine tenths of what the affordable
// ones can bring.
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

// Tensors, those whose momenta differ most between the ranks first.
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
    names += concat(names.empty() ? "" : ",", layout().tensors()[t].spec.name);
  }
  return names;
}

// Momenta first: measured, a bit spent on them brings more than one spent on levels
// (docs/methods/lion-cub.md). Every rank has the same samples, and so the same choice.
void LionCubAuto::choose() {
  chosen_ = true;
  if (world() == 1) return;
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
       << bits_of(plan, probe_rate()) << " of " << budget_
       << " bits per parameter and step; a vote of p = 1, 2, ... bits lost, of sum |mean blend|,";
  for (const double lost : loss_.lost) {
    text << ' ' << 100 * lost / std::max(loss_.all, 1e-300) << '%';
  }
  note_ = text.str();
  set_plan(std::move(plan));
}

Cost LionCubAuto::cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const {
  if (step < measure_steps_) {
    Cost cost = LionCub::cost(buckets, rank, step);
    if (chosen_) cost.exact = cost.bound = false;  // of a step that is past: the plan was another
    return cost;
  }
  if (chosen_) return LionCub::cost(buckets, rank, step);
  // not chosen yet: the vote, whose frames may exceed any budget; the average that the budget
  // allows, twice, for slices of momenta differ; samples; and what shards and frames differ by
  const auto d = static_cast<double>(layout().n_coords());
  Cost bound = VoteMethod::cost(buckets, rank, step);
  bound.exact = false;
  bound.bytes_up += static_cast<std::uint64_t>(2 * budget_ * d / 8);
  for (const Bucket& b : buckets) {
    const auto peers = static_cast<std::uint64_t>(b.shards.size() - 1);
    bound.bytes_up += probe().cost(b).bytes_up + peers * (4 * 128 + 2 * alignment());
  }
  return bound;
}

// --- The choice in a checkpoint: bits, then the synchronised tensors, or "measuring".
// -------------

void LionCubAuto::save(StateWriter& out) const {
  LionCub::save(out);
  std::ostringstream text;
  text << std::hexfloat << (chosen_ ? 1 : 0) << ' ' << plan().bits;
  for (const char synced : plan().synced) text << ' ' << int{synced};
  for (const double lost : loss_.lost) text << ' ' << lost;
  text << ' ' << loss_.all;
  for (const double v : variance_) text << ' ' << v;
  out.text("choice", text.str());
}

void LionCubAuto::load(StateReader& in) {
  LionCub::load(in);
  std::istringstream text(in.text("choice"));
  // hexadecimal floats are not read by streams
  const auto number = [&] {
    std::string word;
    text >> word;
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    PRIDE_CHECK(!word.empty() && *end == '\0' && std::isfinite(value), "load: ", kName,
                ": the choice in the state is damaged: '", word, "'");
    return value;
  };
  const bool was_chosen = number() != 0;
  const double bits = number();
  PRIDE_CHECK(bits >= 1 && bits <= kernels::kMaxLevelBits, "load: ", kName, ": bits = ", bits);
  Plan loaded = with_bits(static_cast<int>(bits));
  for (char& synced : loaded.synced) synced = number() != 0 ? 1 : 0;
  VoteProbe::Loss loss;
  for (double& lost : loss.lost) lost = number();
  loss.all = number();
  std::vector<double> variance(variance_.size());
  for (double& v : variance) v = number();
  if (!in.commits()) return;
  chosen_ = was_chosen;
  set_plan(std::move(loaded));
  loss_ = loss;
  variance_ = std::move(variance);
}

}  // namespace

std::unique_ptr<Method> make_lion_cub_auto(const MethodContext& ctx) {
  return std::make_unique<LionCubAuto>(ctx);
}

MethodInfo lion_cub_auto_info(int world) {
  MethodInfo info = lion_cub_base_info(world);
  info.title = "Lion Cub within a budget";
  info.source = "Ishikawa et al. 2024, arXiv:2411.16462; the choice is pride's own";
  std::erase_if(info.options, [](const MethodOption& o) { return o.name == "feedback"; });
  info.options.insert(
      info.options.begin(),
      {{"budget_bits", "8",
        "bits sent per parameter, step and rank at most, on average over steps, synchronisation "
        "and samples included; a vote of one bit sends 2 (N-1)/N"},
       {"measure_steps", "64", "first steps, in whose second half is measured what to choose"}});
  return info;
}

}  // namespace pride::methods

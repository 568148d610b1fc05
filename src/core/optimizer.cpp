// The optimizer: checks, scalars of the step, the pipeline, state.
// SPDX-License-Identifier: Apache-2.0
#include "pride/optimizer.h"

#include <algorithm>
#include <cmath>

#include "codecs/frame.h"
#include "core/agreement.h"
#include "core/digest.h"
#include "core/pipeline.h"
#include "core/state_io.h"
#include "core/step_scalars.h"
#include "methods/registry.h"
#include "pride/bucket.h"
#include "pride/cpu.h"
#include "pride/error.h"
#include "pride/method.h"
#include "pride/registry.h"

namespace pride {
namespace {

constexpr int kMostExchangeThreads = 16;

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

}  // namespace

struct Optimizer::Impl {
  Impl(Communicator& user_comm, Layout the_layout, OptimizerOptions the_options);

  void prepare(const Communicator& user_comm);
  void check_hosts(int world) const;
  void check_ranks_agree(Communicator& user_comm, bool usable);
  void begin(std::span<float> params, std::span<const float> grads);
  void begin(std::span<float> params, std::span<const BFloat16> grads);
  void tensor_ready(std::size_t tensor, bool is_absent);
  StepReport finish();
  Traffic traffic() const;
  template <typename T>
  StepReport whole_step(std::span<float> params, std::span<const T> grads,
                        std::span<const bool> missing);
  template <typename Body>
  void guarded(Body&& body);
  [[noreturn]] void raise(const Poison& poison);
  std::string describe(const Poison& poison) const;

  Layout layout;
  OptimizerOptions options;
  MethodInfo info;
  std::vector<GroupValues> groups;
  // duplicates: their traffic is the optimizer's alone
  std::vector<std::unique_ptr<Communicator>> comms;
  std::vector<Bucket> buckets;
  std::unique_ptr<Method> method;

  std::int64_t steps_done = 0;
  bool in_step = false;
  std::string refusal;  // why no further step is taken; empty: steps are welcome

  // the step at hand
  StepContext ctx;
  std::vector<StepScalars> scalars;
  std::vector<char> absent;
  std::vector<char> reported;
  std::vector<std::vector<std::size_t>> buckets_of_tensor;
  std::vector<std::size_t> tensors_of_bucket;  // how many
  std::vector<std::size_t> waiting;            // of them not yet reported
  Traffic traffic_before;
  std::span<const BFloat16> narrow;  // gradients as the caller gave them, if in bfloat16 ...
  FlatBuffer wide;                   // ... and as float32, tensor by tensor as they become ready

  std::unique_ptr<Pipeline> pipeline;  // last: its thread reads all of the above until it is gone
};

Optimizer::Impl::Impl(Communicator& user_comm, Layout the_layout, OptimizerOptions the_options)
    : layout(std::move(the_layout)), options(std::move(the_options)) {
  // a rank with settings that cannot be used goes to the meeting nevertheless: the others are there
  std::exception_ptr unusable;
  try {
    prepare(user_comm);
  } catch (const InvalidArgument&) {
    unusable = std::current_exception();
  }
  try {
    check_ranks_agree(user_comm, unusable == nullptr);
  } catch (const InvalidArgument&) {
    if (!unusable) throw;
  }
  if (unusable) std::rethrow_exception(unusable);

  const int n_comms = options.overlap ? options.exchange_threads : 1;
  for (int i = 0; i < n_comms; ++i) {
    comms.push_back(user_comm.duplicate());
    comms.back()->set_timeout(user_comm.timeout());
  }
  pipeline = std::make_unique<Pipeline>(comms, user_comm, *method, buckets, options.overlap);

  buckets_of_tensor.resize(layout.tensors().size());
  tensors_of_bucket.resize(buckets.size());
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (const Shard& shard : buckets[b].shards) {
      for (const Piece& piece : shard.pieces) {
        auto& list = buckets_of_tensor[piece.tensor];
        if (!list.empty() && list.back() == b) continue;  // another shard of the same bucket
        list.push_back(b);
        ++tensors_of_bucket[b];
      }
    }
  }
}

// What this rank can see to alone. Throws InvalidArgument.
void Optimizer::Impl::prepare(const Communicator& user_comm) {
  active_isa();  // an unusable PRIDE_ISA is reported here; kernels cannot
  PRIDE_CHECK(user_comm.size() <= kMaxWorld, "optimizer: ", user_comm.size(),
              " ranks; frames number at most ", kMaxWorld);
  info = method_info(options.method, user_comm.size());
  PRIDE_CHECK(user_comm.size() <= info.max_world, "optimizer: ", options.method, " on ",
              user_comm.size(), " ranks, at most ", info.max_world);
  PRIDE_CHECK(static_cast<std::size_t>(layout.n_groups()) <= options.groups.size(),
              "optimizer: the layout has ", layout.n_groups(), " groups, the options ",
              options.groups.size());
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    groups.push_back(complete_group(options.groups[g], info, static_cast<int>(g)));
  }
  options.options = complete_options(options.method, options.options);
  method = make_method(
      options.method, {layout, user_comm.rank(), user_comm.size(), options.options, options.hosts});
  check_hosts(user_comm.size());
  PRIDE_CHECK(std::isfinite(options.clip_global_norm) && options.clip_global_norm >= 0,
              "optimizer: clip_global_norm = ", options.clip_global_norm,
              ", must be finite and 0 or more");
  PRIDE_CHECK(options.clip_global_norm == 0 || method->has_mean_gradient(),
              "optimizer: clip_global_norm: ", options.method,
              " never has the mean gradient of all ranks, so that nobody knows its norm; clip each "
              "rank's own gradient instead (local clipping)");
  PRIDE_CHECK(options.exchange_threads >= 1 && options.exchange_threads <= kMostExchangeThreads,
              "optimizer: exchange_threads = ", options.exchange_threads, ", must be from 1 to ",
              kMostExchangeThreads);
  buckets = make_buckets(layout, options.bucket_coords, user_comm.size(), method->alignment());
}

void Optimizer::Impl::check_hosts(int world) const {
  const Hosts& hosts = options.hosts;
  PRIDE_CHECK(!hosts.known() || hosts.world() == world, "optimizer: hosts of ", hosts.world(),
              " ranks, there are ", world);
  PRIDE_CHECK(!hosts.known() || method->has_two_levels(), "optimizer: hosts: ", options.method,
              " has no exchange in two levels; methods whose ranks send one sign for each "
              "coordinate have it (dlion-vote, dlion-avg, signum-vote, signum-avg)");
}

void Optimizer::Impl::check_ranks_agree(Communicator& user_comm, bool usable) {
  Digest method_options, hyper, hosts;
  for (int r = 0; r < options.hosts.world(); ++r) {
    hosts.number(static_cast<std::uint64_t>(options.hosts.host_of(r)));
  }
  for (const auto& [name, value] : options.options) method_options.text(name).text(value);
  for (const GroupValues& g : groups) {
    for (const double v : {g.lr, g.beta1, g.beta2, g.eps, g.weight_decay}) {
      hyper.number(std::bit_cast<std::uint64_t>(v));
    }
  }
  check_agreement(
      user_comm, layout,
      {{"verdict on its own settings (usable or not)", usable ? 1 : 0},
       {"method", Digest().text(options.method).value()},
       {"method options", method_options.value()},
       {"hyper-parameters", hyper.value()},
       {"seed", options.seed},
       {"bucket size", options.bucket_coords},
       {"list of hosts", hosts.value()},
       {"exchange threads",
        options.overlap ? static_cast<std::uint64_t>(options.exchange_threads) : 1},
       {"global-norm clipping", std::bit_cast<std::uint64_t>(options.clip_global_norm)},
       {"policy for non-finite gradients", static_cast<std::uint64_t>(options.non_finite)}});
}

// Whatever a part of a step throws ends the step, and leaves momentum and parameters half done.
template <typename Body>
void Optimizer::Impl::guarded(Body&& body) {
  try {
    body();
  } catch (const std::exception& e) {
    in_step = false;
    refusal = e.what();
    throw;
  }
}

void Optimizer::Impl::begin(std::span<float> params, std::span<const float> grads) {
  if (!refusal.empty()) throw InvalidArgument("optimizer: no further steps: " + refusal);
  PRIDE_CHECK(!in_step, "optimizer: begin_step() while a step is on");
  PRIDE_CHECK(params.size() == layout.flat_size() && grads.size() == layout.flat_size(),
              "optimizer: ", params.size(), " parameters and ", grads.size(),
              " gradients given, the layout has ", layout.flat_size(), " with padding");
  scalars.clear();
  for (const GroupValues& g : groups) scalars.push_back(scalars_of(g, steps_done));
  absent.assign(layout.tensors().size(), 1);
  reported.assign(layout.tensors().size(), 0);
  narrow = {};
  waiting = tensors_of_bucket;
  traffic_before = traffic();

  ctx.step = steps_done;
  ctx.rank = comms.front()->rank();
  ctx.world = comms.front()->size();
  ctx.seed = options.seed;
  ctx.groups = scalars;
  ctx.scalars_digest = digest_of(scalars);
  ctx.absent = absent;
  guarded([&] {
    pipeline->begin(ctx, {params.data(), params.size()}, {grads.data(), grads.size()},
                    options.non_finite == NonFinitePolicy::kSkip || options.clip_global_norm > 0,
                    options.clip_global_norm);
  });
  in_step = true;
}

void Optimizer::Impl::begin(std::span<float> params, std::span<const BFloat16> grads) {
  PRIDE_CHECK(grads.size() == layout.flat_size(), "optimizer: ", grads.size(),
              " gradients given, the layout has ", layout.flat_size(), " with padding");
  if (wide.size() == 0) wide = FlatBuffer(layout.flat_size());
  begin(params, std::span<const float>(wide.span()));
  narrow = grads;
}

void Optimizer::Impl::tensor_ready(std::size_t tensor, bool is_absent) {
  PRIDE_CHECK(in_step, "optimizer: gradient_ready() outside a step");
  PRIDE_CHECK(tensor < reported.size(), "optimizer: tensor ", tensor, " of ", reported.size());
  PRIDE_CHECK(reported[tensor] == 0, "optimizer: tensor '", layout.tensors()[tensor].spec.name,
              "' reported ready twice in a step");
  reported[tensor] = 1;
  if (!narrow.empty() && !is_absent) {
    const TensorSlot& slot = layout.tensors()[tensor];
    to_float(narrow.subspan(slot.offset, slot.n), wide.span().subspan(slot.offset, slot.n));
  }
  absent[tensor] = is_absent ? 1 : 0;
  guarded([&] {
    for (const std::size_t b : buckets_of_tensor[tensor]) {
      if (--waiting[b] == 0) pipeline->submit(b);
    }
  });
}

Traffic Optimizer::Impl::traffic() const {
  Traffic sum;
  for (const auto& comm : comms) {
    const Traffic t = comm->traffic();
    sum.bytes_sent += t.bytes_sent;
    sum.bytes_received += t.bytes_received;
    sum.messages_sent += t.messages_sent;
    sum.messages_received += t.messages_received;
  }
  return sum;
}

StepReport Optimizer::Impl::finish() {
  PRIDE_CHECK(in_step, "optimizer: finish_step() outside a step");
  std::optional<Poison> poison;
  guarded([&] { poison = pipeline->finish(); });
  in_step = false;
  narrow = {};
  StepReport report;
  report.step = steps_done;
  if (poison && options.non_finite == NonFinitePolicy::kRaise) raise(*poison);
  if (poison) {
    report.skipped = true;
    report.skip_reason = describe(*poison);
  }
  if (!poison) {
    guarded([&] { method->end_step(ctx); });
    const auto measured = method->diagnostics();
    report.diagnostics.assign(measured.begin(), measured.end());
    report.note = method->note();
  }
  const Traffic now = traffic();
  report.bytes_sent = now.bytes_sent - traffic_before.bytes_sent;
  report.bytes_received = now.bytes_received - traffic_before.bytes_received;
  if (options.clip_global_norm > 0 && !poison) report.grad_norm = pipeline->grad_norm();
  report.encode_s = pipeline->timing().encode_s;
  report.exchange_s = pipeline->timing().exchange_s;
  report.apply_s = pipeline->timing().apply_s;
  ++steps_done;
  return report;
}

// Steps are counted from 1 in texts, as the trainer does.
std::string Optimizer::Impl::describe(const Poison& poison) const {
  const auto& tensors = layout.tensors();
  const std::string name =
      poison.tensor < tensors.size() ? tensors[poison.tensor].spec.name : std::string("?");
  if (poison.rank == Poison::kSum) {
    return concat("step ", steps_done + 1, ": the sum of the ranks' gradients of '", name,
                  "' overflows");
  }
  return concat("step ", steps_done + 1, ": NaN or Inf in the gradient of '", name, "' on rank ",
                poison.rank);
}

void Optimizer::Impl::raise(const Poison& poison) {
  const std::string text = describe(poison);
  refusal = text + "; load a state to go on";
  throw NonFiniteGradient(text);
}

Optimizer::Optimizer(Communicator& comm, Layout layout, OptimizerOptions options)
    : impl_(std::make_unique<Impl>(comm, std::move(layout), std::move(options))) {}
Optimizer::~Optimizer() = default;

template <typename T>
StepReport Optimizer::Impl::whole_step(std::span<float> params, std::span<const T> grads,
                                       std::span<const bool> missing) {
  const std::size_t n = layout.tensors().size();
  PRIDE_CHECK(missing.empty() || missing.size() == n, "optimizer: ", missing.size(),
              " absent flags for ", n, " tensors");
  begin(params, grads);
  // last tensor first: the order of the buckets
  for (std::size_t i = n; i-- > 0;) tensor_ready(i, !missing.empty() && missing[i]);
  return finish();
}

StepReport Optimizer::step(std::span<float> params, std::span<const float> grads,
                           std::span<const bool> absent) {
  return impl_->whole_step(params, grads, absent);
}
StepReport Optimizer::step(std::span<float> params, std::span<const BFloat16> grads,
                           std::span<const bool> absent) {
  return impl_->whole_step(params, grads, absent);
}

void Optimizer::begin_step(std::span<float> params, std::span<const float> grads) {
  impl_->begin(params, grads);
}
void Optimizer::begin_step(std::span<float> params, std::span<const BFloat16> grads) {
  impl_->begin(params, grads);
}
void Optimizer::gradient_ready(std::size_t tensor, bool absent) {
  impl_->tensor_ready(tensor, absent);
}
StepReport Optimizer::finish_step() { return impl_->finish(); }

void Optimizer::set_lr(double lr, int group) {
  PRIDE_CHECK(group >= 0 && static_cast<std::size_t>(group) < impl_->groups.size(),
              "set_lr: group ", group, " of ", impl_->groups.size());
  GroupValues& values = impl_->groups[static_cast<std::size_t>(group)];
  check_lr(lr, values.weight_decay, group);
  values.lr = lr;
}

double Optimizer::lr(int group) const {
  PRIDE_CHECK(group >= 0 && static_cast<std::size_t>(group) < impl_->groups.size(), "lr: group ",
              group, " of ", impl_->groups.size());
  return impl_->groups[static_cast<std::size_t>(group)].lr;
}

const Layout& Optimizer::layout() const noexcept { return impl_->layout; }
std::int64_t Optimizer::steps_done() const noexcept { return impl_->steps_done; }
std::string_view Optimizer::method() const noexcept { return impl_->options.method; }
std::uint64_t Optimizer::state_floats() const noexcept { return impl_->method->state_floats(); }

Cost Optimizer::cost(std::int64_t step) const {
  return impl_->method->cost(impl_->buckets, impl_->comms.front()->rank(), step);
}

std::map<std::string, int> Optimizer::exchange_forms() const {
  std::map<std::string, int> forms;
  for (const Bucket& bucket : impl_->buckets) {
    const std::string_view name = impl_->method->exchange_form(bucket).name;
    if (!name.empty()) ++forms[std::string(name)];
  }
  return forms;
}

StateDict Optimizer::save() const {
  PRIDE_CHECK(!impl_->in_step, "optimizer: save() in the middle of a step");
  PRIDE_CHECK(impl_->refusal.empty(),
              "optimizer: save() after a step that failed: ", impl_->refusal);
  StateDict state;
  state.scalars = {{"method", impl_->options.method},
                   {"layout", hex(impl_->layout.digest())},
                   {"rank", std::to_string(impl_->comms.front()->rank())},
                   {"world", std::to_string(impl_->comms.front()->size())},
                   {"seed", std::to_string(impl_->options.seed)},
                   {"options", text_of(impl_->options.options, impl_->info)},
                   {"step", std::to_string(impl_->steps_done)}};
  DictWriter writer(impl_->layout, state);
  impl_->method->save(writer);
  if (impl_->method->has_owner_state()) {
    state.scalars["bucket size"] = std::to_string(impl_->options.bucket_coords);
  }
  return state;
}

void Optimizer::load(const StateDict& state) {
  PRIDE_CHECK(!impl_->in_step, "optimizer: load() in the middle of a step");
  const auto must_be = [&](const std::string& key, const std::string& want) {
    const auto found = state.scalars.find(key);
    PRIDE_CHECK(found != state.scalars.end(), "load: the state does not say its ", key);
    PRIDE_CHECK(found->second == want, "load: the state is for ", key, " ", found->second,
                ", this optimizer has ", want);
  };
  must_be("method", impl_->options.method);
  must_be("layout", hex(impl_->layout.digest()));
  must_be("rank", std::to_string(impl_->comms.front()->rank()));
  must_be("world", std::to_string(impl_->comms.front()->size()));
  must_be("seed", std::to_string(impl_->options.seed));
  must_be("options", text_of(impl_->options.options, impl_->info));
  if (impl_->method->has_owner_state()) {
    must_be("bucket size", std::to_string(impl_->options.bucket_coords));
  }
  const auto step = state.scalars.find("step");
  PRIDE_CHECK(step != state.scalars.end() && !step->second.empty() && step->second.size() < 19 &&
                  step->second.find_first_not_of("0123456789") == std::string::npos,
              "load: the state's step counter is missing or not a number");

  // check everything first: a refused state changes nothing
  DictReader check(impl_->layout, state, false);
  impl_->method->load(check);
  check.expect_all_used();
  DictReader commit(impl_->layout, state, true);
  impl_->method->load(commit);
  impl_->steps_done = std::stoll(step->second);
  impl_->refusal.clear();
}

}  // namespace pride

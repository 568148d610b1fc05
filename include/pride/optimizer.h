// Optimizer: one data-parallel training step. Start here.
// SPDX-License-Identifier: Apache-2.0
//
//   pride::Layout layout({{"weight", {512, 512}}, {"bias", {512}}});
//   pride::Optimizer optimizer(comm, layout, {.method = "dlion-vote"});
//   for (...) { compute grads; optimizer.step(params.span(), grads.span()); }
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/device.h"
#include "pride/diagnostics.h"
#include "pride/layout.h"
#include "pride/nodes.h"
#include "pride/state.h"
#include "pride/tensors.h"

namespace pride {

class CoordinatorClient;  // pride/coordinator.h

// Hyper-parameters of one group of tensors (TensorSpec::group is its index). Values that are not
// set are the method's own defaults, e.g. betas (0.9, 0.99) for Lion and (0.9, 0.999) for AdamW.
struct ParamGroup {
  std::optional<double> lr = {};
  std::optional<double> beta1 = {}, beta2 = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
};

// What becomes of state that each rank has of its own (StateKind::kLocal) when a load takes the
// states of all ranks: kKeep: rank r goes on with that of rank r, beyond their number with that of
// rank r modulo their number; kAverage: with the mean over all, in rank order; kReset: with zeros.
enum class LocalState { kKeep, kAverage, kReset };

// What a gradient with NaN or Inf does: kRaise throws NonFiniteGradient on all ranks and refuses
// further steps until state is loaded; kSkip drops the step's parameter update on all ranks. In a
// step without exchange, and with the options `fragments` and `delay` in all steps, no other rank
// knows of it: kRaise throws on its rank, and the communicator has failed with the text; kSkip
// drops the step of its rank alone.
enum class NonFinitePolicy { kRaise, kSkip };

struct OptimizerOptions {
  std::string method = "dlion-vote";                // a name that method_names() lists
  std::map<std::string, std::string> options = {};  // the method's own, e.g. {"tie", "zero"}
  std::vector<ParamGroup> groups = {ParamGroup{}};
  NonFinitePolicy non_finite = NonFinitePolicy::kRaise;
  // Scales the mean gradient of all ranks down to this 2-norm; 0: none. Only for methods that have
  // the mean gradient (the uncompressed ones). Ranks that exchange signs, codes or a few entries
  // never have it: clip each rank's own gradient before the step (local clipping).
  double clip_global_norm = 0;
  std::size_t bucket_coords = std::size_t{1} << 20;  // target size of a bucket; never changes a bit
  // Exchange on threads of its own, beside backward, encode and apply. REQUIRES: several threads
  // may communicate at a time (MpiEnvironment::thread_multiple(); threads always may).
  bool overlap = false;
  // Which ranks share a node, the same on all ranks: the hierarchical route, on which fewer bytes
  // leave a node; never changes a bit. Only for methods that exchange signs.
  Nodes nodes = {};
  int exchange_threads = 4;  // with overlap: buckets on their way at a time, 1 to 16
  std::uint64_t seed = 0;    // of the bits for zeros, ties and stochastic rounding
  // Votes of this rank, 1 to 65535, e.g. samples of its data: a rank of weight w counts as w ranks
  // with its signs, so that the vote is sign(sum of w_i delta_i) and the average that sum over the
  // sum of all w_i. Weights that are equal on all ranks, whatever they are, change nothing. Unequal
  // ones only for methods that exchange signs; of the averages, their sum over their greatest
  // common divisor is at most 65535, and with `nodes` that of each node.
  int vote_weight = 1;

  // Where parameters, gradients and state lie and the method runs; null: on the host. Frames, which
  // are exchanged, lie on the host. The same bits as there, but for products of matrices. REQUIRES:
  // a method that runs on devices (MethodInfo::on_device).
  std::shared_ptr<Device> device = nullptr;
  // With a device: for the methods that orthogonalise matrices.
  Orthogonalise orthogonalise = nullptr;
  // Of a part of a model (TensorSpec::first_coord), whose other parts have optimizers of their own:
  // adds to each value those of all other parts. A step with non_finite = kSkip or clip_global_norm
  // calls it once, on the thread of finish_step(), between exchange and apply, with {sum of squares
  // of the mean gradient, or 0 without clip_global_norm; 1 where the gradient is not finite, or 0}.
  // All parts then skip the step, or clip it by the norm of all. What it throws ends the step and
  // fails the communicator. REQUIRES: no coordinator, no virtual workers; with kSkip a method
  // without local steps.
  std::function<void(std::span<double> values)> sum_of_parts = nullptr;

  // In the place of other ranks: so many virtual workers, which this process plays one after the
  // other over one copy of the parameters (docs/virtual_workers.md). 0: none. The gradients of each
  // are given to hand_over(), then step_workers() makes the step of all. Bits of parameters and
  // states and counted bytes are those of as many ranks. REQUIRES: a communicator of size 1, no
  // coordinator; at most 1024. Steps do not overlap. `worker_weights`: votes of each, as
  // vote_weight; empty: that of all.
  int virtual_workers = 0;
  std::vector<int> worker_weights = {};

  // In the place of other ranks: a coordinator, for workers that come and go
  // (docs/design/coordinator.md). Every exchange is a round of its run; broadcast() joins it.
  // REQUIRES: a communicator of size 1; no nodes; a method whose servers need frames alone. Steps
  // do not overlap. `run_settings`: a text that all workers of the run must have alike,
  // best of lines "name=value": a worker that differs is refused with the first that does.
  // `report_loss`: called before each ballot, for the coordinator's status page.
  std::shared_ptr<CoordinatorClient> coordinator = nullptr;
  std::string run_settings = {};
  std::function<std::optional<double>()> report_loss = nullptr;
};

// What became of this worker's ballot in a step that ends a round by a coordinator.
struct RoundReport {
  std::int64_t round = 0;        // 0 for the first
  int voters = 0;                // whose ballots were counted
  bool counted = false;          // this worker's is among them
  std::string why_not = {};      // "late", ...
  std::int64_t replayed = 0;     // later rounds, of which this worker applied the records
  bool took_parameters = false;  // from the coordinator, as fewer bytes than records or for its own
};

// What one step was for a virtual worker.
struct WorkerReport {
  std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0;
  std::string skip_reason = {};  // empty: it was not skipped
};

// What one step did on this rank; with virtual workers: its bytes are those of worker 0.
struct StepReport {
  std::int64_t step = 0;  // 0 for the first
  bool skipped = false;   // non-finite gradient under kSkip
  std::string skip_reason;
  // With the option `delay`: of the exchange that was begun so many steps before.
  std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0;
  std::optional<double> grad_norm =
      {};  // with clip_global_norm: of the mean, before it was clipped
  std::vector<TensorDiagnostics> diagnostics = {};  // by tensor, in steps that the method measures
  std::string note = {};                   // what the method decided in this step, for the log
  std::optional<RoundReport> round = {};   // by a coordinator, if this step ended one
  std::vector<WorkerReport> workers = {};  // virtual workers
  double encode_s = 0, exchange_s = 0, apply_s = 0;  // with overlap: exchange_s is the waiting only
};

// Bytes that an optimizer holds beside the caller's tensors, at the moment. On the device, if there
// is one, but for frames.
struct MemoryUse {
  std::uint64_t state = 0;    // of the method, of all virtual workers
  std::uint64_t masters = 0;  // float32 values of narrower parameters
  std::uint64_t frames = 0;   // page-locked where a device uses them
  std::uint64_t scratch = 0;  // of a device: words of frames on their way
};

class Optimizer {
 public:
  // Collective: the ranks compare layout, method and options, and a rank that differs is named in
  // an InvalidArgument on all of them. `comm` must outlive the optimizer, which
  // uses duplicates with the timeout that `comm` has now.
  Optimizer(Communicator& comm, Layout layout, OptimizerOptions options);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Parameters and gradients stay where they lie (pride/tensors.h): the caller gives one flat
  // buffer or each tensor by itself, in each call, and the memory is read and written there.
  // Parameters may be bfloat16 or float16: their float32 masters are then state (saved as
  // "master/<parameter>"), and values that the caller has changed between steps count. A parameter
  // keeps its dtype.

  // Checks where the parameters lie, and takes over the values of narrow ones into their masters,
  // as every call with `params` does: for masters to be there before a save or a load. Between
  // steps.
  void place(const Parameters& params);

  // Copies rank 0's parameters to all ranks: before the first forward, where ranks may have begun
  // with others. Collective.
  // With a coordinator: joins its run, before the first step and after each load(). The first
  // worker of a run gives its parameters, others take them, or replay the rounds that they missed,
  // whatever is fewer bytes: then steps_done() has jumped to the open round. Momentum stays this
  // worker's own, local steps since the last exchange are dropped where rounds were replayed.
  void broadcast(const Parameters& params);

  // With a device: the stream of the caller's own work on parameters and gradients (a CUstream),
  // for the calls to come. What they queue begins after that work so far, and the stream goes on
  // after it.
  void set_stream(void* stream);

  // Of this worker in the run that it has joined; without a coordinator the rank.
  int worker_number() const;

  // One round's record on parameters from before it: for a journal's replay, by an optimizer
  // of the run's settings on a communicator of size 1, between steps. steps_done() is then that
  // after the round. Throws CommError, and has changed nothing, unless it is the record of the next
  // round, for parameters with this hash, and undamaged.
  void replay(const Parameters& params, std::span<const std::byte> record);

  // One step with the gradients of this rank's batch. Collective. `params` must be equal on all
  // ranks and stays so (but see to_common()): the first step, and the first after load() or add(),
  // compares a hash and throws InvalidArgument on all ranks, naming those that differ from rank 0.
  // unused[i]: tensor i has no gradient on this rank (empty span: all have). Gradients in bfloat16
  // or float16 are widened exactly as they are read: the bits of the result are those of the same
  // numbers in float32. REQUIRES: padding of flat gradients is zero. Throws InvalidArgument, and
  // then nothing was begun. Any other error ends the step and leaves it unfinished in params and
  // state: NonFiniteGradient, until state is loaded; else (CommError, no memory) all ranks of the
  // communicator have failed with this rank's reason.
  StepReport step(const Parameters& params, const Gradients& grads,
                  std::span<const bool> unused = {});

  // The same step in parts, to overlap with backward: begin, then tensors as their gradients
  // become complete (any order; buckets start when all their tensors are), then finish. Tensors
  // whose gradients are not given in begin_step() are given with theirs, which stay where they lie
  // until finish_step().
  void begin_step(const Parameters& params, const Gradients& grads);
  void begin_step(const Parameters& params);
  void gradient_ready(std::size_t tensor, bool unused = false);
  void gradient_ready(std::size_t tensor, const ConstTensor& grad);
  StepReport finish_step();  // tensors not reported ready are unused
  // In an overlapped step: the tensors, since the last call, whose gradients are encoded and not
  // read again: their memory is free. Empty for methods that read gradients later.
  std::vector<std::size_t> take_released();

  // With virtual workers, in the place of the above: the gradients of one worker, and the tensors
  // that it does not use. Each worker once, in any order. Its gradients are read before this
  // returns: they need not stay. `params` are looked at in the first of a step, as in step().
  // The current gradient factor counts, which each worker may have of its own.
  void hand_over(int worker, const Parameters& params, const Gradients& grads,
                 std::span<const bool> unused = {});

  // The step of all virtual workers, whose gradients have been handed over: exchanges and applies
  // once. Throws InvalidArgument, and has changed nothing, if a worker is missing; else as step().
  StepReport step_workers(const Parameters& params);

  // The parameters become those of the virtual worker, before its forward: with local steps each
  // has its own between exchanges. After step_workers() they are those that all have in common.
  // With other methods it changes nothing. Between hand_over()s, too.
  void to_worker(int worker, const Parameters& params) const;

  // From the next step on: frozen tensors stay as they are, without weight decay, and their
  // gradients are not looked at. By tensor, the same on all ranks, else the step throws CommError;
  // an empty span: none. With a coordinator, whose records cannot tell, only where nothing decays.
  void set_frozen(std::span<const bool> frozen);

  // From the next step on this rank's gradients are multiplied by it, in float32 and before all
  // else: 1 / scale of a scaled loss, -1 to go up the gradient.
  void set_gradient_factor(float factor);

  // The hyper-parameters of a group, from the next step on, the same on all ranks; those that are
  // not set stay as they are. A rank with others is refused in that step. Throws InvalidArgument,
  // and changes nothing, if one is out of range or not the method's.
  void set_group(const ParamGroup& values, int group = 0);
  ParamGroup group(int group = 0) const;  // those that the method has, all set

  // Between steps: more tensors and groups, behind those that there are. Collective; a rank that
  // adds others is named. Tensors keep their coordinates and their state, new ones begin with
  // zeros; Adam's bias correction of a new group begins with its first step. From now on params and
  // grads are those of the new layout(), and references to the old one are no longer valid. Throws
  // InvalidArgument on all ranks, and then nothing has changed; always with onebit-adam, and with
  // the options `fragments` and `delay`, once a step was taken.
  void add(std::vector<TensorSpec> tensors, std::vector<ParamGroup> groups = {});

  const Layout& layout() const noexcept;
  std::int64_t steps_done() const noexcept;
  std::string_view method() const noexcept;
  MemoryUse memory() const;
  std::uint64_t state_floats() const noexcept;  // optimizer state held by this rank, in floats

  // What the given step costs this rank in bytes sent; and the mean over the MethodInfo::period
  // that the step is in, rounded up.
  Cost cost(std::int64_t step = 0) const;
  Cost mean_cost(std::int64_t step = 0) const;
  std::int64_t period() const noexcept;  // MethodInfo::period

  // How many of the last of `steps` steps no exchange follows: they are in no result. Of fragments,
  // which are exchanged in turn, those of the one whose last exchange is the earliest.
  std::int64_t lost_of(std::int64_t steps) const;

  // Methods with local steps (MethodInfo::period > 1): between exchanges each rank has parameters
  // of its own, and the ranks have those of the last exchange that was begun in common, for which
  // to_common(), save() and state_buffers() wait. Between steps, to_common() replaces this rank's
  // parameters by the common ones, to evaluate, hash or save those; and to_local() goes back,
  // before the next gradient. A saved state goes with the common parameters:
  // to_local() after load(). With all other methods neither changes anything.
  // Throws InvalidArgument in the middle of a step; CommError, after which no step is welcome, if
  // an exchange on its way fails.
  void to_common(const Parameters& params) const;
  void to_local(const Parameters& params) const;

  // param_hash() of the parameters (of the masters of narrower ones); with local steps of those
  // that the ranks have in common. Between steps.
  std::uint64_t hash(const Parameters& params) const;

  // The parameters as float32 (masters of narrower ones) in one flat buffer, and back: the caller's
  // tensors then hold them, rounded if narrower. Between steps. REQUIRES: flat.size() ==
  // layout().flat_size(); padding is left as it is.
  void read(const Parameters& params, std::span<float> flat) const;
  void write(const Parameters& params, std::span<const float> flat);

  // What no step's report has counted yet: with the option `delay` the bytes of an exchange are in
  // the report of the step that takes its result, and those of the last ones in none. Waits for
  // them. Between steps; no communication of its own. Throws as to_common() does.
  Traffic finish_exchanges();

  // How many buckets take each route ("sharded", "one-shot", "hierarchical", "native"), the same on
  // all ranks. Empty alone.
  std::map<std::string, int> routes() const;

  // The state's own memory, one entry a buffer, until the next add(), for views of it: changed by
  // steps and loads only. StateBuffer::memory keeps it readable beyond that. Of virtual workers:
  // that of worker 0.
  std::vector<StateBuffer> state_buffers();

  // This rank's state (momentum is local to a rank in Distributed Lion, so each rank saves its
  // own).
  StateDict save() const;

  // The state of a virtual worker: that of the rank with its number, of as many ranks. save() is
  // that of worker 0. To load them, give those of all to load(), which also gives up a step of
  // which some have handed over their gradients.
  StateDict save(int worker) const;

  // A narrower parameter must hold its values of the save before the next call with parameters: a
  // master takes over a value that is not its rounded one.
  // This rank's own state, of as many ranks. Names, shapes, method and layout are checked first, on
  // all ranks together: if one refuses its state, all throw InvalidArgument, and nothing has
  // changed. State of the servers then moves to where it is needed if buckets were of another
  // size. Collective.
  void load(const StateDict& state);

  // From the states of all ranks, in any order, however many they were, whatever their buckets and
  // transport. Collective; throws InvalidArgument on all ranks, and then nothing has changed.
  void load(std::vector<StateDict> of_all_ranks, LocalState local = LocalState::kKeep);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// 64-bit digest of the parameters' bits, padding left out; equal on all ranks of a healthy run.
std::uint64_t param_hash(const Layout& layout, std::span<const float> params);

}  // namespace pride

// Optimizer: one data-parallel training step. Start here.
// SPDX-License-Identifier: Apache-2.0
//
//   pride::Layout layout({{"weight", {512, 512}}, {"bias", {512}}});
//   pride::Optimizer optimizer(comm, layout, {.method = "dlion-vote"});
//   for (...) { compute grads; optimizer.step(params.span(), grads.span()); }
//
// Gradients are those of this rank's own batch. Do not average them over the ranks first.
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

// Hyper-parameters of one group of tensors (TensorSpec::group is its index). Unset values are the
// method's defaults, e.g. lr 1e-4 and betas (0.9, 0.99) for Lion and its votes, 1e-3 and (0.9,
// 0.999) for AdamW; decay 0. Coming from AdamW: docs/python_migration.md.
struct ParamGroup {
  std::optional<double> lr = {};
  std::optional<double> beta1 = {}, beta2 = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
};

// Each rank's own state (StateKind::kLocal) after loading the states of all ranks. kKeep: rank r
// gets that of saved rank r modulo their number. kAverage: the mean over all, in rank order.
// kReset: zeros.
enum class LocalState { kKeep, kAverage, kReset };

// Effect of a gradient with NaN or Inf. kRaise throws NonFiniteGradient on all ranks and refuses
// further steps until state is loaded. kSkip drops the step's parameter update on all ranks. In a
// step without exchange, and in all steps with the options `fragments` and `delay`, other ranks do
// not see it: kRaise then throws on this rank and fails the communicator with the text; kSkip drops
// only this rank's step.
enum class NonFinitePolicy { kRaise, kSkip };

struct OptimizerOptions {
  std::string method = "dlion-vote";                // a name that method_names() lists
  std::map<std::string, std::string> options = {};  // the method's own, e.g. {"tie", "zero"}
  std::vector<ParamGroup> groups = {ParamGroup{}};
  NonFinitePolicy non_finite = NonFinitePolicy::kRaise;
  // Scales the mean gradient of all ranks down to this 2-norm; 0: none. Only for methods that have
  // the mean gradient (the uncompressed ones). Ranks that exchange signs, codes or a few entries
  // never have it: there clip each rank's own gradient before the step (local clipping).
  double clip_global_norm = 0;
  std::size_t bucket_coords = std::size_t{1} << 20;  // target size of a bucket; never changes a bit
  // Exchange on separate threads, in parallel with backward, encode and apply. REQUIRES: several
  // threads may communicate at a time (MpiEnvironment::thread_multiple(); threads always may).
  bool overlap = false;
  // The nodes of the ranks, the same on all ranks, for the hierarchical route, on which fewer bytes
  // leave a node; never changes a bit. Only for methods that exchange signs.
  Nodes nodes = {};
  int exchange_threads = 4;  // with overlap: buckets in flight, 1 to 16
  std::uint64_t seed = 0;    // seeds zeros, ties and stochastic rounding
  // Votes of this rank, 1 to 65535, e.g. samples of its data: a rank of weight w counts as w ranks
  // with its signs, so that the vote is sign(sum of w_i delta_i) and the average that sum over the
  // sum of all w_i. Equal weights on all ranks, of any value, change nothing. Unequal ones are only
  // for methods that exchange signs. For averages their sum, divided by their greatest common
  // divisor, is at most 65535; with `nodes` the sum of each node.
  int vote_weight = 1;

  // The memory of parameters, gradients and state, where the method runs; null: the host. Frames
  // are always on the host. The bits are the host's, except for products of matrices. REQUIRES: a
  // method that runs on devices (MethodInfo::on_device).
  std::shared_ptr<Device> device = nullptr;
  // With a device: needed by methods that orthogonalise matrices.
  Orthogonalise orthogonalise = nullptr;
  void* stream = nullptr;  // with a device: as Optimizer::set_stream()
  // Of a part of a model (TensorSpec::first_coord), whose other parts have optimizers of their own:
  // adds to each value those of all other parts. A step with non_finite = kSkip or clip_global_norm
  // calls it once, on the thread of finish_step(), between exchange and apply, with {sum of squares
  // of the mean gradient, or 0 without clip_global_norm; 1 where the gradient is not finite, or 0}.
  // All parts then skip the step, or clip it by the norm of all. What it throws ends the step and
  // fails the communicator. REQUIRES: no coordinator, no virtual workers; with kSkip a method
  // without local steps.
  std::function<void(std::span<double> values)> sum_of_parts = nullptr;

  // Instead of other ranks: the number of virtual workers, which this process plays in turn over
  // one copy of the parameters (docs/virtual_workers.md). 0: none. hand_over() gets the gradients
  // of each, then step_workers() runs the step of all. Parameters, states and counted bytes are
  // those of as many ranks. REQUIRES: a communicator of size 1, no coordinator; at most 1024. Steps
  // do not overlap. `worker_weights`: the votes of each; empty: vote_weight for all.
  int virtual_workers = 0;
  std::vector<int> worker_weights = {};

  // Instead of other ranks: a coordinator, for workers that join and leave
  // (docs/design/coordinator.md). Every exchange is a round of its run; broadcast() joins it.
  // REQUIRES: a communicator of size 1; no nodes; a method whose servers need only frames. Steps do
  // not overlap. `run_settings`: a text that must be equal on all workers of the run, preferably
  // lines "name=value": a refusal names the first line that differs. `report_loss`: called before
  // each ballot, for the coordinator's status page.
  std::shared_ptr<CoordinatorClient> coordinator = nullptr;
  std::string run_settings = {};
  std::function<std::optional<double>()> report_loss = nullptr;
};

// The fate of this worker's ballot in a step that ends a coordinator's round.
struct RoundReport {
  std::int64_t round = 0;        // 0 for the first
  int voters = 0;                // whose ballots were counted
  bool counted = false;          // this worker's is among them
  std::string why_not = {};      // "late", ...
  std::int64_t replayed = 0;     // later rounds whose records this worker applied
  bool took_parameters = false;  // adopted the coordinator's parameters
};

// One step of a virtual worker.
struct WorkerReport {
  std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0;
  std::string skip_reason = {};  // empty: it was not skipped
};

// The report of one step on this rank. With virtual workers the bytes are those of worker 0.
struct StepReport {
  std::int64_t step = 0;  // 0 for the first
  bool skipped = false;   // non-finite gradient under kSkip
  std::string skip_reason;
  // With the option `delay`: of the exchange begun that many steps before.
  std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0;
  std::optional<double> grad_norm = {};  // with clip_global_norm: of the mean, before clipping
  std::vector<TensorDiagnostics> diagnostics = {};  // by tensor, in steps that the method measures
  std::string note = {};                   // the method's decisions in this step, for the log
  std::optional<RoundReport> round = {};   // if this step ended a coordinator's round
  std::vector<WorkerReport> workers = {};  // virtual workers
  double encode_s = 0, exchange_s = 0, apply_s = 0;  // with overlap exchange_s is only the waiting
};

// Bytes that an optimizer holds beside the caller's tensors, at the moment. On the device, if there
// is one, but for frames and the state of servers.
struct MemoryUse {
  std::uint64_t state = 0;    // of the method, of all virtual workers
  std::uint64_t masters = 0;  // of narrower parameters: 2 bytes each of bfloat16, 4 of float16
  std::uint64_t frames = 0;   // page-locked where a device uses them
  // What the method works in: errors and scales at hand, directions of matrices, gradients that it
  // waits for, those that virtual workers keep; of a device also words of frames on their way.
  std::uint64_t scratch = 0;
};

class Optimizer {
 public:
  // Collective: the ranks compare layout, method and options. If one differs, all throw an
  // InvalidArgument that names it. `comm` must outlive the optimizer, which uses duplicates with
  // the timeout that `comm` has now.
  Optimizer(Communicator& comm, Layout layout, OptimizerOptions options);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Parameters and gradients stay where they lie (pride/tensors.h): the caller gives one flat
  // buffer or each tensor by itself, in each call, and the memory is read and written there.
  // Parameters may be bfloat16 or float16: their float32 masters are then state (saved as
  // "master/<parameter>"), and values that the caller has changed between steps count. A parameter
  // keeps its dtype.
  // A bfloat16 parameter is the upper half of its master, rounded to nearest, ties away from zero;
  // the optimizer holds the other 16 bits. One that the caller has changed keeps them: its master
  // is within half a place of bfloat16 of it. save() reads the parameters where they lay last, so
  // that these must still be there: place() tells new places.

  // Checks where the parameters lie, as every call with `params` does: for masters to be there
  // before a save or a load. Between steps.
  void place(const Parameters& params);

  // Copies rank 0's parameters to all ranks. Call it before the first forward if ranks may start
  // with different ones. Collective. With a coordinator: joins its run; call it before the first
  // step and after each load(). The first worker of a run gives its parameters. Others adopt them
  // or replay the rounds they missed, whichever is fewer bytes. steps_done() is then at the open
  // round. Momentum stays this worker's own. Replayed rounds drop local steps since the last
  // exchange.
  void broadcast(const Parameters& params);

  // With a device: the stream (a CUstream) of the caller's work on parameters and gradients, for
  // later calls. Their work starts after the stream's present work, and the stream continues after
  // theirs. A caller that keeps this order itself gives the device's own stream.
  void set_stream(void* stream);

  // This worker's number in the run it has joined; without a coordinator the rank.
  int worker_number() const;

  // Applies one round's record to parameters from before it, for a journal's replay: by an
  // optimizer with the run's settings on a communicator of size 1, between steps. steps_done() is
  // then that after the round. Throws CommError, and has changed nothing, unless it is the
  // undamaged record of the next round for parameters with this hash.
  void replay(const Parameters& params, std::span<const std::byte> record);

  // One step with the gradients of this rank's batch. Collective. `params` must be equal on all
  // ranks and stays so (but see to_common()). The first step, and the first after load() or add(),
  // compares a hash. If ranks differ from rank 0, all throw an InvalidArgument that names them.
  // unused[i]: tensor i has no gradient on this rank (empty span: all have). bfloat16 and float16
  // gradients are widened exactly: the result has the bits of the same numbers in float32.
  // REQUIRES: padding of flat gradients is zero. Throws InvalidArgument before anything is begun.
  // Any other error leaves the step unfinished in params and state. After NonFiniteGradient load a
  // state. After others (CommError, no memory) all ranks of the communicator have failed with this
  // rank's reason.
  StepReport step(const Parameters& params, const Gradients& grads,
                  std::span<const bool> unused = {});

  // The same step in parts, to overlap with backward: begin, then each tensor when its gradient is
  // complete (in any order; a bucket starts when all its tensors are), then finish. Gradients not
  // given in begin_step() are given with their tensors. They must stay in place until
  // finish_step().
  void begin_step(const Parameters& params, const Gradients& grads);
  void begin_step(const Parameters& params);
  void gradient_ready(std::size_t tensor, bool unused = false);
  void gradient_ready(std::size_t tensor, const ConstTensor& grad);
  StepReport finish_step();  // tensors not reported ready are unused
  // In an overlapped step: the tensors whose gradients have been encoded since the last call and
  // are not read again. Their memory is free. Empty for methods that read gradients later.
  std::vector<std::size_t> take_released();

  // With virtual workers, instead of the above: the gradients of one worker, and the tensors it
  // does not use. Once per worker, in any order. The gradients are read before it returns and need
  // not stay. The first call of a step checks `params` as step() does. The present gradient factor
  // applies; each worker may have its own.
  void hand_over(int worker, const Parameters& params, const Gradients& grads,
                 std::span<const bool> unused = {});

  // The step of all virtual workers after hand_over(): exchanges and applies once. Throws
  // InvalidArgument, and has changed nothing, if a worker is missing; otherwise as step().
  StepReport step_workers(const Parameters& params);

  // Sets the parameters to the virtual worker's, before its forward: with local steps each has its
  // own between exchanges. After step_workers() they are the common ones. With other methods it
  // changes nothing. Also allowed between calls of hand_over().
  void to_worker(int worker, const Parameters& params) const;

  // Ranks that divide a model among them, each with the state of its own tensors, and that all hold
  // its parameters: results of a step, about a bit per parameter, can travel instead of parameters.
  // follow() takes the layout of another such rank's optimizer, which has the same voters and
  // options, and returns the number of that part of the model. Nothing: results of this method do
  // not determine the parameters, which then have to travel (methods with state in common, local
  // steps). From then on each step keeps its results. Throws InvalidArgument with a coordinator or
  // virtual workers.
  std::optional<int> follow(Layout layout);

  // The results of this optimizer's last step, until the next one; empty: it was skipped. The
  // layout of these bytes is in docs/wire_format.md.
  std::span<const std::byte> results() const;

  // The size of the part's results of the last step, and: applies them to `params`, the part's
  // tensors, in the step that this optimizer has completed last, by its scalars, with the bits of
  // the other rank. frozen[i]: tensor i was frozen there; empty: none. No state is held for it.
  // REQUIRES: float32 parameters. Throws CommError, and has changed nothing, unless these are
  // undamaged results of that step; it names the part by its first tensor, and the bucket.
  std::size_t result_bytes(int part) const;
  void apply_results(int part, const Parameters& params, std::span<const bool> frozen,
                     std::span<const std::byte> results);

  // From the next step on frozen tensors do not change, without weight decay, and their gradients
  // are not read. One flag per tensor, the same on all ranks, or the step throws CommError; an
  // empty span: none. With a coordinator only without weight decay, because records do not hold the
  // flags.
  void set_frozen(std::span<const bool> frozen);

  // From the next step on this rank's gradients are first multiplied by it, in float32: 1 / scale
  // of a scaled loss, -1 to maximise.
  void set_gradient_factor(float factor);

  // The hyper-parameters of a group from the next step on; unset ones do not change. They must be
  // the same on all ranks, or the step refuses the rank that differs. Throws InvalidArgument, and
  // changes nothing, if one is out of range or not the method's.
  void set_group(const ParamGroup& values, int group = 0);
  ParamGroup group(int group = 0) const;  // all that the method has are set

  // Between steps: appends tensors and groups. Collective; a rank that adds different ones is
  // named. Tensors keep their coordinates and state, and new ones start with zeros. Adam's bias
  // correction of a new group starts with its first step. From now on params and grads are those of
  // the new layout(), and references to the old one are invalid. Throws InvalidArgument on all
  // ranks, and has changed nothing; after the first step always with onebit-adam and with the
  // options `fragments` and `delay`.
  void add(std::vector<TensorSpec> tensors, std::vector<ParamGroup> groups = {});

  const Layout& layout() const noexcept;
  std::int64_t steps_done() const noexcept;
  std::string_view method() const noexcept;
  MemoryUse memory() const;
  std::uint64_t state_floats() const noexcept;  // optimizer state held by this rank, in floats

  // The bytes this rank sends in the given step, and the mean over the step's MethodInfo::period,
  // rounded up.
  Cost cost(std::int64_t step = 0) const;
  Cost mean_cost(std::int64_t step = 0) const;
  std::int64_t period() const noexcept;  // MethodInfo::period

  // The number of final steps, out of `steps`, that no exchange follows: no result contains them.
  // With fragments, exchanged in turn, those of the fragment with the earliest last exchange.
  std::int64_t lost_of(std::int64_t steps) const;

  // Methods with local steps (MethodInfo::period > 1): between exchanges each rank has its own
  // parameters. The common parameters are those of the last exchange begun, for which to_common(),
  // save() and state_buffers() wait. Between steps to_common() replaces this rank's parameters by
  // the common ones, to evaluate, hash or save them. to_local() restores this rank's own before the
  // next gradient. A saved state belongs to the common parameters: call to_local() after load().
  // With other methods neither changes anything. Throws InvalidArgument during a step. Throws
  // CommError, and allows no further step, if an exchange in flight fails.
  void to_common(const Parameters& params) const;
  void to_local(const Parameters& params) const;

  // param_hash() of the parameters (of the masters of narrower ones); with local steps of the
  // common ones. Between steps.
  std::uint64_t hash(const Parameters& params) const;

  // The parameters as float32 (masters of narrower ones) in one flat buffer, and back: the caller's
  // tensors then hold them, rounded if narrower. Between steps. REQUIRES: flat.size() ==
  // layout().flat_size(); padding does not change.
  void read(const Parameters& params, std::span<float> flat) const;
  // As float32, the values of a tensor from number `begin` on, where the parameters were placed
  // last. Between steps. Throws InvalidArgument: they are not all the tensor's.
  void read(std::size_t tensor, std::size_t begin, std::span<float> values) const;
  void write(const Parameters& params, std::span<const float> flat);

  // Bytes not in any report yet. With the option `delay` the bytes of an exchange are in the report
  // of the step that adopts its result, and those of the last exchanges are in none. Waits for
  // these. Between steps; it does not communicate itself. Throws as to_common() does.
  Traffic finish_exchanges();

  // The number of buckets on each route ("sharded", "one-shot", "hierarchical", "native"), the same
  // on all ranks. Empty alone.
  std::map<std::string, int> routes() const;

  // The state's memory, for views: one entry per buffer, valid until the next add(). Only steps and
  // loads change it. StateBuffer::memory keeps it readable longer. With virtual workers: worker
  // 0's.
  std::vector<StateBuffer> state_buffers();

  // This rank's state (momentum is local to a rank in Distributed Lion, so each rank saves its
  // own).
  StateDict save() const;

  // The state of a virtual worker equals that of the rank with its number among as many ranks.
  // save() is worker 0's. To load, give the states of all to load(), which also drops a step with
  // some gradients handed over.
  StateDict save(int worker) const;

  // Loads this rank's own state, saved on as many ranks. Names, shapes, method and layout are
  // checked first, on all ranks together: if one refuses its state, all throw InvalidArgument, and
  // nothing has changed. If buckets had another size, the servers' state then moves to its new
  // servers. Collective. A narrower parameter must hold its saved value before the next call with
  // parameters, because a value that is not the rounded master replaces the master.
  void load(const StateDict& state);

  // Loads from the states of all ranks, in any order and number, with any buckets and transport.
  // Collective; throws InvalidArgument on all ranks, and has changed nothing.
  void load(std::vector<StateDict> of_all_ranks, LocalState local = LocalState::kKeep);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// 64-bit digest of the parameters' bits, without padding; equal on all ranks of a healthy run.
std::uint64_t param_hash(const Layout& layout, std::span<const float> params);

}  // namespace pride

// Replica: one copy of the parameters with the state of its method: groups, save, load, hash, cost.
// What Optimizer, VirtualWorkers and RunWorker have in common.
// SPDX-License-Identifier: Apache-2.0
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
#include "pride/layout.h"
#include "pride/nodes.h"
#include "pride/registry.h"
#include "pride/state.h"
#include "pride/tensors.h"

namespace pride {

// One group of tensors (TensorSpec::group is its index). Unset hyper-parameters are the defaults of
// the group's method, e.g. lr 1e-4 and betas (0.9, 0.99) for Lion and its votes, 1e-3 and (0.9,
// 0.999) for AdamW; decay 0. Coming from AdamW: docs/python_migration.md.
struct ParamGroup {
  std::optional<double> lr = {};
  std::optional<double> beta1 = {}, beta2 = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<double> momentum = {};  // of Muon's rule; of some methods in place of betas
  // The method of these tensors, with its own options. Empty: OptimizerOptions::method, with
  // OptimizerOptions::options.
  std::string method = {};
  std::map<std::string, std::string> options = {};
};

// The group with all values that a method of these facts has: given ones, and defaults. A momentum
// in place of betas becomes betas. Throws InvalidArgument, naming `index` and value, on one that is
// out of range or that the method does not have.
ParamGroup with_defaults(const ParamGroup& group, const MethodInfo& info, int index = 0);

// Each rank's local state (StateKind::kLocal) after loading the states of all ranks. kKeep: rank r
// gets the state of saved rank r modulo their number. kAverage: the mean of all saved states.
// kReset: zeros.
enum class LocalState { kKeep, kAverage, kReset };

// Effect of a gradient with NaN or Inf. kRaise throws NonFiniteGradient on all ranks and refuses
// further steps until a state is loaded. kSkip drops the step's parameter update on all ranks; the
// step counts, and momenta have taken in the finite values of its gradients. In a step without
// exchange, and in all steps with the options `fragments` and `delay`, only this rank
// sees it. kRaise then throws on this rank and fails the communicator with the text. kSkip then
// drops only this rank's step, of the tensors that have the gradient's method.
enum class NonFinitePolicy { kRaise, kSkip };

// What every front door takes. VirtualWorkers and RunWorker exchange in another way, and refuse a
// value that only Optimizer can use.
struct OptimizerOptions {
  std::string method = "dlion-vote";                // a name that method_names() lists
  std::map<std::string, std::string> options = {};  // the method's own, e.g. {"tie", "zero"}
  std::vector<ParamGroup> groups = {ParamGroup{}};
  NonFinitePolicy non_finite = NonFinitePolicy::kRaise;
  // Scales the mean gradient of all ranks down to this 2-norm; 0: none. Only for methods that have
  // the mean gradient (the uncompressed ones). With methods that send signs, codes or a few entries
  // clip each rank's own gradient before the step (local clipping).
  double clip_global_norm = 0;
  std::size_t bucket_coords = std::size_t{1} << 20;  // size of a bucket; no effect on results
  // Exchange on separate threads, in parallel with encode and apply, and with backward if the step
  // is begun by begin_step(). No effect on results. REQUIRES: the transport allows calls from
  // several threads. All do but MPI without MPI_THREAD_MULTIPLE
  // (MpiEnvironment::thread_multiple()).
  bool overlap = false;
  // The node of each rank, equal on all ranks. It selects the hierarchical route, on which fewer
  // bytes leave a node. No effect on results. Only for methods with this route.
  Nodes nodes = {};
  int exchange_threads = 4;  // with overlap: 1 to 16, each with one bucket in flight
  std::uint64_t seed = 0;    // of random bits: stochastic rounding, error feedback
  // Votes of this rank, 1 to 65535, e.g. its number of samples. A rank of weight w counts as w
  // ranks with its signs. The vote is sign(sum of w_i delta_i), and the average is that sum divided
  // by the sum of w_i. Equal weights on all ranks have no effect. Unequal ones are only for methods
  // that exchange signs. First the weights are divided by their greatest common divisor. For
  // averages their sum must then be at most 65535; with `nodes` the sum in each node.
  int vote_weight = 1;

  // Where parameters, gradients and state lie and the method runs; null: the host. Frames are
  // always on the host. Results have the bits of a run on the host, except for products of
  // matrices. REQUIRES: a method that runs on devices (MethodInfo::on_device).
  std::shared_ptr<Device> device = nullptr;
  // With a device: needed by methods that orthogonalise matrices.
  Orthogonalise orthogonalise = nullptr;
  void* stream = nullptr;  // with a device: as Replica::set_stream()
  // With model parallelism, where this optimizer has some tensors or shards of the model
  // (TensorSpec::first_coord) and other optimizers have the rest: a function that sums each value
  // over these optimizers, in place. A step with non_finite = kSkip, clip_global_norm or
  // scale_next_step() calls it once, on the thread of finish_step(), between exchange and apply.
  // values[0]: the sum of squares of the mean gradient, 0 without clip_global_norm. values[1]: 1 if
  // the gradient is not finite, otherwise 0. All then skip the step, or clip it by the norm of the
  // whole model's gradient. An exception from it ends the step and fails
  // the communicator. REQUIRES: with kSkip a method without local steps.
  std::function<void(std::span<double> values)> model_parallel_sum = nullptr;
  // Called once in each step, on the thread of finish_step(), before anything is applied, while
  // buckets are exchanged: there the caller can wait for an agreement of its own between ranks. Not
  // called if a gradient is not finite and so nothing is applied. An exception from it ends the
  // step and fails the communicator; parameters are then those before the step, and momenta may
  // have its gradient.
  std::function<void()> before_apply = nullptr;
};

// Allocates on options.device what an optimizer of this layout will take there, about: state,
// `master_bytes` for masters of narrow parameters (2 a bfloat16, 4 a float16), frames, directions.
// It frees all at once. Throws OutOfMemory. One rank may then choose the host, which it cannot once
// all make their optimizers. `workers`: the number of virtual workers.
void check_device_memory(const Layout& layout, const OptimizerOptions& options,
                         std::uint64_t master_bytes, int workers = 1);

// The fate of this worker's ballot in a step that ends a coordinator's round.
struct RoundReport {
  std::int64_t round = 0;        // 0 for the first
  int voters = 0;                // the number of counted ballots
  bool counted = false;          // this worker's ballot was counted
  std::string why_not = {};      // if it was not: "late", ...
  std::int64_t replayed = 0;     // later rounds whose records this worker applied
  bool took_parameters = false;  // adopted the coordinator's parameters
};

// A section: the groups that name one method with the same options. Its steps have the bits of an
// optimizer of its own over its tensors, at their places in the model (TensorSpec::first_coord).
struct SectionReport {
  std::string method;
  std::map<std::string, std::string> options;  // all that the method has
  std::vector<int> groups;                     // ascending
  std::size_t n_coords = 0;                    // of its tensors
  std::uint64_t state = 0;                     // bytes: its share of MemoryUse::state
  Cost cost, mean_cost;                        // its shares of Replica::cost() and mean_cost()
  // In the last step: its shares of the report's; with a coordinator the bytes of its frames in
  // this worker's ballot.
  std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0;
};

// One step of a virtual worker.
struct WorkerReport {
  std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0;
  std::string skip_reason = {};  // empty: it was not skipped
};

// The report of one step on this rank. With virtual workers the bytes are those of worker 0.
struct StepReport {
  std::int64_t step = 0;  // from 0; texts count from 1
  bool skipped = false;   // non-finite gradient under kSkip
  std::string skip_reason;
  // With the option `delay`: of the exchange whose result this step adopts.
  std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0;
  std::optional<double> grad_norm = {};    // with clip_global_norm: of the mean, before clipping
  std::string note = {};                   // a line for the log: a device's warning
  std::optional<RoundReport> round = {};   // if this step ended a coordinator's round
  std::vector<WorkerReport> workers = {};  // virtual workers
  double encode_s = 0, exchange_s = 0, apply_s = 0;  // with overlap exchange_s counts only waits
};

// Bytes that an optimizer holds now, beside the caller's tensors. They are on the device if there
// is one, except for frames and server state.
struct MemoryUse {
  std::uint64_t state = 0;    // of the method, of all virtual workers
  std::uint64_t masters = 0;  // 2 bytes per bfloat16 parameter, 4 per float16 parameter
  std::uint64_t frames = 0;   // page-locked if a device uses them
  // Working memory: errors and scales of the current step, directions of matrices, kept gradients
  // (also of virtual workers); on a device also staged words of frames.
  std::uint64_t scratch = 0;
};

// Parameters and gradients stay where they lie (pride/tensors.h). Each call gets one flat buffer,
// or the address of each tensor, and reads and writes there. A parameter keeps its dtype.
//
// A bfloat16 or float16 parameter has a float32 master, which is state ("master/<parameter>"). The
// parameter is the master rounded to nearest: bfloat16 with ties away from zero, float16 with ties
// to even. Of a bfloat16 parameter's master the replica holds the other 16 bits; both together give
// the master exactly. The caller may change parameters between steps. A changed bfloat16 parameter
// keeps the 16 bits, so its master still rounds to it. A changed float16 parameter becomes its
// master. Reasons: docs/state.md.
//
// Functions that change or read parameters and state throw InvalidArgument during a step.
class Replica {
 public:
  virtual ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // Sets the addresses of the parameters, as every step does. save() reads bfloat16 parameters at
  // these addresses. Masters exist after this call.
  void place(const Parameters& params);

  // With a device: the stream (a CUstream) on which the caller works on parameters and gradients.
  // Later calls start after the work queued on it, and work queued on it afterwards starts after
  // theirs. A caller that orders its work itself gives the device's own stream. The stream must
  // exist until another one is named.
  void set_stream(void* stream);

  // From the next step on frozen tensors do not change, also not by weight decay, and their
  // gradients are not read. One flag per tensor; an empty span: none. If flags differ between
  // ranks, the step throws CommError.
  void set_frozen(std::span<const bool> frozen);

  // From the next step on this rank's gradients are multiplied by `factor`, in float32: 1 / scale
  // for a scaled loss, -1 to maximise. Ranks may have different ones.
  void set_gradient_factor(float factor);

  // Sets hyper-parameters of a group from the next step on; unset ones do not change. If they
  // differ between ranks, the step throws CommError and names the rank. Throws InvalidArgument, and
  // has changed nothing, if one is out of range, if the method does not have it, or if `values`
  // names another method or other options than the group had at first.
  void set_group(const ParamGroup& values, int group = 0);
  ParamGroup group(int group = 0) const;  // the values in force, with the method's defaults

  const Layout& layout() const noexcept;
  const MethodInfo& method(int group = 0) const;  // of a group, with its options
  std::int64_t steps_done() const noexcept;
  MemoryUse memory() const;

  // The bytes that this worker sends in the given step; and the mean of them over the steps of its
  // period (MethodInfo::period), rounded up in each section. With a coordinator: the bytes of the
  // ballot, without the client's messages.
  Cost cost(std::int64_t step = 0) const;
  Cost mean_cost(std::int64_t step = 0) const;
  // In the order of their first groups; costs are those of the given step.
  std::vector<SectionReport> sections(std::int64_t step = 0) const;

  // The number of buckets on each route ("sharded", "one-shot", "hierarchical", "native",
  // "coordinator": docs/wire_format.md), equal on all ranks. Empty with one rank.
  std::map<std::string, int> routes() const;

  // For methods with local steps (MethodInfo::period > 1). Between exchanges each rank has its own
  // parameters. The common parameters are those of the last exchange begun; to_common(), save() and
  // state_buffers() wait for it. to_common() replaces this rank's parameters by the common ones, to
  // evaluate, hash or save them. to_local() restores this rank's own, before the next gradient. A
  // saved state belongs to the common parameters: call to_local() after load(). With other methods
  // neither changes anything. If an exchange in flight fails, they throw CommError, and no further
  // step is allowed. Neither changes where save() reads.
  void to_common(const Parameters& params) const;
  void to_local(const Parameters& params) const;

  // param_hash() of the parameters as float32 (masters of narrower ones). With local steps that of
  // the common parameters.
  std::uint64_t hash(const Parameters& params) const;

  // read() copies the parameters as float32 (masters of narrower ones) into one flat buffer.
  // write() copies them back, and rounds narrower parameters. REQUIRES: flat.size() ==
  // layout().flat_size(). Padding does not change.
  void read(const Parameters& params, std::span<float> flat) const;
  // As read(), for the values of one tensor from number `begin` on, at the addresses of place() or
  // of the last step. Throws InvalidArgument if the tensor has too few values.
  void read(std::size_t tensor, std::size_t begin, std::span<float> values) const;
  void write(const Parameters& params, std::span<const float> flat);

  // The state's memory, to be read in place: one entry per buffer of a section, valid until tensors
  // are added.
  // Only steps and loads change it. StateBuffer::memory keeps it readable longer. With virtual
  // workers: worker 0's. On a device, work that is queued on set_stream()'s stream after this call
  // finds the memory filled; other streams wait for that stream.
  std::vector<StateBuffer> state_buffers();

  // This rank's state; with virtual workers that of worker 0. Every rank saves its own, because
  // momentum may differ between ranks.
  StateDict save() const;

  // Loads this rank's own state, saved on as many ranks. Collective. All ranks first check names,
  // shapes, method and layout. If one refuses its state, all throw InvalidArgument, and nothing has
  // changed. If buckets have another size, server state moves to its new servers. Restore narrower
  // parameters to their saved values before the next call with `params`: after a load, a parameter
  // that is not its rounded master becomes the master.
  void load(const StateDict& state);

  // Loads from the states of all ranks of a run, in any order. Number of ranks, buckets and
  // transport may differ. Collective. If one does not fit, all ranks throw InvalidArgument, and
  // nothing has changed.
  // Virtual workers load only so; gradients that were handed over for the present step are
  // discarded.
  void load(std::vector<StateDict> of_all_ranks, LocalState local = LocalState::kKeep);

 protected:
  struct Impl;
  explicit Replica(std::unique_ptr<Impl> impl) noexcept;

  std::unique_ptr<Impl> impl_;
};

// 64-bit hash of the parameters' bits, without padding. Equal on all ranks of a healthy run.
std::uint64_t param_hash(const Layout& layout, std::span<const float> params);

}  // namespace pride

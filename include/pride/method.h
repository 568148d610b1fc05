// Method: how one bucket of gradients becomes a step. Each method is one file in src/methods.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pride/bucket.h"
#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/diagnostics.h"
#include "pride/flat_buffer.h"
#include "pride/hosts.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride {

// What a method is made from. `options` holds every option that the method declares.
struct MethodContext {
  const Layout& layout;
  int rank = 0, world = 1;
  std::map<std::string, std::string> options;
  Hosts hosts = {};  // known: the method exchanges in two levels
};

// State goes in and out whole, as flat buffers; the writer and reader split it by parameter name.
class StateWriter {
 public:
  virtual ~StateWriter() = default;
  virtual void buffer(std::string_view name, const FlatBuffer& values) = 0;
  virtual void text(std::string_view name, const std::string& value) = 0;
};
class StateReader {
 public:
  virtual ~StateReader() = default;
  virtual void buffer(std::string_view name, FlatBuffer& values) = 0;
  // The text under that name. A method checks it whole before it changes anything: what is wrong
  // throws InvalidArgument. REQUIRES: what follows from it changes only if commits().
  virtual std::string text(std::string_view name) = 0;
  virtual bool commits() const = 0;  // false: a first pass, which only checks
  // The same for mean squares: a negative one is refused, its root would not be a number.
  virtual void squares(std::string_view name, FlatBuffer& values) = 0;
};

// How a bucket is exchanged, by a method that has a choice.
struct ExchangeForm {
  std::string_view name = {};  // "direct", "sharded", "two levels"; empty: no choice, or alone
  int rounds = 0;              // messages, one after the other; 0: MethodInfo::rounds
};

class Method {
 public:
  virtual ~Method() = default;

  // True if encode must know the whole gradient of this rank first (scales or thresholds of whole
  // tensors): then agree() is called once in a step, when all gradients are complete and before
  // any bucket is encoded. Exchange still overlaps with encode and apply, but not with backward.
  virtual bool needs_whole_gradient() const noexcept { return false; }

  // What comes before encode: local arithmetic over the whole gradient, or a round of messages
  // (shared scales), whose bytes are part of cost(). Collective.
  virtual void agree(Communicator&, const StepContext&, ConstView /*grad*/) {}

  // Buckets and shards are cut at multiples of this many flat coordinates only: a method that has
  // one scale per so many coordinates gives the same bits at any bucket size. A multiple of 64.
  virtual std::size_t alignment() const noexcept { return kAlignment; }

  // False if ranks whose shards are of the same sizes may send different numbers of bytes.
  virtual bool cost_follows_shards() const noexcept { return true; }

  // True if the exchange can have two levels: then it follows MethodContext::hosts.
  virtual bool has_two_levels() const noexcept { return false; }

  // True if a part of the state belongs to the owner of a shard (a server's error feedback). It is
  // where the cuts of the buckets put it, so a saved state needs the same bucket size.
  virtual bool has_owner_state() const noexcept { return false; }

  // After exchange: the mean gradient of the bucket, (bucket.size()), padding zero, which may be
  // scaled before apply (global-norm clipping). Most methods never have it.
  virtual bool has_mean_gradient() const noexcept { return false; }
  virtual std::span<float> mean_gradient(const Bucket&, Wire&) const { return {}; }

  // Local arithmetic and local state; fills wire.up, and wire.poison if a gradient is not finite.
  virtual void encode(const Bucket& bucket, ConstView grad, const StepContext& ctx, Wire& wire) = 0;

  // The only phase that talks; changes no state. If wire.poison is set afterwards, it is the same
  // on all ranks and wire.down holds nothing.
  virtual void exchange(Communicator& comm, const Bucket& bucket, const StepContext& ctx,
                        Wire& wire) = 0;

  // Commits the step of this bucket. REQUIRES: no poison.
  virtual void apply(const Bucket& bucket, const Wire& wire, const StepContext& ctx,
                     View param) = 0;

  // After the last apply of a step that was taken: what is measured or decided over whole steps,
  // the same on all ranks. Then what was measured in this step (empty: nothing), and what was
  // decided, a line for the log (empty: nothing).
  virtual void end_step(const StepContext&) {}
  virtual std::span<const TensorDiagnostics> diagnostics() const { return {}; }
  virtual std::string note() const { return {}; }

  // The same on every rank, and in every step.
  virtual ExchangeForm exchange_form(const Bucket&) const { return {}; }

  // Bytes that rank `rank` sends for one step over these buckets, frames included.
  virtual Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const = 0;

  virtual void save(StateWriter& out) const = 0;
  virtual void load(StateReader& in) = 0;
  virtual std::uint64_t state_floats() const = 0;
};

}  // namespace pride

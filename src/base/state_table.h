// StateTable: a method's state as named buffers. Saving, loading and sizes follow from it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "pride/flat_buffer.h"
#include "pride/layout.h"
#include "pride/state.h"

namespace pride {

class StateTable {
 public:
  // The content of a buffer. kSquares: a load refuses negative values; kParameters: the ranks'
  // common parameters, which are not in memory().
  enum class Values { kAny, kSquares, kParameters };

  // A buffer of the layout's flat size, empty until allocate(), which fills it with zeros. The name
  // is unique.
  FlatBuffer& add(const std::string& name, StateKind kind, Values values = Values::kAny);

  // Prefix of the names of buffers added from now on.
  void begin_names_with(std::string prefix) { prefix_ = std::move(prefix); }

  // A text beside the buffers. `read` checks the whole text before it changes anything and throws
  // InvalidArgument on errors; with `commit` false it only checks.
  using WriteText = std::function<std::string()>;
  // It covers the layout's first n_tensors tensors: all, or those before an addition.
  using ReadText = std::function<void(const std::string&, std::size_t n_tensors, bool commit)>;
  void add_text(std::string name, WriteText write, ReadText read);

  void allocate(std::size_t flat_size, Memory& memory = Memory::host());

  // The table of another worker in this process, with the shared buffers of `first`, an allocated
  // table of the same method. share_masters() shares its masters, once it has any.
  void allocate_beside(const StateTable& first);
  void share_masters(const StateTable& first);

  // The float32 masters of narrower parameters, "master/<parameter>", shared: a buffer of the flat
  // size, of which the requested tensors are saved and counted. REQUIRES: allocated.
  FlatBuffer& masters(std::size_t tensor, std::size_t n);

  std::size_t n_buffers() const noexcept { return entries_.size(); }
  std::uint64_t floats() const noexcept;      // of all buffers together
  std::uint64_t own_floats() const noexcept;  // of those that are not shared
  std::uint64_t master_bytes() const noexcept { return sizeof(float) * masters_.size(); }
  std::uint64_t masters() const noexcept { return n_masters_; }
  bool has(StateKind kind) const noexcept;

  // Tensors "<buffer>/<parameter>"; scalars "kind.<buffer>" ("local", "shared" or "server") and
  // "method.<text>".
  void save(const Layout& layout, StateDict& out) const;

  // Copies the values of a table of the same method for the first tensors of this layout.
  void take(const StateTable& other, std::size_t n_tensors);

  std::vector<std::span<float>> buffers(StateKind kind);
  // The ranks' shared state besides parameters: shared buffers that are not kParameters.
  std::vector<std::span<float>> memory();
  std::size_t n_memory() const noexcept;
  // The memory of all buffers except those of servers, which are in host memory.
  Memory& where() const noexcept { return *memory_; }
  std::vector<StateBuffer> buffers();
  StateKind kind_of(std::string_view key) const;  // of "<buffer>/<parameter>"; unknown: kLocal

  // Throws InvalidArgument, and then nothing was changed: a tensor that is missing, has another
  // shape, is not finite or is a negative square; one that no buffer has; a damaged text.
  void load(const Layout& layout, const StateDict& in) { read(layout, in, true); }
  void check(const Layout& layout, const StateDict& in) { read(layout, in, false); }

 private:
  static void copy(Memory& of_from, const FlatBuffer& from, Memory& of_to, FlatBuffer& to);
  static StateDict::Tensor saved(Memory& memory, const FlatBuffer& buffer, const TensorSlot& slot);
  void read(const Layout& layout, const StateDict& in, bool and_commit);
  void read_masters(const Layout& layout, const StateDict& in, bool commit,
                    std::set<std::string>& known);

  struct Entry {
    std::string name;
    StateKind kind;
    Values values;
    FlatBuffer buffer = {};
    bool is_memory() const { return kind == StateKind::kShared && values != Values::kParameters; }
  };
  struct Text {
    std::string name;
    WriteText write;
    ReadText read;
  };

  Memory& memory_of(const Entry& e) const noexcept {
    return e.kind == StateKind::kServer ? Memory::host() : *memory_;
  }
  bool has_master(std::size_t tensor) const noexcept {
    return tensor < has_master_.size() && has_master_[tensor] != 0;
  }

  std::string prefix_;
  std::size_t flat_size_ = 0;
  Memory* memory_ = &Memory::host();  // of all buffers but those of servers
  FlatBuffer masters_;                // empty before the first
  std::vector<char> has_master_;
  std::uint64_t n_masters_ = 0;  // coordinates
  std::deque<Entry> entries_;    // whose addresses methods keep
  std::deque<Text> texts_;
};

}  // namespace pride

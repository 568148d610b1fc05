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

// Beginning of the keys of parameters' float32 masters in a state.
inline constexpr std::string_view kMasterKey = "master/";

// A buffer of a table in the type that it is kept in. Its floats are that of pairs, in bfloat16.
struct Stored {
  Stored(FlatBuffer& of, DType type = DType::kFloat32) : buffer(&of), dtype(type) {}
  // The values from `begin` on.
  Floats of(std::size_t begin, std::size_t n) const {
    return Floats::of(buffer->data(), dtype, begin + n).subspan(begin);
  }

  FlatBuffer* buffer;
  DType dtype;  // kFloat32 or kBFloat16
};

class StateTable {
 public:
  // The content of a buffer. kSquares: a load refuses negative values; kParameters: the ranks'
  // common parameters, which are not in memory().
  enum class Values { kAny, kSquares, kParameters };

  // A buffer of the layout's flat size, empty until allocate(), which fills it with zeros. The name
  // is unique.
  FlatBuffer& add(const std::string& name, StateKind kind, Values values = Values::kAny);

  // The same in float32 or bfloat16, in which values are rounded as they are written. It is saved
  // as float32.
  Stored add(const std::string& name, StateKind kind, DType dtype);

  // Names of the buffers that are added from now on begin with it.
  void begin_names_with(std::string prefix) { prefix_ = std::move(prefix); }

  // A text beside the buffers. `read` checks the whole text before it changes anything and throws
  // InvalidArgument on errors; with `commit` false it only checks.
  using WriteText = std::function<std::string()>;
  // It covers the layout's first n_tensors tensors: all, or those before an addition.
  using ReadText = std::function<void(const std::string&, std::size_t n_tensors, bool commit)>;
  void add_text(std::string name, WriteText write, ReadText read);

  void allocate(std::size_t flat_size, Memory& memory = Memory::host());

  // The table of another worker in this process: shared buffers are those of `first`, an allocated
  // table of the same method.
  void allocate_beside(const StateTable& first);

  std::size_t n_buffers() const noexcept { return entries_.size(); }
  std::size_t bytes_per_coord() const noexcept;  // without those of servers
  std::uint64_t floats() const noexcept;         // of all buffers together
  std::uint64_t floats(StateKind kind) const noexcept;
  std::uint64_t own_floats() const noexcept;  // of those that are not shared
  bool has(StateKind kind) const noexcept;

  // Tensors "<buffer>/<parameter>"; scalars "kind.<buffer>" ("local", "shared" or "server") and
  // "method.<text>".
  void save(const Layout& layout, StateDict& out) const;

  // Copies the values of a table of the same method for the first tensors of this layout.
  void take(const StateTable& other, std::size_t n_tensors);

  std::vector<Floats> buffers(StateKind kind);
  // What ranks have alike beside parameters: the shared buffers that are not kParameters.
  std::vector<Floats> memory();
  std::size_t n_memory() const noexcept;
  // The memory of all buffers except those of servers, which are in host memory.
  Memory& where() const noexcept { return *memory_; }
  std::vector<StateBuffer> buffers();
  StateKind kind_of(std::string_view key) const;  // of "<buffer>/<parameter>"; unknown: kLocal

  // Throws InvalidArgument, and then nothing was changed: a tensor that is missing, has another
  // shape, is not finite or is a negative square; one that no buffer has and that is no master; a
  // damaged text.
  void load(const Layout& layout, const StateDict& in) { read(layout, in, true); }
  void check(const Layout& layout, const StateDict& in) { read(layout, in, false); }

 private:
  static void copy(Memory& of_from, const FlatBuffer& from, Memory& of_to, FlatBuffer& to);
  void read(const Layout& layout, const StateDict& in, bool and_commit);

  struct Entry {
    std::string name;
    StateKind kind;
    Values values;
    DType dtype = DType::kFloat32;
    FlatBuffer buffer = {};
    std::size_t floats_of(std::size_t n) const {
      return dtype == DType::kFloat32 ? n : (n + 1) / 2;
    }
    Floats of(std::size_t begin, std::size_t n) const {
      return Stored(const_cast<FlatBuffer&>(buffer), dtype).of(begin, n);
    }
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

  std::string prefix_;
  std::size_t flat_size_ = 0;
  Memory* memory_ = &Memory::host();  // of all buffers but those of servers
  std::deque<Entry> entries_;         // whose addresses methods keep
  std::deque<Text> texts_;
};

// The saved tensor of one buffer and parameter. Throws InvalidArgument as load() does.
const std::vector<float>& saved_values(const StateDict& in, const std::string& key,
                                       const TensorSlot& slot, StateTable::Values values);

}  // namespace pride

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

// A buffer of a table and its dtype. With bfloat16 each float of the buffer holds two values.
struct Stored {
  Stored(FlatBuffer& of, DType type = DType::kFloat32) : buffer(&of), dtype(type) {}
  // Values [begin, begin + n).
  Floats of(std::size_t begin, std::size_t n) const {
    return Floats::of(buffer->data(), dtype, begin + n).subspan(begin);
  }

  FlatBuffer* buffer;
  DType dtype;  // kFloat32 or kBFloat16
};

class StateTable {
 public:
  // The content of a buffer. kSquares: a load refuses negative values; kParameters: the ranks'
  // common parameters, which are not in shared_buffers().
  enum class Values { kAny, kSquares, kParameters };

  // Adds a buffer of the layout's flat size. It is empty until allocate() fills it with zeros.
  // REQUIRES: a unique name.
  FlatBuffer& add(const std::string& name, StateKind kind, Values values = Values::kAny);

  // The same in float32 or bfloat16. With bfloat16 each write rounds. Both are saved as float32.
  Stored add(const std::string& name, StateKind kind, DType dtype);

  // Sets the prefix for the names of buffers that are added later.
  void begin_names_with(std::string prefix) { prefix_ = std::move(prefix); }

  // A text beside the buffers. `read` checks the whole text before it changes anything and throws
  // InvalidArgument on errors; with `commit` false it only checks.
  using WriteText = std::function<std::string()>;
  // The text covers the layout's first n_tensors tensors: all, or those before tensors were added.
  using ReadText = std::function<void(const std::string&, std::size_t n_tensors, bool commit)>;
  void add_text(std::string name, WriteText write, ReadText read);

  void allocate(std::size_t flat_size, Memory& memory = Memory::host());

  // The table of another worker in this process: shared buffers are those of `first`, an allocated
  // table of the same method.
  void allocate_beside(const StateTable& first);

  std::size_t n_buffers() const noexcept { return entries_.size(); }
  std::size_t bytes_per_coord() const noexcept;  // without server state
  std::uint64_t floats() const noexcept;         // of all buffers together
  std::uint64_t floats(StateKind kind) const noexcept;
  std::uint64_t own_floats() const noexcept;  // of buffers that are not shared
  bool has(StateKind kind) const noexcept;

  // Tensors "<buffer>/<parameter>"; scalars "kind.<buffer>" ("local", "shared" or "server") and
  // "method.<text>".
  void save(const Layout& layout, StateDict& out) const;

  // Copies from a table of the same method, whose layout has only the first n_tensors tensors.
  void take(const StateTable& other, std::size_t n_tensors);

  std::vector<Floats> buffers(StateKind kind);
  // State besides parameters that is equal on all ranks: shared buffers that are not kParameters.
  std::vector<Floats> shared_buffers();
  std::vector<ConstFloats> shared_buffers() const;
  std::size_t n_shared_buffers() const noexcept;
  // The memory of the buffers. Only server state is always in host memory.
  Memory& where() const noexcept { return *memory_; }
  std::vector<StateBuffer> buffers();
  StateKind kind_of(std::string_view key) const;  // of "<buffer>/<parameter>"; unknown: kLocal

  // Throws InvalidArgument and changes nothing if a tensor is missing, has another shape, is not
  // finite, is a negative square or belongs to no buffer, or if a text is damaged. Masters belong
  // to no buffer and are allowed.
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
    bool is_shared_buffer() const {
      return kind == StateKind::kShared && values != Values::kParameters;
    }
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
  Memory* memory_ = &Memory::host();  // of all buffers except server state
  std::deque<Entry> entries_;         // a deque: methods keep addresses
  std::deque<Text> texts_;
};

// The saved tensor of one buffer and parameter. Throws InvalidArgument as load() does.
const std::vector<float>& saved_values(const StateDict& in, const std::string& key,
                                       const TensorSlot& slot, StateTable::Values values);

}  // namespace pride

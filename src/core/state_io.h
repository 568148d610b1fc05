// Between a method's flat buffers and a StateDict keyed by parameter name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include "pride/layout.h"
#include "pride/method.h"
#include "pride/state.h"

namespace pride {

// Adds "<buffer>/<parameter>" tensors and scalars "method.<name>" to a StateDict.
class DictWriter final : public StateWriter {
 public:
  DictWriter(const Layout& layout, StateDict& out) : layout_(layout), out_(out) {}
  void buffer(std::string_view name, const FlatBuffer& values) override;
  void text(std::string_view name, const std::string& value) override;

 private:
  const Layout& layout_;
  StateDict& out_;
};

// Checks, and with `commit` copies, "<buffer>/<parameter>" tensors. Throws InvalidArgument naming
// the tensor that is missing, has another shape, is not finite, or is a negative square.
class DictReader final : public StateReader {
 public:
  DictReader(const Layout& layout, const StateDict& in, bool commit)
      : layout_(layout), in_(in), commit_(commit) {}
  void buffer(std::string_view name, FlatBuffer& values) override;
  void squares(std::string_view name, FlatBuffer& values) override;
  std::string text(std::string_view name) override;
  bool commits() const override { return commit_; }

  // Throws InvalidArgument if the dictionary holds tensors that no buffer asked for.
  void expect_all_used() const;

 private:
  void read(std::string_view name, const TensorSlot& slot, bool may_be_negative,
            FlatBuffer& values);

  const Layout& layout_;
  const StateDict& in_;
  bool commit_;
  std::set<std::string> used_;
};

}  // namespace pride

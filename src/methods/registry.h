// The methods by name, and their constructors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "methods/method.h"
#include "pride/registry.h"

namespace pride {

// Defined by a method's file, listed by registry.cpp.
struct MethodEntry {
  std::string_view name;
  std::unique_ptr<Method> (*make)(const MethodContext&);
  MethodInfo (*info)(int world);  // with default options
  // Enters what the options change, unless it is the state. Null: nothing.
  void (*adjust)(const OptionValues& options, MethodInfo& info) = nullptr;
  // If MethodInfo::on_device: why it needs the host with these options; empty: it does not.
  std::string (*host_only)(const OptionValues& options) = nullptr;
};

namespace methods {
template <typename M>
std::unique_ptr<Method> make(const MethodContext& ctx) {
  return std::make_unique<M>(ctx);
}
}  // namespace methods

// Names of the methods whose protocol has a property, separated by commas. Options are the
// defaults.
std::string methods_with(bool (*property)(const Protocol&));

// Allocates no state: state().allocate() does. REQUIRES: ctx.options from complete_options(), which
// get the name. Throws InvalidArgument on a bad value.
std::unique_ptr<Method> make_method(std::string_view name, const MethodContext& ctx);

}  // namespace pride

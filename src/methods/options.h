// Values of a method's own options.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "pride/registry.h"

namespace pride {

// All options that a method declares. Readers throw InvalidArgument, naming method, option and
// value. REQUIRES: the option is there.
class OptionValues {
 public:
  OptionValues(OptionMap values = {}, std::string method = {})
      : values_(std::move(values)), method_(std::move(method)) {}

  double number(const std::string& name, double least, double most) const;
  std::int64_t whole(const std::string& name, std::int64_t least, std::int64_t most) const;
  bool yes_no(const std::string& name) const;
  // Index of the value among the words; the error lists them all.
  std::size_t word(const std::string& name, std::initializer_list<std::string_view> words) const;

  const std::string& text(const std::string& name) const { return values_.at(name); }
  bool has(const std::string& name) const { return values_.contains(name); }
  void set(const std::string& name, std::string value) { values_[name] = std::move(value); }

  // For errors: a local method's, if this is its outer method.
  const std::string& method() const noexcept { return method_; }
  const OptionMap& values() const noexcept { return values_; }

 private:
  OptionMap values_;
  std::string method_;
};

namespace methods {

inline constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;  // largest value of an option

// For MethodEntry::host_only: names an option's value that needs the host. `remedy`: what helps
// too, such as "choose native, or ".
std::string needs_host(const OptionValues& options, std::string_view option,
                       std::string_view remedy = "");

}  // namespace methods
}  // namespace pride

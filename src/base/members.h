// The members of a struct without a list of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

namespace pride {
namespace members {

template <typename T>
inline constexpr bool kIsSpan = false;
template <typename T>
inline constexpr bool kIsSpan<std::span<T>> = true;

// What a member can be made of. Views that are made of spans would be ambiguous with one type.
struct AnySpan {
  template <typename T>
  requires kIsSpan<T>
  operator T() const;
};
struct AnyOther {
  template <typename T>
  requires(!kIsSpan<T>) operator T() const;
};

template <typename T, typename... First>
consteval std::size_t count() {
  if constexpr (requires { T{First{}..., AnyOther{}}; }) {
    return count<T, First..., AnyOther>();
  } else if constexpr (requires { T{First{}..., AnySpan{}}; }) {
    return count<T, First..., AnySpan>();
  } else {
    return sizeof...(First);
  }
}

}  // namespace members

// Calls f(member) for each of the at most ten members.  REQUIRES: an aggregate without arrays.
template <typename T>
void for_members(const T& of, auto&& f) {
  constexpr std::size_t n = members::count<T>();
  static_assert(2 <= n && n <= 10);
  const auto all = [&](const auto&... member) { (f(member), ...); };
  if constexpr (n == 2) {
    const auto& [a, b] = of;
    all(a, b);
  } else if constexpr (n == 3) {
    const auto& [a, b, c] = of;
    all(a, b, c);
  } else if constexpr (n == 4) {
    const auto& [a, b, c, d] = of;
    all(a, b, c, d);
  } else if constexpr (n == 5) {
    const auto& [a, b, c, d, e] = of;
    all(a, b, c, d, e);
  } else if constexpr (n == 6) {
    const auto& [a, b, c, d, e, g] = of;
    all(a, b, c, d, e, g);
  } else if constexpr (n == 7) {
    const auto& [a, b, c, d, e, g, h] = of;
    all(a, b, c, d, e, g, h);
  } else if constexpr (n == 8) {
    const auto& [a, b, c, d, e, g, h, i] = of;
    all(a, b, c, d, e, g, h, i);
  } else if constexpr (n == 9) {
    const auto& [a, b, c, d, e, g, h, i, j] = of;
    all(a, b, c, d, e, g, h, i, j);
  } else {
    const auto& [a, b, c, d, e, g, h, i, j, k] = of;
    all(a, b, c, d, e, g, h, i, j, k);
  }
}

}  // namespace pride

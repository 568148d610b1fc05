// One call of a server: the method, the shard and the frames, as bytes that another process can
// read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <istream>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "methods/registry.h"
#include "optimizer/step_scalars.h"

namespace pride::testing {

inline Layout serve_layout() { return Layout({{"w", {70, 3}}, {"b", {9}}, {"v", {4200}}}); }
inline constexpr std::size_t kServeBucket = 4096;

struct ServeCase {
  std::string method;
  std::map<std::string, std::string> options = {};
  int voters = 1, per_node = 0, step = 0;
  std::uint64_t seed = 0, scalars = 0;
  int bucket = 0, part = 0, shard = -1;              // -1: the part's only shard
  bool from_partial = false, partial = false;        // frames, or the result, are of Part::partial
  std::vector<std::string> heads = {}, bodies = {};  // frames; a native sum has one body: the sum
};

inline Nodes nodes_of(const ServeCase& c) {
  return c.per_node > 0 ? Nodes::of_size(c.voters, c.per_node) : Nodes{};
}

inline std::vector<StepScalars> serve_scalars(const ServeCase& c) {
  return {scalars_of(complete_group({}, method_info(c.method, c.voters), 0), 0)};
}

inline void write(std::ostream& out, const ServeCase& c) {
  const auto text = [&](const std::string& s) { out << s.size() << ' ' << s; };
  text(c.method);
  out << c.options.size() << ' ';
  for (const auto& [name, value] : c.options) text(name), text(value);
  for (const std::uint64_t n : {c.seed, c.scalars}) out << n << ' ';
  for (const int n : {c.voters, c.per_node, c.step, c.bucket, c.part, c.shard, int{c.from_partial},
                      int{c.partial}, static_cast<int>(c.heads.size())}) {
    out << n << ' ';
  }
  for (const auto* list : {&c.heads, &c.bodies}) std::ranges::for_each(*list, text);
}

inline ServeCase read_case(std::istream& in) {
  ServeCase c;
  const auto text = [&] {
    std::size_t n = 0;
    in >> n;
    in.get();
    std::string s(n, '\0');
    in.read(s.data(), static_cast<std::streamsize>(n));
    return s;
  };
  c.method = text();
  std::size_t n = 0;
  in >> n;
  for (std::size_t i = 0; i < n; ++i) {
    const std::string name = text();
    c.options[name] = text();
  }
  in >> c.seed >> c.scalars >> c.voters >> c.per_node >> c.step >> c.bucket >> c.part >> c.shard >>
      c.from_partial >> c.partial >> n;
  for (auto* list : {&c.heads, &c.bodies}) {
    for (std::size_t i = 0; i < n; ++i) list->push_back(text());
  }
  return c;
}

}  // namespace pride::testing

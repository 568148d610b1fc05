// SPDX-License-Identifier: Apache-2.0
#include "pride/choose_tensors.h"

#include <sstream>
#include <string_view>

#include "pride/error.h"

namespace pride {
namespace {

// '*' stands for any characters. After a mismatch the last star matches one more character.
bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

bool is_embedding(const TensorSpec& spec) {
  const auto has = [&](std::string_view part) { return spec.name.find(part) != std::string::npos; };
  return has("emb") || has("wte") || has("wpe") || has("pos");
}

bool is_matrix(const TensorSlot& slot) { return slot.spec.shape.size() >= 2; }

// The tensors matched by one item.
std::vector<std::size_t> named_by(const std::string& item, const Layout& layout) {
  const auto& tensors = layout.tensors();
  std::vector<std::size_t> found, matrices;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (is_matrix(tensors[t])) matrices.push_back(t);
  }
  if (item == "first") return {matrices.begin(), matrices.begin() + (matrices.empty() ? 0 : 1)};
  if (item == "last") return {matrices.end() - (matrices.empty() ? 0 : 1), matrices.end()};
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const bool hit = item == "all" || (item == "vectors" && !is_matrix(tensors[t])) ||
                     (item == "embeddings" && is_embedding(tensors[t].spec)) ||
                     matches(item, tensors[t].spec.name);
    if (hit) found.push_back(t);
  }
  return found;
}

}  // namespace

std::vector<char> choose_tensors(const std::string& option, const Layout& layout,
                                 const std::string& text) {
  std::vector<char> chosen(layout.tensors().size(), 0);
  if (text == "none") return chosen;
  PRIDE_CHECK(!text.empty(), option, " is empty; 'none' chooses nothing");
  std::istringstream items(text);
  std::string item;
  while (std::getline(items, item, ',')) {
    const auto found = named_by(item, layout);
    const bool is_kind = item == "all" || item == "vectors" || item == "embeddings" ||
                         item == "first" || item == "last";
    PRIDE_CHECK(is_kind || !found.empty(), option, " = '", text, "': no tensor is named by '", item,
                "'; an item is none, all, vectors, embeddings, first, last, or a pattern of "
                "tensor names with *");
    for (const std::size_t t : found) chosen[t] = 1;
  }
  return chosen;
}

}  // namespace pride

// SPDX-License-Identifier: Apache-2.0
#include "methods/matrices.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr std::size_t kMostNames = 8;  // in a text
constexpr std::size_t kMostSide = std::numeric_limits<std::int32_t>::max();

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  if (text == "none") return words;
  std::istringstream list(text);
  for (std::string word; std::getline(list, word, ',');) {
    word.erase(0, word.find_first_not_of(' '));
    word.erase(word.find_last_not_of(' ') + 1);
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

bool names(const std::string& word, const TensorSlot& slot) {
  const std::string& name = slot.spec.name;
  return word[0] == '=' ? name == word.substr(1) : name.find(word) != std::string::npos;
}

bool names_one_of(const std::vector<std::string>& words, const TensorSlot& slot) {
  return std::ranges::any_of(words, [&](const std::string& word) { return names(word, slot); });
}

// The tensor as a matrix, whatever is said of it; or nothing.
std::optional<Matrix> shape_of(const Layout& layout, std::size_t tensor) {
  const TensorSlot& slot = layout.tensors()[tensor];
  if (slot.spec.shape.size() < 2 || slot.n == 0) return {};
  const auto rows = static_cast<std::size_t>(slot.spec.shape[0]);
  if (rows == 1 || slot.n == rows) return {};
  return Matrix{tensor, rows, slot.n / rows, {}};
}

// An item of the option `split`.
struct SplitItem {
  struct Run {
    std::size_t n = 0, size = 0;  // n blocks of one size
  };
  std::string text, word;
  std::vector<Run> runs = {};  // none: three equal blocks
  std::size_t sum = 0;         // of the sizes
};

std::optional<std::size_t> side_in(std::string_view text) {
  std::size_t side = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, side);
  const bool good = error == std::errc() && end == last && side >= 1 && side <= kMostSide;
  return good ? std::optional(side) : std::nullopt;
}

// Of "n" or "k*n".
std::optional<SplitItem::Run> run_in(std::string_view text) {
  const std::size_t times = text.find('*');
  const bool one = times == text.npos;
  const auto n = one ? 1 : side_in(text.substr(0, times));
  const auto size = side_in(text.substr(one ? 0 : times + 1));
  return n && size ? std::optional(SplitItem::Run{*n, *size}) : std::nullopt;
}

// The first '=' of "=name" makes it a whole name; the last one of any other item begins the sizes.
std::vector<SplitItem> items_of(const std::string& method, const std::string& text) {
  std::vector<SplitItem> items;
  for (const std::string& each : words_of(text)) {
    const std::size_t equals = each.rfind('=');
    const bool has_sizes = equals != each.npos && equals > 0;
    SplitItem& item = items.emplace_back(
        SplitItem{.text = each, .word = has_sizes ? each.substr(0, equals) : each});
    for (std::size_t end = equals; has_sizes && end < each.size();) {
      const std::size_t begin = end + 1;
      end = std::min(each.find('+', begin), each.size());
      const auto run = run_in(std::string_view(each).substr(begin, end - begin));
      PRIDE_CHECK(run && run->n * run->size <= kMostSide - item.sum, method, ": option split = '",
                  text, "': the sizes of '", each,
                  "' must be n or k*n, joined by '+', each at least 1, together at most ",
                  kMostSide);
      item.sum += run->n * run->size;
      item.runs.push_back(*run);
    }
  }
  return items;
}

// The item with sizes, or else one without, that names the tensor; or null.
const SplitItem* item_for(const std::string& method, const std::vector<SplitItem>& items,
                          const TensorSlot& slot) {
  const SplitItem* found = nullptr;
  for (const SplitItem& item : items) {
    if (!names(item.word, slot)) continue;
    PRIDE_CHECK(found == nullptr || found->runs.empty() || item.runs.empty(), method,
                ": option split: '", found->text, "' and '", item.text, "' both name tensor '",
                slot.spec.name, "'; =NAME=SIZES names one tensor");
    if (found == nullptr || found->runs.empty()) found = &item;
  }
  return found;
}

std::string shape_text(const TensorSlot& slot) {
  std::string text;
  for (const std::int64_t side : slot.spec.shape) text += concat(text.empty() ? "" : ", ", side);
  return text;
}

// Fills matrix.blocks. `item`: null for a whole matrix.
void cut(const std::string& method, const TensorSlot& slot, const SplitItem* item, Matrix& matrix) {
  const std::size_t rows = matrix.rows, cols = matrix.cols;
  std::vector<SplitItem::Run> runs = {{1, rows}};
  bool of_rows = true;
  if (item != nullptr && !item->runs.empty()) {
    PRIDE_CHECK(item->sum == rows || item->sum == cols, method, ": option split: the sizes of '",
                item->text, "' add up to ", item->sum, ", but tensor '", slot.spec.name,
                "' of shape (", shape_text(slot), ") has ", rows, " rows and ", cols, " columns");
    runs = item->runs;
    of_rows = item->sum == rows;
  } else if (item != nullptr && std::max(rows, cols) == 3 * std::min(rows, cols)) {
    runs = {{3, std::min(rows, cols)}};
    of_rows = rows > cols;
  }
  std::size_t begin = 0;
  for (const auto& [n, size] : runs) {
    for (std::size_t i = 0; i < n; ++i) {
      matrix.blocks.push_back(of_rows ? MatrixBlock{begin, size, cols}
                                      : MatrixBlock{begin, rows, size});
      begin += of_rows ? size * cols : size;
    }
  }
}

// Names for a text: "blocks.*.proj.weight (2), head.weight", of split ones "qkv (3 blocks)".
// Numbers between dots become *.
class Names {
 public:
  void add(const std::string& name, std::size_t blocks = 1) {
    const std::string pattern = pattern_of(name);
    const auto known = std::ranges::find_if(counts_, [&](const Count& count) {
      return count.name == pattern && count.blocks == blocks;
    });
    if (known != counts_.end()) {
      ++known->n;
    } else {
      counts_.push_back({pattern, name, 1, blocks});
    }
  }
  // True if `name` is the only one of its pattern.
  bool has_alone(const std::string& name) const {
    const auto known = std::ranges::find(counts_, pattern_of(name), &Count::name);
    return known != counts_.end() && known->n == 1;
  }
  bool empty() const noexcept { return counts_.empty(); }
  std::string text() const {
    std::string text;
    for (std::size_t i = 0; i < std::min(kMostNames, counts_.size()); ++i) {
      text += concat(i == 0 ? "" : ", ", counts_[i].text());
    }
    if (counts_.size() > kMostNames) text += concat(" and ", counts_.size() - kMostNames, " more");
    return text;
  }

 private:
  struct Count {
    std::string name, first;
    std::size_t n = 0, blocks = 1;  // tensors, and the blocks of each

    std::string text() const {
      if (blocks == 1) return n == 1 ? first : concat(name, " (", n, ")");
      return n == 1 ? concat(first, " (", blocks, " blocks)")
                    : concat(name, " (", n, ", ", blocks, " blocks each)");
    }
  };

  static std::string pattern_of(const std::string& name) {
    std::istringstream parts(name);
    std::string pattern;
    for (std::string part; std::getline(parts, part, '.');) {
      const bool number = !part.empty() && std::ranges::all_of(part, [](unsigned char letter) {
        return std::isdigit(letter) != 0;
      });
      pattern += concat(pattern.empty() ? "" : ".", number ? "*" : part);
    }
    return pattern;
  }

  std::vector<Count> counts_;
};

}  // namespace

std::vector<Matrix> matrices_of(const std::string& method, const Layout& layout,
                                const OptionMap& options) {
  const auto no_matrices = words_of(options.at("not_matrices"));
  const auto items = items_of(method, options.at("split"));
  std::vector<Matrix> matrices;
  Names unnamed;
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    auto matrix = shape_of(layout, i);
    const TensorSlot& slot = layout.tensors()[i];
    const AsMatrix as = slot.spec.as_matrix;
    if (!matrix || as == AsMatrix::kNo) continue;
    if (as == AsMatrix::kUnnamed) unnamed.add(slot.spec.name);
    if (as == AsMatrix::kByName && names_one_of(no_matrices, slot)) continue;
    cut(method, slot, item_for(method, items, slot), *matrix);
    matrices.push_back(std::move(*matrix));
  }
  PRIDE_CHECK(unnamed.empty(), method, ": tensors without a name: ", unnamed.text(),
              ". They may be matrices, or embeddings and output layers, which are none. Give their "
              "names, or say what they are: in PyTorch give model.named_parameters(), or "
              "\"matrix\": True or False in their group");
  return matrices;
}

void check_words(const std::string& method, const OptionMap& options, const Layout& layout) {
  if (layout.tensors().empty()) return;
  const auto check = [&](const char* option, const char* usual, const std::string& item,
                         const std::string& word) {
    const auto defaults = words_of(usual);
    PRIDE_CHECK(std::ranges::find(defaults, item) != defaults.end() ||
                    std::ranges::any_of(layout.tensors(),
                                        [&](const TensorSlot& slot) { return names(word, slot); }),
                method, ": option ", option, ": no tensor's name ",
                word[0] == '=' ? concat("is '", word.substr(1)) : concat("contains '", word),
                "'; the first tensor's is '", layout.tensors()[0].spec.name, "'");
  };
  for (const std::string& word : words_of(options.at("not_matrices"))) {
    check("not_matrices", kNotMatrices, word, word);
  }
  const auto matrices = matrices_of(method, layout, options);
  for (const SplitItem& item : items_of(method, options.at("split"))) {
    check("split", kSplit, item.text, item.word);
    PRIDE_CHECK(item.runs.empty() ||
                    std::ranges::any_of(matrices,
                                        [&](const Matrix& matrix) {
                                          return names(item.word, layout.tensors()[matrix.tensor]);
                                        }),
                method, ": option split: '", item.text, "' names no matrix of this method");
  }
}

std::string text_of(const std::string& method, const Layout& layout, const OptionMap& options) {
  const auto matrices = matrices_of(method, layout, options);
  Names whole, split, none;
  std::size_t n_others = 0, last = layout.tensors().size();
  auto next = matrices.begin();
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    const std::string& name = layout.tensors()[i].spec.name;
    if (!shape_of(layout, i)) {
      ++n_others;
      continue;
    }
    last = i;
    if (next == matrices.end() || next->tensor != i) {
      none.add(name);
      continue;
    }
    (next->form() == MatrixForm::kWhole ? whole : split).add(name, next->blocks.size());
    ++next;
  }
  std::string text = concat(method, ": matrices: ", whole.empty() ? "none" : whole.text());
  if (!split.empty()) text += concat("; split: ", split.text());
  if (!none.empty() || n_others > 0) text += concat("; no matrices: ", none.text());
  if (n_others > 0) text += concat(none.empty() ? "" : " and ", n_others, " of one dimension");
  // the last one, unless it is of several blocks
  if (last < layout.tensors().size() && whole.has_alone(layout.tensors()[last].spec.name) &&
      layout.tensors()[last].spec.as_matrix == AsMatrix::kByName) {
    text += concat(". If '", layout.tensors()[last].spec.name,
                   "' makes the model's output, exclude it: it is a matrix by its name alone");
  }
  return text;
}

}  // namespace pride::methods

// SPDX-License-Identifier: Apache-2.0
#include "methods/orthogonal_blend.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>

#include "kernels/levels.h"
#include "kernels/scaled_signs.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr const char* kNotMatrices = "embed,wte,wpe,lm_head,head,position";
constexpr const char* kFused = "c_attn,qkv,in_proj,query_key_value";

constexpr std::size_t kMostNames = 8;  // in a text

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

std::int64_t every_option(const OptionValues& options) {
  return options.whole("every", 1, 1'000'000);
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
  return Matrix{tensor, rows, slot.n / rows};
}

// Names for a text: "blocks.*.proj.weight (2), head.weight". Numbers between dots become *.
class Names {
 public:
  void add(const std::string& name) {
    const std::string pattern = pattern_of(name);
    const auto known = std::ranges::find(counts_, pattern, &Count::name);
    if (known != counts_.end()) {
      ++known->n;
    } else {
      counts_.push_back({pattern, name, 1});
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
      const auto& [name, first, n] = counts_[i];
      text += concat(i == 0 ? "" : ", ", n == 1 ? first : concat(name, " (", n, ")"));
    }
    if (counts_.size() > kMostNames) text += concat(" and ", counts_.size() - kMostNames, " more");
    return text;
  }

 private:
  struct Count {
    std::string name, first;
    std::size_t n = 0;
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
                                const std::string& words) {
  const auto no_matrices = words_of(words);
  std::vector<Matrix> matrices;
  Names unnamed;
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    const auto matrix = shape_of(layout, i);
    const TensorSlot& slot = layout.tensors()[i];
    const AsMatrix as = slot.spec.as_matrix;
    if (!matrix || as == AsMatrix::kNo) continue;
    if (as == AsMatrix::kUnnamed) unnamed.add(slot.spec.name);
    if (as == AsMatrix::kByName && names_one_of(no_matrices, slot)) continue;
    matrices.push_back(*matrix);
  }
  PRIDE_CHECK(unnamed.empty(), method, ": tensors without a name: ", unnamed.text(),
              ". They may be matrices, or embeddings and output layers, which are none. Give their "
              "names, or say what they are: in PyTorch give model.named_parameters(), or "
              "\"matrix\": True or False in their group");
  return matrices;
}

void check_words(const std::string& method, const OptionMap& options, const Layout& layout) {
  if (layout.tensors().empty()) return;
  const std::pair<const char*, const char*> all[] = {{"not_matrices", kNotMatrices},
                                                     {"fused", kFused}};
  for (const auto& [option, usual] : all) {
    const auto defaults = words_of(usual);
    for (const std::string& word : words_of(options.at(option))) {
      PRIDE_CHECK(
          std::ranges::find(defaults, word) != defaults.end() ||
              std::ranges::any_of(layout.tensors(),
                                  [&](const TensorSlot& slot) { return names(word, slot); }),
          method, ": option ", option, ": no tensor's name ",
          word[0] == '=' ? concat("is '", word.substr(1)) : concat("contains '", word),
          "'; the first tensor's is '", layout.tensors()[0].spec.name, "'");
    }
  }
}

std::string text_of(const std::string& method, const Layout& layout,
                    std::span<const MatrixForm> forms) {
  Names whole, in_three, none;
  std::size_t n_others = 0, last = forms.size();
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const std::string& name = layout.tensors()[i].spec.name;
    const bool could_be = shape_of(layout, i).has_value();
    if (could_be) last = i;
    if (forms[i] == MatrixForm::kWhole) whole.add(name);
    if (forms[i] == MatrixForm::kInThree) in_three.add(name);
    if (forms[i] == MatrixForm::kNone && could_be) none.add(name);
    n_others += could_be ? 0 : 1;
  }
  std::string text = concat(method, ": matrices: ", whole.empty() ? "none" : whole.text());
  if (!in_three.empty()) text += concat("; cut in three: ", in_three.text());
  text += concat("; no matrices: ", none.text(), none.empty() ? "" : " and ", n_others,
                 " of one dimension");
  // the last one, unless it is of several blocks
  if (last < forms.size() && whole.has_alone(layout.tensors()[last].spec.name) &&
      layout.tensors()[last].spec.as_matrix == AsMatrix::kByName) {
    text += concat(". If '", layout.tensors()[last].spec.name,
                   "' makes the model's output, exclude it: it is a matrix by its name alone");
  }
  return text;
}

std::vector<rules::MatrixSpan> spans_of(const Matrix& matrix, bool fused, std::span<float> values) {
  const auto [tensor, rows, cols] = matrix;
  if (!fused || matrix.longer() != 3 * matrix.shorter()) return {{values.data(), rows, cols, cols}};
  std::vector<rules::MatrixSpan> parts;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t side = matrix.shorter();
    parts.push_back({values.data() + i * side * (rows > cols ? side : 1), side, side, cols});
  }
  return parts;
}

std::vector<MethodOption> OrthogonalBlend::options(const std::string& matrix_scale) {
  return {{"iterations", "5", "Newton-Schulz iterations for a matrix, 1 to 20"},
          {"every", "1",
           "steps for which a matrix keeps its Newton-Schulz factor; 1 iterates in every step "
           "(above 1: one product per step, 1 float of state)"},
          {"not_matrices", kNotMatrices,
           "words, separated by commas: a tensor whose name contains one of them is not treated "
           "as a matrix; nor is a tensor with one dimension. =name: the tensor of that name; none: "
           "no word"},
          {"fused", kFused,
           "words, separated by commas: a matrix is split in three (query, key and value) if its "
           "name contains one of them and its longer side is three times the shorter"},
          {"matrix_scale", matrix_scale,
           "factor on a matrix's learning rate: 'none'; 'fan-in', the smallest fan-in of all "
           "matrices divided by its own; or 'rms', 0.2 times the square root of its longer side"}};
}

std::string OrthogonalBlend::host_only(const OptionValues& options) {
  const std::int64_t every = every_option(options);
  return every == 1 ? "" : needs_host(options, concat("every = ", every), "set it to 1, or ");
}

OrthogonalBlend::OrthogonalBlend(const MethodContext& ctx, StateTable& state, StateKind kind)
    : space_(ctx.space),
      on_device_(ctx.orthogonalise),
      iterations_(static_cast<int>(ctx.options.whole("iterations", 1, 20))),
      orthogonaliser_(iterations_),
      every_(every_option(ctx.options)),
      of_tensor_(ctx.layout.tensors().size()),
      faults_(space_.fault_words(of_tensor_.size())),
      blended_(of_tensor_.size(), 0) {
  PRIDE_CHECK(space_.is_host() || on_device_, ctx.options.method(),
              ": on a device set the optimizer's option orthogonalise, which multiplies matrices "
              "there");
  const auto rule = ctx.options.word("matrix_scale", {"none", "fan-in", "rms"});
  const auto matrices =
      matrices_of(ctx.options.method(), ctx.layout, ctx.options.text("not_matrices"));
  const auto fused = words_of(ctx.options.text("fused"));
  if (every_ > 1) factors_ = &state.add("factor", kind);
  if (matrices.empty()) return;
  const std::size_t least = std::ranges::min(matrices, {}, &Matrix::cols).cols;
  for (const Matrix& matrix : matrices) {
    const auto longer = static_cast<float>(std::max(matrix.rows, matrix.cols));
    const float scales[] = {1, static_cast<float>(least) / static_cast<float>(matrix.cols),
                            0.2f * std::sqrt(longer)};
    auto held = std::make_unique<Held>();
    held->matrix = matrix;
    held->offset = ctx.layout.tensors()[matrix.tensor].offset;
    held->fused = names_one_of(fused, ctx.layout.tensors()[matrix.tensor]);
    held->scale = scales[rule];
    held->fault = faults_.get() + matrix.tensor;
    of_tensor_[matrix.tensor] = std::move(held);
  }
}

std::vector<MatrixForm> OrthogonalBlend::forms() const {
  std::vector<MatrixForm> forms(of_tensor_.size(), MatrixForm::kNone);
  for (std::size_t i = 0; i < forms.size(); ++i) {
    if (!of_tensor_[i]) continue;
    const bool whole = spans_of(of_tensor_[i]->matrix, of_tensor_[i]->fused, {}).size() == 1;
    forms[i] = whole ? MatrixForm::kWhole : MatrixForm::kInThree;
  }
  return forms;
}

double OrthogonalBlend::operations() const {
  double sum = 0;
  for (const auto& held : of_tensor_) {
    if (!held) continue;
    // shapes only: no value is touched
    for (const auto& part : spans_of(held->matrix, held->fused, {})) {
      const auto r = static_cast<double>(part.shorter()), c = static_cast<double>(part.longer());
      const double step =
          rules::newton_schulz_operations(part.shorter(), part.longer(), iterations_);
      sum += every_ == 1 ? step
                         : 2 * r * r * c + rules::factor_operations(part.shorter(), part.longer(),
                                                                    iterations_) /
                                               static_cast<double>(every_);
    }
  }
  return sum;
}

float OrthogonalBlend::step_scale(std::size_t tensor) const noexcept {
  return has(tensor) ? of_tensor_[tensor]->scale : 1.0f;
}

// Clears faults: of all matrices if this is the step's first, else of this one.
void OrthogonalBlend::begin(std::int64_t step, std::size_t tensor) {
  if (step != step_) {
    step_ = step;
    std::ranges::fill(blended_, 0);
    space_.forget({faults_.get(), blended_.size()});
  } else if (blended_[tensor] != 0) {  // by another worker, or by this step before it was skipped
    space_.forget({of_tensor_[tensor]->fault, 1});
  }
  blended_[tensor] = 1;
  of_tensor_[tensor]->n_released = 0;
}

void OrthogonalBlend::blend(std::size_t tensor, std::int64_t step, const kernels::Blend& betas,
                            const Values& g, Floats m, Guard guard) {
  begin(step, tensor);
  Held& held = *of_tensor_[tensor];
  if (held.u.size() == 0) held.u = FlatBuffer::room(m.size(), space_);
  space_.run(kernels::LionBlend{
      g, betas, m, held.u.span(), {held.fault, static_cast<std::uint32_t>(tensor)}, guard});
  if (!space_.is_host()) {
    held.waits = any_wait_ = true;
  } else if (space_.fault_in(held.fault) == Wire::kNoTensor &&
             (guard == nullptr || space_.fault_in(guard) == Wire::kNoTensor)) {
    orthogonalise(held, step);
  }
}

void OrthogonalBlend::orthogonalise(Held& held, std::int64_t step) {
  std::size_t offset = held.offset;
  for (const rules::MatrixSpan& part : spans_of(held.matrix, held.fused, held.u.span())) {
    if (factors_ == nullptr) {
      orthogonaliser_.run(part);
      continue;
    }
    const auto factor = factors_->span().subspan(offset, part.shorter() * part.shorter());
    // a factor is positive definite: if its first entry is 0, it was never computed
    orthogonaliser_.run(part, factor, step % every_ == 0 || factor.front() == 0);
    offset += factor.size();
  }
}

// On a device: orthogonalises the waiting matrices, in one call for each shape.
void OrthogonalBlend::orthogonalise_all() {
  std::map<std::array<std::size_t, 3>, std::vector<float*>> by_shape;
  for (const auto& held : of_tensor_) {
    if (!held || !held->waits) continue;
    held->waits = false;
    for (const rules::MatrixSpan& part : spans_of(held->matrix, held->fused, held->u.span())) {
      by_shape[{part.rows, part.cols, part.stride}].push_back(part.data);
    }
  }
  any_wait_ = false;
  for (auto& [shape, data] : by_shape) {
    space_.call([this, shape = shape, data = std::move(data)](void* stream) {
      on_device_({data, shape[0], shape[1], shape[2], iterations_}, stream);
    });
  }
}

const OrthogonalBlend::Held& OrthogonalBlend::finished(std::size_t tensor) {
  if (any_wait_) orthogonalise_all();
  return *of_tensor_[tensor];
}

void OrthogonalBlend::encode(const Piece& piece, const kernels::SharedBits& zeros,
                             std::span<std::uint64_t> signs, FaultSlot fault) {
  const Held& held = finished(piece.tensor);
  space_.run(kernels::PackSigns{held.u.span().subspan(piece.begin - held.offset, piece.n()), zeros,
                                signs, held.fault, fault});
}

void OrthogonalBlend::release(const Piece& piece) {
  Held& held = *of_tensor_[piece.tensor];
  held.n_released += piece.n();
  if (held.n_released == held.u.size()) held.u = {};
}

}  // namespace pride::methods

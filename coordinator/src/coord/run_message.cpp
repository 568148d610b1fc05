// SPDX-License-Identifier: Apache-2.0
#include "coord/run_message.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <sstream>

#include "coord/coord.pb.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

constexpr std::uint64_t kMostCoordinates = std::uint64_t{1} << 40;
constexpr std::size_t kMostGroups = 4096;
constexpr std::size_t kLongestText = 80;  // letters of a value in a refusal
constexpr std::ptrdiff_t kBefore = 20;    // letters shown before the first difference
constexpr const char* kSteps = "steps";   // a setting
constexpr std::uint64_t kMostBuckets = std::uint64_t{1} << 22;

constexpr std::array kAsMatrix = {"by its name", "yes", "no", "no name"};

std::string text_of(AsMatrix as) { return kAsMatrix[static_cast<std::size_t>(as)]; }

std::string shape_text(const TensorSpec& tensor) {
  std::string text = "[";
  for (const std::int64_t n : tensor.shape) text += concat(text.size() > 1 ? ", " : "", n);
  return text + "]";
}

// Refuses negative sizes, as Layout does, and sizes whose product overflows.
void check_sizes(const RunDescription& run) {
  std::uint64_t all = 0;
  for (const TensorSpec& tensor : run.tensors) {
    std::uint64_t n = 1;
    for (const std::int64_t side : tensor.shape) {
      PRIDE_CHECK(side >= 0, "the run's tensor '", tensor.name, "' has the shape ",
                  shape_text(tensor));
      n = side == 0 ? 0 : n;
      PRIDE_CHECK(side == 0 || n <= kMostCoordinates / static_cast<std::uint64_t>(side),
                  "the run's tensor '", tensor.name,
                  "' has too many coordinates: ", shape_text(tensor));
      n *= static_cast<std::uint64_t>(side);
    }
    all += n;
    PRIDE_CHECK(all <= kMostCoordinates, "the run has more than ", kMostCoordinates,
                " coordinates");
    PRIDE_CHECK(all / run.bucket_coords < kMostBuckets, "the run has more than ", kMostBuckets,
                " buckets");
    PRIDE_CHECK(tensor.group >= 0 && tensor.group < std::ssize(run.groups), "the run's tensor '",
                tensor.name, "' is of group ", tensor.group, " of ", run.groups.size());
  }
}

std::string shortened(const std::string& text) {
  return text.size() <= kLongestText ? text : text.substr(0, kLongestText) + "...";
}

// The differences between a worker and the run.
class Differences {
 public:
  template <typename T>
  bool compare(const std::string& what, const T& run, const T& worker) {
    if (run == worker) return false;
    text_ +=
        concat(text_.empty() ? "" : "; ", what, ": the run has ", run, ", this worker ", worker);
    return true;
  }
  std::optional<std::string> text() const {
    return text_.empty() ? std::nullopt : std::optional(text_);
  }

 private:
  std::string text_;
};

using Values = std::map<std::string, std::string>;

void compare_values(const std::string& what, const Values& run, const Values& worker,
                    Differences& all) {
  Values names = run;
  names.insert(worker.begin(), worker.end());
  const auto value_in = [](const Values& values, const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? "none" : shortened(found->second);
  };
  for (const auto& [name, value] : names) {
    const auto a = run.find(name), b = worker.find(name);
    if (a != run.end() && b != worker.end() && a->second == b->second) continue;
    all.compare(concat(what, " ", shortened(name)), value_in(run, name), value_in(worker, name));
  }
}

void compare_groups(const RunDescription& run, const RunDescription& worker, Differences& all) {
  if (all.compare("the number of groups", run.groups.size(), worker.groups.size())) return;
  constexpr struct {
    const char* name;
    std::optional<double> ParamGroup::*value;
  } kAll[] = {{"beta1", &ParamGroup::beta1},
              {"beta2", &ParamGroup::beta2},
              {"eps", &ParamGroup::eps},
              {"weight decay", &ParamGroup::weight_decay},
              {"momentum", &ParamGroup::momentum}};
  const auto text = [](const std::optional<double>& value) {
    if (!value) return std::string("none");
    char digits[32];  // the shortest digits that identify the value
    return std::string(digits, std::to_chars(digits, digits + sizeof digits, *value).ptr);
  };
  const auto method_text = [](const ParamGroup& group) {
    return group.method.empty() ? "none of its own" : shortened(group.method);
  };
  for (std::size_t g = 0; g < run.groups.size(); ++g) {
    all.compare(concat("method of group ", g), method_text(run.groups[g]),
                method_text(worker.groups[g]));
    compare_values(concat("group ", g, ": option"), run.groups[g].options, worker.groups[g].options,
                   all);
    for (const auto& [name, value] : kAll) {
      const auto &a = run.groups[g].*value, &b = worker.groups[g].*value;
      if (a != b) all.compare(concat(name, " of group ", g), text(a), text(b));
    }
  }
}

// The settings, if all lines are "name=value"; otherwise not set.
std::optional<Values> values_of(const std::string& settings) {
  Values values;
  std::istringstream lines(settings);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (equals == line.npos) return {};
    values[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return values;
}

void compare_settings(const std::string& run, const std::string& worker, std::int64_t steps,
                      Differences& all) {
  auto a = values_of(run), b = values_of(worker);
  if (run == worker) return;
  if (a && b && *a != *b) {
    if (steps > 0 && (*a)[kSteps] != (*b)[kSteps]) (*a)[kSteps] = std::to_string(steps);
    return compare_values("setting", *a, *b, all);
  }
  const auto [at, other] = std::ranges::mismatch(run, worker);
  const auto begin = at - run.begin() > kBefore ? at - run.begin() - kBefore : 0;
  const auto from = static_cast<std::size_t>(begin);
  const std::string dots = from > 0 ? "..." : "";
  all.compare("settings", dots + shortened(run.substr(from)),
              dots + shortened(worker.substr(from)));
}

// Reports only the first difference: another model differs in nearly every tensor.
void compare_tensors(const RunDescription& run, const RunDescription& worker, Differences& all) {
  if (all.compare("the number of tensors", run.tensors.size(), worker.tensors.size())) return;
  for (std::size_t i = 0; i < run.tensors.size(); ++i) {
    const TensorSpec &a = run.tensors[i], &b = worker.tensors[i];
    if (all.compare(concat("the name of tensor ", i), a.name, b.name) ||
        all.compare("the shape of " + a.name, shape_text(a), shape_text(b)) ||
        all.compare("the group of " + a.name, a.group, b.group) ||
        all.compare("whether it is a matrix, of " + a.name, text_of(a.as_matrix),
                    text_of(b.as_matrix))) {
      return;
    }
  }
}

template <typename Message>
void add_options(const Values& options, Message& message) {
  for (const auto& [name, value] : options) {
    Run::Option& option = *message.add_options();
    option.set_name(name);
    option.set_value(value);
  }
}

}  // namespace

std::string encode_run(const RunDescription& run, const std::string& id) {
  Run message;
  message.set_method(run.method);
  add_options(run.options, message);
  for (const TensorSpec& spec : run.tensors) {
    Run::Tensor& tensor = *message.add_tensors();
    tensor.set_name(spec.name);
    for (const std::int64_t n : spec.shape) tensor.add_shape(n);
    tensor.set_group(spec.group);
    tensor.set_as_matrix(static_cast<int>(spec.as_matrix));
  }
  for (const ParamGroup& values : run.groups) {
    Run::Group& group = *message.add_groups();
    if (values.beta1) group.set_beta1(*values.beta1);
    if (values.beta2) group.set_beta2(*values.beta2);
    if (values.eps) group.set_eps(*values.eps);
    if (values.weight_decay) group.set_weight_decay(*values.weight_decay);
    if (values.momentum) group.set_momentum(*values.momentum);
    group.set_method(values.method);
    add_options(values.options, group);
  }
  message.set_bucket_coords(run.bucket_coords);
  message.set_seed(run.seed);
  message.set_settings(run.settings);
  message.set_id(id);
  return message.SerializeAsString();
}

RunDescription decode_run(std::string_view bytes) {
  Run message;
  PRIDE_CHECK(bytes.size() <= kMostRunBytes, "the run's description has ", bytes.size(),
              " bytes, at most ", kMostRunBytes);
  PRIDE_CHECK(message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())),
              "the run's description cannot be read");
  RunDescription run{.method = message.method(),
                     .options = {},
                     .tensors = {},
                     .groups = {},
                     .bucket_coords = message.bucket_coords(),
                     .seed = message.seed(),
                     .settings = message.settings()};
  for (const Run::Option& option : message.options()) run.options[option.name()] = option.value();
  for (const Run::Tensor& tensor : message.tensors()) {
    PRIDE_CHECK(tensor.as_matrix() >= 0 && tensor.as_matrix() < std::ssize(kAsMatrix),
                "the run's tensor '", tensor.name(), "' has as_matrix ", tensor.as_matrix());
    run.tensors.push_back({.name = tensor.name(),
                           .shape = {tensor.shape().begin(), tensor.shape().end()},
                           .group = tensor.group(),
                           .as_matrix = static_cast<AsMatrix>(tensor.as_matrix())});
  }
  for (const Run::Group& group : message.groups()) {
    ParamGroup& values = run.groups.emplace_back();
    if (group.has_beta1()) values.beta1 = group.beta1();
    if (group.has_beta2()) values.beta2 = group.beta2();
    if (group.has_eps()) values.eps = group.eps();
    if (group.has_weight_decay()) values.weight_decay = group.weight_decay();
    if (group.has_momentum()) values.momentum = group.momentum();
    values.method = group.method();
    for (const Run::Option& option : group.options()) {
      values.options[option.name()] = option.value();
    }
  }
  PRIDE_CHECK(!run.groups.empty() && run.groups.size() <= kMostGroups, "the run has ",
              run.groups.size(), " groups");
  PRIDE_CHECK(run.bucket_coords >= 1, "the run's buckets have no coordinates");
  PRIDE_CHECK(!run.tensors.empty(), "the run has no tensors");
  check_sizes(run);
  return run;
}

std::int64_t steps_of(const RunDescription& run) {
  std::int64_t steps = 0;
  if (const auto all = values_of(run.settings); all && all->contains(kSteps)) {
    const std::string& text = all->at(kSteps);
    std::from_chars(text.data(), text.data() + text.size(), steps);
  }
  return std::max<std::int64_t>(steps, 0);
}

std::optional<std::string> difference(const RunDescription& run, const RunDescription& worker,
                                      std::int64_t steps) {
  Differences all;
  all.compare("method", run.method, worker.method);
  compare_values("option", run.options, worker.options, all);
  compare_tensors(run, worker, all);
  compare_groups(run, worker, all);
  all.compare("coordinates of a bucket", run.bucket_coords, worker.bucket_coords);
  all.compare("seed", run.seed, worker.seed);
  compare_settings(run.settings, worker.settings, steps, all);
  return all.text();
}

}  // namespace pride::coord

// SPDX-License-Identifier: Apache-2.0
#include "coord/run_message.h"

#include <algorithm>

#include "coord/coord.pb.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

constexpr std::uint64_t kMostCoordinates = std::uint64_t{1} << 40;
constexpr int kMostGroups = 4096;
constexpr std::uint64_t kMostBuckets = std::uint64_t{1} << 22;

std::string shape_text(const TensorSpec& tensor) {
  std::string text = "[";
  for (const std::int64_t n : tensor.shape) text += concat(text.size() > 1 ? ", " : "", n);
  return text + "]";
}

// Layout refuses negative sizes; here also those whose product overflows.
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
    PRIDE_CHECK(tensor.group >= 0 && tensor.group < run.groups, "the run's tensor '", tensor.name,
                "' is of group ", tensor.group, " of ", run.groups);
  }
}

template <typename T>
std::optional<std::string> compare(const std::string& what, const T& here, const T& there) {
  if (here == there) return {};
  return concat(what, " is ", here, " here and ", there, " there");
}

std::optional<std::string> compare_options(const RunDescription& here,
                                           const RunDescription& there) {
  for (const auto& [name, value] : here.options) {
    const auto other = there.options.find(name);
    const std::string text = other == there.options.end() ? "not set" : other->second;
    if (text != value) return compare("option " + name, value, text);
  }
  for (const auto& [name, value] : there.options) {
    if (!here.options.contains(name))
      return compare<std::string>("option " + name, "not set", value);
  }
  return {};
}

std::optional<std::string> compare_tensors(const RunDescription& here,
                                           const RunDescription& there) {
  if (auto d = compare("the number of tensors", here.tensors.size(), there.tensors.size())) {
    return d;
  }
  for (std::size_t i = 0; i < here.tensors.size(); ++i) {
    const TensorSpec &a = here.tensors[i], &b = there.tensors[i];
    if (auto d = compare(concat("the name of tensor ", i), a.name, b.name)) return d;
    if (auto d = compare("the shape of " + a.name, shape_text(a), shape_text(b))) return d;
    if (auto d = compare("the group of " + a.name, a.group, b.group)) return d;
  }
  return {};
}

}  // namespace

std::string encode_run(const RunDescription& run) {
  Run message;
  message.set_method(run.method);
  for (const auto& [name, value] : run.options) {
    Run::Option& option = *message.add_options();
    option.set_name(name);
    option.set_value(value);
  }
  for (const TensorSpec& spec : run.tensors) {
    Run::Tensor& tensor = *message.add_tensors();
    tensor.set_name(spec.name);
    for (const std::int64_t n : spec.shape) tensor.add_shape(n);
    tensor.set_group(spec.group);
  }
  message.set_groups(run.groups);
  message.set_bucket_coords(run.bucket_coords);
  message.set_seed(run.seed);
  message.set_settings(run.settings);
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
                     .groups = message.groups(),
                     .bucket_coords = message.bucket_coords(),
                     .seed = message.seed(),
                     .settings = message.settings()};
  for (const Run::Option& option : message.options()) run.options[option.name()] = option.value();
  for (const Run::Tensor& tensor : message.tensors()) {
    run.tensors.push_back(
        {tensor.name(), {tensor.shape().begin(), tensor.shape().end()}, tensor.group()});
  }
  PRIDE_CHECK(run.groups >= 1 && run.groups <= kMostGroups, "the run has ", run.groups, " groups");
  PRIDE_CHECK(run.bucket_coords >= 1, "the run's buckets have no coordinates");
  PRIDE_CHECK(!run.tensors.empty(), "the run has no tensors");
  check_sizes(run);
  return run;
}

std::optional<std::string> difference(const RunDescription& here, const RunDescription& there) {
  if (auto d = compare("method", here.method, there.method)) return d;
  if (auto d = compare_options(here, there)) return d;
  if (auto d = compare_tensors(here, there)) return d;
  if (auto d = compare("the number of groups", here.groups, there.groups)) return d;
  if (auto d = compare("coordinates of a bucket", here.bucket_coords, there.bucket_coords))
    return d;
  if (auto d = compare("seed", here.seed, there.seed)) return d;
  return compare("settings", here.settings, there.settings);
}

}  // namespace pride::coord

// Writer of safetensors files: checks everything, writes beside the target, then renames.
// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <nlohmann/json.hpp>

#include "pride/error.h"
#include "train/io/pending_file.h"
#include "train/io/safetensors.h"

namespace pride::train {
namespace {

using nlohmann::ordered_json;
using std::filesystem::path;

// Throws unless the tensor has as many values as its shape says.
void check(const path& file, const std::string& name, const SafeTensor& tensor) {
  const auto where = concat("write ", file.string(), ": tensor \"", name, "\"");
  PRIDE_CHECK(!name.empty() && name != "__metadata__", where, ": a name that cannot be used");
  PRIDE_CHECK(tensor.dtype == "F32", where, ": dtype ", tensor.dtype, ", only F32 is written");
  std::uint64_t n = 1;
  for (const std::int64_t dim : tensor.shape) {
    PRIDE_CHECK(dim >= 0, where, ": dimension ", dim, " is negative");
    const auto d = static_cast<std::uint64_t>(dim);
    PRIDE_CHECK(d == 0 || n <= std::numeric_limits<std::uint64_t>::max() / d, where,
                ": the size of its shape overflows");
    n *= d;
  }
  PRIDE_CHECK(n == tensor.values.size(), where, ": its shape has ", n, " elements, ",
              tensor.values.size(), " values given");
}

// 8 bytes of length, then JSON padded with spaces so that the data begins at a multiple of 8.
std::string header_of(const path& file, const std::map<std::string, SafeTensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  auto header = ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    check(file, name, tensor);
    const std::uint64_t end = at + tensor.values.size() * sizeof(float);
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const ordered_json::exception& e) {
    throw InvalidArgument(
        concat("write ", file.string(), ": a name or the metadata is not UTF-8: ", e.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string prefix(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) prefix[i] = static_cast<char>(text.size() >> (8 * i) & 255);
  return prefix + text;
}

}  // namespace

void write_safetensors(const path& file, const std::map<std::string, SafeTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = header_of(file, tensors, metadata);
  PendingFile out(file);
  out.write(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) {
    out.write(tensor.values.data(), tensor.values.size() * sizeof(float));
  }
  out.commit();
}

}  // namespace pride::train

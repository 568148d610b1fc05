// Reader and writer of safetensors files. Every value of a file is checked before use.
// SPDX-License-Identifier: Apache-2.0
#include "program/io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "pride/error.h"
#include "program/files.h"
#include "program/io/mapped_file.h"
#include "program/io/pending_file.h"

namespace pride::inline program {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using std::filesystem::path;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

// A longer header is refused, as by the format's own library.
constexpr std::uint64_t kMostHeader = 100'000'000;

// Bytes of one element; 0 if the dtype is not one that pride reads.
std::size_t item_size(const std::string& dtype) {
  if (dtype == "F32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  return dtype == "F64" ? 8 : 0;
}

// A mapped file with a checked header.
class CheckedFile {
 public:
  struct Entry {
    std::string name, dtype;
    std::vector<std::int64_t> shape = {};
    std::uint64_t n = 0;               // product of the shape
    std::uint64_t begin = 0, end = 0;  // bytes from the start of the data
  };

  explicit CheckedFile(const path& file) : file_(file), mapped_(file) {
    const std::string_view text = header_text();
    data_ = mapped_.bytes().subspan(8 + text.size());
    const json header = parse_json(text, concat(file.string(), ": header"));
    if (!header.is_object()) refuse("the header is not a JSON object");
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        read_metadata(value);
      } else {
        entries.push_back(entry_of(name, value));
      }
    }
    check_cover();
  }

  std::vector<float> values_of(const Entry& e) const {
    std::vector<float> values(e.n);
    const std::byte* at = data_.data() + e.begin;
    const auto convert = [&](auto item, auto to_float) {
      for (float& value : values) {
        std::memcpy(&item, at, sizeof item);
        at += sizeof item;
        value = to_float(item);
      }
    };
    if (e.dtype == "F32") convert(float{}, std::identity());
    if (e.dtype == "F16") convert(std::uint16_t{}, half_to_float);
    if (e.dtype == "BF16") convert(std::uint16_t{}, bfloat16_to_float);
    if (e.dtype == "F64") convert(double{}, [](double x) { return static_cast<float>(x); });
    return values;
  }

  std::vector<Entry> entries;  // in order of their data
  std::map<std::string, std::string> metadata;

 private:
  template <typename... Why>
  [[noreturn]] void refuse(const Why&... why) const {
    throw DataError(
        concat(file_.string(), ": not a safetensors file that pride can read: ", why...));
  }
  template <typename... Why>
  [[noreturn]] void refuse_tensor(const std::string& name, const Why&... why) const {
    refuse("tensor \"", name, "\": ", why...);
  }

  // 8 bytes of length, little-endian, then that many bytes of JSON.
  std::string_view header_text() const {
    const std::string_view all = mapped_.text();
    std::uint64_t length = 0;
    if (all.size() < sizeof length) {
      refuse("it has ", all.size(), " bytes, the header's length alone takes 8");
    }
    std::memcpy(&length, all.data(), sizeof length);
    if (length > kMostHeader) refuse("header of ", length, " bytes, at most ", kMostHeader);
    const std::size_t left = all.size() - sizeof length;
    if (length > left) refuse("truncated: header of ", length, " bytes, ", left, " bytes left");
    return all.substr(sizeof length, length);
  }

  void read_metadata(const json& value) {
    if (!value.is_object()) refuse("__metadata__ is not a JSON object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) refuse("__metadata__ \"", key, "\" is not a string");
      metadata[key] = text.get<std::string>();
    }
  }

  // The unsigned integers of entry[key]; `what` says in errors what was expected.
  std::vector<std::uint64_t> integers(const std::string& name, const json& entry, const char* key,
                                      const char* what) const {
    const auto found = entry.find(key);
    const bool good = found != entry.end() && found->is_array() &&
                      std::ranges::all_of(*found, &json::is_number_unsigned);
    if (!good) refuse_tensor(name, key, " is not ", what);
    return found->get<std::vector<std::uint64_t>>();
  }

  // Sets shape and n. The product times the item size must fit 63 bits.
  void take_shape(const std::vector<std::uint64_t>& shape, Entry& e) const {
    constexpr std::uint64_t limit = std::numeric_limits<std::int64_t>::max();
    const bool empty = std::ranges::count(shape, 0u) > 0;
    std::uint64_t bytes = item_size(e.dtype);
    for (const std::uint64_t dim : shape) {
      if (dim > limit || (!empty && dim > limit / bytes)) {
        refuse_tensor(e.name, "the size of its shape overflows");
      }
      if (!empty) bytes *= dim;
      e.shape.push_back(static_cast<std::int64_t>(dim));
    }
    e.n = empty ? 0 : bytes / item_size(e.dtype);
  }

  Entry entry_of(const std::string& name, const json& value) const {
    if (name.empty()) refuse("a tensor without a name");
    if (!value.is_object()) refuse_tensor(name, "its entry is not a JSON object");
    const auto dtype = value.find("dtype");
    if (dtype == value.end() || !dtype->is_string()) refuse_tensor(name, "it has no dtype");
    Entry e{.name = name, .dtype = dtype->get<std::string>()};
    if (item_size(e.dtype) == 0) {
      refuse_tensor(name, "dtype \"", e.dtype, "\"; F32, F16, BF16 and F64 are known");
    }
    take_shape(integers(name, value, "shape", "a list of sizes"), e);
    constexpr const char* kPair = "a pair of byte offsets [begin, end]";
    const auto offsets = integers(name, value, "data_offsets", kPair);
    if (offsets.size() != 2) refuse_tensor(name, "data_offsets is not a pair of byte offsets");
    e.begin = offsets[0];
    e.end = offsets[1];
    if (e.begin > e.end || e.end > data_.size()) {
      refuse_tensor(name, "data_offsets [", e.begin, ", ", e.end, "] in ", data_.size(),
                    " bytes of data: out of range or truncated");
    }
    if (e.end - e.begin != e.n * item_size(e.dtype)) {
      refuse_tensor(name, "its shape takes ", e.n * item_size(e.dtype),
                    " bytes, its data_offsets give ", e.end - e.begin);
    }
    return e;
  }

  // Sorted by data, each tensor must begin where the one before it ends, and the last end the file.
  void check_cover() {
    std::ranges::sort(entries, {}, [](const Entry& e) { return std::tie(e.begin, e.end, e.name); });
    std::uint64_t at = 0;
    for (const Entry& e : entries) {
      if (e.begin != at) {
        refuse_tensor(e.name, "its data begins at byte ", e.begin, ", ",
                      e.begin < at ? "inside another tensor's" : "after a gap", "; expected ", at);
      }
      at = e.end;
    }
    if (at != data_.size()) {
      refuse(data_.size() - at, " bytes after the last tensor belong to none");
    }
  }

  path file_;
  MappedFile mapped_;
  std::span<const std::byte> data_;
};

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

std::map<std::string, SafeTensor> read_safetensors(const path& file) {
  const CheckedFile checked(file);
  std::map<std::string, SafeTensor> tensors;
  for (const CheckedFile::Entry& e : checked.entries) {
    tensors[e.name] = {.dtype = e.dtype, .shape = e.shape, .values = checked.values_of(e)};
  }
  return tensors;
}

std::map<std::string, std::vector<std::int64_t>> read_safetensors_shapes(const path& file) {
  const CheckedFile checked(file);
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const CheckedFile::Entry& e : checked.entries) shapes[e.name] = e.shape;
  return shapes;
}

std::map<std::string, std::string> read_safetensors_metadata(const path& file) {
  return CheckedFile(file).metadata;
}

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

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31;
  const std::uint32_t exponent = (bits >> 10) & 31u;
  const std::uint32_t fraction = bits & 1023u;
  // all ones: infinity or NaN, the payload moved up
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | fraction << 13);
  // zero or subnormal: fraction * 2^-24 is exact in float
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

}  // namespace pride::inline program

// Checks of a safetensors header: nothing in the file is believed before it was compared.
// SPDX-License-Identifier: Apache-2.0
#include "train/io/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "pride/error.h"
#include "train/files.h"
#include "train/io/mapped_file.h"

namespace pride::train {
namespace {

using nlohmann::json;
using std::filesystem::path;

[[noreturn]] void refuse(const path& file, const std::string& why) {
  throw DataError(concat(file.string(), ": not a safetensors file that pride can read: ", why));
}

[[noreturn]] void refuse(const path& file, const std::string& tensor, const std::string& why) {
  refuse(file, concat("tensor \"", tensor, "\": ", why));
}

std::uint64_t size_of(const path& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) refuse(file, "it is a folder");
  const std::uint64_t size = std::filesystem::file_size(file, error);
  if (error) throw DataError(concat("cannot read ", file.string(), ": ", error.message()));
  return size;
}

// The header's text: 8 bytes of length, little-endian, then that many bytes of JSON.
std::string read_text(const path& file, std::ifstream& in, std::uint64_t file_size) {
  unsigned char prefix[8];
  if (file_size < sizeof prefix || !in.read(reinterpret_cast<char*>(prefix), sizeof prefix)) {
    refuse(file, concat("it has ", file_size, " bytes, the header's length alone takes 8"));
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
  if (length > kMaxSafetensorsHeader) {
    refuse(file, concat("header of ", length, " bytes, at most ", kMaxSafetensorsHeader));
  }
  if (length > file_size - sizeof prefix) {
    refuse(file, concat("truncated: header of ", length, " bytes, ", file_size - sizeof prefix,
                        " bytes left"));
  }
  std::string text(length, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(length))) {
    refuse(file, "the header could not be read");
  }
  return text;
}

json parse(const path& file, const std::string& text) {
  json header = parse_json(text, concat(file.string(), ": header"));
  if (!header.is_object()) refuse(file, "the header is not a JSON object");
  return header;
}

std::map<std::string, std::string> metadata_of(const path& file, const json& value) {
  if (!value.is_object()) refuse(file, "__metadata__ is not a JSON object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) refuse(file, concat("__metadata__ \"", key, "\" is not a string"));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// The unsigned integers of entry[key]; `what` says in errors what was expected.
std::vector<std::uint64_t> integers(const path& file, const std::string& name, const json& entry,
                                    const char* key, const char* what) {
  const auto found = entry.find(key);
  const bool good = found != entry.end() && found->is_array() &&
                    std::all_of(found->begin(), found->end(),
                                [](const json& v) { return v.is_number_unsigned(); });
  if (!good) refuse(file, name, concat(key, " is not ", what));
  return found->get<std::vector<std::uint64_t>>();
}

// Product of the dimensions times the item size; throws when it does not fit 63 bits.
void check_shape(const path& file, const std::vector<std::uint64_t>& shape, SafetensorsEntry& e) {
  constexpr std::uint64_t limit = std::numeric_limits<std::int64_t>::max();
  const std::uint64_t item = safetensors_item_size(e.dtype);
  const bool empty = std::find(shape.begin(), shape.end(), 0u) != shape.end();
  std::uint64_t bytes = item;
  for (const std::uint64_t dim : shape) {
    if (dim > limit || (!empty && dim > limit / bytes)) {
      refuse(file, e.name, "the size of its shape overflows");
    }
    if (!empty) bytes *= dim;
    e.shape.push_back(static_cast<std::int64_t>(dim));
  }
  e.n = empty ? 0 : bytes / item;
}

SafetensorsEntry entry_of(const path& file, const std::string& name, const json& value,
                          std::uint64_t data_size) {
  if (name.empty()) refuse(file, "a tensor without a name");
  if (!value.is_object()) refuse(file, name, "its entry is not a JSON object");
  SafetensorsEntry e;
  e.name = name;
  const auto dtype = value.find("dtype");
  if (dtype == value.end() || !dtype->is_string()) refuse(file, name, "it has no dtype");
  e.dtype = dtype->get<std::string>();
  if (safetensors_item_size(e.dtype) == 0) {
    refuse(file, name, concat("dtype \"", e.dtype, "\"; F32, F16, BF16 and F64 are known"));
  }
  check_shape(file, integers(file, name, value, "shape", "a list of sizes"), e);
  const auto offsets =
      integers(file, name, value, "data_offsets", "a pair of byte offsets [begin, end]");
  if (offsets.size() != 2) refuse(file, name, "data_offsets is not a pair of byte offsets");
  e.begin = offsets[0];
  e.end = offsets[1];
  if (e.begin > e.end || e.end > data_size) {
    refuse(file, name,
           concat("data_offsets [", e.begin, ", ", e.end, "] in ", data_size,
                  " bytes of data: out of range or truncated"));
  }
  if (e.end - e.begin != e.n * safetensors_item_size(e.dtype)) {
    refuse(file, name,
           concat("its shape takes ", e.n * safetensors_item_size(e.dtype),
                  " bytes, its data_offsets give ", e.end - e.begin));
  }
  return e;
}

// Sorted by data, each tensor must begin where the one before it ends, and the last end the file.
void check_cover(const path& file, std::vector<SafetensorsEntry>& entries,
                 std::uint64_t data_size) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t at = 0;
  for (const SafetensorsEntry& e : entries) {
    if (e.begin != at) {
      refuse(file, e.name,
             concat("its data begins at byte ", e.begin, ", ",
                    e.begin < at ? "inside another tensor's" : "after a gap", "; expected ", at));
    }
    at = e.end;
  }
  if (at != data_size) {
    refuse(file, concat(data_size - at, " bytes after the last tensor belong to none"));
  }
}

}  // namespace

std::size_t safetensors_item_size(const std::string& dtype) {
  if (dtype == "F32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  return dtype == "F64" ? 8 : 0;
}

SafetensorsHeader read_safetensors_header(const path& file, std::ifstream& in) {
  require_regular_file(file);
  const std::uint64_t file_size = size_of(file);
  in.open(file, std::ios::binary);
  if (!in) throw DataError(concat("cannot open ", file.string()));
  const std::string text = read_text(file, in, file_size);
  SafetensorsHeader header;
  header.data_begin = 8 + text.size();
  const std::uint64_t data_size = file_size - header.data_begin;
  const json parsed = parse(file, text);
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      header.metadata = metadata_of(file, value);
    } else {
      header.entries.push_back(entry_of(file, name, value, data_size));
    }
  }
  check_cover(file, header.entries, data_size);
  return header;
}

}  // namespace pride::train

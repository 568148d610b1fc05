// SPDX-License-Identifier: Apache-2.0
#include "train/files.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "pride/error.h"
#include "train/io/mapped_file.h"
#include "train/io/pending_file.h"

namespace pride::train {
namespace fs = std::filesystem;

void write_file(const fs::path& file, std::string_view text) {
  PendingFile pending(file);
  pending.write(text.data(), text.size());
  pending.commit();
}

nlohmann::json read_json(const fs::path& file) {
  std::ifstream in(file);
  if (!in) throw DataError(concat(file.string(), ": cannot read"));
  require_regular_file(file);
  if (in.peek() == std::ifstream::traits_type::eof()) {
    throw DataError(concat(file.string(), ": it is empty"));
  }
  try {
    return nlohmann::json::parse(in);
  } catch (const nlohmann::json::exception& e) {
    throw DataError(concat(file.string(), ": not JSON: ", e.what()));
  }
}

}  // namespace pride::train

// SPDX-License-Identifier: Apache-2.0
#include "train/data/find_data.h"

#include <cstdlib>

#include "pride/error.h"
#include "program/utf8.h"

namespace pride::train {
namespace fs = std::filesystem;

fs::path find_data(const std::string& flag, const std::string& task, const std::string& files) {
  if (!flag.empty()) return flag;
  const char* variable = std::getenv("PRIDE_DATA");
  if (variable == nullptr || *variable == '\0') {
    throw DataError(concat("no data for task ", task,
                           ": give --data FOLDER or set PRIDE_DATA to a folder with ", files));
  }
  check_utf8("PRIDE_DATA", variable);
  return variable;
}

}  // namespace pride::train

// The order in which a task's data is looked for.
// SPDX-License-Identifier: Apache-2.0
#include "data/find_data.h"

#include <cstdlib>

#include "pride/error.h"
#include "text/utf8.h"

namespace pride::app {

std::filesystem::path find_data(const std::string& flag, std::string_view task) {
  PRIDE_CHECK(task == "lm" || task == "fewshot" || task == "cifar10" || task == "imagenet",
              "unknown task \"", task, "\"; lm, fewshot, cifar10 and imagenet are known");
  if (!flag.empty() || task == "lm") return flag;
  if (task == "fewshot") {
    throw DataError("task fewshot: give --data FILE.jsonl, or a folder of such files");
  }
  const char* variable = std::getenv("PRIDE_DATA");
  if (variable != nullptr && *variable != '\0') {
    check_utf8("PRIDE_DATA", variable);
    return variable;
  }
  if (task == "imagenet") {
    throw DataError(
        "no data for task imagenet: give --data FOLDER or set PRIDE_DATA to a folder with "
        "train/CLASS/*.jpg and val/CLASS/*.jpg");
  }
  throw DataError(
      "no data for task cifar10: give --data FOLDER or set PRIDE_DATA to a folder with the "
      "official binary files; scripts/get_data.sh fetches them");
}

}  // namespace pride::app

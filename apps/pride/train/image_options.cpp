// SPDX-License-Identifier: Apache-2.0
#include "train/image_options.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cmath>

#include "integer_check.h"
#include "number_check.h"
#include "pride/error.h"

namespace pride::app {
namespace {

constexpr std::int64_t kLargestImage = 4096;  // side
constexpr const char* kGroup = "Images";

}  // namespace

void add_image_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--image-size", o.image_size,
                 "imagenet: side of the crops that the model sees, in pixels. Default: 224")
      ->check(integer_check<std::int64_t>(1, kLargestImage))
      ->group(kGroup);
  app.add_option("--loader-threads", o.loader_threads,
                 "imagenet: threads of each worker that read and decode images ahead of the step; "
                 "never changes a result. 0: none, the worker does it itself. Default: 2")
      ->check(integer_check<int>(0, 256))
      ->group(kGroup);
}

void add_target_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--label-smoothing", o.label_smoothing,
                 "Images, in training: this part of each target is spread over all classes")
      ->capture_default_str()
      ->check(number_check())
      ->group(kGroup);
  app.add_option("--mixup", o.mixup,
                 "Images, in training: batches are mixed with their own reverse, in shares from "
                 "Beta(A, A). 0: none")
      ->capture_default_str()
      ->check(number_check())
      ->group(kGroup);
}

void check_image_options(const TrainOptions& o) {
  PRIDE_CHECK(!o.image_size || o.task == "imagenet", "--image-size is for imagenet only");
  PRIDE_CHECK(!o.loader_threads || o.task == "imagenet", "--loader-threads is for imagenet only");
  PRIDE_CHECK(o.label_smoothing >= 0 && o.label_smoothing < 1, "--label-smoothing ",
              o.label_smoothing, ": must be 0 or more and less than 1");
  PRIDE_CHECK(std::isfinite(o.mixup) && o.mixup >= 0, "--mixup ", o.mixup,
              ": must be 0 or more, and finite");
  PRIDE_CHECK(!is_language(o.task) || (o.label_smoothing == 0 && o.mixup == 0),
              "--label-smoothing and --mixup are for images only");
}

}  // namespace pride::app

// The rows of the registry of tasks: a task of pride's own is one file and one line here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pride/train/task.h"

namespace pride::train {

TaskInfo lm_info();
TaskInfo fewshot_info();
TaskInfo cifar10_info();
TaskInfo imagenet_info();

}  // namespace pride::train

// pride::train: trains a model on several workers with any of pride's methods. Needs libtorch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pride/train/checkpoint.h"
#include "pride/train/flags.h"
#include "pride/train/model.h"
#include "pride/train/module_model.h"
#include "pride/train/observer.h"
#include "pride/train/task.h"
#include "pride/train/trainer.h"

// Makes the names of pride::train usable in pride::app without a prefix.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pride::train {}
namespace pride::app {
using namespace train;
}

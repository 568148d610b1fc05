// The program speaks of pride::train's parts by their own names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pride::train {}
namespace pride::app {
using namespace train;
}

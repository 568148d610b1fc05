// Measures the times of work on a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "device/device.h"

namespace pride::device {

// Times of one call of `work`, which queues work on the device. There are at least `least` of them,
// and as many as take `seconds`. Calls are timed together in batches of at least 20 ms.
std::vector<double> seconds_of_calls(Device& device, double seconds, int least,
                                     const std::function<void()>& work);

}  // namespace pride::device

// Times of work that a device does.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "device/device.h"

namespace pride::device {

// Seconds of one call of `work`, which queues work on the device: measured until `seconds` are
// over, at least `least` times. Short calls are repeated without a pause, and timed together for
// 20 ms.
std::vector<double> seconds_of_calls(Device& device, double seconds, int least,
                                     const std::function<void()>& work);

}  // namespace pride::device

// One frame of an honest run, changed on its way to rank 0.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <string>

#include "support/replayed_peers.h"
#include "support/training.h"

namespace pride::testing {

using Edit = std::function<void(std::span<std::byte>)>;

inline Edit put(std::size_t at, std::size_t width, std::uint64_t value) {
  return [=](std::span<std::byte> frame) { put_number(frame, at, width, value); };
}

// Error of rank 0 in the first step of `run`; "": none. Its peers repeat an honest run, except that
// `edit` changes the first frame of this codec from rank `from`.
inline std::string error_with(Training run, Codec codec, int from, const Edit& edit) {
  const Layout layout({{"w", {200}}, {"rows", {130}}});
  run.steps = 1;
  const auto body = [&](Communicator& comm) { train_rank(comm, layout, run); };
  auto messages = record(run.world, 0, body);
  const auto frames = frames_of(messages);
  const auto frame = std::ranges::find_if(frames, [&](const RecordedFrame& f) {
    const auto& m = messages[f.first];
    return m.from == from && number_at(m.bytes, 6, 1) == static_cast<std::uint64_t>(codec);
  });
  PRIDE_CHECK(frame != frames.end(), "no such frame from rank ", from);
  edit(messages[frame->first].bytes);
  reseal(messages, *frame);
  return errors_of<CommError>(1, [&](Communicator&) {
    ReplayComm comm(0, run.world, messages);
    body(comm);
  })[0];
}

}  // namespace pride::testing

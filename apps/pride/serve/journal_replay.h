// The parameters at the end of a journal: those of its beginning, and every record on them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coord/journal_scan.h"
#include "pride/coordinator.h"

namespace pride::app {

struct Replayed {
  std::int64_t from = 0, round = 0;  // before which round the parameters were, and are
  std::uint64_t params_hash = 0;
};

// As a worker that joins late replays it, on one thread. Throws CommError where a record is not for
// the parameters that the records before it lead to, DataError where there are no parameters.
Replayed replay_journal(const coord::JournalFiles& files, const RunDescription& run);

}  // namespace pride::app

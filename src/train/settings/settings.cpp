// Settings are compared by their hashes.
// SPDX-License-Identifier: Apache-2.0
#include "train/settings/settings.h"

#include "base/digest.h"
#include "optimizer/agreement.h"
#include "pride/error.h"

namespace pride::train {

void check_same_settings(Communicator& comm, const Settings& settings) {
  const Communicator::Scope scope(comm, "start-up check of the settings");
  std::string names;
  std::vector<std::uint64_t> mine;
  for (const auto& [name, value] : settings) {
    names += name + "\n";
    mine.push_back(Digest().text(value).value());
  }
  const std::string others =
      ranks_that_differ(gather_rows(comm, {Digest().text(names).value()}), 1, 0);
  PRIDE_CHECK(others.empty(), "the command differs: rank(s) ", others,
              " run another one than rank 0; all ranks of a job need the same");
  const auto all = gather_rows(comm, mine);
  for (std::size_t k = 0; k < settings.size(); ++k) {
    const std::string ranks = ranks_that_differ(all, mine.size(), k);
    PRIDE_CHECK(ranks.empty(), settings[k].first, " differs: rank(s) ", ranks,
                " have another value than rank 0 (here ", settings[k].second,
                "); all ranks of a job need the same settings");
  }
}

}  // namespace pride::train

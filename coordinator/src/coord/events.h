// Events of a coordinator, for logs, the status page and metrics, and a snapshot of its state.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coord/options.h"

namespace pride::coord {

// The caller, as seen on the connection, never from a message.
struct Peer {
  std::string certificate;             // name in the certificate; empty: none
  std::string address;                 // "192.0.2.1:4711"
  std::int64_t certificate_until = 0;  // its expiry, in seconds of Unix time
};

struct VoterReport {
  int number = 0;
  std::string name;
  int weight = 1;
  Seconds waited{0};                // from its ballot to the closing
  std::optional<double> agreement;  // with the median other worker's signs: coord/weights.h
  std::optional<double> loss;
};

struct RoundReport {
  std::int64_t round = 0, step = 0;
  std::uint64_t params_hash = 0;
  std::vector<VoterReport> voters;
  std::vector<int> left_out;  // numbers: other parameters or scalars, weight 0, dropped for oddness
  std::vector<int> missing;   // numbers: waited for, but without a ballot at the close
  bool by_quorum = false;     // closed at the end of the grace window
  Seconds open{0};            // from the first ballot to the closing
  Seconds grace{0};           // the window
  Seconds served{0};          // for the arithmetic, the journal and the shadow
  std::uint64_t record_bytes = 0;
  std::optional<double> loss;  // mean of the voters'
};

// Called with the coordinator's lock held, one at a time: must be quick, and must not call the
// coordinator.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_round(const RoundReport&) {}
  virtual void on_joined(int /*number*/, const std::string& /*name*/, const Peer&,
                         bool /*new_name*/) {}
  virtual void on_lost(int /*number*/, const std::string& /*name*/, const std::string& /*why*/) {}
  virtual void on_left(int /*number*/, const std::string& /*name*/) {}  // announced by the worker
  // A refused call; number is -1 if the worker is unknown.
  virtual void on_refused(const std::string& /*call*/, int /*number*/, const std::string& /*name*/,
                          const Peer&, const std::string& /*why*/) {}
  // A ballot that came after its round had closed, and its delay after the quorum.
  virtual void on_late(int /*number*/, const std::string& /*name*/, std::int64_t /*round*/,
                       Seconds /*after_quorum*/) {}
  virtual void on_parameters(std::int64_t /*before_round*/, std::uint64_t /*hash*/,
                             const std::string& /*from*/) {}
  // The journal had a torn end or a missing file: JournalFiles::notes().
  virtual void on_journal(const std::string& /*note*/) {}
  // Something that an operator should look at; the coordinator continues.
  virtual void on_warning(const std::string& /*what*/) {}
  // The journal could not be written or the round not served: the coordinator stops serving.
  virtual void on_failed(const std::string& /*why*/) {}
};

struct WorkerStatus {
  int number = 0;
  std::string name, address;
  std::int64_t certificate_until = 0;  // 0: none
  bool live = false;
  std::optional<Seconds> silent;  // since its last call; not set: none since the start
  std::int64_t round = -1;        // the round it works on, as last reported
  bool ended = false;             // as it announced
  bool voted = false;             // in the open round
  int weight = 1;
  std::uint64_t counted = 0, late = 0, refused = 0;  // its ballots since the start
  std::uint64_t bytes_in = 0, bytes_out = 0;         // of messages
  std::optional<double> agreement, loss;
  std::string warning;  // its last ballots were not counted; empty: they were
};

struct Status {
  std::string method;  // empty: no worker has registered yet
  std::uint64_t coordinates = 0;
  std::int64_t open_round = 0, first_record = 0, parameters_round = -1;
  bool closing = false;
  int voters_in = 0, least_voters = 1;         // of the open round
  std::int64_t steps_done = 0, last_step = 0;  // 0: not known
  std::string at_end;      // "the run is at its end (step 300)"; empty: it is not
  std::string few_voters;  // why a round with ballots waits; empty: it does not
  std::string failed;      // why it stopped serving
  Seconds grace{0};
  std::uint64_t ballots_counted = 0, ballots_late = 0, ballots_refused = 0, calls_refused = 0;
  std::uint64_t bytes_in = 0, bytes_out = 0, journal_bytes = 0;
  std::vector<WorkerStatus> workers;  // by number
  std::vector<RoundReport> rounds;    // the newest 256, oldest first
};

}  // namespace pride::coord

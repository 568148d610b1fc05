// `pride journal`: reads and checks every record of a journal and prints it as a JSON line;
// --replay applies all.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "coord/journal_scan.h"
#include "coord/registrations.h"
#include "coord/run_message.h"
#include "pride/coordinator.h"
#include "pride/error.h"
#include "pride/round_record.h"
#include "pride/run_worker.h"
#include "pride/serving.h"
#include "program/hex.h"
#include "serve/options.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

// The workers' names, indexed by worker number.
std::vector<std::string> names_of(const coord::JournalFiles& files, const std::string& dir) {
  if (!files.registrations) return {};
  const coord::CoordinatorOptions options;
  coord::Registrations registrations(options);
  registrations.load(*files.registrations, dir + "/" + coord::kRegistrationsFile);
  std::vector<std::string> names;
  for (const auto& entry : registrations.entries()) names.push_back(entry.name);
  return names;
}

Json voters_of(const RoundRecord& record, const std::vector<std::string>& names) {
  Json voters = Json::array();
  for (const Voter& voter : record.voters) {
    voters.push_back({{"number", voter.number},
                      {"name", voter.number < names.size() ? names[voter.number] : ""},
                      {"weight", voter.weight}});
  }
  return voters;
}

void print(const coord::JournalSegment& segment, const coord::JournalEntry& entry,
           const std::vector<std::string>& names) {
  const std::string where =
      concat(segment.file.string(), ", offset ", entry.offset, ", round ", entry.round);
  const RoundRecord record =
      decode_record(coord::read_bytes(segment.file, entry.offset, entry.length), where);
  if (record.round != entry.round) {
    throw DataError(concat(where, ": the record is of round ", record.round));
  }
  std::cout << Json{{"round", record.round},
                    {"step", record.step},
                    {"params_hash", hex16(record.params_hash)},
                    {"voters", voters_of(record, names)},
                    {"bytes", entry.length},
                    {"file", segment.file.filename().string()},
                    {"offset", entry.offset}}
                   .dump()
            << '\n';
}

// Acts as a coordinator after its last round, with the oldest parameters and the records since.
class JournalClient final : public CoordinatorClient {
 public:
  explicit JournalClient(const coord::JournalFiles& files) : files_(files) {}

  CoordinatorWelcome join(const RunDescription&, int) override { return look(); }
  CoordinatorWelcome look() override {
    CoordinatorWelcome welcome;
    welcome.open_round = files_.next_round();
    welcome.first_record = files_.first_record();
    welcome.parameters_round = oldest().before_round;
    welcome.parameters_hash = oldest().params_hash;
    return welcome;
  }

  std::vector<std::byte> record(std::int64_t round) override {
    for (const coord::JournalSegment& segment : files_.segments) {
      for (const coord::JournalEntry& entry : segment.entries) {
        if (entry.round == round)
          return coord::read_bytes(segment.file, entry.offset, entry.length);
      }
    }
    throw DataError(concat("the journal has no record of round ", round));
  }
  void get_parameters(std::int64_t, std::span<float> params) override {
    const auto bytes =
        coord::read_bytes(oldest().file, coord::kParametersHeaderBytes, params.size_bytes());
    std::memcpy(params.data(), bytes.data(), bytes.size());
  }

  CoordinatorVote vote(const Ballot&) override { throw CommError("a journal takes no ballots"); }
  CoordinatorVote wait(std::int64_t) override { throw CommError("a journal closes no rounds"); }
  void put_parameters(std::int64_t, std::uint64_t, std::span<const float>) override {}
  Traffic traffic() const override { return {}; }

 private:
  const coord::JournalParameters& oldest() const { return files_.parameters.front(); }

  const coord::JournalFiles& files_;
};

// Prints the hash of the parameters at the end of the journal: applies every record to the oldest
// parameters, as a worker that joins late does. Throws CommError if a record does not follow from
// the records before it, DataError if there are no parameters.
void replay(const coord::JournalFiles& files, const RunDescription& run) {
  if (files.parameters.empty()) {
    throw DataError("the journal has no parameters yet, from which its records could be replayed");
  }
  RunWorker worker(std::make_shared<JournalClient>(files), Layout(run.tensors),
                   optimizer_options(run));
  std::vector<float> params(worker.layout().flat_size());
  worker.join(params);
  std::cout << Json{{"replayed_from", files.parameters.front().before_round},
                    {"before_round", files.next_round()},
                    {"params_hash", hex16(param_hash(worker.layout(), params))}}
                   .dump()
            << '\n';
}

}  // namespace

void verify_journal(const JournalOptions& options) {
  if (!options.repair.empty()) return repair_journal(options);
  const bool there = std::filesystem::is_directory(options.dir);
  const auto files = there ? coord::scan_journal(options.dir) : coord::JournalFiles{};
  if (!files.run) {
    throw DataError(options.dir + " holds no journal, or one that no worker has joined yet");
  }
  const RunDescription run = coord::decode_run(*files.run);
  const std::vector<std::string> names = names_of(files, options.dir);
  const std::vector<std::string> notes = files.notes(true);
  for (const std::string& note : notes) std::cerr << "pride: warning: " << note << std::endl;
  Json parameters = Json::array();
  for (const auto& one : files.parameters) {
    parameters.push_back(
        {{"before_round", one.before_round}, {"params_hash", hex16(one.params_hash)}});
  }
  Json group_methods = Json::array();
  for (const ParamGroup& group : run.groups) {
    group_methods.push_back(group.method.empty() ? run.method : group.method);
  }
  std::cout << Json{{"method", run.method},
                    {"options", run.options},
                    {"group_methods", group_methods},
                    {"tensors", run.tensors.size()},
                    {"first_record", files.first_record()},
                    {"next_round", files.next_round()},
                    {"workers", names},
                    {"parameters", parameters},
                    {"notes", notes}}
                   .dump()
            << '\n';
  for (const auto& segment : files.segments) {
    for (const auto& entry : segment.entries) print(segment, entry, names);
  }
  if (options.replay) replay(files, run);
  std::cout.flush();
}

}  // namespace pride::app

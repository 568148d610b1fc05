// What `pride journal` does: every record of a journal is read and checked, and said as a JSON
// line.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "coord/journal_scan.h"
#include "coord/registrations.h"
#include "coord/run_message.h"
#include "optimizer/central_round.h"
#include "pride/error.h"
#include "serve/journal_replay.h"
#include "serve/options.h"
#include "train/hex.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

// By number.
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
                    {"params_hash", train::hex16(record.params_hash)},
                    {"voters", voters_of(record, names)},
                    {"bytes", entry.length},
                    {"file", segment.file.filename().string()},
                    {"offset", entry.offset}}
                   .dump()
            << '\n';
}

}  // namespace

void verify_journal(const JournalOptions& options) {
  const bool there = std::filesystem::is_directory(options.dir);
  const auto files = there ? coord::scan_journal(options.dir) : coord::JournalFiles{};
  if (!files.run) {
    throw DataError(options.dir + " holds no journal, or one to which no worker has come yet");
  }
  const RunDescription run = coord::decode_run(*files.run);
  const std::vector<std::string> names = names_of(files, options.dir);
  const std::vector<std::string> notes = files.notes(true);
  for (const std::string& note : notes) std::cerr << "pride: warning: " << note << std::endl;
  Json parameters = Json::array();
  for (const auto& one : files.parameters) {
    parameters.push_back(
        {{"before_round", one.before_round}, {"params_hash", train::hex16(one.params_hash)}});
  }
  std::cout << Json{{"method", run.method},
                    {"options", run.options},
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
  if (options.replay) {
    const Replayed end = replay_journal(files, run);
    std::cout << Json{{"replayed_from", end.from},
                      {"before_round", end.round},
                      {"params_hash", train::hex16(end.params_hash)}}
                     .dump()
              << '\n';
  }
  std::cout.flush();
}

}  // namespace pride::app

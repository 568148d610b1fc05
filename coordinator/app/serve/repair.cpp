// `pride journal --repair NEW`: copies the good files and records of a damaged journal into a new
// folder, from which a coordinator continues.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coord/journal_scan.h"
#include "pride/digest.h"
#include "pride/error.h"
#include "program/io/mapped_file.h"
#include "program/io/pending_file.h"
#include "serve/options.h"

namespace pride::app {
namespace {

namespace fs = std::filesystem;
using Bytes = std::span<const std::byte>;

std::string text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint64_t number(Bytes bytes, std::size_t offset) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, 8);
  return value;
}

void write(const fs::path& file, std::initializer_list<std::string> parts) {
  PendingFile out(file);
  for (const std::string& part : parts) out.write(part.data(), part.size());
  out.commit();
}

class Repair {
 public:
  Repair(const fs::path& from, const fs::path& into) : from_(from), into_(into) {}

  void run() {
    run_ = text_file(coord::kRunFile, {});
    run_hash_ = coord::run_hash_of(run_);
    for (const auto& entry : fs::directory_iterator(from_)) {
      const std::string name = entry.path().filename().string();
      if (name.find(".tmp.") != name.npos) continue;
      if (name.starts_with(coord::kRecordsPrefix)) read_records(entry.path());
      if (name.starts_with(coord::kParametersPrefix)) read_parameters(entry.path());
    }
    const std::string names = text_file(coord::kRegistrationsFile, run_hash_);
    choose();
    fs::create_directories(into_);
    copy(names);
  }

 private:
  struct Record {
    fs::path file;
    coord::JournalEntry entry;
  };

  // Reads the run or the registrations. Throws DataError if damaged: they cannot be rebuilt.
  std::string text_file(const char* name, std::optional<std::uint64_t> seed) const {
    const MappedFile map(from_ / name);
    const std::size_t header = std::min(coord::kTextHeaderBytes, map.bytes().size());
    std::string text = text_of(map.bytes().subspan(header));
    if (coord::text_header(seed, text) == text_of(map.bytes().first(header))) return text;
    throw DataError(concat((from_ / name).string(),
                           ": damaged, or of another run; no journal can be repaired without it: "
                           "restore the file from a copy of this folder"));
  }

  // The entry at the offset, if its header and record are intact.
  std::optional<coord::JournalEntry> entry_at(Bytes bytes, std::size_t offset) const {
    if (bytes.size() - offset < coord::kEntryHeaderBytes) return {};
    const coord::JournalEntry entry{static_cast<std::int64_t>(number(bytes, offset)),
                                    offset + coord::kEntryHeaderBytes, number(bytes, offset + 8),
                                    number(bytes, offset + 16)};
    if (entry.length > bytes.size() - entry.offset) return {};
    const Bytes header = bytes.subspan(offset, coord::kEntryHeaderBytes);
    if (coord::entry_header(run_hash_, entry) != text_of(header)) return {};
    if (hash_bytes(bytes.subspan(entry.offset, entry.length)) != entry.hash) return {};
    return entry;
  }

  // After damage, searches for the next intact record byte by byte.
  void read_records(const fs::path& file) {
    const MappedFile map(file);
    const Bytes bytes = map.bytes();
    std::size_t bad = 0;
    for (std::size_t at = coord::kSegmentHeaderBytes; at < bytes.size();) {
      if (const auto entry = entry_at(bytes, at)) {
        records_[entry->round] = {file, *entry};
        at = entry->offset + entry->length;
      } else {
        ++bad;
        ++at;
      }
    }
    if (bad > 0) left_out(concat(bad, " bytes of ", file.string(), " that are not a valid record"));
  }

  void read_parameters(const fs::path& file) {
    const MappedFile map(file);
    const Bytes bytes = map.bytes();
    if (bytes.size() >= coord::kParametersHeaderBytes) {
      const coord::JournalParameters found{file, static_cast<std::int64_t>(number(bytes, 16)),
                                           number(bytes, 32), number(bytes, 24), number(bytes, 40)};
      const Bytes floats = bytes.subspan(coord::kParametersHeaderBytes);
      if (coord::parameters_header(run_hash_, found) ==
              text_of(bytes.first(coord::kParametersHeaderBytes)) &&
          floats.size() == 4 * found.n_floats && hash_bytes(floats) == found.hash) {
        parameters_[found.before_round] = file;
        return;
      }
    }
    left_out(file.string() + ", which is damaged");
  }

  // Chooses rounds without a gap: those after the last gap, if parameters of these rounds are
  // intact; otherwise those before the first gap.
  void choose() {
    if (records_.empty()) throw DataError(concat(from_.string(), ": no record is good"));
    last_ = records_.rbegin()->first;
    first_ = last_;
    while (records_.contains(first_ - 1)) --first_;
    if (first_ == records_.begin()->first) return;
    const auto usable = parameters_.lower_bound(first_);
    if (usable != parameters_.end() && usable->first <= last_ + 1) {
      left_out(concat("rounds before ", first_, ": records are missing between"));
      return;
    }
    left_out(concat("round ", first_, " and later: records before it are missing, and parameters"));
    first_ = last_ = records_.begin()->first;
    while (records_.contains(last_ + 1)) ++last_;
  }

  void copy(const std::string& names) {
    std::string rounds;
    for (const auto& [round, file] : parameters_) {
      if (round < first_ || round > last_ + 1) {
        left_out(file.string() + ", whose records are");
        continue;
      }
      fs::copy_file(file, into_ / file.filename());
      rounds += concat(rounds.empty() ? "parameters before round " : ", ", round);
    }
    if (rounds.empty()) rounds = "no parameters";
    PendingFile out(coord::segment_file(into_, first_));
    const auto add = [&](const void* bytes, std::size_t n) { out.write(bytes, n); };
    const std::string header = coord::segment_header(run_hash_, first_);
    add(header.data(), header.size());
    for (auto at = records_.find(first_); at != records_.end() && at->first <= last_; ++at) {
      const auto& [file, entry] = at->second;
      const std::string head = coord::entry_header(run_hash_, entry);
      const auto bytes = coord::read_bytes(file, entry.offset, entry.length);
      add(head.data(), head.size());
      add(bytes.data(), bytes.size());
    }
    out.commit();
    write(into_ / coord::kRegistrationsFile, {coord::text_header(run_hash_, names), names});
    write(into_ / coord::kRunFile, {coord::text_header({}, run_), run_});
    if (left_out_ == 0)
      std::cerr << "pride: nothing was left out: all files are intact" << std::endl;
    std::cerr << "pride: " << into_.string() << ": rounds " << first_ << " to " << last_ << ", "
              << rounds << "; `pride serve --dir " << into_.string() << "` continues from there"
              << std::endl;
  }

  void left_out(const std::string& what) {
    ++left_out_;
    std::cerr << "pride: left out: " << what << std::endl;
  }

  const fs::path from_, into_;
  std::string run_;
  std::uint64_t run_hash_ = 0;
  std::map<std::int64_t, Record> records_;
  std::map<std::int64_t, fs::path> parameters_;
  std::int64_t first_ = 0, last_ = 0;
  int left_out_ = 0;
};

}  // namespace

void repair_journal(const JournalOptions& options) {
  if (fs::exists(options.repair) && !fs::is_empty(options.repair)) {
    throw DataError(options.repair + ": the copy needs a folder that is new or empty");
  }
  Repair(options.dir, options.repair).run();
}

}  // namespace pride::app

// SPDX-License-Identifier: Apache-2.0
#include "coord/journal_scan.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "pride/digest.h"
#include "pride/error.h"
#include "program/io/mapped_file.h"

namespace pride::coord {
namespace {

namespace fs = std::filesystem;
using Bytes = std::span<const std::byte>;

constexpr std::uint64_t kVersion = 3;  // with frames of version 3
// magic and version as one number: bytes 0 to 3 are the magic, 4 to 7 the version
constexpr std::uint64_t kSegmentMagic = 0x314A5250 | kVersion << 32;     // "PRJ1"
constexpr std::uint64_t kParametersMagic = 0x31505250 | kVersion << 32;  // "PRP1"
constexpr std::uint64_t kRunMagic = 0x31525250 | kVersion << 32;         // "PRR1"
constexpr std::uint64_t kNamesMagic = 0x314E5250 | kVersion << 32;       // "PRN1"

std::string numbers(std::initializer_list<std::uint64_t> values) {
  std::string text(8 * values.size(), '\0');
  std::memcpy(text.data(), std::data(values), text.size());
  return text;
}

std::uint64_t hash_of(std::string_view text, std::uint64_t seed = 0) {
  return hash_bytes(std::as_bytes(std::span(text)), seed);
}

std::string with_check(std::string header, std::uint64_t seed) {
  return header + numbers({hash_of(header, seed)});
}

// A file in memory, and a reader of its numbers.
class Reader {
 public:
  explicit Reader(const fs::path& file) : file_(file), map_(file) {}

  std::uint64_t size() const { return map_.bytes().size(); }
  Bytes bytes(std::uint64_t offset, std::uint64_t n) const {
    return map_.bytes().subspan(offset, n);
  }
  std::uint64_t number(std::uint64_t offset) const {
    std::uint64_t value = 0;
    std::memcpy(&value, map_.bytes().data() + offset, 8);
    return value;
  }
  // REQUIRES: the header, its check included, is in the file.
  bool header_fits(std::uint64_t offset, std::uint64_t n, std::uint64_t seed) const {
    return hash_bytes(bytes(offset, n - 8), seed) == number(offset + n - 8);
  }
  bool is_zero_from(std::uint64_t offset) const {
    return std::ranges::all_of(map_.bytes().subspan(offset),
                               [](std::byte b) { return b == std::byte{0}; });
  }
  // Checks magic and version. REQUIRES: the file has eight bytes.
  void check_kind(std::uint64_t magic, const char* otherwise) const {
    const std::uint64_t found = number(0);
    if (found == magic) return;
    const std::uint64_t version = found >> 32;
    if (found << 32 == magic << 32 && version > 0 && version < kVersion) {
      throw DataError(concat(file_.string(), ": of version ", version,
                             " of the journal, this program reads ", kVersion,
                             ": zeros and ties had other bits. Continue with the version ",
                             "of pride that wrote it, or start a new run"));
    }
    damaged(0, otherwise);
  }
  template <typename... What>
  [[noreturn]] void damaged(std::uint64_t offset, const What&... what) const {
    throw DataError(
        concat(file_.string(), ": damaged at byte ", offset, ": ", what...,
               "; `pride journal --repair NEW` copies the good parts into a new folder"));
  }

 private:
  fs::path file_;
  MappedFile map_;
};

std::string read_text(const fs::path& file, std::uint64_t magic, std::uint64_t seed) {
  const Reader in(file);
  if (in.size() < kTextHeaderBytes) in.damaged(in.size(), "it ends within its header");
  in.check_kind(magic, "another kind of file, or another version");
  const std::uint64_t n = in.number(8);
  if (n != in.size() - kTextHeaderBytes) in.damaged(8, "it has another size");
  const Bytes text = in.bytes(kTextHeaderBytes, n);
  if (hash_bytes(text, seed) != in.number(16)) {
    in.damaged(kTextHeaderBytes, "its hash does not match",
               seed == 0 ? "" : "; or it is of another run than the file run");
  }
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

// Reads a record at `offset`. False: the file is torn there, which only the last file may be.
bool scan_entry(const Reader& in, std::uint64_t run_hash, std::int64_t round, bool last,
                std::uint64_t offset, JournalSegment& segment) {
  const std::uint64_t left = in.size() - offset;
  if (left < kEntryHeaderBytes) {
    if (!last) in.damaged(offset, "it ends within the header of a record");
    return false;
  }
  if (!in.header_fits(offset, kEntryHeaderBytes, run_hash)) {
    // a file system may have extended the file without writing the data yet
    if (last && in.is_zero_from(offset)) return false;
    in.damaged(offset, "the header of a record does not match its check");
  }
  const JournalEntry entry{static_cast<std::int64_t>(in.number(offset)), offset + kEntryHeaderBytes,
                           in.number(offset + 8), in.number(offset + 16)};
  if (entry.round != round) in.damaged(offset, "record of round ", entry.round, ", not ", round);
  if (entry.length > left - kEntryHeaderBytes) {
    if (!last) in.damaged(offset, "it ends within a record");
    return false;
  }
  if (hash_bytes(in.bytes(entry.offset, entry.length)) != entry.hash) {
    in.damaged(entry.offset, "the record of round ", round, " does not match its hash");
  }
  segment.entries.push_back(entry);
  return true;
}

JournalSegment scan_segment(const fs::path& file, std::uint64_t run_hash, std::int64_t round,
                            bool last) {
  const Reader in(file);
  JournalSegment segment{file, round, {}, 0, in.size()};
  if (in.size() < kSegmentHeaderBytes) {
    if (!last) in.damaged(in.size(), "it ends within its header");
    return segment;
  }
  if (last && in.is_zero_from(0)) return segment;
  in.check_kind(kSegmentMagic, "no segment of records of this version");
  if (!in.header_fits(0, kSegmentHeaderBytes, 0))
    in.damaged(0, "its header does not match its check");
  if (in.number(8) != run_hash) in.damaged(8, "records of another run");
  if (in.number(16) != static_cast<std::uint64_t>(round))
    in.damaged(16, "it has another first round");
  std::uint64_t offset = kSegmentHeaderBytes;
  while (offset < in.size() && scan_entry(in, run_hash, round, last, offset, segment)) {
    offset = segment.entries.back().offset + segment.entries.back().length;
    ++round;
  }
  segment.good_bytes = offset;
  return segment;
}

JournalParameters scan_parameters(const fs::path& file, std::uint64_t run_hash,
                                  std::int64_t round) {
  const Reader in(file);
  if (in.size() < kParametersHeaderBytes) in.damaged(in.size(), "it ends within its header");
  in.check_kind(kParametersMagic, "no parameters of this version");
  if (!in.header_fits(0, kParametersHeaderBytes, 0)) {
    in.damaged(0, "its header does not match its check");
  }
  if (in.number(8) != run_hash) in.damaged(8, "parameters of another run");
  const JournalParameters found{file, round, in.number(32), in.number(24), in.number(40)};
  if (in.number(16) != static_cast<std::uint64_t>(round)) in.damaged(16, "it has another round");
  if (found.n_floats != (in.size() - kParametersHeaderBytes) / 4 || in.size() % 4 != 0) {
    in.damaged(24, "it has another size");
  }
  if (hash_bytes(in.bytes(kParametersHeaderBytes, 4 * found.n_floats)) != found.hash) {
    in.damaged(kParametersHeaderBytes, "the parameters do not match their hash");
  }
  return found;
}

// Rounds in the names of the files with this prefix, ascending, without PendingFile's temporary
// names.
std::vector<std::int64_t> rounds_of(const fs::path& folder, std::string_view prefix) {
  std::vector<std::int64_t> rounds;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    std::int64_t round = 0;
    if (!name.starts_with(prefix)) continue;
    const char* end = name.data() + name.size();
    const auto read = std::from_chars(name.data() + prefix.size(), end, round);
    if (read.ec == std::errc() && read.ptr == end && round >= 0) rounds.push_back(round);
  }
  std::ranges::sort(rounds);
  return rounds;
}

fs::path numbered(const fs::path& folder, const char* prefix, std::int64_t round) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%020lld", static_cast<long long>(round));
  return folder / (std::string(prefix) + digits);
}

void scan_records(const fs::path& folder, std::uint64_t run_hash, JournalFiles& files) {
  const std::vector<std::int64_t> rounds = rounds_of(folder, kRecordsPrefix);
  for (const std::int64_t round : rounds) {
    const fs::path file = segment_file(folder, round);
    if (!files.segments.empty() && round != files.next_round()) {
      throw DataError(concat(file.string(), ": records are missing before it: those of ",
                             files.segments.back().file.filename().string(), " end before round ",
                             files.next_round()));
    }
    files.segments.push_back(scan_segment(file, run_hash, round, round == rounds.back()));
  }
}

DataError missing(const fs::path& file, const std::string& why) {
  return DataError(concat(file.string(), ": missing; ", why));
}

// A coordinator killed in Journal::begin() leaves a first segment without the run file.
bool has_not_begun(const fs::path& folder) {
  const std::vector<std::int64_t> rounds = rounds_of(folder, kRecordsPrefix);
  const bool empty =
      rounds.empty() || (rounds == std::vector<std::int64_t>{0} &&
                         fs::file_size(segment_file(folder, 0)) <= kSegmentHeaderBytes);
  return empty && rounds_of(folder, kParametersPrefix).empty();
}

void check_is_whole(const fs::path& folder, const JournalFiles& files) {
  if (files.segments.empty()) {
    throw missing(segment_file(folder, 0), "the run exists, but none of its records");
  }
  const std::int64_t first = files.first_record();
  if (!files.registrations && (files.next_round() > first || !files.parameters.empty())) {
    throw missing(folder / kRegistrationsFile, "records or parameters exist");
  }
  if (files.parameters.empty() || files.parameters.front().before_round >= first) return;
  const auto& oldest = files.parameters.front();
  throw missing(segment_file(folder, oldest.before_round),
                concat("of the records since ", oldest.file.filename().string(),
                       " the first existing one is ", segment_file(folder, first).string()));
}

}  // namespace

std::vector<std::string> JournalFiles::notes(bool all) const {
  std::vector<std::string> notes;
  if (segments.empty()) return notes;
  const JournalSegment& last = segments.back();
  if (last.good_bytes < std::max<std::uint64_t>(last.file_bytes, kSegmentHeaderBytes)) {
    notes.push_back(concat(last.file.string(), ": torn at byte ", last.good_bytes, ": the ",
                           last.file_bytes - last.good_bytes,
                           " bytes from there on are not a complete record. A coordinator cuts "
                           "them off at its start; the journal ends before round ",
                           next_round()));
  }
  const std::int64_t first = first_record(), next = next_round();
  const std::int64_t usable = parameters.empty() ? next : parameters.front().before_round;
  const fs::path file = parameters_file(last.file.parent_path(), first);
  if (first < next && parameters.empty()) {
    notes.push_back(concat(file.string(), ": missing, with all later ones: no new worker can join ",
                           "before a worker has sent its parameters"));
  } else if (all && first == 0 && first < usable) {  // otherwise --keep recent has removed some
    notes.push_back(concat(file.string(), ": missing: the records of rounds ", first, " to ",
                           usable - 1, " cannot be replayed"));
  }
  return notes;
}

std::int64_t JournalFiles::first_record() const {
  return segments.empty() ? 0 : segments.front().first_round;
}

std::int64_t JournalFiles::next_round() const {
  return segments.empty() ? 0 : segments.back().first_round + std::ssize(segments.back().entries);
}

fs::path segment_file(const fs::path& folder, std::int64_t round) {
  return numbered(folder, kRecordsPrefix, round);
}
fs::path parameters_file(const fs::path& folder, std::int64_t round) {
  return numbered(folder, kParametersPrefix, round);
}

JournalFiles scan_journal(const fs::path& folder) {
  JournalFiles files;
  if (!fs::exists(folder / kRunFile)) {
    if (has_not_begun(folder)) return files;
    throw missing(folder / kRunFile, "records or parameters exist");
  }
  files.run = read_text(folder / kRunFile, kRunMagic, 0);
  const std::uint64_t run_hash = run_hash_of(*files.run);
  if (fs::exists(folder / kRegistrationsFile)) {
    files.registrations = read_text(folder / kRegistrationsFile, kNamesMagic, run_hash);
  }
  scan_records(folder, run_hash, files);
  for (const std::int64_t round : rounds_of(folder, kParametersPrefix)) {
    const fs::path file = parameters_file(folder, round);
    if (round > files.next_round()) {
      throw DataError(concat(file.string(), ": parameters before round ", round,
                             ", but the records end before round ", files.next_round(),
                             "; was only a part of the folder copied?"));
    }
    files.parameters.push_back(scan_parameters(file, run_hash, round));
  }
  check_is_whole(folder, files);
  return files;
}

std::vector<std::byte> read_bytes(const fs::path& file, std::uint64_t offset,
                                  std::uint64_t length) {
  std::ifstream in(file, std::ios::binary);
  std::vector<std::byte> bytes(length);
  in.seekg(static_cast<std::streamoff>(offset));
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(length));
  if (!in) throw DataError(concat(file.string(), ": cannot read ", length, " bytes at ", offset));
  return bytes;
}

std::string segment_header(std::uint64_t run_hash, std::int64_t first_round) {
  return with_check(numbers({kSegmentMagic, run_hash, static_cast<std::uint64_t>(first_round)}), 0);
}

std::string entry_header(std::uint64_t run_hash, const JournalEntry& entry) {
  return with_check(numbers({static_cast<std::uint64_t>(entry.round), entry.length, entry.hash}),
                    run_hash);
}

std::string parameters_header(std::uint64_t run_hash, const JournalParameters& p) {
  return with_check(numbers({kParametersMagic, run_hash, static_cast<std::uint64_t>(p.before_round),
                             p.n_floats, p.params_hash, p.hash, 0}),
                    0);
}

std::string text_header(std::optional<std::uint64_t> run_hash, const std::string& text) {
  const std::uint64_t magic = run_hash ? kNamesMagic : kRunMagic;
  return numbers({magic, text.size(), hash_of(text, run_hash.value_or(0))});
}

std::uint64_t run_hash_of(const std::string& run) { return hash_of(run); }

}  // namespace pride::coord

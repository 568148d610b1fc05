// Reads and checks the files of a journal, without changing them. For recovery, and for programs
// that verify or replay a journal. Byte layout: coordinator/docs/wire_format.md
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pride::coord {

// Names in the folder, in the order in which they must be copied: parameters-N, records-N (N: the
// round, 20 digits), registrations, run. This is alphabetical order.
inline constexpr const char* kRunFile = "run";
inline constexpr const char* kRegistrationsFile = "registrations";
inline constexpr const char* kRecordsPrefix = "records-";
inline constexpr const char* kParametersPrefix = "parameters-";

inline constexpr std::size_t kSegmentHeaderBytes = 32, kEntryHeaderBytes = 32;
inline constexpr std::size_t kParametersHeaderBytes = 64;
inline constexpr std::size_t kTextHeaderBytes = 24;

struct JournalEntry {
  std::int64_t round = 0;
  std::uint64_t offset = 0, length = 0;  // of the record in its file
  std::uint64_t hash = 0;                // XXH3 of the record
};

struct JournalSegment {
  std::filesystem::path file;
  std::int64_t first_round = 0;
  std::vector<JournalEntry> entries;
  std::uint64_t good_bytes = 0;  // a longer file is torn from here on
  std::uint64_t file_bytes = 0;
};

struct JournalParameters {
  std::filesystem::path file;
  std::int64_t before_round = 0;
  std::uint64_t params_hash = 0;
  std::uint64_t n_floats = 0;
  std::uint64_t hash = 0;  // XXH3 of the floats
};

struct JournalFiles {
  std::optional<std::string> run, registrations;
  std::vector<JournalSegment> segments;  // ascending, without gaps
  std::vector<JournalParameters> parameters;

  std::int64_t first_record() const;  // equals next_round() if there are no records
  std::int64_t next_round() const;

  // Harmless faults: a torn end, missing parameters. `all`: the journal retains everything, so no
  // records or parameters may be missing.
  std::vector<std::string> notes(bool all) const;
};

// Throws DataError, naming file and offset, if anything is damaged except the end of the last
// segment (a program stopped while writing). Throws DataError, naming the file, if a necessary file
// is missing: the run, registrations of voters, segments since the oldest parameters. An empty
// folder is a new journal.
JournalFiles scan_journal(const std::filesystem::path& folder);

// Parameters from a file that a scan found good. Throws DataError.
std::vector<std::byte> read_bytes(const std::filesystem::path& file, std::uint64_t offset,
                                  std::uint64_t length);

std::filesystem::path segment_file(const std::filesystem::path& folder, std::int64_t round);
std::filesystem::path parameters_file(const std::filesystem::path& folder, std::int64_t round);

// The headers.
std::string segment_header(std::uint64_t run_hash, std::int64_t first_round);
std::string entry_header(std::uint64_t run_hash, const JournalEntry& entry);
std::string parameters_header(std::uint64_t run_hash, const JournalParameters& parameters);
// `run_hash`: set for registrations, not set for the run file.
std::string text_header(std::optional<std::uint64_t> run_hash, const std::string& text);
std::uint64_t run_hash_of(const std::string& run);

}  // namespace pride::coord

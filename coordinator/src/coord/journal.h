// Journal: the rounds of a run on disk, from which a killed coordinator continues.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coord/journal_scan.h"
#include "program/io/folder_lock.h"

namespace pride::coord {

// A range of a file that stays readable while this lives, even after the file is removed.
class StoredBytes {
 public:
  struct File;
  StoredBytes(std::shared_ptr<const File> file, std::uint64_t offset, std::uint64_t length,
              std::uint64_t hash)
      : file_(std::move(file)), offset_(offset), length_(length), hash_(hash) {}

  std::uint64_t size() const noexcept { return length_; }
  std::uint64_t hash() const noexcept { return hash_; }  // XXH3 of all
  // Throws DataError. REQUIRES: begin + n <= size().
  std::string read(std::uint64_t begin, std::uint64_t n) const;

 private:
  std::shared_ptr<const File> file_;
  std::uint64_t offset_, length_, hash_;
};

// Throws DataError, naming a file, if the folder holds other files and no journal.
void check_is_no_other_folder(const std::filesystem::path& folder);

// One thread appends; others may read meanwhile.
class Journal {
 public:
  // Makes the folder if missing, reads and locks it. Cuts off a torn end of the last segment.
  // retain_all = false: records before the older of the newest two parameters are removed, as whole
  // segments, and so are older parameters. Throws DataError, naming file and offset, if anything
  // else is damaged; Error if the folder is locked.
  Journal(const std::filesystem::path& folder, std::size_t segment_bytes, bool retain_all);
  ~Journal();

  // JournalFiles::notes() of the folder before the constructor changed it.
  const std::vector<std::string>& notes() const noexcept { return notes_; }
  const std::optional<std::string>& run() const noexcept { return files_.run; }
  const std::optional<std::string>& registrations() const noexcept { return files_.registrations; }
  // When these return, the data are on disk. If they throw DataError, do not use the journal any
  // more.
  void begin(const std::string& run);
  void save_registrations(const std::string& bytes);
  // REQUIRES: begun, round = next_round().
  void append(std::int64_t round, std::span<const std::byte> record);
  void keep_parameters(std::int64_t before_round, std::uint64_t params_hash,
                       std::span<const float> params);

  std::int64_t first_record() const;
  std::int64_t next_round() const;
  std::uint64_t bytes() const;  // of all files
  std::optional<StoredBytes> record(std::int64_t round) const;
  // The newest parameters, or those before a round; not set: none.
  std::optional<JournalParameters> newest_parameters() const;
  std::optional<StoredBytes> parameters(std::int64_t before_round) const;
  bool has_parameters(std::int64_t before_round) const;

 private:
  void recover();
  void add_segment(std::int64_t first_round);
  void drop_old();

  std::filesystem::path folder_;
  std::size_t segment_bytes_;
  bool retain_all_;
  std::unique_ptr<FolderLock> lock_;
  std::uint64_t run_hash_ = 0;
  std::vector<std::string> notes_;

  mutable std::mutex mutex_;  // guards the members below against readers
  JournalFiles files_;
  std::vector<std::shared_ptr<StoredBytes::File>> segments_;  // open files, as in files_.segments
  bool rotate_ = false;                                       // the next record begins a segment
};

}  // namespace pride::coord

// SPDX-License-Identifier: Apache-2.0
#include "coord/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "pride/digest.h"
#include "pride/error.h"
#include "program/io/pending_file.h"

namespace pride::coord {

namespace fs = std::filesystem;

namespace {

// Prefixes of the file names that a journal's folder may have before its first worker registers.
constexpr const char* kOwnNames[] = {kRegistrationsFile, kRecordsPrefix,      kParametersPrefix,
                                     kLockFile,          "coordinator.jsonl", "run.tmp.",
                                     "control.txt"};

[[noreturn]] void fail(const char* what, const fs::path& file) {
  const std::string why = std::generic_category().message(errno);
  throw DataError(concat("cannot ", what, " ", file.string(), ": ", why));
}

void write_text(const fs::path& file, std::optional<std::uint64_t> run_hash,
                const std::string& text) {
  const std::string header = text_header(run_hash, text);
  PendingFile out(file);
  out.write(header.data(), header.size());
  out.write(text.data(), text.size());
  out.commit();
}

void remove_temporaries(const fs::path& folder) {
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().find(".tmp.") != std::string::npos) {
      left.push_back(entry.path());
    }
  }
  for (const fs::path& file : left) fs::remove(file);
}

}  // namespace

struct StoredBytes::File {
  File(const fs::path& name, int flags)
      : path(name), descriptor(::open(name.c_str(), flags | O_CLOEXEC)) {
    if (descriptor < 0) fail("open", name);
  }
  ~File() { ::close(descriptor); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void write(const void* bytes, std::size_t n) const {
    const char* at = static_cast<const char*>(bytes);
    while (n > 0) {
      const ssize_t written = ::write(descriptor, at, n);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("write", path);
      at += written;
      n -= static_cast<std::size_t>(written);
    }
  }

  fs::path path;
  int descriptor;
};

std::string StoredBytes::read(std::uint64_t begin, std::uint64_t n) const {
  std::string bytes(n, '\0');
  std::size_t done = 0;
  while (done < n) {
    const ssize_t got = pread(file_->descriptor, bytes.data() + done, n - done,
                              static_cast<off_t>(offset_ + begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read", file_->path);
    if (got == 0) throw DataError(concat("cannot read ", file_->path.string(), ": it ends early"));
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

void check_is_no_other_folder(const fs::path& folder) {
  if (!fs::is_directory(folder) || fs::exists(folder / kRunFile)) return;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const auto begins = [&](const char* own) { return name.starts_with(own); };
    if (std::ranges::any_of(kOwnNames, begins)) continue;
    throw DataError(concat(folder.string(), ": holds ", name,
                           " and no journal; a journal needs a folder ", "of its own"));
  }
}

Journal::Journal(const fs::path& folder, std::size_t segment_bytes, bool retain_all)
    : folder_(folder), segment_bytes_(segment_bytes), retain_all_(retain_all) {
  check_is_no_other_folder(folder);
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw DataError(concat("cannot create ", folder.string(), ": ", failed.message()));
  lock_ = std::make_unique<FolderLock>(folder, "coordinator");
  remove_temporaries(folder);
  files_ = scan_journal(folder);
  notes_ = files_.notes(retain_all);
  if (files_.run) run_hash_ = run_hash_of(*files_.run);
  recover();
}

Journal::~Journal() = default;

void Journal::recover() {
  std::optional<std::int64_t> without_header;
  if (!files_.segments.empty()) {
    JournalSegment& last = files_.segments.back();
    if (last.good_bytes < kSegmentHeaderBytes) {
      without_header = last.first_round;
      fs::remove(last.file);
      files_.segments.pop_back();
    } else if (last.good_bytes < last.file_bytes) {
      if (truncate(last.file.c_str(), static_cast<off_t>(last.good_bytes)) != 0) {
        fail("cut the torn end of", last.file);
      }
      last.file_bytes = last.good_bytes;
    }
    sync_folder(folder_);
  }
  for (const JournalSegment& segment : files_.segments) {
    segments_.push_back(std::make_shared<StoredBytes::File>(segment.file, O_RDWR | O_APPEND));
  }
  if (without_header) add_segment(*without_header);
  if (!segments_.empty() && fsync(segments_.back()->descriptor) != 0) {
    fail("write", segments_.back()->path);
  }
}

// The first segment is made before the run file: a run without segments has lost them.
void Journal::begin(const std::string& run) {
  {
    const std::lock_guard lock(mutex_);
    run_hash_ = run_hash_of(run);
  }
  add_segment(0);
  write_text(folder_ / kRunFile, {}, run);
  const std::lock_guard lock(mutex_);
  files_.run = run;
}

void Journal::save_registrations(const std::string& bytes) {
  write_text(folder_ / kRegistrationsFile, run_hash_, bytes);
}

void Journal::add_segment(std::int64_t first_round) {
  const fs::path file = segment_file(folder_, first_round);
  const std::string header = segment_header(run_hash_, first_round);
  PendingFile out(file);
  out.write(header.data(), header.size());
  out.commit();
  auto opened = std::make_shared<StoredBytes::File>(file, O_RDWR | O_APPEND);
  const std::lock_guard lock(mutex_);
  files_.segments.push_back({file, first_round, {}, header.size(), header.size()});
  segments_.push_back(std::move(opened));
  rotate_ = false;
}

void Journal::append(std::int64_t round, std::span<const std::byte> record) {
  PRIDE_CHECK(round == next_round(), "journal: record of round ", round, ", not ", next_round());
  const JournalSegment& last = files_.segments.back();
  if (!last.entries.empty() && (rotate_ || last.file_bytes >= segment_bytes_)) add_segment(round);
  JournalSegment& segment = files_.segments.back();
  const StoredBytes::File& file = *segments_.back();
  const JournalEntry entry{round, segment.file_bytes + kEntryHeaderBytes, record.size(),
                           hash_bytes(record)};
  const std::string header = entry_header(run_hash_, entry);
  file.write(header.data(), header.size());
  file.write(record.data(), record.size());
  if (fdatasync(file.descriptor) != 0) fail("write", file.path);
  const std::lock_guard lock(mutex_);
  segment.entries.push_back(entry);
  segment.good_bytes = segment.file_bytes = entry.offset + entry.length;
}

void Journal::keep_parameters(std::int64_t before_round, std::uint64_t params_hash,
                              std::span<const float> params) {
  const auto bytes = std::as_bytes(params);
  const JournalParameters kept{parameters_file(folder_, before_round), before_round, params_hash,
                               params.size(), hash_bytes(bytes)};
  const std::string header = parameters_header(run_hash_, kept);
  PendingFile out(kept.file);
  out.write(header.data(), header.size());
  out.write(bytes.data(), bytes.size());
  out.commit();
  const std::lock_guard lock(mutex_);
  std::erase_if(files_.parameters, [&](const auto& p) { return p.before_round == before_round; });
  files_.parameters.push_back(kept);
  std::ranges::sort(files_.parameters, {}, &JournalParameters::before_round);
  if (!retain_all_) drop_old();
}

// REQUIRES: the lock is held.
void Journal::drop_old() {
  rotate_ = true;  // so that segments end where parameters begin
  auto& kept = files_.parameters;
  if (kept.size() < 2) return;
  const std::int64_t needed = kept[kept.size() - 2].before_round;
  const auto is_old = [&](const JournalSegment& segment) {
    return segment.first_round + std::ssize(segment.entries) <= needed;
  };
  while (files_.segments.size() > 1 && is_old(files_.segments.front())) {
    fs::remove(files_.segments.front().file);
    files_.segments.erase(files_.segments.begin());
    segments_.erase(segments_.begin());
  }
  // keep the parameters from which a kept segment can be replayed
  std::erase_if(kept, [&](const JournalParameters& p) {
    const bool old = p.before_round < needed && p.before_round != files_.first_record();
    if (old) fs::remove(p.file);
    return old;
  });
}

std::int64_t Journal::first_record() const {
  const std::lock_guard lock(mutex_);
  return files_.first_record();
}

std::int64_t Journal::next_round() const {
  const std::lock_guard lock(mutex_);
  return files_.next_round();
}

std::uint64_t Journal::bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const JournalSegment& segment : files_.segments) sum += segment.file_bytes;
  for (const JournalParameters& p : files_.parameters) {
    sum += kParametersHeaderBytes + 4 * p.n_floats;
  }
  return sum;
}

std::optional<StoredBytes> Journal::record(std::int64_t round) const {
  const std::lock_guard lock(mutex_);
  if (round < files_.first_record() || round >= files_.next_round()) return {};
  const auto after =
      std::ranges::upper_bound(files_.segments, round, {}, &JournalSegment::first_round);
  const auto index = static_cast<std::size_t>(after - files_.segments.begin()) - 1;
  const JournalSegment& segment = files_.segments[index];
  const JournalEntry& entry =
      segment.entries[static_cast<std::size_t>(round - segment.first_round)];
  return StoredBytes(segments_[index], entry.offset, entry.length, entry.hash);
}

std::optional<JournalParameters> Journal::newest_parameters() const {
  const std::lock_guard lock(mutex_);
  if (files_.parameters.empty()) return {};
  return files_.parameters.back();
}

bool Journal::has_parameters(std::int64_t before_round) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::count(files_.parameters, before_round, &JournalParameters::before_round) > 0;
}

std::optional<StoredBytes> Journal::parameters(std::int64_t before_round) const {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find(files_.parameters, before_round, &JournalParameters::before_round);
  if (found == files_.parameters.end()) return {};
  return StoredBytes(std::make_shared<StoredBytes::File>(found->file, O_RDONLY),
                     kParametersHeaderBytes, 4 * found->n_floats, found->hash);
}

}  // namespace pride::coord

// Reader of CIFAR-10's binary files: records of one label byte and 3 planes of 32 x 32 bytes.
// SPDX-License-Identifier: Apache-2.0
#include "train/data/cifar10.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "pride/error.h"
#include "program/io/mapped_file.h"

namespace pride::train {
namespace {

using std::filesystem::path;

constexpr std::size_t kPixels = 3 * 32 * 32;
constexpr std::size_t kRecord = 1 + kPixels;
constexpr int kClasses = 10;
constexpr std::array kTrainNames = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                    "data_batch_4.bin", "data_batch_5.bin"};
constexpr const char* kTestName = "test_batch.bin";

// The file of that name in `folder`, plain before gzip.
std::optional<path> find_file(const path& folder, const char* name) {
  std::error_code ignored;
  for (const char* ending : {"", ".gz"}) {
    path file = folder / concat(name, ending);
    if (std::filesystem::exists(file, ignored)) return file;
  }
  return std::nullopt;
}

bool holds_any(const path& folder) {
  for (const char* name : kTrainNames) {
    if (find_file(folder, name)) return true;
  }
  return find_file(folder, kTestName).has_value();
}

// The folder itself or one of the two usual ones below it.
path find_folder(const path& folder) {
  if (std::filesystem::exists(folder) && !std::filesystem::is_directory(folder)) {
    throw DataError(concat("no CIFAR-10 found: ", folder.string(),
                           " is not a folder; --data must be the folder with data_batch_1.bin"));
  }
  const std::array candidates = {folder, folder / "cifar-10-batches-bin", folder / "cifar10"};
  for (const path& candidate : candidates) {
    if (holds_any(candidate)) return candidate;
  }
  throw DataError(
      concat("no CIFAR-10 found: looked for data_batch_1.bin to data_batch_5.bin and "
             "test_batch.bin, plain or .gz, in ",
             candidates[0].string(), ", ", candidates[1].string(), " and ", candidates[2].string(),
             "; scripts/get_data.sh fetches them"));
}

using GzFile = std::unique_ptr<gzFile_s, decltype(&gzclose_r)>;

GzFile open(const path& file) {
  require_regular_file(file);  // a device never ends, a pipe may never start
  errno = 0;
  GzFile in(gzopen(file.c_str(), "rb"), &gzclose_r);
  if (!in) {
    throw DataError(
        concat("cannot open ", file.string(), ": ", std::generic_category().message(errno)));
  }
  gzbuffer(in.get(), 1 << 18);
  return in;
}

// Throws unless the file ends where its format says.
void check_end(const path& file, gzFile in, std::size_t n_bytes) {
  int code = Z_OK;
  const char* text = gzerror(in, &code);
  if (code == Z_BUF_ERROR) {
    throw DataError(concat(file.string(), ": truncated gzip, it ends after ", n_bytes,
                           " unpacked bytes without its trailer"));
  }
  if (code != Z_OK && code != Z_STREAM_END) {
    throw DataError(concat(file.string(), ": corrupt after ", n_bytes, " unpacked bytes: ", text));
  }
  if (file.extension() == ".gz" && gzdirect(in) != 0) {
    throw DataError(concat(file.string(), ": not a gzip file, though its name ends in .gz"));
  }
  if (n_bytes == 0 || n_bytes % kRecord != 0) {
    throw DataError(concat(file.string(), ": ", n_bytes, " bytes, expected a multiple of ", kRecord,
                           " (the official files have ", 10'000 * kRecord, ")"));
  }
}

// The file's bytes, unpacked; whole records.
std::vector<std::uint8_t> read_all(const path& file) {
  const GzFile in = open(file);
  std::vector<std::uint8_t> bytes;
  std::size_t n = 0;
  while (true) {
    bytes.resize(n + 1'000 * kRecord);
    const std::size_t room = bytes.size() - n;
    const int got = gzread(in.get(), bytes.data() + n, static_cast<unsigned>(room));
    n += static_cast<std::size_t>(std::max(got, 0));
    // the end: after another call zlib 1.3.2 no longer reports that the file was cut short
    if (got < static_cast<int>(room)) break;
  }
  check_end(file, in.get(), n);
  bytes.resize(n);
  return bytes;
}

void append_file(const path& folder, const char* name, ImageSet& set) {
  const std::optional<path> file = find_file(folder, name);
  if (!file) {
    throw DataError(concat("CIFAR-10 is incomplete: neither ", name, " nor ", name, ".gz in ",
                           folder.string(), "; scripts/get_data.sh fetches them"));
  }
  const std::vector<std::uint8_t> bytes = read_all(*file);
  for (std::size_t i = 0; i < bytes.size() / kRecord; ++i) {
    const auto record = bytes.begin() + static_cast<std::ptrdiff_t>(i * kRecord);
    if (*record >= kClasses) {
      throw DataError(concat(file->string(), ": record ", i, ": label ", int{*record},
                             ", the largest is ", kClasses - 1));
    }
    set.labels.push_back(*record);
    set.pixels.insert(set.pixels.end(), record + 1, record + kRecord);
  }
}

}  // namespace

Cifar10 load_cifar10(const path& folder) {
  const path found = find_folder(folder);
  Cifar10 data;
  for (ImageSet* set : {&data.train, &data.test}) {
    set->channels = 3;
    set->height = set->width = 32;
    set->classes = kClasses;
  }
  for (const char* name : kTrainNames) append_file(found, name, data.train);
  append_file(found, kTestName, data.test);
  return data;
}

}  // namespace pride::train

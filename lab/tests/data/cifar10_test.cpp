// CIFAR-10: small files made here, whole or damaged, and the real data where it is at hand.
// SPDX-License-Identifier: Apache-2.0
#include "train/data/cifar10.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "pride/error.h"
#include "program/files.h"
#include "support/temp_folder.h"
#include "train/data/find_data.h"
#include "train_names.h"

namespace pride::app {
namespace {

using std::filesystem::path;
using namespace test;

// A record whose pixels say where they are: pixel i is (label * 31 + i) mod 251.
std::string record(int label) {
  std::string bytes(1, static_cast<char>(label));
  for (int i = 0; i < 3072; ++i) bytes += static_cast<char>((label * 31 + i) % 251);
  return bytes;
}

std::string gzip(const TempFolder& folder, const std::string& bytes) {
  const path file = folder.path() / "packed.tmp";
  const gzFile out = gzopen(file.c_str(), "wb");
  EXPECT_EQ(gzwrite(out, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  EXPECT_EQ(gzclose(out), Z_OK);
  const std::string packed = bytes_of(file);
  std::filesystem::remove(file);
  return packed;
}

// Batch b holds b records; record i has label (b + i) mod 10. The test batch holds two, 8 and 9.
void write_set(const TempFolder& folder, const path& below = "") {
  for (int b = 1; b <= 5; ++b) {
    std::string bytes;
    for (int i = 0; i < b; ++i) bytes += record((b + i) % 10);
    folder.write(below / concat("data_batch_", b, ".bin"), bytes);
  }
  folder.write(below / "test_batch.bin", record(8) + record(9));
}

void check_set(const Cifar10& data) {
  const std::vector<std::uint8_t> train = {1, 2, 3, 3, 4, 5, 4, 5, 6, 7, 5, 6, 7, 8, 9};
  EXPECT_EQ(data.train.labels, train);
  EXPECT_EQ(data.test.labels, (std::vector<std::uint8_t>{8, 9}));
  for (const ImageSet* set : {&data.train, &data.test}) {
    EXPECT_EQ(set->channels, 3);
    EXPECT_EQ(set->height, 32);
    EXPECT_EQ(set->width, 32);
    EXPECT_EQ(set->classes, 10);
    ASSERT_EQ(set->pixels.size(), set->size() * 3072);
    for (std::size_t i = 0; i < set->pixels.size(); ++i) {
      ASSERT_EQ(set->pixels[i], (set->labels[i / 3072] * 31 + i % 3072) % 251) << "pixel " << i;
    }
  }
}

TEST(Cifar10, ReadsAnyPositiveNumberOfRecordsAlsoInTheUsualFoldersBelow) {
  for (const char* below : {"", "cifar-10-batches-bin", "cifar10"}) {
    SCOPED_TRACE(below);
    const TempFolder folder;
    write_set(folder, below);
    check_set(load_cifar10(folder.path()));
  }
}

TEST(Cifar10, ReadsGzipAndPrefersPlain) {
  const TempFolder folder;
  write_set(folder);
  const path plain = folder.path() / "data_batch_3.bin";
  folder.write("data_batch_3.bin.gz", gzip(folder, bytes_of(plain)));
  std::filesystem::remove(plain);
  folder.write("data_batch_4.bin.gz", "damaged, and not looked at");
  check_set(load_cifar10(folder.path()));
}

TEST(Cifar10, SaysWhatItLookedForAndWhereToGetIt) {
  const TempFolder folder;
  expect_error<DataError>([&] { load_cifar10(folder.path()); },
                          {"data_batch_1.bin", "test_batch.bin", folder.path().string(),
                           "cifar-10-batches-bin", "scripts/get_data.sh"});
  expect_error<DataError>([&] { load_cifar10(folder.path() / "none"); }, {"none", "looked for"});
}

TEST(Cifar10, RefusesAFileOrDeviceInPlaceOfItsFolder) {
  const TempFolder folder;
  write_set(folder);
  for (const path& file : {folder.path() / "data_batch_1.bin", path("/dev/zero")}) {
    expect_error<DataError>([&] { load_cifar10(file); }, {file.string() + " is not a folder"});
  }
}

TEST(Cifar10, NamesTheFileThatIsMissing) {
  for (const char* name : {"data_batch_2.bin", "test_batch.bin"}) {
    const TempFolder folder;
    write_set(folder);
    std::filesystem::remove(folder.path() / name);
    expect_error<DataError>([&] { load_cifar10(folder.path()); },
                            {"neither", name, ".gz", "scripts/get_data.sh"});
  }
}

TEST(Cifar10, RefusesWrongSizes) {
  const TempFolder folder;
  write_set(folder);
  const auto refuse = [&](const std::string& bytes, std::string_view count) {
    folder.write("data_batch_1.bin", bytes);
    expect_error<DataError>([&] { load_cifar10(folder.path()); },
                            {"data_batch_1.bin", count, "multiple of 3073", "30730000"});
  };
  refuse("", ": 0 bytes");
  refuse(record(1).substr(1), ": 3072 bytes");
  refuse(record(1) + "x", ": 3074 bytes");
}

TEST(Cifar10, RefusesLabelsAboveNine) {
  const TempFolder folder;
  write_set(folder);
  folder.write("test_batch.bin", record(9) + record(0) + record(10));
  expect_error<DataError>([&] { load_cifar10(folder.path()); },
                          {"test_batch.bin", "record 2", "label 10"});
  folder.write("test_batch.bin", record(255));
  expect_error<DataError>([&] { load_cifar10(folder.path()); }, {"record 0", "label 255"});
}

TEST(Cifar10, RefusesDamagedGzip) {
  const TempFolder folder;
  write_set(folder);
  std::filesystem::remove(folder.path() / "data_batch_5.bin");
  const std::string packed = gzip(folder, record(1) + record(2));
  const auto refuse = [&](const std::string& bytes, std::string_view why) {
    folder.write("data_batch_5.bin.gz", bytes);
    expect_error<DataError>([&] { load_cifar10(folder.path()); }, {"data_batch_5.bin.gz", why});
  };
  refuse(packed.substr(0, packed.size() / 2), "truncated gzip");
  refuse(packed.substr(0, packed.size() - 1), "truncated gzip");
  refuse(packed.substr(0, packed.size() - 8), "truncated gzip");
  refuse(packed.substr(0, 11), "truncated gzip");
  std::string corrupt = packed;
  corrupt[corrupt.size() - 6] ^= 1;  // in the trailer's checksum
  refuse(corrupt, "corrupt after");
  refuse(record(1), "not a gzip file");
  refuse("", "not a gzip file");
}

TEST(Cifar10, RefusesFoldersPipesAndDevicesInPlaceOfAFile) {
  const TempFolder folder;
  write_set(folder);
  const path file = folder.path() / "test_batch.bin";
  const auto refused = [&](const char* why) {
    expect_error<DataError>([&] { load_cifar10(folder.path()); }, {"test_batch.bin", why});
    std::filesystem::remove(file);
  };
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  refused("it is a folder");
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  refused("not a regular file");
  std::filesystem::create_symlink("/dev/zero", file);
  refused("not a regular file");
}

std::array<int, 10> class_counts(const std::uint8_t* labels, std::size_t n) {
  std::array<int, 10> counts{};
  std::for_each(labels, labels + n, [&](std::uint8_t label) { ++counts.at(label); });
  return counts;
}

TEST(Cifar10RealData, HasTheKnownLabels) {
  const path folder = path(PRIDE_SHARED_DATA) / "cifar10";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no CIFAR-10 in " << folder;
  const Cifar10 data = load_cifar10(folder);
  ASSERT_EQ(data.train.size(), 50'000U);
  ASSERT_EQ(data.test.size(), 10'000U);
  const std::vector<std::uint8_t> train = {6, 9, 9, 4, 1, 1, 2, 7, 8, 3};
  const std::vector<std::uint8_t> test = {3, 8, 8, 0, 6, 6, 1, 6, 3, 1};
  EXPECT_TRUE(std::equal(train.begin(), train.end(), data.train.labels.begin()));
  EXPECT_TRUE(std::equal(test.begin(), test.end(), data.test.labels.begin()));
  const std::uint8_t* labels = data.train.labels.data();
  EXPECT_EQ(class_counts(labels, 10'000),
            (std::array{1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981}));
  EXPECT_EQ(class_counts(labels + 10'000, 10'000),
            (std::array{984, 1007, 1010, 995, 1010, 988, 1008, 1026, 987, 985}));
  std::array<int, 10> thousand;
  thousand.fill(1'000);
  EXPECT_EQ(class_counts(data.test.labels.data(), 10'000), thousand);
  // the first picture, a frog: its first three red values are known from the official files
  EXPECT_EQ(data.train.pixels[0], 59);
  EXPECT_EQ(data.train.pixels[1], 43);
  EXPECT_EQ(data.train.pixels[2], 50);
}

TEST(FindData, TakesTheFlagThenTheVariable) {
  const auto find = [](const std::string& flag) { return find_data(flag, "cifar10", "its files"); };
  ASSERT_EQ(setenv("PRIDE_DATA", "/from/variable", 1), 0);
  EXPECT_EQ(find("/from/flag"), "/from/flag");
  EXPECT_EQ(find(""), "/from/variable");
  ASSERT_EQ(setenv("PRIDE_DATA", "/bad\xFF", 1), 0);
  expect_error<InvalidArgument>([&] { find(""); }, {"PRIDE_DATA", "UTF-8"});
  for (const bool empty : {true, false}) {
    empty ? setenv("PRIDE_DATA", "", 1) : unsetenv("PRIDE_DATA");
    expect_error<DataError>([&] { find(""); }, {"cifar10", "--data", "PRIDE_DATA", "its files"});
  }
}

}  // namespace
}  // namespace pride::app

// Text: splits against rules written out here, the default text of this machine, bad inputs.
// SPDX-License-Identifier: Apache-2.0
#include "train/data/text.h"

#include <gtest/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "pride/error.h"
#include "support/temp_folder.h"
#include "train_names.h"

namespace pride::app {
namespace {

using namespace test;

std::string text(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// The hash as documented, over one copy of both parts.
std::uint64_t hash_of(const TextCorpus& corpus) {
  const std::string both = text(corpus.train) + text(corpus.valid);
  return XXH3_64bits(both.data(), both.size());
}

TEST(TextFile, TrainsOnTheFirstNineTenths) {
  const TempFolder folder;
  for (const std::size_t n : {2, 3, 9, 10, 11, 1'000, 1'001}) {
    SCOPED_TRACE(n);
    std::string bytes(n, '\0');
    for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(1 + i % 255);
    const TextCorpus corpus = load_text(folder.write("a.txt", bytes));
    EXPECT_EQ(text(corpus.train) + text(corpus.valid), bytes);
    EXPECT_EQ(corpus.train.size(), n * 9 / 10);
    EXPECT_EQ(corpus.n_files, 1U);
    EXPECT_EQ(corpus.hash, hash_of(corpus));
    expect_contains(corpus.source, "a.txt");
  }
}

TEST(TextFile, RefusesTooLittle) {
  const TempFolder folder;
  expect_error<DataError>([&] { load_text(folder.write("a.txt", "")); }, {"a.txt", "0 bytes"});
  expect_error<DataError>([&] { load_text(folder.write("a.txt", "x")); }, {"a.txt", "1 bytes"});
  expect_error<DataError>([&] { load_text(folder.path() / "none"); }, {"none", "No such file"});
  expect_error<DataError>([] { load_text("/dev/null"); }, {"neither a file nor a folder"});
}

TEST(TextFile, HasNoNul) {
  const TempFolder folder;
  const auto file = folder.write("a.zip", std::string("text, then\0more", 15));
  expect_error<DataError>([&] { load_text(file); }, {"a.zip", "byte 10 is NUL"});
}

TEST(TextFile, IsNoShardOfLlmc) {
  const TempFolder folder;
  std::string shard(1024, '\0');
  for (const std::uint32_t magic : {20240520U, 20240801U, 0x88D83401U}) {
    std::memcpy(shard.data(), &magic, sizeof magic);
    const auto file = folder.write("train.bin", shard);
    expect_error<DataError>([&] { load_text(file); }, {"train.bin", "llm.c", "--vocab"});
  }
}

TEST(TextFolder, SplitsByHashOfRelativePath) {
  const TempFolder a, b;
  std::string train, valid;
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back(concat(i % 2 ? "x/" : "", "y", i, ".txt"));
  std::sort(names.begin(), names.end());
  std::size_t n_valid = 0;
  for (const std::string& name : names) {
    const std::string bytes = "text of " + name + "\n";
    const bool validates = XXH3_64bits(name.data(), name.size()) % 10 == 0;
    (validates ? valid : train) += bytes;
    n_valid += validates ? 1 : 0;
    a.write(name, bytes);
  }
  // the other folder is filled in another order
  std::reverse(names.begin(), names.end());
  for (const std::string& name : names) b.write(name, "text of " + name + "\n");
  const TextCorpus corpus = load_text(a.path());
  EXPECT_EQ(text(corpus.train), train);
  EXPECT_EQ(text(corpus.valid), valid);
  EXPECT_EQ(corpus.n_files, 200U);
  EXPECT_EQ(corpus.hash, hash_of(corpus));
  EXPECT_EQ(load_text(b.path()).hash, corpus.hash);
  // about one in ten: 20 expected, 4 is the standard deviation
  EXPECT_GT(n_valid, 5U);
  EXPECT_LT(n_valid, 40U);
}

TEST(TextFolder, KeepsAFileOnEachSide) {
  // names whose hashes agree on the side: two that train, two that validate
  std::vector<std::string> trains, checks;
  for (int i = 0; trains.size() < 2 || checks.size() < 2; ++i) {
    (validates(std::to_string(i)) ? checks : trains).push_back(std::to_string(i));
  }
  for (const auto& names : {trains, checks}) {
    const TempFolder folder;
    folder.write(names[0], "first");
    folder.write(names[1], "second");
    const TextCorpus corpus = load_text(folder.path());
    EXPECT_FALSE(corpus.train.empty());
    EXPECT_FALSE(corpus.valid.empty());
    EXPECT_EQ(corpus.train.size() + corpus.valid.size(), 11U);
  }
}

TEST(TextFolder, SplitsASingleFileByBytes) {
  const TempFolder folder;
  folder.write("below/only.txt", std::string(100, 'a'));
  const TextCorpus corpus = load_text(folder.path());
  EXPECT_EQ(corpus.train.size(), 90U);
  EXPECT_EQ(corpus.valid.size(), 10U);
}

TEST(TextFolder, SkipsAndCountsWhatIsNotText) {
  const TempFolder folder;
  folder.write("a.txt", "some text");
  folder.write("b.txt", "more text");
  folder.write("picture.bin", std::string("ab\0cd", 5));
  folder.write("empty.txt", "");
  std::filesystem::create_directory_symlink(folder.path(), folder.path() / "loop");
  std::filesystem::create_symlink(folder.path() / "gone", folder.path() / "dangling");
  const TextCorpus corpus = load_text(folder.path());
  EXPECT_EQ(corpus.n_files, 2U);
  EXPECT_EQ(corpus.n_skipped, 1U);
  EXPECT_EQ(corpus.train.size() + corpus.valid.size(), 18U);
  expect_contains(corpus.source, "1 others skipped");
}

TEST(TextFolder, RefusesAFolderWithoutText) {
  const TempFolder folder;
  expect_error<DataError>([&] { load_text(folder.path()); }, {folder.path().string(), "no text"});
  folder.write("picture.bin", std::string(3, '\0'));
  expect_error<DataError>([&] { load_text(folder.path()); }, {"no text", "1 files skipped"});
  folder.write("a.txt", "x");
  expect_error<DataError>([&] { load_text(folder.path()); }, {"1 byte of text"});
}

TEST(StripLicence, RemovesOnlyLeadingLicenceComments) {
  EXPECT_EQ(strip_licence("// <vector> -*- C++ -*-\n\n// Copyright (C) 2001\n// more\n\nint a;\n"),
            "// <vector> -*- C++ -*-\n\n\nint a;\n");
  EXPECT_EQ(strip_licence("/* COPYRIGHT\n * notice */\n/** @file */\nint a;"),
            "/** @file */\nint a;");
  EXPECT_EQ(strip_licence("// Under the GPL version 3.\n\n// You receive this free software\nx"),
            "\nx");
  EXPECT_EQ(strip_licence("  // no WARRANTY \n/* under a licence */\n#if 1"), "#if 1");
}

TEST(StripLicence, KeepsTheRest) {
  for (const char* source : {"", "\n\n", "int a;  // Copyright\n", "int a;\n// Copyright\n",
                             "// doc\nint a;\n", "/* copyright */ int a;\n",
                             "/* copyright, never closed\nint a;\n", "/ copyright", "/", "  \t"}) {
    EXPECT_EQ(strip_licence(source), source);
  }
  EXPECT_EQ(strip_licence("// Copyright"), "");
}

TEST(DefaultText, IsTheStandardLibraryWithoutLicences) {
  const auto folder = find_default_text();
  ASSERT_TRUE(folder.has_value());
  EXPECT_TRUE(std::filesystem::exists(*folder / "vector"));
  const TextCorpus corpus = load_default_text();
  EXPECT_GT(corpus.train.size(), 5'000'000U);
  EXPECT_GT(corpus.valid.size(), 200'000U);
  EXPECT_GT(corpus.n_files, 300U);
  EXPECT_EQ(corpus.hash, hash_of(corpus));
  EXPECT_EQ(corpus.hash, load_default_text().hash);
  expect_contains(corpus.source, folder->string());
  const std::string train = text(corpus.train);
  expect_contains(train, "namespace std");
  // a phrase of the licence header that nearly every file of libstdc++ begins with
  std::size_t n_notices = 0;
  for (std::size_t at = 0;
       (at = train.find("You should have received a copy", at)) != train.npos;) {
    ++n_notices;
    ++at;
  }
  EXPECT_LT(n_notices, corpus.n_files / 50);
}

}  // namespace
}  // namespace pride::app

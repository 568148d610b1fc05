// Shards: both layouts byte by byte, refusals, and conversion of text.
// SPDX-License-Identifier: Apache-2.0
#include "train/data/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pride/error.h"
#include "support/texts.h"
#include "text/small_vocabulary.h"
#include "train/data/tokenize.h"
#include "train/text/bpe.h"
#include "train_names.h"

namespace pride::app {
namespace {

using std::filesystem::path;
using namespace test;
using Tokens = std::vector<Token>;

// llm.c's header as its own scripts write it: 256 int32.
std::string llmc_header(std::int32_t magic, std::int32_t version, std::int32_t n) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = n;
  std::string bytes(1024, '\0');
  std::memcpy(bytes.data(), header.data(), bytes.size());
  return bytes;
}

void write(const path& file, ShardLayout layout, const Tokens& tokens) {
  ShardWriter writer(file, layout);
  writer.write(tokens);
  writer.commit();
}

Tokens tokens_of(const path& file) {
  const Shard shard(file);
  return {shard.tokens().begin(), shard.tokens().end()};
}

TEST(Shard, WritesTheBytesOfNanoGptAndOfLlmc) {
  const TempFolder folder;
  const path file = folder.path() / "train.bin";
  for (const ShardLayout layout : {ShardLayout::kPlain, ShardLayout::kLlmc}) {
    write(file, layout, {1, 258, 50256});
    const std::string header = layout == ShardLayout::kLlmc ? llmc_header(20240520, 1, 3) : "";
    EXPECT_EQ(bytes_of(file), header + std::string("\x01\x00\x02\x01\x50\xC4", 6));
    EXPECT_EQ(Shard(file).layout(), layout);
    EXPECT_EQ(tokens_of(file), (Tokens{1, 258, 50256}));
  }
}

TEST(Shard, RefusesWhatIsNotOneByName) {
  const TempFolder folder;
  const auto refuses = [&](const std::string& bytes,
                           std::initializer_list<std::string_view> parts) {
    const path file = folder.write("bad.bin", bytes);
    expect_error<DataError>([&] { Shard shard(file); }, parts);
  };
  refuses("", {"bad.bin", "no token"});
  refuses("abc", {"bad.bin", "truncated", "3 bytes"});
  const std::string four(8, '\1');
  refuses(llmc_header(20240520, 1, 4) + four.substr(2), {"truncated", "counts 4", "6 bytes"});
  refuses(llmc_header(20240520, 1, 4) + four + "xx", {"too long", "counts 4", "10 bytes"});
  refuses(llmc_header(20240520, 1, 4).substr(0, 1000), {"truncated", "1024"});
  refuses(llmc_header(20240520, 2, 4) + four, {"version 2"});
  refuses(llmc_header(20240520, 1, 0), {"no token"});
  refuses(llmc_header(20240520, 1, -1) + four, {"truncated", "4294967295"});
  refuses(llmc_header(20240801, 7, 2) + four, {"Llama 3", "32 bits"});
  refuses(std::string("\x01\x34\xD8\x88", 4) + four, {"big-endian"});
  expect_error<DataError>([&] { Shard shard(folder.path() / "none"); }, {"none", "No such file"});
  expect_error<DataError>([&] { Shard shard(folder.path()); }, {"folder"});
}

TEST(Shard, RefusesTextAndNothingThatOnlyBeginsLikeIt) {
  const TempFolder folder;
  const auto refused = [&](const std::string& bytes) {
    return texts::error_of<DataError>([&] {
             Shard shard(folder.write("a.bin", bytes));
           }).find("pride tokenize") != std::string::npos;
  };
  std::string ascii, accents = "x";
  while (ascii.size() < 6000) ascii += "The quick brown fox\tjumps over\r\nthe lazy dog.\n";
  while (accents.size() < 6000) accents += "\xC3\xA9\xE2\x82\xAC ";  // cut within a character
  EXPECT_TRUE(refused(ascii));
  EXPECT_TRUE(refused(ascii.substr(0, 65))) << "of odd length, too";
  EXPECT_TRUE(refused(accents));
  EXPECT_FALSE(refused(ascii.substr(0, 62))) << "a few tokens can look like this";
  for (const char* odd : {"\x01", "\x7F", "\xFF"}) {
    EXPECT_FALSE(refused(ascii.substr(0, 3000) + odd + ascii.substr(0, 3001)));
  }
  EXPECT_FALSE(refused(ascii.substr(0, 3001) + std::string(1, '\0')));
  EXPECT_FALSE(refused(llmc_header(20240520, 1, 50) + ascii.substr(0, 100)));
}

TEST(Shard, NamesATokenOutsideTheVocabulary) {
  const TempFolder folder;
  write(folder.path() / "a.bin", ShardLayout::kPlain, {1, 2, 999, 50257, 3});
  const Shard shard(folder.path() / "a.bin");
  shard.check(0, 5, 50258);
  shard.check(0, 3, 1000);
  shard.check(0, 5, 65536);
  expect_error<DataError>([&] { shard.check(1, 4, 50257); }, {"a.bin", "token 3 is 50257"});
}

TEST(Shard, LeavesNothingBehindUnlessCommitted) {
  const TempFolder folder;
  { ShardWriter writer(folder.path() / "a.bin", ShardLayout::kLlmc); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ShardSet, TakesTrainAndValByNameInOrder) {
  const TempFolder folder;
  write(folder.path() / "x_train_000002.bin", ShardLayout::kLlmc, {3});
  write(folder.path() / "x_train_000001.bin", ShardLayout::kPlain, {1, 2});
  write(folder.path() / "x_val.bin", ShardLayout::kPlain, {4});
  folder.write("train.txt", "no shard");
  const ShardSet set = open_shards(folder.path());
  ASSERT_EQ(set.train.size(), 2U);
  ASSERT_EQ(set.valid.size(), 1U);
  EXPECT_EQ(set.train[0].tokens().size(), 2U);
  EXPECT_EQ(set.train[1].tokens()[0], 3);
  std::filesystem::remove(folder.path() / "x_val.bin");
  expect_error<DataError>([&] { open_shards(folder.path()); }, {"validate", "pride tokenize"});
}

TEST(ShardSet, KnowsTheSidesByWholeWords) {
  const TempFolder folder;
  write(folder.path() / "interval_train_1.bin", ShardLayout::kPlain, {1, 2});
  expect_error<DataError>([&] { open_shards(folder.path()); }, {"validate", "the word val"});
  write(folder.path() / "strain.val-2.bin", ShardLayout::kPlain, {3});
  write(folder.path() / "training.bin", ShardLayout::kPlain, {4});
  write(folder.path() / "train1.bin", ShardLayout::kPlain, {5});
  const ShardSet set = open_shards(folder.path());
  ASSERT_EQ(set.train.size(), 1U);
  EXPECT_EQ(set.train[0].file().filename(), "interval_train_1.bin");
  ASSERT_EQ(set.valid.size(), 1U);
  EXPECT_EQ(set.valid[0].file().filename(), "strain.val-2.bin");
  write(folder.path() / "train_val.bin", ShardLayout::kPlain, {6});
  expect_error<DataError>([&] { open_shards(folder.path()); }, {"train_val.bin", "one side"});
}

TEST(ShardSet, HashSeesEveryTokenAndNotTheLayout) {
  const auto hash = [](ShardLayout layout, const Tokens& train) {
    const TempFolder folder;
    write(folder.path() / "train.bin", layout, train);
    write(folder.path() / "val.bin", layout, {7});
    return hash_of(open_shards(folder.path()));
  };
  const auto expected = hash(ShardLayout::kPlain, {1, 2, 3});
  EXPECT_EQ(hash(ShardLayout::kLlmc, {1, 2, 3}), expected);
  EXPECT_NE(hash(ShardLayout::kPlain, {1, 2, 4}), expected);
  EXPECT_NE(hash(ShardLayout::kPlain, {1, 2, 3, 3}), expected);
}

class Tokenize : public ::testing::Test {
 protected:
  Tokenized run(TokenizeOptions options) {
    options.out = folder_.path() / "out";
    return tokenize(options, vocabulary_, [](std::uint64_t) {});
  }
  std::string decoded(const char* name) {
    return vocabulary_.decode(tokens_of(folder_.path() / "out" / name));
  }

  TempFolder folder_;
  Vocabulary vocabulary_{test::write_small_vocabulary(folder_)};
};

TEST_F(Tokenize, CutsASingleTextBeforeACharacter) {
  // 29 bytes: the last tenth are 3, and the border falls inside the second e with acute
  const std::string text = "the rain in there \xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9 abc";
  for (const double share : {0.1, 0.2, 0.3}) {
    const Tokenized done = run({.inputs = {folder_.write("a.txt", text)},
                                .end_of_text = EndOfText::kNone,
                                .valid_share = share});
    EXPECT_EQ(decoded("train.bin") + decoded("val.bin"), text);
    EXPECT_EQ(done.train.bytes + done.valid.bytes, text.size());
    EXPECT_NE(decoded("val.bin")[0] & 0xC0, 0x80) << share;
    EXPECT_LE(done.valid.bytes, std::ceil(share * static_cast<double>(text.size())));
  }
}

TEST_F(Tokenize, DealsDocumentsByNameAndEndsThem) {
  std::string lines, expected;
  for (int i = 0; i < 300; ++i) {
    lines += concat("{\"id\": ", i, ", \"text\": \"the thing ", i, "\\n\"}\n");
    expected += concat("the thing ", i, "\n<|endoftext|>");
  }
  const Tokenized done = run({.inputs = {folder_.write("a.jsonl", lines)}});
  EXPECT_EQ(done.train.documents + done.valid.documents, 300U);
  EXPECT_GT(done.valid.documents, 15U);
  EXPECT_LT(done.valid.documents, 50U);
  EXPECT_EQ(decoded("train.bin").size() + decoded("val.bin").size(), expected.size());
  const Tokens tokens = tokens_of(folder_.path() / "out/train.bin");
  EXPECT_EQ(static_cast<std::uint64_t>(
                std::count(tokens.begin(), tokens.end(), *vocabulary_.end_of_text())),
            done.train.documents);
  EXPECT_EQ(tokens.back(), *vocabulary_.end_of_text());
  run({.inputs = {folder_.path() / "a.jsonl"}, .end_of_text = EndOfText::kBefore});
  EXPECT_EQ(tokens_of(folder_.path() / "out/train.bin").front(), *vocabulary_.end_of_text());
}

TEST_F(Tokenize, ShardsFollowEachOtherWithoutAGap) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "the thing in there\n";
  const TokenizeOptions one{.inputs = {folder_.write("a.txt", text)},
                            .end_of_text = EndOfText::kNone};
  run(one);
  const Tokens whole = tokens_of(folder_.path() / "out/train.bin");
  TokenizeOptions many = one;
  many.shard_tokens = 1000;
  many.layout = ShardLayout::kLlmc;
  const Tokenized done = run(many);
  Tokens joined;
  for (const path& file : done.train.files) {
    const Tokens part = tokens_of(file);
    EXPECT_TRUE(part.size() == 1000 || file == done.train.files.back());
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_EQ(joined, whole);
  EXPECT_EQ(done.train.files[1].filename(), "train_000002.bin");
}

TEST_F(Tokenize, SkipsBinariesInFoldersAndNamesBadLines) {
  folder_.write("in/a.txt", "the");
  folder_.write("in/b/c.txt", "thing");
  folder_.write("in/d.bin", std::string("\0\1", 2));
  folder_.write("in/empty.txt", "");
  const Tokenized done = run({.inputs = {folder_.path() / "in"}, .valid_share = 0});
  EXPECT_EQ(done.train.documents, 2U);
  EXPECT_EQ(decoded("train.bin"), "the<|endoftext|>thing<|endoftext|>");
  const auto refuses = [&](const char* text, std::initializer_list<std::string_view> parts) {
    expect_error<DataError>([&] { run({.inputs = {folder_.write("x.jsonl", text)}}); }, parts);
  };
  refuses("{\"text\": \"a\"}\n\n{\"txt\": \"b\"}\n", {"x.jsonl:3", "no string under \"text\""});
  refuses("{\"text\": \"a\"}\nnonsense\n", {"x.jsonl:2", "not a JSON object"});
  refuses("", {"no text to train on in", "x.jsonl;"});
  const path empty = folder_.path() / "in" / "empty.txt";
  expect_error<DataError>([&] { run({.inputs = {empty, empty}}); }, {"in/empty.txt and 1 more;"});
  expect_error<DataError>([&] { run({.inputs = {folder_.path() / "none"}}); }, {"none"});
}

TEST_F(Tokenize, TakesEndingsInAnyCaseAndNoBinaryForText) {
  folder_.write("in/a.JSONL", "{\"text\": \"the\"}\n{\"text\": \"thing\"}\n");
  const Tokenized done = run({.inputs = {folder_.path() / "in"}, .valid_share = 0});
  EXPECT_EQ(done.train.documents, 2U);
  EXPECT_EQ(decoded("train.bin"), "the<|endoftext|>thing<|endoftext|>");
  expect_error<DataError>(
      [&] { run({.inputs = {folder_.write("b.txt", std::string_view("t\0h\0e\0", 6))}}); },
      {"b.txt", "byte 1 is NUL", "UTF-16"});
  EXPECT_EQ(decoded("train.bin"), "the<|endoftext|>thing<|endoftext|>") << "as it was";
}

TEST_F(Tokenize, TakesNamedEndsForTokensIfAsked) {
  const path file = folder_.write("a.txt", "the<|endoftext|>thing and more in there");
  run({.inputs = {file}, .end_of_text = EndOfText::kNone, .named_ends = true});
  const Tokens tokens = tokens_of(folder_.path() / "out/train.bin");
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), *vocabulary_.end_of_text()), 1);
}

}  // namespace
}  // namespace pride::app

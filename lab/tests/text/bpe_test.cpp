// BPE: published and computed vectors where the data is, and everywhere a small vocabulary against
// GPT-2's own loop, written out over strings.
// SPDX-License-Identifier: Apache-2.0
#include "train/text/bpe.h"

#include <gtest/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cctype>
#include <random>

#include "pride/error.h"
#include "text/small_vocabulary.h"
#include "train_names.h"

namespace pride::app {
namespace {

using std::filesystem::path;
using namespace test;
using Tokens = std::vector<Token>;

Tokens encode(const Vocabulary& vocabulary, std::string_view text) {
  Tokens tokens;
  BpeEncoder(vocabulary).encode(text, tokens);
  return tokens;
}

// GPT-2's bpe(): the pair of lowest rank merges wherever it stands, until no pair has a rank.
std::vector<std::string> merged(const Pairs& merges, const std::string& word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    auto best = merges.end();
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      best = std::min(best,
                      std::find(merges.begin(), merges.end(), std::pair(parts[i], parts[i + 1])));
    }
    if (best == merges.end()) return parts;
    std::vector<std::string> next;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool pair =
          i + 1 < parts.size() && parts[i] == best->first && parts[i + 1] == best->second;
      next.push_back(pair ? parts[i] + parts[i + 1] : parts[i]);
      i += pair ? 1 : 0;
    }
    parts = next;
  }
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

char kind(char c) {
  const auto u = static_cast<unsigned char>(c);
  return std::isalpha(u) ? 'a' : std::isdigit(u) ? '0' : is_space(c) ? ' ' : '.';
}

// The pattern by hand, for ASCII.
std::size_t word_end(const std::string& text, std::size_t at) {
  for (const char* tail : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.compare(at, std::string(tail).size(), tail) == 0) return at + std::string(tail).size();
  }
  const auto run = [&](std::size_t from) {
    std::size_t end = from;
    while (end < text.size() && kind(text[end]) == kind(text[from])) ++end;
    return end;
  };
  if (kind(text[at]) != ' ') return run(at);
  if (text[at] == ' ' && at + 1 < text.size() && kind(text[at + 1]) != ' ') return run(at + 1);
  const std::size_t end = run(at);
  return end < text.size() && end > at + 1 ? end - 1 : end;
}

class SmallBpe : public ::testing::Test {
 protected:
  Tokens expected(const std::string& text) const {
    const nlohmann::json ids = test::small_ids();
    Tokens tokens;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = word_end(text, at);
      for (const std::string& part : merged(test::small_merges(), text.substr(at, end - at))) {
        tokens.push_back(ids.at(test::name_of(part)));
      }
      at = end;
    }
    return tokens;
  }

  TempFolder folder_;
  Vocabulary vocabulary_{test::write_small_vocabulary(folder_)};
};

TEST_F(SmallBpe, EncodesAsGpt2sLoopDoes) {
  const unsigned seed = 7;
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937 random(seed);
  const std::string letters = "aaaaeehhttring    \n\t'sdlvem19.-!";
  for (int i = 0; i < 3000; ++i) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = letters[random() % letters.size()];
    EXPECT_EQ(encode(vocabulary_, text), expected(text)) << '"' << text << '"';
  }
}

// Two merges that give one token: what the later one makes may have a rank below its own.
TEST_F(SmallBpe, MergesAllOfARankBeforeWhatTheyMake) {
  const Pairs unique = {{"a", "b"}, {"b", "c"}, {"a", "bc"}, {"abc", "ab"}};
  Pairs merges = unique;
  merges.emplace_back("ab", "c");
  folder_.write("twice/encoder.json", test::small_ids(unique).dump());
  folder_.write("twice/vocab.bpe", test::merges_text(merges));
  const Vocabulary vocabulary(folder_.path() / "twice");
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string word = i == 0 ? "abcabc" : std::string(random() % 12, 'a');
    for (char& c : word) c = i == 0 ? c : static_cast<char>('a' + random() % 3);
    std::vector<std::string> parts;
    for (const Token token : encode(vocabulary, word)) parts.emplace_back(vocabulary.bytes(token));
    EXPECT_EQ(parts, merged(merges, word)) << word;
  }
}

TEST_F(SmallBpe, MergesLongWordsAsShortOnes) {
  for (const std::size_t n : {63, 64, 65, 500, 1001}) {
    const std::string text = std::string(n, 'a') + "thering";
    EXPECT_EQ(encode(vocabulary_, text), expected(text)) << n;
  }
}

TEST_F(SmallBpe, TakesAWordOfAMegabyte) {
  constexpr std::size_t n = 1 << 20;
  const Tokens letters = encode(vocabulary_, std::string(n, 'a'));
  // pairs first, then each pair takes the third: aa aa aa -> aa aa aa; "aaa" needs an odd one
  EXPECT_EQ(letters.size(), n / 2);
  const Tokens spaces = encode(vocabulary_, std::string(n, ' ') + "a");
  EXPECT_EQ(vocabulary_.decode(spaces), std::string(n, ' ') + "a");
  EXPECT_EQ(vocabulary_.bytes(spaces.back()), " a");
}

TEST_F(SmallBpe, GivesEveryByteStringBack) {
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 50, '\0');
    for (char& c : text) c = static_cast<char>(random() % 2 ? random() % 256 : 'a' + random() % 9);
    EXPECT_EQ(vocabulary_.decode(encode(vocabulary_, text)), text);
  }
}

TEST_F(SmallBpe, BytesThatAreNotUtf8AreWordsOfTheirOwn) {
  const auto pieces = [&](const std::string& text) {
    std::vector<std::string> all;
    for (const Token t : encode(vocabulary_, text)) all.emplace_back(vocabulary_.bytes(t));
    return all;
  };
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces("the\xFFthe"), (Pieces{"the", "\xFF", "the"}));
  // a run is one word, in which merges of bytes hold: the beginning of a dash, and no end
  EXPECT_EQ(pieces("a\xE2\x80"), (Pieces{"a", "\xE2\x80"}));
  EXPECT_EQ(pieces("\xFF\xE2\x80 the"), (Pieces{"\xFF", "\xE2\x80", " the"}));
  // the spaces before it end the text as far as they can see
  EXPECT_EQ(pieces("the  \xFF"), (Pieces{"the", "  ", "\xFF"}));
  EXPECT_EQ(pieces("\xC3\xA9"), (Pieces{"\xC3\xA9"}));
}

TEST_F(SmallBpe, KnowsWhiteSpaceAsUnicodeDoes) {
  WordSplitter splitter;
  std::vector<std::size_t> ends;
  const auto words = [&](const std::string& text) {
    splitter.split(text, ends);
    return ends.size();
  };
  // a letter, two separators, a letter: the second separator stands alone before the letter
  for (const std::string space : {"\xC2\xA0", "\xC2\x85", "\xE3\x80\x80"}) {
    EXPECT_EQ(words("a" + space + space + "b"), 4U) << "no-break, next line, ideographic";
  }
  for (const std::string none : {"\xE1\xA0\x8E", "\x1C"}) {
    EXPECT_EQ(words("a" + none + none + "b"), 3U) << "U+180E, the separators of ASCII";
  }
}

TEST_F(SmallBpe, TakesEndOfTextForPlainTextUnlessAsked) {
  const std::string text = "the<|endoftext|>in";
  const Tokens plain = encode(vocabulary_, text);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), *vocabulary_.end_of_text()), 0);
  EXPECT_EQ(vocabulary_.decode(plain), text);
  Tokens special;
  BpeEncoder(vocabulary_).encode_with_ends(text, special);
  const nlohmann::json ids = test::small_ids();
  EXPECT_EQ(special, (Tokens{ids["the"], ids["<|endoftext|>"], ids["in"]}));
  EXPECT_EQ(vocabulary_.decode(special), text);
}

TEST(SafeCut, NeverChangesAWord) {
  std::mt19937 random(13);
  const std::string letters = "ab1'sre  \n\t.\xC3\xA9\xFF";
  WordSplitter splitter;
  std::vector<std::size_t> whole, left, right;
  for (int i = 0; i < 3000; ++i) {
    std::string text(random() % 60, ' ');
    for (char& c : text) c = letters[random() % letters.size()];
    const std::size_t cut = safe_cut(text, random() % 60);
    ASSERT_LE(cut, text.size());
    splitter.split(text, whole);
    splitter.split(std::string_view(text).substr(0, cut), left);
    splitter.split(std::string_view(text).substr(cut), right);
    for (const std::size_t end : right) left.push_back(end + cut);
    EXPECT_EQ(left, whole) << text << " cut at " << cut;
  }
}

TEST(Vocabulary, ReadsItsOtherFileNames) {
  const TempFolder folder;
  folder.write("vocab.json", test::small_ids().dump());
  folder.write("merges.txt", test::merges_text());
  const Vocabulary vocabulary(folder.path());
  EXPECT_EQ(vocabulary.size(), 256 + test::small_merges().size() + 1);
  EXPECT_EQ(vocabulary.end_of_text(), vocabulary.size() - 1);
  for (int b = 0; b < 256; ++b) {
    EXPECT_EQ(vocabulary.bytes(vocabulary.token_of(b)), std::string(1, static_cast<char>(b)));
  }
}

TEST(Vocabulary, RefusesBadFilesByName) {
  const auto refuses = [](const std::string& ids, const std::string& merges,
                          std::initializer_list<std::string_view> parts) {
    const TempFolder folder;
    folder.write("encoder.json", ids);
    folder.write("vocab.bpe", merges);
    expect_error<DataError>([&] { Vocabulary vocabulary(folder.path()); }, parts);
  };
  const std::string good = test::merges_text();
  const auto changed = [](const char* name, const nlohmann::json& id) {
    nlohmann::json ids = test::small_ids();
    ids[name] = id;
    return ids.dump();
  };
  const TempFolder empty;
  expect_error<DataError>([&] { Vocabulary vocabulary(empty.path()); }, {"encoder.json"});
  refuses("", good, {"encoder.json", "it is empty"});
  refuses("{", good, {"encoder.json", "not JSON"});
  refuses("[]", good, {"encoder.json", "not an object"});
  refuses(changed("the", 1'000'000), good, {"\"the\"", "1000000"});
  refuses(changed("the", -1), good, {"\"the\"", "-1"});
  refuses(changed("the", 0), good, {"two tokens have the id 0"});
  nlohmann::json no_a = test::small_ids();
  no_a["other"] = no_a["a"];
  no_a.erase("a");
  refuses(no_a.dump(), good, {"byte named \"a\""});
  const std::string ids = test::small_ids().dump();
  refuses(ids, good + "t\n", {"vocab.bpe:14", "two tokens"});
  refuses(ids, good + "t h\n", {"vocab.bpe:14", "given before"});
  refuses(ids, good + "q z\n", {"vocab.bpe:14", "\"qz\" is not in the vocabulary"});
  refuses(ids, "#version: 0.2\nth e\nt h\n", {"vocab.bpe:2", "\"th\"", "earlier"});
  nlohmann::json cut = test::small_ids();  // as many tokens as GPT-2 has, and too few merges
  while (cut.size() < 50'257) cut["xq" + std::to_string(cut.size())] = cut.size();
  refuses(cut.dump(), good, {"vocab.bpe: no merge results in \"xq", "complete"});
}

TEST(Vocabulary, RefusesToDecodeWhatItHasNot) {
  const TempFolder folder;
  const Vocabulary vocabulary(test::write_small_vocabulary(folder));
  const Tokens tokens = {static_cast<Token>(vocabulary.size())};
  expect_error<InvalidArgument>([&] { vocabulary.decode(tokens); }, {"decode: token"});
}

// GPT-2's own vocabulary, outside the repository.
class Gpt2Bpe : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder_ / "encoder.json")) {
      GTEST_SKIP() << "no GPT-2 vocabulary at " << folder_;
    }
    vocabulary_ = std::make_unique<Vocabulary>(folder_);
  }
  void check_vectors(const char* name, int expected) const {
    std::istringstream lines(bytes_of(folder_ / name));
    int n = 0;
    for (std::string line; std::getline(lines, line); ++n) {
      const auto vector = nlohmann::json::parse(line);
      const auto text = vector.at("text").get<std::string>();
      const Tokens tokens = encode(*vocabulary_, text);
      EXPECT_EQ(tokens, vector.at("ids").get<Tokens>()) << name << ":" << n + 1 << ": " << text;
      EXPECT_EQ(vocabulary_->decode(tokens), text);
    }
    EXPECT_EQ(n, expected);
  }

  path data_ = PRIDE_SHARED_DATA;
  path folder_ = data_ / "gpt2_bpe";
  std::unique_ptr<Vocabulary> vocabulary_;
};

TEST_F(Gpt2Bpe, EqualsThePublishedVectors) { check_vectors("vectors_published.jsonl", 51); }
TEST_F(Gpt2Bpe, EqualsTheComputedVectors) { check_vectors("vectors_computed.jsonl", 24); }

// Counts as published or computed elsewhere; hashes of tokens whose sha256 was compared by hand.
TEST_F(Gpt2Bpe, EqualsTheKnownTokensOfWholeFiles) {
  struct Known {
    const char* name;
    std::size_t begin, end, n;
    std::uint64_t hash;
  };
  const Known all[] = {
      {"tinyshakespeare.txt", 0, 1'115'394, 338'025, 1741953172263653626u},
      {"tinyshakespeare.txt", 0, 1'003'854, 301'966, 7449091922024525580u},
      {"tinyshakespeare.txt", 1'003'854, 1'115'394, 36'059, 6536712475936616205u},
      {"wikitext2_valid.txt", 0, 1'121'681, 258'659, 3873641554348681888u},
      {"wikitext2_test.txt", 0, 1'256'449, 295'877, 10647087965426355233u},
      {"openwebtext_100docs.txt", 0, 505'978, 113'570, 2856299200778164915u},
  };
  BpeEncoder encoder(*vocabulary_);
  for (const Known& known : all) {
    const std::string text = bytes_of(data_ / "text" / known.name);
    ASSERT_GE(text.size(), known.end) << known.name;
    Tokens tokens;
    encoder.encode(std::string_view(text).substr(known.begin, known.end - known.begin), tokens);
    EXPECT_EQ(tokens.size(), known.n) << known.name;
    EXPECT_EQ(XXH3_64bits(tokens.data(), tokens.size() * sizeof(Token)), known.hash) << known.name;
    EXPECT_EQ(vocabulary_->decode(tokens), text.substr(known.begin, known.end - known.begin));
  }
}

}  // namespace
}  // namespace pride::app

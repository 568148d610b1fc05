// `pride tokenize`: text to shards of tokens, and checks of existing shards.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "commands.h"
#include "pride/error.h"
#include "program/clock.h"
#include "program/flag_values.h"
#include "program/program.h"
#include "train/data/tokenize.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr std::uint64_t kLlmcShard = 100'000'000;  // tokens, as in llm.c's scripts
constexpr std::chrono::seconds kTell{5};

struct TokenizeArguments {
  TokenizeOptions options;  // except the members that options_of() sets
  std::vector<std::string> inputs;
  std::string vocab, out, layout = "plain", ends = "auto";
  std::optional<std::uint64_t> shard_tokens;
  bool overwrite = false, check = false, json = false, quiet = false;
};

TokenizeOptions options_of(const TokenizeArguments& args) {
  TokenizeOptions options = args.options;
  options.inputs.assign(args.inputs.begin(), args.inputs.end());
  options.out = args.out;
  const bool llmc = args.layout == "llmc";
  options.layout = llmc ? ShardLayout::kLlmc : ShardLayout::kPlain;
  options.shard_tokens = args.shard_tokens.value_or(llmc ? kLlmcShard : 0);
  if (args.ends == "none" || (args.ends == "auto" && is_single_text(options.inputs))) {
    options.end_of_text = EndOfText::kNone;
  } else {
    const bool before = args.ends == "before" || (args.ends == "auto" && llmc);
    options.end_of_text = before ? EndOfText::kBefore : EndOfText::kAfter;
  }
  return options;
}

// Returns the shards of an earlier call in --out, and refuses them without --overwrite. Always
// refuses other shards, because they would mix with this call's.
std::vector<fs::path> find_earlier(const TokenizeArguments& args) {
  std::error_code none;
  std::vector<fs::path> old = earlier_shards(args.out);
  PRIDE_CHECK(old.empty() || args.overwrite, "--out ", args.out, ": ", old.front().string(),
              " exists; --overwrite replaces what `pride tokenize` wrote there");
  if (!fs::exists(args.out, none)) return old;
  for (const fs::path& file : list_bin(args.out)) {
    const bool own = std::ranges::find(old, file) != old.end();
    PRIDE_CHECK(own || !is_shard_name(file), "--out ", args.out, ": ", file.string(),
                " would be read as one of its shards; choose another folder");
  }
  return old;
}

// Removes the earlier call's shards that this call has not replaced.
void remove_others(const std::vector<fs::path>& old, const Tokenized& done) {
  for (const fs::path& file : old) {
    const auto made_now = [&](const TokenizedPart& part) {
      return std::ranges::find(part.files, file) != part.files.end();
    };
    if (made_now(done.train) || made_now(done.valid)) continue;
    std::error_code error;
    fs::remove(file, error);
    if (error) throw DataError(concat("cannot remove ", file.string(), ": ", error.message()));
  }
}

Json part_json(const TokenizedPart& part) {
  Json files = Json::array();
  for (const fs::path& file : part.files) files.push_back(file.string());
  return {{"documents", part.documents},
          {"bytes", part.bytes},
          {"tokens", part.tokens},
          {"files", files}};
}

void print_part(const char* name, const TokenizedPart& part) {
  std::cout << name << ": " << part.documents << " documents, " << part.bytes << " bytes, "
            << part.tokens << " tokens";
  for (const fs::path& file : part.files) std::cout << ' ' << file.string();
  std::cout << '\n';
}

void make_shards(const TokenizeArguments& args) {
  PRIDE_CHECK(!args.out.empty() && !args.vocab.empty(),
              "pride tokenize needs --out FOLDER and --vocab FOLDER");
  const Vocabulary vocabulary(args.vocab);
  const TokenizeOptions options = options_of(args);
  const std::vector<fs::path> old = find_earlier(args);
  const Clock::time_point start = Clock::now();
  Clock::time_point told = start;
  const auto progress = [&](std::uint64_t bytes) {
    if (args.quiet || Clock::now() - told < kTell) return;
    told = Clock::now();
    const double megabytes = static_cast<double>(bytes) * 1e-6;
    std::cerr << static_cast<std::uint64_t>(megabytes) << " MB, "
              << static_cast<std::uint64_t>(megabytes / seconds_since(start)) << " MB/s\n";
  };
  const Tokenized done = tokenize(options, vocabulary, progress);
  remove_others(old, done);
  const double seconds = seconds_since(start);
  if (args.json) {
    const Json report = {{"vocabulary", vocabulary.size()},
                         {"layout", name_of(options.layout)},
                         {"train", part_json(done.train)},
                         {"val", part_json(done.valid)},
                         {"seconds", seconds}};
    std::cout << report.dump(2) << '\n';
    return;
  }
  print_part("train", done.train);
  print_part("val", done.valid);
  const auto bytes = static_cast<double>(done.train.bytes + done.valid.bytes);
  std::cout << bytes / static_cast<double>(done.train.tokens + done.valid.tokens)
            << " bytes per token, " << bytes * 1e-6 / seconds << " MB/s\n";
}

std::vector<fs::path> shard_files(const std::vector<std::string>& inputs) {
  std::vector<fs::path> files;
  for (const fs::path input : inputs) {
    std::error_code none;
    if (!fs::is_directory(input, none)) {
      files.push_back(input);
    } else {
      std::ranges::move(list_bin(input), std::back_inserter(files));
    }
  }
  return files;
}

void check_shards(const TokenizeArguments& args) {
  const std::vector<fs::path> files = shard_files(args.inputs);
  PRIDE_CHECK(!files.empty(), "--check: no *.bin in ", args.inputs.front());
  const std::size_t size = args.vocab.empty() ? kMostTokens : Vocabulary(args.vocab).size();
  Json all = Json::array();
  for (const fs::path& file : files) {
    const Shard shard(file);
    shard.check(0, shard.tokens().size(), size);
    all.push_back({{"file", file.string()},
                   {"layout", name_of(shard.layout())},
                   {"tokens", shard.tokens().size()},
                   {"largest", *std::ranges::max_element(shard.tokens())}});
  }
  if (args.json) {
    std::cout << all.dump(2) << '\n';
    return;
  }
  for (const Json& facts : all) {
    std::cout << facts["file"].get<std::string>() << ": " << facts["layout"].get<std::string>()
              << ", " << facts["tokens"] << " tokens, the largest " << facts["largest"] << '\n';
  }
}

void run_tokenize(TokenizeArguments& args) { args.check ? check_shards(args) : make_shards(args); }

}  // namespace

void add_tokenize(CLI::App& command) {
  TokenizeArguments& args = arguments_of(command, run_tokenize);
  command
      .add_option(
          "input", args.inputs,
          "Text files and folders of them: one document each; *.jsonl: one document per line")
      ->required();
  command.add_option("--vocab", args.vocab,
                     "Folder with GPT-2's encoder.json and vocab.bpe (or vocab.json, merges.txt)");
  command.add_option("--out", args.out, "Folder for the shards");
  add_value(command, "--layout", args.layout,
            "plain: only uint16, as for nanoGPT; llmc: with llm.c's header")
      ->check(CLI::IsMember({"plain", "llmc"}));
  add_value(command, "--end-of-text", args.ends,
            "Place of <|endoftext|>: none, before or after each document. auto: none for a single "
            "text, otherwise after (plain) or before (llmc)")
      ->check(CLI::IsMember({"auto", "none", "before", "after"}));
  add_value(command, "--val-fraction", args.options.valid_share,
            "Share of the documents for validation, chosen by the hash of their names; of a single "
            "text, its last bytes");
  add_value(command, "--shard-tokens", args.shard_tokens,
            "Maximum tokens of a file; 0: one file for train and one for val. Default: 0 for "
            "plain, 100 million for llmc");
  add_value(command, "--field", args.options.field, "Key of the text in a line of *.jsonl");
  command.add_flag("--named-ends", args.options.named_ends,
                   "Treat <|endoftext|> in a text as the token, not as plain text");
  command.add_flag(
      "--overwrite", args.overwrite,
      "Replace the shards of an earlier call in --out, once the new ones are complete");
  command.add_flag("--check", args.check,
                   "Instead read shards (files, or folders of *.bin) to the end and describe them; "
                   "with --vocab, tokens outside of it are an error");
  command.add_flag("--quiet", args.quiet, "No progress on standard error");
  command.add_flag("--json", args.json, "Print the summary as JSON");
}

}  // namespace pride::app

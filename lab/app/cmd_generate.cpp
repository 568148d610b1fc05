// `pride generate`: text from a trained language model.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.h"
#include "pride/error.h"
#include "pride/train/trainer.h"
#include "program/clock.h"
#include "program/flag_values.h"
#include "program/program.h"
#include "program/utf8.h"
#include "train/data/text.h"
#include "train/models/generator.h"
#include "train/models/gpt2_file.h"
#include "train/process.h"
#include "train/streams.h"
#include "train/text/bpe.h"
#include "train/torch_errors.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLongestPrompt = std::size_t{1} << 26;  // bytes; a device file has no end

struct GenerateArguments {
  std::string model, vocab, prompt, prompt_file;
  std::optional<std::int64_t> heads;
  SampleOptions sampling;
  std::size_t tokens = 200, samples = 1;
  std::uint64_t seed = 0;
  bool json = false;
};

// Tokens of a vocabulary, or bytes.
class Text {
 public:
  explicit Text(const std::string& folder) {
    if (!folder.empty()) vocabulary_.emplace(folder);
  }

  std::size_t size() const noexcept { return vocabulary_ ? vocabulary_->size() : 256; }
  std::optional<Token> end() const {
    return vocabulary_ ? vocabulary_->end_of_text() : std::nullopt;
  }

  // A model needs a prompt. The default ends a previous text, or a previous line.
  std::vector<Token> encode(const std::string& text) const {
    if (text.empty() && end()) return {*end()};
    const std::string prompt = text.empty() ? "\n" : text;
    std::vector<Token> tokens;
    if (vocabulary_) {
      BpeEncoder(*vocabulary_).encode(prompt, tokens);
    } else {
      for (const char c : prompt) tokens.push_back(static_cast<std::uint8_t>(c));
    }
    return tokens;
  }

  std::string decode(Token token) const {
    if (end() == token) return "";
    if (vocabulary_) return std::string(vocabulary_->bytes(token));
    return {static_cast<char>(token)};
  }

 private:
  std::optional<Vocabulary> vocabulary_;
};

// Standard output is closed or full; main reports which.
struct OutputEnded {};

// Writes text as it is generated, but only complete characters. Throws OutputEnded.
class Printer {
 public:
  void write(const std::string& text) {
    pending_ += text;
    const std::size_t n = pending_.size() - utf8_unfinished(pending_);
    std::cout << pending_.substr(0, n) << std::flush;
    pending_.erase(0, n);
    if (!std::cout) throw OutputEnded();
  }
  ~Printer() { std::cout << pending_ << std::flush; }
  Printer() = default;
  Printer(const Printer&) = delete;
  Printer& operator=(const Printer&) = delete;

 private:
  std::string pending_;
};

std::vector<Token> generate(const Generator& generator, const Text& text,
                            const GenerateArguments& args, const std::vector<Token>& prompt,
                            std::size_t index) {
  Printer printer;
  if (!args.json) printer.write(args.prompt);
  const PhiloxStream bits(args.seed, streams::kGenerate, index);
  return generator.run(prompt, args.tokens, args.sampling, bits, [&](Token token) {
    if (!args.json) printer.write(text.decode(token));
  });
}

Json sample_json(const std::vector<Token>& tokens, const Text& text) {
  std::string all;
  for (const Token token : tokens) all += text.decode(token);
  const bool ended = !tokens.empty() && tokens.back() == text.end();
  return {{"text", all}, {"tokens", tokens}, {"end", ended ? "end_of_text" : "length"}};
}

void print_json(const GenerateArguments& args, const std::vector<Token>& prompt,
                const Json& samples, double tokens_per_s) {
  const Json report = {{"model", args.model},
                       {"prompt", args.prompt},
                       {"prompt_tokens", prompt},
                       {"temperature", args.sampling.temperature},
                       {"top_k", args.sampling.top_k},
                       {"top_p", args.sampling.top_p},
                       {"seed", args.seed},
                       {"samples", samples},
                       {"tokens_per_s", tokens_per_s}};
  // text may end inside a character, or not be UTF-8; the tokens are exact
  std::cout << report.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

void write_all(GenerateArguments& args) {
  pin_threads();
  check(args.sampling);
  if (!args.prompt_file.empty()) args.prompt = read_file(args.prompt_file, kLongestPrompt);
  const std::filesystem::path file = find_gpt2(args.model);
  const Text text(args.vocab);
  Gpt model(gpt2_size(file, args.heads));
  PRIDE_CHECK(!args.vocab.empty() || model.size().vocabulary == 256, "this model has ",
              model.size().vocabulary, " tokens, which are not bytes: give --vocab FOLDER");
  load_gpt2(file, model);
  const Generator generator(model, text.size(), text.end());
  const std::vector<Token> prompt = text.encode(args.prompt);
  Json samples = Json::array();
  std::size_t n = 0;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < args.samples; ++i) {
    const std::vector<Token> tokens = generate(generator, text, args, prompt, i);
    n += tokens.size();
    if (args.json) {
      samples.push_back(sample_json(tokens, text));
    } else {
      std::cout << (i + 1 < args.samples ? "\n---------------\n" : "\n") << std::flush;
    }
  }
  const double seconds = seconds_since(start);
  if (args.json) print_json(args, prompt, samples, static_cast<double>(n) / seconds);
}

void run_generate(GenerateArguments& args) {
  try {
    with_short_errors([&] { write_all(args); });
  } catch (const OutputEnded&) {
  }
}

}  // namespace

void add_generate(CLI::App& command) {
  GenerateArguments& args = arguments_of(command, run_generate);
  command
      .add_option("--model", args.model,
                  "Folder with model.safetensors and config.json (the --out of `pride train`, a "
                  "checkpoint of it, or Hugging Face's GPT-2), or the file itself")
      ->required();
  command.add_option("--vocab", args.vocab,
                     "Folder with encoder.json and vocab.bpe; not for byte models");
  CLI::Option* prompt =
      command.add_option("--prompt", args.prompt,
                         "Text to continue. Default: <|endoftext|>, for byte models a line end");
  command
      .add_option("--prompt-file", args.prompt_file,
                  "The same, from a file or a pipe of at most 64 MiB")
      ->excludes(prompt);
  add_value(command, "--tokens", args.tokens, "Maximum tokens to add; <|endoftext|> ends earlier",
            {1});
  add_value(command, "--temperature", args.sampling.temperature,
            "Divides the logits: lower is less random; 0 always picks the likeliest token");
  add_value(command, "--top-k", args.sampling.top_k,
            "Draw from the K likeliest tokens only; 0: from all");
  add_value(command, "--top-p", args.sampling.top_p,
            "Draw from the fewest likeliest tokens with this total probability");
  add_value(command, "--samples", args.samples, "Texts to generate, each from the prompt", {1});
  add_value(command, "--seed", args.seed, "Seed of the draws; the same seed gives the same text");
  add_value(command, "--heads", args.heads, "Attention heads, if config.json is missing",
            {1, kMostOfASize});
  command.add_flag("--json", args.json,
                   "Print JSON at the end instead of text while it is generated");
}

}  // namespace pride::app

// `pride-lab facts`: what `pride info` shows of the lab.
// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "pride/error.h"
#include "program/hex.h"
#include "train/data/text.h"
#if PRIDE_HAVE_TORCH
#include "train/process.h"
#endif

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

// Null if there is no default text; for an unreadable one, the reason.
Json describe_default_text() {
  const auto folder = find_default_text();
  if (!folder) return nullptr;
  Json text = {{"path", folder->string()}};
  try {
    const TextCorpus corpus = load_default_text();
    text["files"] = corpus.n_files;
    text["train_bytes"] = corpus.train.size();
    text["valid_bytes"] = corpus.valid.size();
    text["hash"] = hex16(corpus.hash);
  } catch (const DataError& e) {
    text["error"] = e.what();
  }
  return text;
}

void print_facts() {
  Json libtorch, c10d;
#if PRIDE_HAVE_TORCH
  libtorch = torch_version();
#endif
#if PRIDE_HAVE_C10D
  c10d = "gloo";
#endif
  std::cout << Json{{"libtorch", libtorch},
                    {"c10d", c10d},
                    {"default_text", describe_default_text()}}
            << std::endl;
}

}  // namespace

void add_facts(CLI::App& command) {
  command.group("");  // hidden
  command.callback(print_facts);
}

}  // namespace pride::app

// `pride` replaces itself by the program that has the command, so that no command loads a library
// it does not need.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "pride/error.h"
#include "program.h"
#include "serve/options.h"

namespace pride::app {
namespace {

using Words = std::vector<std::string>;

// Replaces this process by a program beside it or in libexec/pride, with the same arguments.
[[noreturn]] void become(const char* program) {
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path beside = here / program;
  const std::filesystem::path installed = here.parent_path() / PRIDE_LIBEXEC / "pride" / program;
  for (const auto& path : {beside, installed}) execv(path.c_str(), arguments());
  throw Error(concat("`pride ", arguments()[1], "` needs the program ", program, ", at ",
                     beside.string(), " or ", installed.string()));
}

bool is_rank_of_a_job() {
  constexpr std::array kNames = {"RANK",     "OMPI_COMM_WORLD_SIZE", "PMIX_RANK",     "PMI_RANK",
                                 "PMI_SIZE", "MPI_LOCALNRANKS",      "PMI_LOCAL_RANK"};
  return std::ranges::any_of(kNames, [](const char* name) { return std::getenv(name) != nullptr; });
}

// True for words of a plan on a given network and model. Methods on matrices run in pride-torch,
// which pins BLAS to one thread for the measurement.
bool is_word_of_a_plan_on_paper(const std::string& word) {
  constexpr std::array kFlags = {"--params", "--backward", "--bandwidth", "--latency", "--message",
                                 "--world",  "--methods",  "--cores",     "--json",    "--svg"};
  if (word.find("muon") != word.npos) return false;
  return !word.starts_with('-') || std::ranges::count(kFlags, word.substr(0, word.find('='))) > 0;
}

// True if this program runs the command. pride-torch runs the others, and all ranks of a job.
bool is_mine(const Words& commands, const Words& words) {
  const auto has = [&](const std::string& flag) {
    return std::ranges::any_of(words, [&](const std::string& word) {
      return word == flag || word.starts_with(flag + "=");
    });
  };
  if (words.empty() || words[0].starts_with('-')) return !has("--help-all");
  if (std::ranges::count(commands, words[0]) == 0) return true;  // to report the unknown command
  if (words[0] == "plan") {
    return has("--params") && has("--backward") && has("--bandwidth") && !is_rank_of_a_job() &&
           std::ranges::all_of(words, is_word_of_a_plan_on_paper);
  }
  const bool coordinates = words[0] == "serve" || words[0] == "journal" || words[0] == "certs";
  if (coordinates) return PRIDE_HAVE_COORD != 0;
  return words[0] == "methods" || words[0] == "report" || words[0] == "tokenize";
}

}  // namespace

void to_torch(const Words& commands, const Words& words) {
  if (!is_mine(commands, words)) become("pride-torch");
}

#if PRIDE_HAVE_COORD
// The flags are checked here, too; pride-coord runs the command.
void serve(const ServeOptions&) { become("pride-coord"); }
void verify_journal(const JournalOptions&) { become("pride-coord"); }
void certs_init(const CertsOptions&) { become("pride-coord"); }
void certs_server(const CertsOptions&) { become("pride-coord"); }
void certs_worker(const CertsOptions&) { become("pride-coord"); }
void certs_revoke(const CertsOptions&) { become("pride-coord"); }
void certs_list(const CertsOptions&) { become("pride-coord"); }
#endif

}  // namespace pride::app

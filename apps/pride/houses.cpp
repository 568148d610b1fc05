// SPDX-License-Identifier: Apache-2.0
#include "houses.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "pride/error.h"
#include "program/table.h"

namespace pride::app {
namespace {

using Words = std::vector<std::string>;

struct Foreign {
  const House* house;
  const char *name, *about;
};

constexpr Foreign kForeign[] = {
    {&kLab, "train", "Train a model with N workers"},
    {&kLab, "compare", "Train by several methods and compare them on the same task"},
    {&kLab, "sweep", "Run an experiment file: methods x workers x seeds x anything else it varies"},
    {&kLab, "tokenize", "Turn text into shards of GPT-2 tokens"},
    {&kLab, "generate", "Generate text with a trained language model"},
    {&kLab, "evaluate", "Score a language model on multiple-choice questions"},
    {&kLab, "report", "Show runs as one self-contained HTML page: charts, tables and settings"},
    {&kCoordinator, "serve", "Coordinate workers that join and leave"},
    {&kCoordinator, "journal", "Check a coordinator's journal and print its rounds as JSON lines"},
    {&kCoordinator, "certs", "Make and revoke the certificates of coordinator and workers"},
};
constexpr Foreign kBenches[] = {
    {&kLab, "step", "Training steps of a model with each method, with and without overlap"},
    {&kLab, "loader", "Images, decoded and cropped as in training; no ranks"},
};

// A command that always fails, because its program is missing.
void add_missing(CLI::App& command, const House& house) {
  command.description(
      concat(command.get_description(), " (not installed: package ", house.program, ")"));
  command.allow_extras();
  command.callback([&command, &house] {
    std::string name = command.get_name();
    for (const CLI::App* app = command.get_parent(); app != nullptr; app = app->get_parent()) {
      name = app->get_name() + " " + name;
    }
    throw Error(concat("`", name, "` needs the program ", house.program,
                       ", which is not there: ", "install the package ", house.program,
                       ", or build with -D", house.option, "=ON"));
  });
}

// `pride plan` of given numbers is this program's; of a model it is the lab's.
bool is_plan_on_paper(const CLI::App& plan, const Words& words) {
  const Words known = flags_of(plan);
  bool has_params = false, has_backward = false;
  for (const std::string& word : words) {
    if (!word.starts_with('-')) continue;
    const std::string flag = word.substr(0, word.find('='));
    if (std::ranges::count(known, flag) == 0) return false;
    has_params = has_params || flag == "--params";
    has_backward = has_backward || flag == "--backward";
  }
  return has_params && has_backward;
}

// The house that has the command; null: this program.
const House* house_of(const CLI::App& app, const Words& words) {
  if (words.empty()) return nullptr;
  const auto is = [&](const Foreign& f) { return words[0] == f.name; };
  if (const auto* f = std::ranges::find_if(kForeign, is); f != std::end(kForeign)) return f->house;
  const bool under_torchrun = std::getenv("RANK") != nullptr;
  if (words[0] == "plan") {
    const bool mine = is_plan_on_paper(*app.get_subcommand("plan"), words) && !under_torchrun;
    return mine ? nullptr : &kLab;
  }
  if (words[0] != "bench" || words.size() < 2) return nullptr;
  const auto is_bench = [&](const Foreign& f) { return words[1] == f.name; };
  const bool of_lab = std::ranges::any_of(kBenches, is_bench);
  return of_lab || (words[1] == "network" && under_torchrun) ? &kLab : nullptr;
}

}  // namespace

std::optional<std::filesystem::path> find_house(const House& house) {
  namespace fs = std::filesystem;
  std::error_code error;  // no /proc: no houses
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return std::nullopt;
  for (const auto& folder : {here, here.parent_path() / PRIDE_LIBEXEC / "pride"}) {
    const fs::path program = folder / house.program;
    if (fs::is_regular_file(program, error) && access(program.c_str(), X_OK) == 0) return program;
  }
  return std::nullopt;
}

std::string output_of(const std::filesystem::path& program, const std::string& words) {
  const std::string command = shell_quoted(program.string()) + " " + words;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> part;
  for (std::size_t n = 0; pipe && (n = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    text.append(part.data(), n);
  }
  if (pipe == nullptr || pclose(pipe) != 0) throw Error(concat(command, " failed"));
  return text;
}

std::vector<Command> commands_of_houses() {
  std::vector<Command> all;
  for (const Foreign& f : kForeign) {
    all.push_back({f.name, f.about, {}, [&f](CLI::App& command) {
                     if (!find_house(*f.house)) add_missing(command, *f.house);
                   }});
  }
  return all;
}

void add_benches_of_lab(CLI::App& bench) {
  const bool is_there = find_house(kLab).has_value();
  for (const Foreign& f : kBenches) {
    CLI::App& command = *bench.add_subcommand(f.name, f.about);
    if (!is_there) add_missing(command, *f.house);
  }
}

void become_house(const CLI::App& app, const Words& words) {
  const House* const house = house_of(app, words);
  const auto program = house == nullptr ? std::nullopt : find_house(*house);
  if (!program) return;
  std::vector<char*> arguments;
  Words copy = words;
  copy.insert(copy.begin(), "pride");
  for (std::string& word : copy) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(program->c_str(), arguments.data());
  throw Error(concat("cannot run ", program->string(), ": ", std::strerror(errno)));
}

bool is_of_house(const std::string& path) {
  for (const Foreign& f : kForeign) {
    if (path == f.name) return find_house(*f.house).has_value();
  }
  const bool of_lab = path == "plan" || path == "bench step" || path == "bench loader";
  return of_lab && find_house(kLab);
}

std::string output_of_houses(const std::string& words) {
  std::string text;
  for (const House* house : kHouses) {
    if (const auto program = find_house(*house)) text += output_of(*program, words);
  }
  return text;
}

}  // namespace pride::app

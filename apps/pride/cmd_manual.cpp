// `pride manual` and `pride completion`: the manual page and the shell completion, generated from
// the program's flags.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "commands.h"
#include "pride/registry.h"
#if PRIDE_HAVE_TORCH
#include "pride/train/model.h"
#include "pride/train/task.h"
#endif
#include "pride/train/flags.h"
#include "train/build_info.h"

namespace pride::app {
namespace {

using Commands = std::vector<std::pair<std::string, const CLI::App*>>;  // by path, "bench kernels"

void collect(const CLI::App& app, const std::string& path, Commands& all) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_group().empty()) continue;  // hidden
    const std::string name = path.empty() ? command->get_name() : path + " " + command->get_name();
    all.emplace_back(name, command);
    collect(*command, name, all);
  }
}

// Escapes for roff: a backslash, and a dot or a quote at the start of a line.
std::string roff(const std::string& text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
    line_begins = c == '\n';
  }
  return out;
}

void print_options(std::ostream& out, const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    const bool word = option->get_positional() && option->get_lnames().empty();
    std::string name = word ? option->get_name(true) : option->get_name(false, true);
    if (const auto at = name.find("{false}"); at != name.npos) name.erase(at, 7);
    out << ".TP\n.B " << roff(name);
    if (!option->get_type_name().empty()) out << " \\fI" << roff(option->get_type_name()) << "\\fR";
    out << '\n' << roff(option->get_description());
    if (!option->get_default_str().empty()) {
      out << " Default: " << roff(option->get_default_str()) << '.';
    }
    out << '\n';
  }
}

void print_manual(std::ostream& out, const CLI::App& app) {
  Commands commands;
  collect(app, "", commands);
  out << ".TH PRIDE 1 \"\" \"pride " << kVersion << "\" \"User Commands\"\n"
      << ".SH NAME\npride \\- " << roff(app.get_description()) << '\n'
      << ".SH SYNOPSIS\n.B pride\n\\fICOMMAND\\fR [\\fIOPTION\\fR]...\n"
      << ".SH OPTIONS\n";
  print_options(out, app);
  out << ".SH EXIT STATUS\n0: done. 1: the command failed. 2: wrong usage. 130: interrupted.\n";
  for (const auto& [path, command] : commands) {
    std::string title = path;
    std::ranges::transform(title, title.begin(), [](unsigned char c) { return std::toupper(c); });
    out << ".SH PRIDE " << roff(title) << '\n' << roff(command->get_description()) << '\n';
    print_options(out, *command);
    if (!command->get_footer().empty())
      out << ".PP\n.nf\n" << roff(command->get_footer()) << "\n.fi\n";
  }
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Possible values of a flag of the table of settings; empty: any.
std::vector<std::string> values_of(const Flag& flag) {
  std::vector<std::string> names;
#if PRIDE_HAVE_TORCH
  if (flag.name == "task") {
    for (const TaskInfo& task : tasks()) names.push_back(task.name);
  } else if (flag.name == "model") {
    for (const ModelInfo& model : models()) names.push_back(model.name);
  }
#endif
  if (flag.name == "method") return method_names();
  return names.empty() ? flag.rules.choices : names;
}

void print_bash(std::ostream& out, const CLI::App& app) {
  Commands commands;
  collect(app, "", commands);
  std::vector<std::string> top;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_group().empty()) top.push_back(command->get_name());
  }
  out << "# bash completion of pride " << kVersion << ", by `pride completion`.\n"
      << "_pride() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words\n"
         "  local command=${COMP_WORDS[1]}\n"
         "  [ \"$before\" != = ] || before=${COMP_WORDS[COMP_CWORD-2]}\n"
         "  [ \"$current\" != = ] || current=\n"
         "  if [ \"$COMP_CWORD\" = 1 ]; then\n"
      << "    COMPREPLY=($(compgen -W \"" << joined(top)
      << " --help --version\" -- \"$current\"))\n"
      << "    return\n  fi\n  case $before in\n";
  for (const Flag& flag : Flag::table()) {
    const std::vector<std::string> values = values_of(flag);
    if (values.empty()) continue;
    out << "    --" << flag.name << ") words=\"" << joined(values) << "\" ;;\n";
  }
  out << "    *)\n      case $command:${COMP_WORDS[2]} in\n";
  // the longer path first
  std::ranges::stable_sort(commands, [](const auto& a, const auto& b) {
    return std::ranges::count(a.first, ' ') > std::ranges::count(b.first, ' ');
  });
  for (const auto& [path, command] : commands) {
    std::string pattern = path;
    const bool nested = path.find(' ') != path.npos;
    std::ranges::replace(pattern, ' ', ':');
    std::vector<std::string> words = flags_of(*command);
    for (const CLI::App* below : command->get_subcommands({})) words.push_back(below->get_name());
    out << "        " << pattern << (nested ? "" : ":*") << ") words=\"" << joined(words)
        << "\" ;;\n";
  }
  out << "      esac ;;\n  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "}\n"
         "complete -o default -F _pride pride\n";
}

}  // namespace

void add_manual(CLI::App& command) {
  command.callback([&command] { print_manual(std::cout, *command.get_parent()); });
}

void add_completion(CLI::App& command) {
  command.callback([&command] { print_bash(std::cout, *command.get_parent()); });
}

}  // namespace pride::app

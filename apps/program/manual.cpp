// The manual page and the shell completion, generated from the program's flags.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "program/build_info.h"
#include "program/program.h"

namespace pride::inline program {
namespace {

using Commands = std::vector<std::pair<std::string, const CLI::App*>>;  // by path, "bench kernels"

void collect(const CLI::App& app, const std::string& path, const Program& program, Commands& all) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_group().empty()) continue;  // hidden
    const std::string name = path.empty() ? command->get_name() : path + " " + command->get_name();
    const bool elsewhere = program.is_elsewhere != nullptr && program.is_elsewhere(name);
    if (!elsewhere) all.emplace_back(name, command);
    collect(*command, name, program, all);
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

// Sections of the page.
void print_commands(std::ostream& out, const CLI::App& app, const Program& program) {
  Commands commands;
  collect(app, "", program, commands);
  for (const auto& [path, command] : commands) {
    std::string title = path;
    std::ranges::transform(title, title.begin(), [](unsigned char c) { return std::toupper(c); });
    out << ".SH PRIDE " << roff(title) << '\n' << roff(command->get_description()) << '\n';
    print_options(out, *command);
    if (!command->get_footer().empty())
      out << ".PP\n.nf\n" << roff(command->get_footer()) << "\n.fi\n";
  }
}

void print_manual(std::ostream& out, const CLI::App& app) {
  out << ".TH PRIDE 1 \"\" \"pride " << kVersion << "\" \"User Commands\"\n"
      << ".SH NAME\npride \\- " << roff(app.get_description()) << '\n'
      << ".SH SYNOPSIS\n.B pride\n\\fICOMMAND\\fR [\\fIOPTION\\fR]...\n"
      << ".SH OPTIONS\n";
  print_options(out, app);
  out << ".SH EXIT STATUS\n0: done. 1: the command failed. 2: wrong usage. 130: interrupted.\n";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Functions that add to `words`: the values of the flag `before`, and the flags of `command`.
void print_words(std::ostream& out, const CLI::App& app, const Program& program) {
  const std::string name = app.get_subcommands({}).front()->get_name();  // of these functions
  out << "_pride_values_" << name << "() {\n  case $before in\n";
  if (program.values != nullptr) {
    for (const auto& [flag, values] : program.values()) {
      out << "    --" << flag << ") words+=\" " << joined(values) << "\" ;;\n";
    }
  }
  out << "    '') ;;\n  esac\n}\n_pride_flags_" << name << "() {\n"
      << "  case $command:${COMP_WORDS[2]} in\n";
  Commands commands;
  collect(app, "", program, commands);
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
    out << "    " << pattern << (nested ? "" : ":*") << ") words+=\" " << joined(words)
        << "\" ;;\n";
  }
  out << "  esac\n}\n";
}

void print_bash(std::ostream& out, const CLI::App& app) {
  std::vector<std::string> top;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_group().empty()) top.push_back(command->get_name());
  }
  out << "_pride() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words= "
         "part\n"
         "  local command=${COMP_WORDS[1]}\n"
         "  [ \"$before\" != = ] || before=${COMP_WORDS[COMP_CWORD-2]}\n"
         "  [ \"$current\" != = ] || current=\n"
         "  if [ \"$COMP_CWORD\" = 1 ]; then\n    words=\""
      << joined(top)
      << " --help --version\"\n"
         "  else\n"
         "    for part in $(compgen -A function _pride_values_); do $part; done\n"
         "    if [ -z \"$words\" ]; then\n"
         "      for part in $(compgen -A function _pride_flags_); do $part; done\n"
         "    fi\n"
         "  fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "}\n"
         "complete -o default -F _pride pride\n";
}

// Prints the whole text, or a part of another program's.
void add_printer(CLI::App& command, const Program& program, void (*whole)(const CLI::App&),
                 void (*part)(const CLI::App&, const Program&)) {
  const auto is_part = std::make_shared<bool>(false);
  command.add_flag("--part", *is_part, "Only the commands of this program")->group("");
  command.callback([=, &command, &program] {
    const CLI::App& app = *command.get_parent();
    if (!*is_part) whole(app);
    part(app, program);
    if (!*is_part && program.others != nullptr) {
      std::cout << program.others(command.get_name() + " --part");
    }
  });
}

}  // namespace

void add_manual(CLI::App& command, const Program& program) {
  add_printer(
      command, program, [](const CLI::App& app) { print_manual(std::cout, app); },
      [](const CLI::App& app, const Program& all) { print_commands(std::cout, app, all); });
}

void add_completion(CLI::App& command, const Program& program) {
  add_printer(
      command, program,
      [](const CLI::App& app) {
        std::cout << "# bash completion of pride " << kVersion << ", by `pride completion`.\n";
        print_bash(std::cout, app);
      },
      [](const CLI::App& app, const Program& all) { print_words(std::cout, app, all); });
}

}  // namespace pride::inline program

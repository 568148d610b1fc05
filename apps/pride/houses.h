// The other programs, of the lab and of the coordinator, which may not be installed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "program/program.h"

namespace pride::app {

struct House {
  const char* program;  // also the name of its Debian package
  const char* option;   // of CMake
};
inline constexpr House kLab = {"pride-lab", "PRIDE_BUILD_LAB"};
inline constexpr House kCoordinator = {"pride-coordinator", "PRIDE_BUILD_COORDINATOR"};
inline constexpr const House* kHouses[] = {&kLab, &kCoordinator};

// Its program, beside this one or in libexec/pride; none: it is not installed.
std::optional<std::filesystem::path> find_house(const House& house);

// Standard output of the house's program with these words. Throws Error if it fails.
std::string output_of(const std::filesystem::path& program, const std::string& words);

// The commands of the houses. If they are installed, become_house() runs them; otherwise they fail
// and name the package.
std::vector<Command> commands_of_houses();
void add_benches_of_lab(CLI::App& bench);

// Replaces this process by the program that has the command, if it is installed. A Program::before.
void become_house(const CLI::App& app, const std::vector<std::string>& words);

// A Program::is_elsewhere.
bool is_of_house(const std::string& path);

// A Program::others.
std::string output_of_houses(const std::string& words);

}  // namespace pride::app

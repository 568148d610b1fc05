// SPDX-License-Identifier: Apache-2.0
#include "report/png.h"

#include <sys/wait.h>

#include <csignal>
#include <cstdio>

#include "pride/error.h"
#include "program/table.h"

namespace pride::app {

void write_png(const std::string& svg, const std::string& file) {
  constexpr int kNotFound = 127;
  const std::string command =
      concat("command -v rsvg-convert >/dev/null || exit ", kNotFound,
             "; exec rsvg-convert --format=png --background-color=white --width=", kPngWidth,
             " --output=", shell_quoted(file));
  // a converter that fails early would end this process by SIGPIPE
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  std::FILE* const pipe = popen(command.c_str(), "w");
  if (pipe != nullptr) std::fwrite(svg.data(), 1, svg.size(), pipe);
  const int status = pipe != nullptr ? pclose(pipe) : -1;
  std::signal(SIGPIPE, before);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotFound) {
    throw Error("--png needs the program rsvg-convert (on Debian: apt-get install librsvg2-bin)");
  }
  if (status != 0) throw Error(concat("--png ", file, ": rsvg-convert failed"));
}

}  // namespace pride::app

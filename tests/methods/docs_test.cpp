// Every method has a page with the common parts and all options and their defaults, and a row in
// the table of methods.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "pride/registry.h"

namespace pride::docs_test {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path << " cannot be read";
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// True if the option's row begins with its default, plain or as code, and not with a longer one.
bool shows_default(const std::string& page, const MethodOption& option) {
  for (const std::string quote : {"", "`"}) {
    const std::string row = "| `" + option.name + "` | " + quote + option.default_value + quote;
    const std::size_t at = page.find(row);
    if (at == std::string::npos) continue;
    const char next = page[std::min(at + row.size(), page.size() - 1)];
    if (next == ' ' || next == ',' || next == ';') return true;
  }
  return false;
}

const std::filesystem::path kDocs = PRIDE_DOCS_DIR;

TEST(MethodPages, HaveTheirPartsAndEveryOption) {
  for (const std::string& name : method_names()) {
    const std::string page = read(kDocs / "methods" / (name + ".md"));
    EXPECT_TRUE(page.starts_with("# " + name + "\n")) << name;
    for (const char* part : {"**Source.**", "**Cost.**", "**State.**", "**Deviations.**"}) {
      EXPECT_TRUE(has(page, part)) << "docs/methods/" << name << ".md has no " << part;
    }
    for (const MethodOption& option : method_info(name, 4).options) {
      EXPECT_TRUE(has(page, "| `" + option.name + "` | "))
          << "docs/methods/" << name << ".md: no row for the option " << option.name;
      EXPECT_TRUE(shows_default(page, option)) << "docs/methods/" << name << ".md: the default of "
                                               << option.name << " is " << option.default_value;
    }
  }
}

TEST(MethodPages, TableOfMethodsHasARowAndALinkForEach) {
  const std::string table = read(kDocs / "methods.md");
  for (const std::string& name : method_names()) {
    EXPECT_TRUE(has(table, "\n| `" + name + "` | ")) << "docs/methods.md: no row for " << name;
    EXPECT_TRUE(has(table, "[" + name + "](methods/" + name + ".md)"))
        << "docs/methods.md: no link to " << name;
    for (const MethodOption& option : method_info(name, 4).options) {
      EXPECT_TRUE(has(table, "`" + option.name + "`"))
          << "docs/methods.md: the option " << option.name << " of " << name << " is missing";
    }
  }
}

}  // namespace
}  // namespace pride::docs_test

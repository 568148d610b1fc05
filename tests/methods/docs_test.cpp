// Every method has its page, with the parts that all pages have and all of its options, and its row
// in the table of methods.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "pride/registry.h"

namespace pride {
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
}  // namespace pride

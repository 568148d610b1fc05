// Every method has a row in the table of methods. The row links to a section with the common parts,
// all options and their defaults.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "pride/registry.h"

namespace pride::docs_test {
namespace {

const std::filesystem::path kDocs = PRIDE_DOCS_DIR;

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

// The page of `name` below docs/, from the link in its row of the table of methods.
std::string page_of(const std::string& table, const std::string& name) {
  const std::string row = "\n| [`" + name + "`](";
  const std::size_t at = table.find(row);
  if (at == std::string::npos) return "";
  const std::size_t from = at + row.size();
  return table.substr(from, table.find_first_of("#)", from) - from);
}

// The text below the heading `## title`, to the next one of its level. Empty without the heading.
std::string section(const std::string& page, const std::string& title) {
  const std::string heading = "\n## " + title + "\n";
  const std::size_t at = page.find(heading);
  if (at == std::string::npos) return "";
  return page.substr(at, page.find("\n## ", at + 1) - at);
}

// The section of `name`, or the whole page if it has no other method.
std::string section_of(const std::string& page, const std::string& name) {
  return page.starts_with("# " + name + "\n") ? page : section(page, name);
}

// True if the option's row begins with its default, plain or as code, and not with a longer one.
bool shows_default(const std::string& text, const MethodOption& option) {
  for (const std::string quote : {"", "`"}) {
    const std::string row = "| `" + option.name + "` | " + quote + option.default_value + quote;
    const std::size_t at = text.find(row);
    if (at == std::string::npos) continue;
    const char next = text[std::min(at + row.size(), text.size() - 1)];
    if (next == ' ' || next == ',' || next == ';') return true;
  }
  return false;
}

// The row of an option is in the method's own section, in the page's section of options that
// several methods share, or in `common`, the options of methods of all pages.
void expect_options(const std::string& name, const std::string& page, const std::string& own,
                    const std::string& common) {
  const std::string shared = section(page, "Options");
  for (const MethodOption& option : method_info(name, 4).options) {
    const std::string row = "| `" + option.name + "` | ";
    const std::string& text = has(own, row) ? own : has(shared, row) ? shared : common;
    EXPECT_TRUE(has(text, row)) << name << ": no row for the option " << option.name;
    EXPECT_TRUE(shows_default(text, option))
        << name << ": the default of " << option.name << " is " << option.default_value;
  }
}

TEST(MethodPages, HaveTheirPartsAndEveryOption) {
  const std::string table = read(kDocs / "methods.md");
  for (const std::string& name : method_names()) {
    const std::string file = page_of(table, name);
    ASSERT_FALSE(file.empty()) << "docs/methods.md: no row with a link for " << name;
    const std::string page = read(kDocs / file);
    const std::string own = section_of(page, name);
    ASSERT_FALSE(own.empty()) << "docs/" << file << " has no section " << name;
    for (const char* part : {"**Source.**", "**Cost.**", "**State.**", "**Deviations.**"}) {
      EXPECT_TRUE(has(own, part)) << "docs/" << file << ": " << name << " has no " << part;
    }
    expect_options(name, page, own, section(table, "Common options"));
  }
}

TEST(MethodPages, TableOfMethodsNamesEveryOption) {
  const std::string table = read(kDocs / "methods.md");
  for (const std::string& name : method_names()) {
    for (const MethodOption& option : method_info(name, 4).options) {
      EXPECT_TRUE(has(table, "`" + option.name + "`"))
          << "docs/methods.md: the option " << option.name << " of " << name << " is missing";
    }
  }
}

}  // namespace
}  // namespace pride::docs_test

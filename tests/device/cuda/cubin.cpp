// A cubin is an ELF file. Its section .nv.info is a list of attributes: a byte of form, a byte of
// attribute, and 16 bits, which for form 4 count the bytes of the value behind them.
// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cubin.h"

#include <elf.h>

#include <cstring>
#include <vector>

#include "pride/error.h"

namespace pride {
namespace {

constexpr std::uint8_t kSizedValue = 4;
constexpr std::uint8_t kFrameSize = 0x11, kMinStackSize = 0x12, kRegisterCount = 0x2F;

template <typename T>
T read_at(const std::string& bytes, std::size_t at) {
  if (at + sizeof(T) > bytes.size()) throw DataError("the cubin ends early");
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

class Elf {
 public:
  explicit Elf(const std::string& bytes) : bytes_(bytes) {
    const auto head = read_at<Elf64_Ehdr>(bytes, 0);
    if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) throw DataError("no cubin: no ELF file");
    for (std::size_t s = 0; s < head.e_shnum; ++s) {
      sections_.push_back(read_at<Elf64_Shdr>(bytes, head.e_shoff + s * sizeof(Elf64_Shdr)));
    }
    names_ = sections_.at(head.e_shstrndx);
  }

  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  std::string name(const Elf64_Shdr& section) const { return text(names_, section.sh_name); }
  std::string text(const Elf64_Shdr& strings, std::size_t at) const {
    return bytes_.c_str() + strings.sh_offset + at;
  }
  std::string symbol(std::uint32_t index) const {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_SYMTAB) continue;
      const auto symbol = read_at<Elf64_Sym>(bytes_, section.sh_offset + index * sizeof(Elf64_Sym));
      return text(sections_.at(section.sh_link), symbol.st_name);
    }
    throw DataError("the cubin has no symbols");
  }

 private:
  const std::string& bytes_;
  std::vector<Elf64_Shdr> sections_;
  Elf64_Shdr names_{};
};

void read_attributes(const std::string& cubin, const Elf& elf, const Elf64_Shdr& info,
                     std::map<std::string, KernelFacts>& facts) {
  for (std::size_t at = info.sh_offset; at + 4 <= info.sh_offset + info.sh_size;) {
    const auto form = read_at<std::uint8_t>(cubin, at);
    const auto attribute = read_at<std::uint8_t>(cubin, at + 1);
    const auto size = read_at<std::uint16_t>(cubin, at + 2);
    if (form == kSizedValue && size == 8) {
      KernelFacts& kernel = facts[elf.symbol(read_at<std::uint32_t>(cubin, at + 4))];
      const auto value = read_at<std::uint32_t>(cubin, at + 8);
      if (attribute == kRegisterCount) kernel.registers = value;
      if (attribute == kFrameSize) kernel.frame = value;
      if (attribute == kMinStackSize) kernel.stack = value;
    }
    at += 4 + (form == kSizedValue ? size : 0U);
  }
}

}  // namespace

std::map<std::string, KernelFacts> facts_of(const std::string& cubin) {
  const Elf elf(cubin);
  std::map<std::string, KernelFacts> facts;
  for (const Elf64_Shdr& section : elf.sections()) {
    const std::string name = elf.name(section);
    if (name == ".nv.info") read_attributes(cubin, elf, section, facts);
  }
  for (const Elf64_Shdr& section : elf.sections()) {
    const std::string name = elf.name(section);
    if (!name.starts_with(".text.")) continue;
    facts[name.substr(6)].code = static_cast<std::uint32_t>(section.sh_size);
  }
  return facts;
}

}  // namespace pride

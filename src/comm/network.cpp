// Interfaces by getifaddrs() and /sys/class/net.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/network.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <tuple>

#include "pride/error.h"

namespace pride {
namespace {

namespace fs = std::filesystem;

const fs::path kInterfaces = "/sys/class/net";

std::string first_line(const fs::path& file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  return line;
}

std::int64_t number_in(const std::string& text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string kind_of(const std::string& name, bool loopback) {
  std::error_code ignored;
  if (loopback) return "loopback";
  if (fs::exists(kInterfaces / name / "wireless", ignored)) return "wireless";
  return fs::exists(kInterfaces / name / "device", ignored) ? "wired" : "virtual";
}

template <typename Address>
std::span<const unsigned char> bytes_of(const Address& address) {
  return {reinterpret_cast<const unsigned char*>(&address), sizeof address};
}

std::string masked(std::span<const unsigned char> address, std::span<const unsigned char> mask) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < address.size(); ++i) {
    const int byte = address[i] & mask[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string network_of(const ifaddrs& entry) {
  if (entry.ifa_netmask == nullptr) return "";
  if (entry.ifa_addr->sa_family == AF_INET) {
    const auto& address = *reinterpret_cast<const sockaddr_in*>(entry.ifa_addr);
    const auto& mask = *reinterpret_cast<const sockaddr_in*>(entry.ifa_netmask);
    return masked(bytes_of(address.sin_addr), bytes_of(mask.sin_addr));
  }
  const auto& address = *reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
  const auto& mask = *reinterpret_cast<const sockaddr_in6*>(entry.ifa_netmask);
  if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) return "";  // the same on every machine
  return masked(bytes_of(address.sin6_addr), bytes_of(mask.sin6_addr));
}

std::optional<Interface> interface_of(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return {};
  const int family = entry.ifa_addr->sa_family;
  if (family != AF_INET && family != AF_INET6) return {};
  const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(entry.ifa_addr, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) !=
      0) {
    return {};
  }
  const std::string name = entry.ifa_name;
  return Interface{
      .name = name,
      .address = text.data(),
      .network = network_of(entry),
      .mbit = std::max<std::int64_t>(0, number_in(first_line(kInterfaces / name / "speed"))),
      .kind = kind_of(name, (entry.ifa_flags & IFF_LOOPBACK) != 0)};
}

std::string ranks_text(const std::vector<std::size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += concat(i == 0 ? " " : ", ", ranks[i]);
  return text;
}

std::string speed_text(const Interface& interface) {
  std::string text = interface.mbit > 0 ? concat(interface.mbit, " Mbit/s") : "speed unknown";
  return interface.kind == "wired" ? text : concat(interface.kind, ", ", text);
}

// "eth0 (10.0.0.1, 1000 Mbit/s)"
std::string text_of(const Interface& interface) {
  return concat(interface.name, " (", interface.address, ", ", speed_text(interface), ")");
}

const Interface* used_by(const RankNetwork& rank) {
  const std::string first = rank.used.substr(0, rank.used.find(','));
  for (const Interface& each : rank.interfaces) {
    if (!first.empty() && (each.name == first || each.address == first)) return &each;
  }
  return nullptr;
}

// Of the interfaces that this one competes with. Bridges of containers are not among them.
bool could_replace(const Interface& other, const Interface& used) {
  return other.name != used.name && other.kind != "loopback" &&
         (other.kind != "virtual" || used.kind == "virtual");
}

std::string serialized(const RankNetwork& own) {
  std::string text = concat(own.machine, '\n', own.used, '\n');
  for (const Interface& each : own.interfaces) {
    text += concat(each.name, '\t', each.address, '\t', each.network, '\t', each.mbit, '\t',
                   each.kind, '\n');
  }
  return text;
}

RankNetwork parsed(const std::string& text) {
  RankNetwork made;
  std::istringstream lines(text);
  std::getline(lines, made.machine);
  std::getline(lines, made.used);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    Interface& each = made.interfaces.emplace_back();
    std::string mbit;
    for (std::string* field : {&each.name, &each.address, &each.network, &mbit, &each.kind}) {
      std::getline(fields, *field, '\t');
    }
    each.mbit = number_in(mbit);
  }
  return made;
}

}  // namespace

RankNetwork own_network(const std::string& used) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  RankNetwork own{
      .machine = concat(name.data(), ' ', first_line("/proc/sys/kernel/random/boot_id")),
      .used = used,
      .interfaces = {}};
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return own;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (auto found = interface_of(*entry)) own.interfaces.push_back(std::move(*found));
  }
  return own;
}

NetworkReport network_report(std::span<const RankNetwork> ranks) {
  NetworkReport report;
  std::vector<const Interface*> used;
  for (const RankNetwork& rank : ranks) used.push_back(used_by(rank));
  const bool one_machine = std::ranges::all_of(
      ranks, [&](const RankNetwork& rank) { return rank.machine == ranks[0].machine; });
  if (one_machine || std::ranges::count(used, nullptr) == std::ssize(used)) return report;

  // ranks that use alike interfaces, by the first of them
  std::vector<std::vector<std::size_t>> alike;
  const auto key = [&](std::size_t r) {
    return used[r] == nullptr ? std::tuple(std::string(), std::int64_t{0}, std::string())
                              : std::tuple(used[r]->name, used[r]->mbit, used[r]->kind);
  };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto known = std::ranges::find_if(
        alike, [&](const std::vector<std::size_t>& group) { return key(group[0]) == key(r); });
    (known == alike.end() ? alike.emplace_back() : *known).push_back(r);
  }
  report.line = "network: ";
  for (const auto& group : alike) {
    const Interface* first = used[group[0]];
    report.line += concat(group == alike[0] ? "" : "; ", ranks_text(group), ": ",
                          first == nullptr ? "unknown" : text_of(*first));
  }

  bool differ = false;
  for (const auto& group : alike) {
    const Interface *a = used[alike[0][0]], *b = used[group[0]];
    if (a == nullptr || b == nullptr) continue;
    differ |= (a->mbit > 0 && b->mbit > 0 && a->mbit != b->mbit) ||
              (a->kind == "wireless") != (b->kind == "wireless");
  }
  if (differ) {
    report.warnings.emplace_back(
        "the ranks' network interfaces differ in speed or kind, and all ranks wait for the "
        "slowest");
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Interface* own = used[r];
    if (own == nullptr) continue;
    const auto warn = [&](const std::string& text) {
      report.warnings.push_back(concat("rank ", r, " uses ", text_of(*own), text));
    };
    if (own->kind == "loopback") {
      warn(", which other machines cannot reach");
      continue;
    }
    const Interface *faster = nullptr, *closer = nullptr;
    for (const Interface& other : ranks[r].interfaces) {
      if (!could_replace(other, *own)) continue;
      if (own->mbit > 0 && other.mbit > std::max(own->mbit, faster ? faster->mbit : 0)) {
        faster = &other;
      }
      for (std::size_t s = 0; s < ranks.size(); ++s) {
        if (used[s] != nullptr && ranks[s].machine != ranks[r].machine &&
            !used[s]->network.empty() && used[s]->network != own->network &&
            used[s]->network == other.network) {
          closer = &other;
        }
      }
    }
    if (faster != nullptr) warn(concat("; its ", text_of(*faster), " is up and faster"));
    if (closer != nullptr) {
      warn(concat("; its ", text_of(*closer), " is on the network of the other ranks"));
    }
  }
  return report;
}

NetworkReport network_report(Communicator& comm, const std::string& used) {
  if (comm.size() == 1) return {};
  const std::string mine = serialized(own_network(used));
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(comm.size()));
  const std::uint64_t size = mine.size();
  comm.all_gather(std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)));
  const std::size_t most = std::ranges::max(sizes);
  std::string padded = mine, all(most * sizes.size(), '\0');
  padded.resize(most);
  comm.all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<RankNetwork> ranks;
  for (std::size_t r = 0; r < sizes.size(); ++r)
    ranks.push_back(parsed(all.substr(r * most, sizes[r])));
  return network_report(ranks);
}

}  // namespace pride

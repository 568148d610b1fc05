// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "pride/error.h"

namespace pride::coord {

HostPort parse_host_port(const std::string& text, const std::string& flag) {
  const auto colon = text.rfind(':');
  const bool bracketed = text.starts_with('[') && colon > 0 && text[colon - 1] == ']';
  const std::string host = colon == text.npos ? ""
                           : bracketed        ? text.substr(1, colon - 2)
                                              : text.substr(0, colon);
  PRIDE_CHECK(!host.empty() && (bracketed || host.find(':') == host.npos), flag, ": \"", text,
              "\" is not HOST:PORT, such as 127.0.0.1:4770 or [::1]:4770");
  const char* const begin = text.data() + colon + 1;
  const char* const end = text.data() + text.size();
  int port = -1;
  const auto [last, error] = std::from_chars(begin, end, port);
  PRIDE_CHECK(error == std::errc() && last == end && port >= 0 && port <= 65535, flag,
              ": the port of \"", text, "\" is not a number from 0 to 65535");
  return {host, port};
}

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr four{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  in6_addr six{};
  return inet_pton(AF_INET6, host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six) != 0;
}

std::string peer_address(const std::string& grpc_peer) {
  std::string text = grpc_peer.substr(grpc_peer.find(':') + 1);
  for (const auto& [code, letter] : {std::pair("%5B", "["), {"%5D", "]"}}) {
    if (const auto at = text.find(code); at != text.npos) text.replace(at, 3, letter);
  }
  if (const auto at = text.find('%'); at != text.npos) text.erase(at, text.find(']') - at);
  return text;
}

void check_worker_name(const std::string& name) {
  constexpr std::size_t kLongest = 64;
  const auto may_be = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  };
  const bool begins = !name.empty() && std::isalnum(static_cast<unsigned char>(name[0])) != 0;
  PRIDE_CHECK(begins && name.size() <= kLongest && std::ranges::all_of(name, may_be),
              "the name of a worker has letters, digits, '.', '_' and '-', ", kLongest,
              " at most, and begins with a letter or digit, not \"", name, "\"");
}

}  // namespace pride::coord

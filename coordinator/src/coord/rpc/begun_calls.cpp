// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/begun_calls.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <charconv>
#include <string_view>

namespace pride::coord {
namespace {

std::string taken(char* json) {
  const std::string text = json == nullptr ? "" : json;
  gpr_free(json);
  return text;
}

// The number behind the first `name` from `at` on; moves `at` behind the name. 0: there is none.
std::int64_t next_number(std::string_view json, std::string_view name, std::size_t& at) {
  std::int64_t value = 0;
  at = json.find(name, at);
  if (at == json.npos) return 0;
  at += name.size();
  std::from_chars(json.data() + at, json.data() + json.size(), value);
  return value;
}

std::int64_t number(std::string_view json, std::string_view name, std::size_t at = 0) {
  return next_number(json, name, at);
}

// {"socketRef":[{"name":"chttp2 ipv4:192.0.2.1:4711","socketId":"12"}, ...], "end":true}
std::int64_t socket_of(std::int64_t server, const std::string& name) {
  constexpr std::string_view kId = "\"socketId\":\"";
  for (std::int64_t first = 0;;) {
    const std::string json = taken(grpc_channelz_get_server_sockets(server, first, 0));
    if (const auto at = json.find(name); at != json.npos) return number(json, kId, at);
    const auto last = json.rfind(kId);
    if (last == json.npos || json.find("\"end\":true") != json.npos) return 0;
    first = number(json, kId, last) + 1;
  }
}

std::int64_t socket_of(const std::string& address) {
  const auto bracket = address.find(']');
  const std::string host = bracket == address.npos ? " ipv4:" + address
                                                   : " ipv6:%5B" + address.substr(1, bracket - 1) +
                                                         "%5D" + address.substr(bracket + 1);
  const std::string json = taken(grpc_channelz_get_servers(0));
  for (std::size_t at = 0; at != json.npos;) {
    const std::int64_t server = next_number(json, "\"serverId\":\"", at);
    const std::int64_t found = server == 0 ? 0 : socket_of(server, host + '"');
    if (found != 0) return found;
  }
  return 0;
}

}  // namespace

std::int64_t BegunCalls::count(const std::string& address) {
  if (socket_ == 0) socket_ = socket_of(address);
  if (socket_ == 0) return 0;
  return number(taken(grpc_channelz_get_socket(socket_)), "\"streamsStarted\":\"");
}

}  // namespace pride::coord

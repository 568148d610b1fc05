// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <mutex>
#include <string_view>
#include <utility>

namespace pride::coord {
namespace {

std::mutex mutex;  // guards take_failed
std::function<void(const FailedConnection&)> take_failed;

// gRPC 1.51 writes, at its level "debug", for every connection that ends in a handshake:
//   Handshaking failed: UNKNOWN:Ssl handshake failed: SSL_ERROR_SSL: error:0A00010B:SSL
//   routines::wrong version number {tsi_code:10, ..., children:[INTERNAL:Socket closed
//   {target_address:"ipv4:192.0.2.1:56840", ...}]}
constexpr std::string_view kBegin = "Handshaking failed: ";

std::string between(const std::string& text, const std::string& begin, char end) {
  const auto at = text.find(begin);
  if (at == text.npos) return "";
  const auto from = at + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

FailedConnection parse(const std::string& line) {
  const std::string text = line.substr(kBegin.size());
  std::string why = text.substr(0, text.find(" {"));
  if (const std::string child = between(text, "children:[", '{'); !child.empty()) {
    why += ": " + child.substr(child.find(':') + 1);
  }
  for (const std::string_view prefix :
       {"UNKNOWN:", "Custom verification check failed with error: ", "UNAUTHENTICATED: "}) {
    if (why.starts_with(prefix)) why = why.substr(prefix.size());
  }
  if (why.ends_with(' ')) why.pop_back();
  if (why.find("wrong version number") != why.npos) why += " (it does not begin like TLS)";
  return {.address = between(text, "target_address:\"", '"'), .why = "handshake failed: " + why};
}

void take(gpr_log_func_args* line) {
  const std::string text = line->message;
  if (!text.starts_with(kBegin)) return;
  const std::lock_guard lock(mutex);
  if (take_failed) take_failed(parse(text));
}

}  // namespace

GrpcLog::GrpcLog(std::function<void(const FailedConnection&)> on_failed) {
  {
    const std::lock_guard lock(mutex);
    take_failed = std::move(on_failed);
  }
  gpr_set_log_function(take);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
}

GrpcLog::~GrpcLog() {
  const std::lock_guard lock(mutex);
  take_failed = nullptr;
}

}  // namespace pride::coord

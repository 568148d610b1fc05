// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <cstdio>
#include <mutex>
#include <utility>

namespace pride::coord {
namespace {

std::mutex mutex;  // of the next two
std::function<void(const std::string&)> refused;
std::string newest;

void take(gpr_log_func_args* line) {
  const std::string text = line->message;
  std::fprintf(stderr, "GRPC %d %s\n", (int)line->severity, text.c_str());
  const std::lock_guard lock(mutex);
  if (line->severity == GPR_LOG_SEVERITY_ERROR) newest = text;
  if (refused && text.find("andshak") != text.npos) refused(text);
}

}  // namespace

GrpcLog::GrpcLog(std::function<void(const std::string&)> on_refused) {
  {
    const std::lock_guard lock(mutex);
    refused = std::move(on_refused);
  }
  gpr_set_log_function(take);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
}

GrpcLog::~GrpcLog() {
  const std::lock_guard lock(mutex);
  refused = nullptr;
}

std::string GrpcLog::newest_error() const {
  const std::lock_guard lock(mutex);
  return newest;
}

}  // namespace pride::coord

// The status page of a coordinator over HTTP: three addresses, nothing else, nothing to change.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace pride::app {

struct Pages {
  std::function<std::string()> json, metrics;
  std::string page;
};

// By a thread of its own, as long as it lives.
class HttpServer {
 public:
  // Throws CommError where it cannot listen.
  HttpServer(const std::string& address, Pages pages);
  ~HttpServer();

  std::string address() const;  // http://127.0.0.1:8080/

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride::app

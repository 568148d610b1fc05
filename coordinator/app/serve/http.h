// The read-only status page of a coordinator over HTTP: three paths, nothing else.
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

// Served by its own thread, as long as the object lives.
class HttpServer {
 public:
  // Throws CommError if it cannot listen.
  HttpServer(const std::string& address, Pages pages);
  ~HttpServer();

  std::string address() const;  // http://127.0.0.1:8080/

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride::app

// SPDX-License-Identifier: Apache-2.0
#include "serve/http.h"

#include <httplib.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "coord/rpc/address.h"
#include "pride/error.h"

namespace pride::app {
namespace {

constexpr std::size_t kThreads = 64;  // connections that say nothing hold one up, for kPatience_s
constexpr int kPatience_s = 5;

void set_limits(httplib::Server& server) {
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_read_timeout(kPatience_s);
  server.set_write_timeout(kPatience_s);
  server.set_keep_alive_max_count(4);
  server.set_keep_alive_timeout(1);  // a thread waits for no more than this
  server.set_payload_max_length(1 << 10);
  server.set_default_headers(
      {{"Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
       {"X-Content-Type-Options", "nosniff"},
       {"Cache-Control", "no-store"}});
}

}  // namespace

struct HttpServer::Impl {
  httplib::Server server;
  Pages pages;
  std::string host;
  int port = 0;
  std::thread thread;
};

HttpServer::HttpServer(const std::string& address, Pages pages) : impl_(std::make_unique<Impl>()) {
  const coord::HostPort where = coord::parse_host_port(address, "--http");
  Impl& it = *impl_;
  it.pages = std::move(pages);
  it.host = where.host;
  set_limits(it.server);
  it.server.Get("/", [&it](const httplib::Request&, httplib::Response& answer) {
    answer.set_content(it.pages.page, "text/html; charset=utf-8");
  });
  it.server.Get("/status.json", [&it](const httplib::Request&, httplib::Response& answer) {
    answer.set_content(it.pages.json(), "application/json");
  });
  it.server.Get("/metrics", [&it](const httplib::Request&, httplib::Response& answer) {
    answer.set_content(it.pages.metrics(), "text/plain; version=0.0.4; charset=utf-8");
  });
  errno = 0;
  it.port = where.port == 0 ? it.server.bind_to_any_port(where.host)
                            : (it.server.bind_to_port(where.host, where.port) ? where.port : -1);
  if (it.port <= 0) {
    const std::string why = errno == 0 ? "" : ": " + std::generic_category().message(errno);
    throw CommError(
        concat("cannot listen on --http ", address, why,
               errno == EADDRINUSE ? concat("; give --http another port than ", where.port) : ""));
  }
  it.thread = std::thread([&it] { it.server.listen_after_bind(); });
  while (!it.server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

HttpServer::~HttpServer() {
  impl_->server.stop();
  impl_->thread.join();
}

std::string HttpServer::address() const {
  const bool six = impl_->host.find(':') != std::string::npos;
  return concat("http://", six ? "[" : "", impl_->host, six ? "]" : "", ":", impl_->port, "/");
}

}  // namespace pride::app

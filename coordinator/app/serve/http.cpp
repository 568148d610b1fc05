// SPDX-License-Identifier: Apache-2.0
#include "serve/http.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "coord/rpc/address.h"
#include "pride/error.h"

namespace pride::app {
namespace {

constexpr std::size_t kThreads = 64;  // each serves one connection at a time, for at most kLongest
constexpr int kMostWaiting = 64;      // connections that wait for a thread; others are closed
constexpr std::chrono::seconds kPatience{5};  // time without a byte
constexpr std::chrono::seconds kLongest{10};  // time of a connection, which is for one request

#ifdef __clang__
#pragma clang diagnostic ignored "-Winconsistent-missing-override"
#endif

// A connection with a fixed deadline, because the library's time-outs restart with every byte.
class Connection final : public httplib::Stream {
 public:
  explicit Connection(socket_t socket) : socket_(socket), until_(Clock::now() + kLongest) {}
  ~Connection() override {
    ::shutdown(socket_, SHUT_RDWR);
    ::close(socket_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_readable() const override { return wait(POLLIN); }
  // no `override`: each version of the library declares only some of them
  bool is_writable() const { return wait(POLLOUT); }
  bool wait_readable() const { return wait(POLLIN); }
  bool wait_writable() const { return wait(POLLOUT); }
  time_t duration() const { return 0; }
  ssize_t read(char* bytes, std::size_t size) override {
    if (at_ == filled_) {  // buffered, because the library reads one byte at a time
      const ssize_t got = wait(POLLIN) ? ::recv(socket_, buffer_.data(), buffer_.size(), 0) : -1;
      if (got <= 0) return got;
      at_ = 0;
      filled_ = static_cast<std::size_t>(got);
    }
    const std::size_t n = std::min(size, filled_ - at_);
    std::copy_n(buffer_.begin() + static_cast<std::ptrdiff_t>(at_), n, bytes);
    at_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* bytes, std::size_t size) override {
    return wait(POLLOUT) ? ::send(socket_, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) : -1;
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}  // no page needs it
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool wait(short event) const {
    using std::chrono::milliseconds;
    const auto left = std::chrono::duration_cast<milliseconds>(until_ - Clock::now());
    if (left.count() <= 0) return false;
    pollfd here{.fd = socket_, .events = event, .revents = 0};
    return ::poll(&here, 1, static_cast<int>(std::min<milliseconds>(left, kPatience).count())) > 0;
  }

  socket_t socket_;
  Clock::time_point until_;
  std::array<char, 4096> buffer_;
  std::size_t at_ = 0, filled_ = 0;
};

thread_local bool is_full = false;  // refuse the connection of the present task

// Limits connections, so that they do not use up the process's descriptors.
class Tasks final : public httplib::TaskQueue {
 public:
  // returns void in Debian 12's version of the library, and bool in Debian 13's
  decltype(std::declval<httplib::TaskQueue&>().enqueue({})) enqueue(
      std::function<void()> task) override {
    if (waiting_ < kMostWaiting) {
      ++waiting_;
      return pool_.enqueue([this, task = std::move(task)] {
        --waiting_;
        task();
      });
    }
    is_full = true;
    task();
    is_full = false;
    return decltype(pool_.enqueue({}))(true);
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  std::atomic<int> waiting_ = 0;
  httplib::ThreadPool pool_{kThreads};
};

// Gives process_request() its own stream, as the library's server for TLS does.
class Server final : public httplib::Server {
 private:
  bool process_and_close_socket(socket_t socket) override {
    Connection connection(socket);
    if (is_full) return false;
    return process(connection);
  }

  // Debian 12's version reads the addresses from the stream; Debian 13's gets them as arguments.
  template <typename AnyStream>
  bool process(AnyStream& stream) {
    bool closed = false;
    if constexpr (requires { process_request(stream, true, closed, nullptr); }) {
      return process_request(stream, true, closed, nullptr);
    } else {
      return process_request(stream, "", 0, "", 0, true, closed, nullptr);
    }
  }
};

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

// True for an address, localhost, or the name in --http; with any port.
bool is_own_name(const std::string& asked, const std::string& own) {
  std::string host = lower(asked);
  if (host.starts_with('[')) return host.find(']') != host.npos;
  host = host.substr(0, host.find(':'));
  in_addr four{};
  return host == lower(own) || host == "localhost" || inet_pton(AF_INET, host.c_str(), &four) == 1;
}

void set_limits(httplib::Server& server) {
  server.new_task_queue = [] { return new Tasks; };
  // replaces the library's SO_REUSEPORT, with which two coordinators would share a port
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
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
  Server server;
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
  // against DNS rebinding: pages under other names that resolve to this server read nothing
  it.server.set_pre_routing_handler([&it](const httplib::Request& ask, httplib::Response& answer) {
    const bool once = ask.get_header_value_count("Host") == 1;
    if (once && is_own_name(ask.get_header_value("Host"), it.host)) {
      return httplib::Server::HandlerResponse::Unhandled;
    }
    answer.status = 421;
    answer.set_content(
        "This Host is not the status page's: use an address, localhost or the name "
        "of --http, once.\n",
        "text/plain");
    return httplib::Server::HandlerResponse::Handled;
  });
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

// SPDX-License-Identifier: Apache-2.0
#include "serve/http.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <list>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "coord/rpc/address.h"
#include "pride/error.h"

namespace pride::app {
namespace {

using Clock = std::chrono::steady_clock;

// Who opens connections and says nothing takes the places of others that say nothing, for no
// longer than this.
constexpr std::chrono::seconds kPatience{5};  // for request and answer
constexpr std::size_t kMostConnections = 64;
constexpr std::size_t kMostRequest = 8 << 10;
constexpr int kBacklog = 64;
constexpr const char* kHeaders =
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src "
    "'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n";

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct Connection {
  Socket socket;
  Clock::time_point until;
  std::string request = {}, answer = {};  // an answer: the request was read
  std::size_t sent = 0;
};

std::string answer_text(const char* status, const char* type, const std::string& body,
                        bool body_too = true) {
  return concat("HTTP/1.1 ", status, "\r\nContent-Type: ", type,
                "; charset=utf-8\r\nContent-Length: ", body.size(), "\r\n", kHeaders, "\r\n",
                body_too ? body : "");
}

std::string refusal(const char* status) {
  return answer_text(status, "text/plain", std::string(status) + "\n");
}

std::string answer_to(const std::string& request, const Pages& pages) {
  const std::string line = request.substr(0, request.find("\r\n"));
  const auto space = line.find(' '), end = line.find(' ', space + 1);
  if (end == line.npos || !line.substr(end).starts_with(" HTTP/1.")) {
    return refusal("400 Bad Request");
  }
  const std::string method = line.substr(0, space);
  const bool head = method == "HEAD";
  if (method != "GET" && !head) return refusal("405 Method Not Allowed");
  const std::string target = line.substr(space + 1, end - space - 1);
  const std::string path = target.substr(0, target.find('?'));
  try {
    if (path == "/") return answer_text("200 OK", "text/html", pages.page, !head);
    if (path == "/status.json") {
      return answer_text("200 OK", "application/json", pages.json(), !head);
    }
    if (path == "/metrics") {
      return answer_text("200 OK", "text/plain; version=0.0.4", pages.metrics(), !head);
    }
  } catch (const std::exception&) {
    return refusal("500 Internal Server Error");
  }
  return refusal("404 Not Found");
}

// False: the connection is over.
bool read_some(Connection& it, const Pages& pages) {
  char bytes[4096];
  const ssize_t n = recv(it.socket.fd(), bytes, sizeof bytes, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n <= 0) return false;
  it.request.append(bytes, static_cast<std::size_t>(n));
  if (it.request.find("\r\n\r\n") != std::string::npos) {
    it.answer = answer_to(it.request, pages);
  } else if (it.request.size() > kMostRequest) {
    it.answer = refusal("431 Request Header Fields Too Large");
  }
  return true;
}

bool write_some(Connection& it) {
  const ssize_t n =
      send(it.socket.fd(), it.answer.data() + it.sent, it.answer.size() - it.sent, MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  it.sent += static_cast<std::size_t>(n);
  return it.sent < it.answer.size();
}

// Throws CommError.
Socket listen_on(const coord::HostPort& where, const std::string& address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  const std::string port = std::to_string(where.port);
  if (const int error = getaddrinfo(where.host.c_str(), port.c_str(), &hints, &found); error != 0) {
    throw CommError(concat("cannot listen on --http ", address, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket.fd(), found->ai_addr, found->ai_addrlen) == 0 &&
      listen(socket.fd(), kBacklog) == 0) {
    return socket;
  }
  const bool taken = errno == EADDRINUSE;
  throw CommError(concat("cannot listen on --http ", address, ": ",
                         std::generic_category().message(errno),
                         taken ? concat("; give --http another port than ", port) : ""));
}

int port_of(const Socket& socket) {
  sockaddr_in6 room{};  // also of IPv4: the port is at the same place
  socklen_t size = sizeof room;
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&room), &size);
  return ntohs(room.sin6_port);
}

}  // namespace

struct HttpServer::Impl {
  Impl(const coord::HostPort& where, const std::string& address, Pages given)
      : pages(std::move(given)),
        host(where.host),
        listener(listen_on(where, address)),
        port(port_of(listener)),
        thread([this] { run(); }) {}

  void run() {
    for (;;) {
      std::vector<pollfd> waits = {{over.fd(), POLLIN, 0}, {listener.fd(), POLLIN, 0}};
      Clock::time_point next = Clock::now() + kPatience;
      for (const Connection& it : connections) {
        const short wanted = it.answer.empty() ? POLLIN : POLLOUT;
        waits.push_back({it.socket.fd(), wanted, 0});
        next = std::min(next, it.until);
      }
      const auto ms = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
      poll(waits.data(), waits.size(), static_cast<int>(std::max<std::int64_t>(ms, 0)));
      if (waits[0].revents != 0) return;
      serve(waits);
      if (waits[1].revents != 0) take();
    }
  }

  // `waits`: the connections' begin at 2, in their order.
  void serve(const std::vector<pollfd>& waits) {
    const Clock::time_point now = Clock::now();
    std::size_t i = 2;
    std::erase_if(connections, [&](Connection& it) {
      if (waits[i++].revents != 0 && !(it.answer.empty() ? read_some(it, pages) : write_some(it))) {
        return true;
      }
      return now >= it.until;
    });
  }

  void take() {
    Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.fd() < 0) {
      // no descriptors left: others have to go first
      if (errno == EMFILE || errno == ENFILE) {
        if (connections.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        drop_one();
      }
      return;
    }
    if (connections.size() >= kMostConnections) drop_one();
    connections.push_back({std::move(socket), Clock::now() + kPatience});
  }

  // The oldest that has not asked for anything, else the oldest.
  void drop_one() {
    const auto silent =
        std::ranges::find_if(connections, [](const Connection& it) { return it.answer.empty(); });
    if (silent != connections.end()) {
      connections.erase(silent);
    } else if (!connections.empty()) {
      connections.pop_front();
    }
  }

  const Pages pages;
  const std::string host;
  const Socket listener;
  const int port;
  const Socket over{eventfd(0, EFD_CLOEXEC)};
  std::list<Connection> connections;  // of the thread, oldest first
  std::thread thread;
};

HttpServer::HttpServer(const std::string& address, Pages pages)
    : impl_(std::make_unique<Impl>(coord::parse_host_port(address, "--http"), address,
                                   std::move(pages))) {}

HttpServer::~HttpServer() {
  eventfd_write(impl_->over.fd(), 1);
  impl_->thread.join();
}

std::string HttpServer::address() const {
  const bool six = impl_->host.find(':') != std::string::npos;
  return concat("http://", six ? "[" : "", impl_->host, six ? "]" : "", ":", impl_->port, "/");
}

}  // namespace pride::app

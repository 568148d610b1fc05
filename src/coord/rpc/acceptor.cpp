// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "coord/rpc/address.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

using namespace std::chrono_literals;

constexpr int kAtOnce = 64;            // connections taken before others have a turn
constexpr int kUserTimeout_ms = 20000;  // as gRPC sets it where it listens itself

struct Caller {
  std::string peer, address;
};

// As gRPC writes it in a call's peer, and without the port; of IPv6 the /64.
Caller caller_of(const sockaddr_storage& from) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (from.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(from);
    inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size());
    return {concat(text.data(), ":", ntohs(four.sin_port)), text.data()};
  }
  auto six = reinterpret_cast<const sockaddr_in6&>(from);
  const int port = ntohs(six.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) != 0) {
    inet_ntop(AF_INET, &six.sin6_addr.s6_addr[12], text.data(), text.size());
    return {concat(text.data(), ":", port), text.data()};
  }
  inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
  const std::string scope = six.sin6_scope_id == 0 ? "" : concat("%", six.sin6_scope_id);
  const std::string peer = concat("[", text.data(), scope, "]:", port);
  std::fill_n(six.sin6_addr.s6_addr + 8, 8, 0);
  inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
  return {peer, text.data()};
}

void set(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof value);
}

void set_port(sockaddr& address, int port) {
  const auto wire = htons(static_cast<std::uint16_t>(port));
  if (address.sa_family == AF_INET) reinterpret_cast<sockaddr_in&>(address).sin_port = wire;
  if (address.sa_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(address).sin6_port = wire;
}

// -1, and errno: it cannot be listened on.
int listener_on(const addrinfo& where) {
  const int fd = ::socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (where.ai_family == AF_INET6) set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);  // connections have what the listener has
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeout_ms);
  if (::bind(fd, where.ai_addr, where.ai_addrlen) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

int port_of(int listener) {
  sockaddr_storage here{};
  socklen_t size = sizeof here;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&here), &size);
  return ntohs(here.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(here).sin_port
                                         : reinterpret_cast<const sockaddr_in6&>(here).sin6_port);
}

}  // namespace

Acceptor::Acceptor(const std::string& host_port, const ConnectionLimits& limits,
                   OnRefused on_refused)
    : limits_(limits), on_refused_(std::move(on_refused)) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const auto all = static_cast<int>(std::min<rlim_t>(files.rlim_cur, 1 << 30));
  first_of_reserve_ = all - std::min(limits_.reserve, all / 2);
  most_ = std::min(limits_.all, first_of_reserve_ / 2);  // two descriptors each
  listen_on(host_port);
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  wake_ = ::eventfd(0, EFD_CLOEXEC);
  for (const int fd : {wake_, listeners_.front(), listeners_.back()}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
}

Acceptor::~Acceptor() {
  stop();
  for (const auto& [fd, connection] : connections_) ::close(fd);
  for (const int fd : {epoll_, wake_}) ::close(fd);
}

void Acceptor::listen_on(const std::string& host_port) {
  const HostPort where = parse_host_port(host_port, "--listen");
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  std::string why;
  port_ = where.port;
  // all addresses of IPv4 are those of IPv6, too, where there is any
  std::vector<std::string> hosts = {where.host};
  if (where.host == "0.0.0.0") hosts.insert(hosts.begin(), "::");
  for (const std::string& host : hosts) {
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo(host.c_str(), "0", &hints, &found);
    if (error != 0) why = ::gai_strerror(error);
    for (const addrinfo* one = found; one != nullptr && listeners_.size() < 2; one = one->ai_next) {
      set_port(*one->ai_addr, port_);
      const int fd = listener_on(*one);
      if (fd >= 0) {
        listeners_.push_back(fd);
        port_ = port_of(fd);
      } else if (why = std::generic_category().message(errno); errno == EADDRINUSE) {
        why = concat("the port is taken; give --listen another port than ", port_);
        break;
      }
    }
    if (found != nullptr) ::freeaddrinfo(found);
    if (!listeners_.empty()) return;
  }
  throw CommError(concat("cannot listen on --listen ", host_port, ": ", why));
}

void Acceptor::start(std::unique_ptr<Grpc> grpc) {
  grpc_ = std::move(grpc);
  thread_ = std::thread([this] { run(); });
}

void Acceptor::stop() {
  const std::uint64_t one = 1;
  if (::write(wake_, &one, sizeof one) < 0) return;
  if (thread_.joinable()) thread_.join();
  for (const int fd : std::exchange(listeners_, {})) ::close(fd);
}

void Acceptor::run() {
  std::array<epoll_event, kAtOnce> events{};
  for (Clock::time_point swept = Clock::now();;) {
    const int n = ::epoll_wait(epoll_, events.data(), kAtOnce, 1000);
    for (int i = 0; i < n; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == wake_) return;
      if (std::ranges::find(listeners_, fd) != listeners_.end()) {
        take(fd);
      } else {
        const std::lock_guard lock(mutex_);
        forget(fd);
      }
    }
    if (Clock::now() - swept < 1s) continue;
    swept = Clock::now();
    const std::lock_guard lock(mutex_);
    sweep();
  }
}

void Acceptor::take(int listener) {
  for (int i = 0; i < kAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    const int fd = ::accept4(listener, reinterpret_cast<sockaddr*>(&from), &size,
                             SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == ECONNABORTED || errno == EINTR)) continue;
    if (fd < 0 && errno != EAGAIN) std::this_thread::sleep_for(10ms);  // others hold everything
    if (fd < 0) return;
    const Caller caller = caller_of(from);
    const int mine = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    {
      std::string why;
      const std::lock_guard lock(mutex_);
      if (mine < 0 || std::max(fd, mine) >= first_of_reserve_ || !may_come(caller.address, why)) {
        ::close(fd);
        if (mine >= 0) ::close(mine);
        on_refused_(caller.peer, why.empty() ? "too many connections: no descriptor is left" : why);
        continue;
      }
      connections_[mine] = {caller.peer, caller.address, Clock::now()};
      by_peer_[caller.peer] = mine;
      addresses_[caller.address].strangers.push_back(mine);
      ++strangers_;
      epoll_event event{.events = 0, .data = {.fd = mine}};  // its end alone
      ::epoll_ctl(epoll_, EPOLL_CTL_ADD, mine, &event);
    }
    Grpc::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = fd;
    grpc_->HandleNewConnection(&connection);
  }
}

bool Acceptor::may_come(const std::string& address, std::string& why) {
  const Clock::time_point now = Clock::now();
  const double burst = limits_.per_second;  // of a second, at once
  Address& it = addresses_.try_emplace(address, Address{{}, burst, now}).first->second;
  const double passed = std::chrono::duration<double>(now - it.filled).count();
  it.tokens = std::min(burst, it.tokens + passed * limits_.per_second);
  it.filled = now;
  if (it.tokens < 1) {
    why = concat("too many connections: ", limits_.per_second, " a second from this address");
  } else if (!make_room(address)) {
    why = concat("too many connections: ", most_, " in all");
  } else {
    it.tokens -= 1;
  }
  return why.empty();
}

// False: all are of callers.
bool Acceptor::make_room(const std::string& address) {
  const auto size = [](const auto& one) { return one.second.strangers.size(); };
  auto crowd = addresses_.find(address);
  std::string why = concat("from this address ", limits_.strangers_of_address);
  if (std::ssize(crowd->second.strangers) < limits_.strangers_of_address) {
    const int most = std::min(limits_.strangers, std::max(most_ / 2, 1));
    if (strangers_ < most && std::ssize(connections_) < most_) return true;
    crowd = std::ranges::max_element(addresses_, {}, size);
    why = concat("of all ", most);
  }
  const std::vector<int>& from = crowd->second.strangers;
  if (from.empty()) return false;
  cut(from[random_() % from.size()],
      concat("too many connections without an accepted call: ", why, " at most"));
  return true;
}

void Acceptor::accepted(const std::string& address, const std::string& caller) {
  const std::lock_guard lock(mutex_);
  const auto found = by_peer_.find(address);
  if (found == by_peer_.end()) return;
  const int fd = found->second;
  Connection& connection = connections_.at(fd);
  if (!std::exchange(connection.stranger, false)) return;
  std::erase(addresses_[connection.address].strangers, fd);
  --strangers_;
  if (caller.empty()) return;
  connection.caller = caller;
  std::vector<int>& of_caller = callers_[caller];
  of_caller.push_back(fd);
  if (std::ssize(of_caller) <= limits_.of_caller) return;
  cut(of_caller.front(), concat("too many connections of ", caller, ": ", limits_.of_caller,
                                " at most, the oldest ends"));
}

void Acceptor::cut(int fd, const std::string& why) {
  on_refused_(connections_.at(fd).peer, why);
  ::shutdown(fd, SHUT_RDWR);  // gRPC sees the end, and closes its own descriptor
  forget(fd);
}

void Acceptor::forget(int fd) {
  const auto found = connections_.find(fd);
  if (found == connections_.end()) return;
  const Connection& it = found->second;
  if (it.stranger) {
    std::erase(addresses_[it.address].strangers, fd);
    --strangers_;
  } else if (const auto of = callers_.find(it.caller); of != callers_.end()) {
    std::erase(of->second, fd);
    if (of->second.empty()) callers_.erase(of);
  }
  if (const auto by = by_peer_.find(it.peer); by != by_peer_.end() && by->second == fd) {
    by_peer_.erase(by);
  }
  connections_.erase(found);
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  ::close(fd);
}

void Acceptor::sweep() {
  const Clock::time_point now = Clock::now();
  std::vector<int> old;
  for (const auto& [fd, it] : connections_) {
    if (it.stranger && now - it.since >= limits_.without_call) old.push_back(fd);
  }
  for (const int fd : old) {
    cut(fd, concat("no accepted call within ", limits_.without_call.count(), " s"));
  }
  std::erase_if(addresses_, [&](const auto& one) {
    return one.second.strangers.empty() && now - one.second.filled > 1s;
  });
}

}  // namespace pride::coord

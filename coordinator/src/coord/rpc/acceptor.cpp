// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/acceptor.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <span>
#include <system_error>
#include <utility>

#include "coord/rpc/address.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

using namespace std::chrono_literals;

constexpr int kAtOnce = 64;              // connections accepted per turn
constexpr int kUserTimeout_ms = 20'000;  // as gRPC sets it for its own listeners
constexpr int kWait_ms = 50;
constexpr std::int64_t kUnlooked = 16 << 10;  // bytes after which calls are counted again
constexpr std::int64_t kIdleBytes = 256;      // for pings and refused calls, per kWait_ms
constexpr int kSecondsAfterAFlood = 2;        // without new connections from its address
constexpr std::int64_t kBesideACall = 4096;   // bytes of headers and acknowledgements

void set(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof value);
}

// -1, with errno: it is impossible to listen there.
int listener_on(const addrinfo& where) {
  const int fd = ::socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (where.ai_family == AF_INET6) set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);  // accepted sockets inherit the listener's options
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeout_ms);
  if (::bind(fd, where.ai_addr, where.ai_addrlen) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

// Host and port as numbers, without a scope. An IPv4 address mapped into IPv6 becomes IPv4.
HostPort text_of(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  ::getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
                NI_NUMERICHOST | NI_NUMERICSERV);
  std::string text = host.data();
  if (text.starts_with("::ffff:") && text.find('.') != text.npos) text = text.substr(7);
  return {text.substr(0, text.find('%')), std::atoi(port.data())};
}

// The key under which a new connection counts. For IPv6 the first 64 bits, because one owner has
// all of them.
std::string group_of(const sockaddr_storage& from, const std::string& host) {
  if (host.find(':') == host.npos) return host;
  sockaddr_in6 net = reinterpret_cast<const sockaddr_in6&>(from);
  std::fill_n(net.sin6_addr.s6_addr + 8, 8, std::uint8_t{0});
  return text_of(reinterpret_cast<const sockaddr*>(&net), sizeof net).host + "/64";
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
  for (const int fd : listeners_) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
}

Acceptor::~Acceptor() {
  stop();
  for (const auto& [fd, connection] : connections_) ::close(fd);
  ::close(epoll_);
}

void Acceptor::listen_on(const std::string& host_port) {
  const HostPort where = parse_host_port(host_port, "--listen");
  port_ = where.port;
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  const int error = ::getaddrinfo(where.host.c_str(), "0", &hints, &found);
  std::string why = error == 0 ? "" : ::gai_strerror(error);
  for (addrinfo* one = found; one != nullptr; one = one->ai_next) {
    // sin_port has the same offset for IPv6; all addresses of "localhost" get one port
    reinterpret_cast<sockaddr_in*>(one->ai_addr)->sin_port =
        htons(static_cast<std::uint16_t>(port_));
    if (const int fd = listener_on(*one); fd >= 0) {
      listeners_.push_back(fd);
      ::getsockname(fd, one->ai_addr, &one->ai_addrlen);
      port_ = text_of(one->ai_addr, one->ai_addrlen).port;
    } else {
      why = errno == EADDRINUSE
                ? concat("the port is in use; give --listen another port than ", port_)
                : std::generic_category().message(errno);
    }
  }
  if (found != nullptr) ::freeaddrinfo(found);
  if (listeners_.empty())
    throw CommError(concat("cannot listen on --listen ", host_port, ": ", why));
}

void Acceptor::start(std::unique_ptr<Grpc> grpc) {
  grpc_ = std::move(grpc);
  thread_ = std::thread([this] { run(); });
  watcher_ = std::thread([this] { watch(); });
}

void Acceptor::stop() {
  over_ = true;
  for (std::thread* const thread : {&thread_, &watcher_}) {
    if (thread->joinable()) thread->join();
  }
  for (const int fd : std::exchange(listeners_, {})) ::close(fd);
}

void Acceptor::run() {
  std::array<epoll_event, kAtOnce> events{};
  while (!over_) {
    const int n = ::epoll_wait(epoll_, events.data(), kAtOnce, kWait_ms);
    const auto is_listener = [this](const epoll_event& event) {
      return std::ranges::find(listeners_, event.data.fd) != listeners_.end();
    };
    // new connections last: they may reuse descriptors that this pass still checks
    const auto there = std::span(events).first(static_cast<std::size_t>(std::max(n, 0)));
    const auto waiting = std::ranges::partition(there, std::not_fn(is_listener));
    for (const epoll_event& event : std::span(there.begin(), waiting.begin())) {
      const std::lock_guard lock(mutex_);
      forget(event.data.fd);
    }
    for (const epoll_event& event : waiting) take(event.data.fd);
  }
}

void Acceptor::watch() {
  for (Clock::time_point swept = Clock::now(); !over_;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kWait_ms));
    const std::lock_guard lock(mutex_);
    cut_floods();
    if (Clock::now() - swept < 1s) continue;
    swept = Clock::now();
    sweep();
  }
}

void Acceptor::take(int listener) {
  for (int i = 0; i < kAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    auto* const address = reinterpret_cast<sockaddr*>(&from);
    const int fd = ::accept4(listener, address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == ECONNABORTED || errno == EINTR)) continue;
    if (fd < 0 && errno != EAGAIN) std::this_thread::sleep_for(10ms);  // no descriptors, no memory
    if (fd < 0) return;
    const HostPort who = text_of(address, size);
    const bool six = who.host.find(':') != who.host.npos;
    const std::string peer = concat(six ? "[" : "", who.host, six ? "]:" : ":", who.port);
    const std::string group = group_of(from, who.host);
    const int mine = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    {
      const std::lock_guard lock(mutex_);
      if (const std::string why = refusal_of(group, fd, mine); !why.empty()) {
        ::close(fd);
        if (mine >= 0) ::close(mine);
        on_refused_(peer, why);
        continue;
      }
      connections_[mine] = {peer, group, "", Clock::now(), false, limits_.bytes, limits_.calls};
      by_peer_[peer] = mine;
      join(mine, group);
      epoll_event event{.events = 0, .data = {.fd = mine}};  // reports only its end
      ::epoll_ctl(epoll_, EPOLL_CTL_ADD, mine, &event);
    }
    Grpc::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = fd;
    grpc_->HandleNewConnection(&connection);
  }
}

std::string Acceptor::refusal_of(const std::string& group, int fd, int mine) {
  if (came_[group]++ >= limits_.a_second) {
    --came_[group];
    return concat("too many connections: ", limits_.a_second, " a second from this address");
  }
  if (std::ssize(connections_) >= most_) {
    const auto size = [](const auto& one) { return one.second.size(); };
    cut_one_of(*std::ranges::max_element(groups_, {}, size), concat(most_, " in all"));
  }
  if (mine >= 0 && std::max(fd, mine) < first_of_reserve_) return "";
  return "too many connections: no file descriptor is left";
}

void Acceptor::join(int fd, const std::string& group) {
  connections_.at(fd).group = group;
  auto& of_group = *groups_.try_emplace(group).first;
  if (std::ssize(of_group.second) >= limits_.of_one) {
    cut_one_of(of_group, concat(limits_.of_one, " of ", group));
  }
  groups_[group].push_back(fd);  // cut_one_of() may have removed the group
}

void Acceptor::leave(int fd) {
  const auto group = groups_.find(connections_.at(fd).group);
  std::erase(group->second, fd);
  if (group->second.empty()) groups_.erase(group);
}

void Acceptor::accepted(const std::string& address, const std::string& caller, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = by_peer_.find(address);
  if (found == by_peer_.end()) return;
  Connection& it = connections_.at(found->second);
  it.may_send += kBesideACall + static_cast<std::int64_t>(bytes);
  ++it.may_call;
  if (std::exchange(it.has_called, true)) return;
  leave(found->second);
  join(found->second, caller.empty() ? address : "worker " + caller);
}

void Acceptor::cut_one_of(const Groups::value_type& group, const std::string& limit) {
  cut(group.second[random_() % group.second.size()],
      concat("too many connections: ", limit, " at most"));
}

void Acceptor::cut(int fd, const std::string& why) {
  on_refused_(connections_.at(fd).peer, why);
  ::shutdown(fd, SHUT_RDWR);  // gRPC sees the end, and closes its own descriptor
  // discard the received bytes: gRPC would read them first, for seconds in a flood
  while (::recv(fd, nullptr, std::size_t{1} << 30, MSG_TRUNC | MSG_DONTWAIT) > 0) {
  }
  forget(fd);
}

void Acceptor::forget(int fd) {
  const auto found = connections_.find(fd);
  if (found == connections_.end()) return;
  leave(fd);
  const std::string& peer = found->second.peer;
  if (by_peer_[peer] == fd) by_peer_.erase(peer);
  connections_.erase(found);
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  ::close(fd);
}

std::string Acceptor::flood_of(int fd, Connection& it) const {
  tcp_info info{};
  socklen_t size = sizeof info;
  ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size);
  const auto sent = static_cast<std::int64_t>(info.tcpi_bytes_received);
  if (sent > it.may_send) {
    return concat("a flood: ", limits_.bytes, " bytes beyond those of accepted calls");
  }
  it.may_send = std::min(it.may_send, sent + limits_.bytes) + kIdleBytes;
  if (sent - it.looked_at < kUnlooked) return "";
  it.looked_at = sent;
  const std::int64_t begun = it.begun.count(it.peer);
  if (begun > it.may_call) {
    return concat("a flood: ", limits_.calls, " calls beyond the accepted ones");
  }
  it.may_call = std::min(it.may_call, begun + limits_.calls);
  return "";
}

void Acceptor::cut_floods() {
  std::map<int, std::string> floods;
  for (auto& [fd, it] : connections_) {
    if (std::string why = flood_of(fd, it); !why.empty()) floods[fd] = std::move(why);
  }
  for (const auto& [fd, why] : floods) {
    came_[connections_.at(fd).from] += kSecondsAfterAFlood * limits_.a_second;
    cut(fd, why);
  }
}

void Acceptor::sweep() {
  for (auto& [from, count] : came_) count -= limits_.a_second;
  std::erase_if(came_, [](const auto& one) { return one.second <= 0; });
  std::vector<int> old;
  for (const auto& [fd, it] : connections_) {
    if (!it.has_called && Clock::now() - it.since >= limits_.without_call) old.push_back(fd);
  }
  for (const int fd : old) {
    cut(fd, concat("no accepted call within ", limits_.without_call.count(), " s"));
  }
}

}  // namespace pride::coord

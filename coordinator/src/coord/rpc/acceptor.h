// Acceptor: accepts connections for gRPC, which limits neither their number nor their time without
// a call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "coord/rpc/begun_calls.h"

namespace pride::coord {

// A connection counts with its address until a call on it is accepted, then with its caller. If
// there are too many, a random one ends, so that connections that hold on cannot lock out new ones.
struct ConnectionLimits {
  int all = 4096;      // beyond it, a connection of the address or caller with most is closed
  int of_one = 128;    // of a caller, or of an address (IPv6: /64) without an accepted call
  int a_second = 100;  // new connections from an address
  std::chrono::seconds without_call{30};
  // Of a connection, beyond its accepted calls: for calls in progress, late calls, a first
  // registration. More is a flood of frames, which take up to 100 times their bytes in memory.
  std::int64_t calls = 1000, bytes = 6 << 20;
  int reserve = 256;  // highest descriptors of the process, reserved for files
};

class Acceptor {
 public:
  using Grpc = grpc::experimental::ExternalConnectionAcceptor;
  using OnRefused = std::function<void(const std::string& address, const std::string& why)>;

  // Listens on host:port; port 0: any free port. Throws CommError.
  Acceptor(const std::string& host_port, const ConnectionLimits& limits, OnRefused on_refused);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const noexcept { return port_; }
  void start(std::unique_ptr<Grpc> grpc);
  void stop();  // accepts no more connections; existing ones continue

  // A call of `bytes` bytes on the connection from `address` (as of peer_address()) was accepted.
  // `caller`: the certificate's name; empty: no certificate.
  void accepted(const std::string& address, const std::string& caller, std::size_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    std::string peer, from, group;
    Clock::time_point since;
    bool has_called = false;
    // Since the connection began; `looked_at`: when calls were last counted.
    std::int64_t may_send = 0, may_call = 0, looked_at = 0;
    BegunCalls begun = {};
  };
  using Groups = std::map<std::string, std::vector<int>>;

  void listen_on(const std::string& host_port);
  void run();
  void watch();
  void take(int listener);
  // REQUIRES: the lock is held.
  std::string refusal_of(const std::string& group, int fd, int mine);
  void join(int fd, const std::string& group);
  void leave(int fd);
  void cut(int fd, const std::string& why);
  void cut_one_of(const Groups::value_type& group, const std::string& limit);
  void forget(int fd);
  std::string flood_of(int fd, Connection& it) const;  // a text for the log; empty: no flood
  void cut_floods();
  void sweep();

  const ConnectionLimits limits_;
  const OnRefused on_refused_;
  int most_ = 0, first_of_reserve_ = 0;  // by the process's limit of descriptors
  int epoll_ = -1, port_ = 0;
  std::vector<int> listeners_;
  std::unique_ptr<Grpc> grpc_;
  std::atomic<bool> over_ = false;
  // A thread that hands gRPC a connection may have to do gRPC's work as long as a flood lasts. So
  // another thread ends floods.
  std::thread thread_, watcher_;

  std::mutex mutex_;  // guards the members below
  // By a second descriptor of the connection, which shows when gRPC has closed it and can close it.
  std::unordered_map<int, Connection> connections_;
  std::unordered_map<std::string, int> by_peer_;
  Groups groups_;
  std::unordered_map<std::string, int>
      came_;  // new connections by address, less `a_second` for each second
  std::minstd_rand random_{std::random_device()()};
};

}  // namespace pride::coord

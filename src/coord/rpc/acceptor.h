// Acceptor: takes the connections of a server for gRPC, which limits neither their number nor how
// long they last without a call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace pride::coord {

// A connection is a stranger's until a call on it was accepted. Where there are too many, a random
// stranger of the address that has most goes: a newcomer is never locked out by those who hold on.
struct ConnectionLimits {
  int all = 4096;
  int strangers = 512, strangers_of_address = 128;  // an IPv6 address: its /64
  double per_second = 100;                          // new ones from one address
  int of_caller = 16;                               // of one certificate; the oldest goes
  std::chrono::seconds without_call{30};
  int reserve = 256;  // highest descriptors of the process that are left to files
};

class Acceptor {
 public:
  using Grpc = grpc::experimental::ExternalConnectionAcceptor;
  using OnRefused = std::function<void(const std::string& address, const std::string& why)>;

  // Listens on host:port; port 0: any that is free. Throws CommError.
  Acceptor(const std::string& host_port, const ConnectionLimits& limits, OnRefused on_refused);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const noexcept { return port_; }
  void start(std::unique_ptr<Grpc> grpc);
  void stop();  // takes no more connections; those of gRPC go on

  // A call of `caller` (a certificate's name; empty: there is none) on the connection from
  // `address`, as peer_address() writes it, was accepted.
  void accepted(const std::string& address, const std::string& caller);

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    std::string peer, address;  // with the port; without
    Clock::time_point since;
    bool stranger = true;
    std::string caller = {};
  };
  struct Address {
    std::vector<int> strangers = {};
    double tokens = 0;
    Clock::time_point filled = {};
  };

  void listen_on(const std::string& host_port);
  void run();
  void take(int listener);
  // Of the map: the lock is held.
  bool may_come(const std::string& address, std::string& why);
  bool make_room(const std::string& address);
  void cut(int fd, const std::string& why);
  void forget(int fd);
  void sweep();

  const ConnectionLimits limits_;
  const OnRefused on_refused_;
  int most_ = 0, first_of_reserve_ = 0;  // as the process's limit lets it
  int epoll_ = -1, wake_ = -1, port_ = 0;
  std::vector<int> listeners_;
  std::unique_ptr<Grpc> grpc_;
  std::thread thread_;

  std::mutex mutex_;  // of the rest
  // By a second descriptor of the connection: it tells when gRPC has ended it, and can end it.
  std::unordered_map<int, Connection> connections_;
  std::unordered_map<std::string, int> by_peer_;
  std::map<std::string, Address> addresses_;
  std::map<std::string, std::vector<int>> callers_;  // connections of a certificate, oldest first
  int strangers_ = 0;
  std::minstd_rand random_{std::random_device()()};
};

}  // namespace pride::coord

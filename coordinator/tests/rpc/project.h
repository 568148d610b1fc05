// A project's certificates, a coordinator on the network and workers, all in the test's process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coord/certificates/authority.h"
#include "coord/coordinator.h"
#include "coord/rpc/server.h"
#include "coord/run_message.h"
#include "coord/work_pool.h"
#include "pride/comm/thread_comm.h"
#include "pride/coord/client.h"
#include "pride/error.h"
#include "pride/optimizer.h"
#include "pride/run_worker.h"
#include "pride/serving.h"
#include "support/training.h"

namespace pride::coord::testing {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// c-ares, by which gRPC looks up names, keeps ten bytes of each for ever: LeakSanitizer finds them.
inline const int kResolver = setenv("GRPC_DNS_RESOLVER", "native", 0);

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "pride-coord-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

// A CA with a server's certificate, for this machine.
inline fs::path make_project(const fs::path& folder) {
  Authority::create(folder, "test", {});
  Authority(folder).issue_server({"localhost", "127.0.0.1"}, {});
  return folder;
}

// What was refused, by server and coordinator; what rounds there were.
class Notes final : public Observer {
 public:
  void on_refused(const std::string& call, int, const std::string& name, const Peer& peer,
                  const std::string& why) override {
    add({call, name.empty() ? peer.certificate : name, peer.address, why});
  }
  void on_round(const coord::RoundReport& report) override {
    const std::lock_guard lock(mutex_);
    rounds_.push_back(report);
  }
  void add(const Refused& refused) {
    const std::lock_guard lock(mutex_);
    refused_.push_back(refused);
  }
  std::vector<coord::RoundReport> rounds() const {
    const std::lock_guard lock(mutex_);
    return rounds_;
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const Refused& one : refused_) {
      all += one.call + " | " + one.worker + " | " + one.address + " | " + one.why + "\n";
    }
    return all;
  }
  bool has(const std::string& part) const { return text().find(part) != std::string::npos; }

 private:
  mutable std::mutex mutex_;
  std::vector<Refused> refused_;
  std::vector<coord::RoundReport> rounds_;
};

class Running {
 public:
  // Empty `certificates`: without TLS.
  Running(const fs::path& journal, const fs::path& certificates, CallLimits limits = {},
          int min_workers = 1, ConnectionLimits connections = {})
      : work_(std::make_unique<WorkPool>(1)) {
    CoordinatorOptions options;
    options.folder = journal;
    options.quorum.min_workers = min_workers;
    options.heartbeat_ms = 200;
    options.parameters_every = 10;
    coordinator_ = std::make_unique<Coordinator>(
        options, make_serving, [this](std::function<void()> task) { work_->add(task); }, notes,
        std::chrono::steady_clock::now());
    ServerOptions server;
    server.listen = "127.0.0.1:0";
    if (!certificates.empty()) server.certificates = certificates;
    server.limits = limits;
    server.connections = connections;
    server.slow_reader = 2s;
    server.on_refused = [this](const Refused& refused) { notes.add(refused); };
    server_ = std::make_unique<Server>(server, *coordinator_);
  }
  ~Running() {
    server_.reset();
    work_.reset();
    coordinator_.reset();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(server_->port()); }
  int port() const { return server_->port(); }
  coord::Status status() const { return coordinator_->status(std::chrono::steady_clock::now()); }

  void end_coordinator() { coordinator_->shutdown(); }

  Notes notes;

 private:
  std::unique_ptr<WorkPool> work_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Server> server_;
};

struct Trained {
  std::uint64_t hash = 0;
  std::int64_t steps = 0;
  Traffic traffic = {};
  std::string error = {};
};

inline constexpr std::int64_t kCoords = 3000;

inline Layout layout_of(std::int64_t coords) { return Layout({{"w", {coords}}, {"b", {17}}}); }

// A worker until so many steps are done, with a pause before each.
inline Trained train(const CoordinatorAddress& address, std::int64_t steps,
                     std::chrono::milliseconds pause = 0ms, std::int64_t coords = kCoords) {
  Trained out;
  try {
    const auto client = connect_coordinator(address);
    RunWorker optimizer(client, layout_of(coords), {});
    std::vector<float> params(optimizer.layout().flat_size()), grads(params.size());
    optimizer.join(params);
    while (optimizer.steps_done() < steps) {
      std::this_thread::sleep_for(pause);
      for (std::size_t t = 0; t < 2; ++t) {
        const TensorSlot& slot = optimizer.layout().tensors()[t];
        for (std::size_t i = 0; i < slot.n; ++i) {
          grads[slot.offset + i] =
              pride::testing::gradient(optimizer.number(), optimizer.steps_done(), t, i);
        }
      }
      optimizer.step(params, grads);
    }
    out.hash = param_hash(optimizer.layout(), params);
    out.steps = optimizer.steps_done();
    out.traffic = client->traffic();
  } catch (const std::exception& error) {
    out.error = error.what();
  }
  return out;
}

// Several of them, each on a thread.
inline std::vector<Trained> train_all(const std::vector<CoordinatorAddress>& addresses,
                                      std::int64_t steps, std::chrono::milliseconds pause = 0ms,
                                      std::int64_t coords = kCoords) {
  std::vector<Trained> all(addresses.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] { all[i] = train(addresses[i], steps, pause, coords); });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

// Takes the description of a run from its first worker.
class Eavesdropper final : public CoordinatorClient {
 public:
  CoordinatorWelcome join(const RunDescription& run, int) override {
    description = run;
    throw CommError("heard enough");
  }
  CoordinatorWelcome look() override { return {}; }
  CoordinatorVote vote(const Ballot&) override { return {}; }
  CoordinatorVote wait(std::int64_t) override { return {}; }
  std::vector<std::byte> record(std::int64_t) override { return {}; }
  void get_parameters(std::int64_t, std::span<float>) override {}
  void put_parameters(std::int64_t, std::uint64_t, std::span<const float>) override {}
  Traffic traffic() const override { return {}; }
  RunDescription description;
};

inline RegisterRequest registration(const std::string& name, std::int64_t coords = kCoords) {
  const auto ear = std::make_shared<Eavesdropper>();
  RunWorker optimizer(ear, layout_of(coords), {});
  std::vector<float> params(optimizer.layout().flat_size());
  EXPECT_THROW(optimizer.join(params), CommError);
  RegisterRequest request;
  request.set_protocol(kProtocol);
  request.set_name(name);
  request.set_secret(std::string(kSecretBytes, 'x'));
  request.set_run(encode_run(ear->description));
  request.set_vote_weight(1);
  return request;
}

}  // namespace pride::coord::testing

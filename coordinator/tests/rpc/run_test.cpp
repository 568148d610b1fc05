// Whole runs over the network, in one process. Oracle: the same workers as ranks of a world of
// threads, whose servers are the ranks themselves.
// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "coord/coord.grpc.pb.h"
#include "pride/error.h"
#include "pride/run_worker.h"
#include "project.h"
#include "support/texts.h"

namespace pride::coord::testing {
namespace {

constexpr int kWorkers = 3;
constexpr std::int64_t kSteps = 12;

std::vector<CoordinatorAddress> plain_addresses(const Running& running, int n) {
  std::vector<CoordinatorAddress> all(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].host_port = running.address();
    all[i].name = "w" + std::to_string(i);
    all[i].patience = 30s;
  }
  return all;
}

// Hash of the parameters that ranks of a world of threads end with.
std::uint64_t hash_of_a_world() {
  auto world = make_thread_world(kWorkers);
  std::vector<std::uint64_t> hashes(kWorkers);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] {
      Optimizer optimizer(*world[static_cast<std::size_t>(rank)], layout_of(kCoords), {});
      std::vector<float> params(optimizer.layout().flat_size()), grads(params.size());
      for (std::int64_t step = 0; step < kSteps; ++step) {
        for (std::size_t t = 0; t < 2; ++t) {
          const TensorSlot& slot = optimizer.layout().tensors()[t];
          for (std::size_t i = 0; i < slot.n; ++i) {
            grads[slot.offset + i] = pride::testing::gradient(rank, step, t, i);
          }
        }
        optimizer.step(params, grads);
      }
      hashes[static_cast<std::size_t>(rank)] = param_hash(optimizer.layout(), params);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return hashes.front();
}

TEST(RunOverTheNetwork, GivesTheBitsOfRanksInOneProcess) {
  const Folder folder;
  Running running(folder / "journal", {}, {}, kWorkers);
  const std::vector<Trained> all = train_all(plain_addresses(running, kWorkers), kSteps);
  const std::uint64_t expected = hash_of_a_world();
  for (const Trained& one : all) {
    EXPECT_EQ(one.error, "");
    EXPECT_EQ(one.hash, expected);
  }
  for (const coord::RoundReport& round : running.notes.rounds()) {
    EXPECT_EQ(round.voters.size(), static_cast<std::size_t>(kWorkers)) << "round " << round.round;
  }
}

TEST(RunOverTheNetwork, GivesThemWithCertificatesToo) {
  const Folder folder;
  const fs::path ca = make_project(folder / "ca");
  Running running(folder / "journal", ca / "server", {}, kWorkers);
  std::vector<CoordinatorAddress> addresses(kWorkers);
  for (int i = 0; i < kWorkers; ++i) {
    auto& address = addresses[static_cast<std::size_t>(i)];
    address.host_port = i == 0 ? running.address() : "localhost:" + std::to_string(running.port());
    address.certificates = Authority(ca).issue_worker("site" + std::to_string(i), {}).string();
    address.patience = 30s;
  }
  const std::vector<Trained> all = train_all(addresses, kSteps);
  for (const Trained& one : all) {
    EXPECT_EQ(one.error, "");
    EXPECT_EQ(one.hash, hash_of_a_world());
  }
  EXPECT_EQ(running.status().workers[0].name.substr(0, 4), "site");
}

TEST(RunOverTheNetwork, CarriesMoreThanAChunk) {
  const Folder folder;
  Running running(folder / "journal", {}, {}, 2);
  constexpr std::int64_t kMany = 9'000'000;  // a ballot of two chunks, parameters of 35
  std::vector<std::uint64_t> hashes(2);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      RunWorker optimizer(connect_coordinator(plain_addresses(running, 2)[i]),
                          Layout({{"w", {kMany}}}), {});
      // the second worker takes the parameters of the first
      std::vector<float> params(optimizer.layout().flat_size(), i == 0 ? 0.5F : 0.F);
      std::vector<float> grads(params.size());
      if (i == 1) std::this_thread::sleep_for(300ms);
      optimizer.join(params);
      for (std::size_t c = 0; c < kMany; ++c) grads[c] = static_cast<float>((c + i) % 5) - 2;
      for (int step = 0; step < 2; ++step) optimizer.step(params, grads);
      hashes[i] = param_hash(optimizer.layout(), params);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST(RunOverTheNetwork, CountsTheBytesOfBothEndsAlike) {
  const Folder folder;
  Running running(folder / "journal", {});
  const std::vector<Trained> all = train_all(plain_addresses(running, 1), kSteps);
  ASSERT_EQ(all[0].error, "");
  const coord::Status status = running.status();
  // heartbeats may come and go between the two
  EXPECT_NEAR(static_cast<double>(status.bytes_in), static_cast<double>(all[0].traffic.bytes_sent),
              400);
  EXPECT_NEAR(static_cast<double>(status.bytes_out),
              static_cast<double>(all[0].traffic.bytes_received), 400);
}

TEST(Server, ListensToOtherMachinesWithCertificatesOnly) {
  const Folder folder;
  WorkPool work(1);
  Notes notes;
  CoordinatorOptions options;
  options.folder = folder / "journal";
  Coordinator coordinator(
      options, make_serving, [&](auto task) { work.add(task); }, notes,
      std::chrono::steady_clock::now());
  for (const char* open : {"0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.org:0"}) {
    texts::expect_error<InvalidArgument>(
        [&] { const Server server({.listen = open}, coordinator); }, {"certificates are needed"});
  }
}

// Else workers would take it for a refusal, and end.
TEST(Server, IsUnavailableOnceItsCoordinatorEnds) {
  const Folder folder;
  Running running(folder / "journal", {});
  const auto stub = CoordinatorCalls::NewStub(
      grpc::CreateChannel(running.address(), grpc::InsecureChannelCredentials()));
  const auto code = [&] {
    grpc::ClientContext context;
    RegisterReply reply;
    return stub->Register(&context, {}, &reply).error_code();
  };
  EXPECT_EQ(code(), grpc::StatusCode::OK);
  running.end_coordinator();
  EXPECT_EQ(code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(Client, RefusesAddressesItCannotUse) {
  const auto why = [](const std::string& host_port, const std::string& name) {
    return texts::error_of<InvalidArgument>([&] {
      connect_coordinator(
          {.host_port = host_port, .certificates = {}, .name = name, .secret_file = {}});
    });
  };
  EXPECT_NE(why("example.org:4770", "a").find("certificates are needed"), std::string::npos);
  EXPECT_NE(why("127.0.0.1", "a").find("is not HOST:PORT"), std::string::npos);
  EXPECT_NE(why("127.0.0.1:0", "a").find("has no port"), std::string::npos);
  EXPECT_NE(why("127.0.0.1:1", "a b").find("the name of a worker"), std::string::npos);
}

// Another name at once: another attempt would not mend it. Another CA looks like an expired one.
TEST(Client, KnowsItsCoordinatorByCaAndName) {
  const Folder folder;
  const fs::path ca = folder / "ca", other = make_project(folder / "other");
  Authority::create(ca, "test", {});
  Authority authority(ca);
  authority.issue_server({"coordinator.example"}, {});
  const fs::path alice = authority.issue_worker("alice", {});
  Running running(folder / "journal", ca / "server");
  CoordinatorAddress address;
  address.host_port = running.address();
  address.certificates = alice.string();
  address.patience = 300s;
  std::string error = train(address, 1).error;
  EXPECT_NE(error.find("its certificate is not for this name"), std::string::npos) << error;
  address.certificates = Authority(other).issue_worker("alice", {}).string();
  address.patience = 2s;
  error = train(address, 1).error;
  EXPECT_NE(error.find("its certificate is not of this project's CA"), std::string::npos) << error;
}

TEST(Client, WaitsForAServerWhoseCertificateHasExpired) {
  const Folder folder;
  const fs::path ca = make_project(folder / "ca");
  Authority authority(ca);
  authority.issue_server({"localhost", "127.0.0.1"}, {-60, 1}, true);
  Running running(folder / "journal", ca / "server");
  std::this_thread::sleep_for(2s);
  CoordinatorAddress address;
  address.host_port = running.address();
  address.certificates = authority.issue_worker("alice", {}).string();
  address.patience = 60s;
  auto waits = std::async(std::launch::async, [&] { return train(address, 1); });
  for (int i = 0; i < 1000 && !running.notes.has("handshake failed"); ++i) {
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_TRUE(running.notes.has("handshake failed"));
  authority.issue_server({"localhost", "127.0.0.1"}, {}, true);
  EXPECT_EQ(waits.get().error, "");
}

// Nobody listens: no word of certificates, and a line every ten seconds, so that people know.
TEST(Client, SaysThatItStillTriesWhereNobodyListens) {
  const Folder folder;
  const fs::path alice = Authority(make_project(folder / "ca")).issue_worker("alice", {});
  for (const std::string& certificates : {std::string(), alice.string()}) {
    CoordinatorAddress address;
    address.host_port = "127.0.0.1:1";
    address.certificates = certificates;
    address.name = "alice";
    address.patience = 9s;  // calls may take seconds on a busy machine
    std::vector<std::string> notices;
    address.on_notice = [&](const std::string& text) { notices.push_back(text); };
    const std::string error = train(address, 1).error;
    EXPECT_NE(error.find("nothing listens there (connection refused)"), std::string::npos) << error;
    EXPECT_NE(error.find("coordinator 127.0.0.1:1, registration of worker alice: no answer in"),
              std::string::npos)
        << error;
    EXPECT_EQ(error.find("certificates"), std::string::npos) << error;
    ASSERT_FALSE(notices.empty());
    EXPECT_EQ(notices[0].find("still trying 127.0.0.1:1 (registration of worker alice), "), 0U)
        << notices[0];
    EXPECT_NE(notices[0].find(" s left: nothing listens there"), std::string::npos) << notices[0];
  }
}

// Its patience counts from when it notices the break, not from when it began to wait for the round.
TEST(Client, TriesAgainWhereAConnectionBreaksAfterALongWait) {
  const Folder folder;
  auto running = std::make_unique<Running>(folder / "journal", fs::path(), CallLimits(), 2);
  CoordinatorAddress address;
  address.host_port = running->address();
  address.name = "a";
  address.patience = 2s;
  Trained trained;
  std::atomic<bool> ended = false;
  std::thread worker([&] {
    trained = train(address, 1);
    ended = true;
  });
  const auto voted = [&] {
    const Status status = running->status();
    return !status.workers.empty() && status.workers[0].voted;
  };
  while (!voted() && !ended) std::this_thread::sleep_for(10ms);
  std::this_thread::sleep_for(2 * address.patience);  // it waits for a second worker
  running.reset();
  worker.join();
  EXPECT_NE(trained.error.find("no answer in"), std::string::npos) << trained.error;
  EXPECT_EQ(trained.error.find(" and 1 attempts"), std::string::npos) << trained.error;
}

}  // namespace
}  // namespace pride::coord::testing

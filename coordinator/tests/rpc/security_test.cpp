// Those who should not: each is refused with a line that says why, while two workers train to their
// end, to equal parameters.
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <random>

#include "coord/certificates/certificate_files.h"
#include "coord/coord.grpc.pb.h"
#include "coord/run_message.h"
#include "pride/error.h"
#include "project.h"

namespace pride::coord::testing {
namespace {

constexpr std::int64_t kRounds = 40;
using Channel = std::shared_ptr<grpc::Channel>;

// A project, a coordinator, and two good workers that train while the test does its worst.
class Security : public ::testing::Test {
 protected:
  void start(CallLimits limits = {}, std::int64_t coords = kCoords) {
    running.emplace(folder / "journal", ca / "server", limits);
    std::vector<CoordinatorAddress> addresses;
    for (const char* name : {"good1", "good2"}) addresses.push_back(address_of(name));
    good =
        std::async(std::launch::async, [=] { return train_all(addresses, kRounds, 20ms, coords); });
  }

  CoordinatorAddress address_of(const std::string& name, Validity validity = {}) {
    CoordinatorAddress address;
    address.host_port = running->address();
    address.certificates = Authority(ca).issue_worker(name, validity).string();
    address.patience = 20s;
    return address;
  }

  Channel channel(const std::string& certificates, int port = 0) {
    const CertificateFiles files = read_certificate_files(certificates);
    return channel(grpc::SslCredentials({files.ca, files.key, files.cert}), port);
  }
  Channel channel(const std::shared_ptr<grpc::ChannelCredentials>& credentials, int port = 0) {
    return grpc::CreateChannel("localhost:" + std::to_string(port == 0 ? running->port() : port),
                               credentials);
  }

  void expect_in_log(const std::string& part) {
    for (int i = 0; i < 200 && !running->notes.has(part); ++i) std::this_thread::sleep_for(20ms);
    EXPECT_TRUE(running->notes.has(part)) << part << " is not among:\n" << running->notes.text();
  }

  void TearDown() override {
    const std::vector<Trained> all = good.get();
    for (const Trained& one : all) {
      EXPECT_EQ(one.error, "");
      EXPECT_EQ(one.steps, kRounds);
      EXPECT_EQ(one.hash, all[0].hash);
    }
  }

  Folder folder;
  fs::path ca = make_project(folder / "ca");
  std::optional<Running> running;
  std::future<std::vector<Trained>> good;
};

// A call by its bytes.
grpc::Status call(const Channel& channel, const std::string& method, const std::string& bytes) {
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 10s);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/pride.coord.CoordinatorCalls/" + method, grpc::StubOptions(), &request,
                 &reply, [&](grpc::Status status) { done.set_value(std::move(status)); });
  return done.get_future().get();
}

std::string random_bytes(std::size_t n) {
  std::mt19937 generator(7);
  std::string bytes(n, '\0');
  for (char& c : bytes) c = static_cast<char>(generator());
  return bytes;
}

void send_raw(int port, const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  char answer[256];
  const timeval patience{.tv_sec = 5, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  while (recv(fd, answer, sizeof answer, 0) > 0) {
  }
  close(fd);
}

TEST_F(Security, WhoHasNoCertificateIsRefused) {
  start();
  const std::string root = read_file(ca / kCaFile);
  EXPECT_FALSE(call(channel(grpc::SslCredentials({root, "", ""})), "Register", "").ok());
  expect_in_log("handshake failed: no certificate: this coordinator requires one of its project");
}

TEST_F(Security, WhoSpeaksWithoutTlsIsRefused) {
  start();
  EXPECT_FALSE(call(channel(grpc::InsecureChannelCredentials()), "Register", "").ok());
  expect_in_log("connection | ");
  expect_in_log("handshake failed");
}

TEST_F(Security, CertificatesOfAnotherCaAreRefused) {
  start();
  const fs::path other = make_project(folder / "other");
  const fs::path eve = Authority(other).issue_worker("eve", {});
  const Channel hers = channel(grpc::SslCredentials(
      {read_file(ca / kCaFile), read_file(eve / kKeyFile), read_file(eve / kCertFile)}));
  EXPECT_FALSE(call(hers, "Register", "").ok());
  expect_in_log("handshake failed: the certificate of eve is not of this project's CA");
  fs::copy_file(ca / kCaFile, eve / kCaFile, fs::copy_options::overwrite_existing);
  EXPECT_THROW(read_certificate_files(eve), DataError);
}

TEST_F(Security, CertificatesThatAreOverAreRefused) {
  start();
  CoordinatorAddress old = address_of("old", {-7200, -3600});
  old.patience = 1s;
  EXPECT_NE(train(old, 1).error.find("has expired"), std::string::npos);
  expect_in_log("the certificate of old has expired");
}

TEST_F(Security, TheServersCertificateIsRenewedWithoutAStop) {
  Authority(ca).issue_server({"localhost", "127.0.0.1"}, {-60, 8}, true);
  const auto expires = std::chrono::steady_clock::now() + 9s;
  start();
  Authority(ca).issue_server({"localhost", "127.0.0.1"}, {}, true);
  std::this_thread::sleep_until(expires);
  EXPECT_EQ(train(address_of("late"), 1).error, "");
}

// As where the coordinator's clock was set back, and is mended.
TEST_F(Security, CertificatesThatAreNotYetValidAreTriedAgain) {
  start();
  const Trained early = train(address_of("early", {2, 3600}), 1);
  EXPECT_EQ(early.error, "");
  expect_in_log("the certificate of early is not valid before");
}

TEST_F(Security, ACertificateRevokedInMidRunEndsItsWorkerAlone) {
  start();
  const CoordinatorAddress mallory = address_of("mallory");
  auto training = std::async(std::launch::async, [&] { return train(mallory, 1'000'000, 20ms); });
  while (running->notes.rounds().size() < 5) std::this_thread::sleep_for(10ms);
  Authority(ca).revoke("mallory");
  EXPECT_NE(training.get().error.find("the certificate of mallory has been revoked"),
            std::string::npos);
  expect_in_log("| mallory | ");
  expect_in_log("has been revoked (serial ");
  EXPECT_FALSE(call(channel(mallory.certificates), "Register", "").ok());
  expect_in_log("handshake failed: the certificate of mallory has been revoked (serial ");
}

TEST_F(Security, ACertificateIsOneName) {
  start();
  CoordinatorAddress address = address_of("mallory");
  RegisterRequest request;
  request.set_protocol(kProtocol);
  request.set_name("good1");
  request.set_secret(std::string(kSecretBytes, 'x'));
  const auto stub = CoordinatorCalls::NewStub(channel(address.certificates));
  grpc::ClientContext context;
  RegisterReply reply;
  ASSERT_TRUE(stub->Register(&context, request, &reply).ok());
  EXPECT_NE(reply.refused(), "");
  address.name = "good1";
  EXPECT_THROW(connect_coordinator(address), InvalidArgument);
  expect_in_log("Register | ");
}

TEST_F(Security, OversizedMessagesAreRefused) {
  start();
  const Channel mine = channel(address_of("big").certificates);
  EXPECT_EQ(call(mine, "PutChunk", std::string(std::size_t{2} << 20, 'x')).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  expect_in_log("oversized: a message of 2097152 bytes");
  EXPECT_FALSE(call(mine, "PutChunk", std::string(std::size_t{40} << 20, 'x')).ok());
}

TEST_F(Security, MalformedMessagesAreRefused) {
  start();
  const Channel mine = channel(address_of("fuzz").certificates);
  for (const char* method : {"Register", "Heartbeat", "Missing", "PutChunk", "Vote",
                             "OfferParameters", "WaitRound", "GetChunk"}) {
    EXPECT_EQ(call(mine, method, random_bytes(1000)).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << method;
  }
  EXPECT_EQ(call(mine, "Nothing", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  expect_in_log("| fuzz | ");
  expect_in_log("malformed");
}

// A call that begins, and is given up before its message.
class GivenUp final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit GivenUp(const Channel& channel) : stub_(channel) {
    stub_.PrepareBidiStreamingCall(&context_, "/pride.coord.CoordinatorCalls/Heartbeat",
                                   grpc::StubOptions(), this);
    StartWritesDone();
    StartCall();
  }
  void OnDone(const grpc::Status& status) override { done_.set_value(status); }
  grpc::Status status() { return done_.get_future().get(); }

 private:
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ClientContext context_;
  std::promise<grpc::Status> done_;
};

TEST_F(Security, CallsThatWereGivenUpAreNotCalledMalformed) {
  start();
  GivenUp call(channel(address_of("frozen").certificates));
  EXPECT_EQ(call.status().error_code(), grpc::StatusCode::CANCELLED);
  expect_in_log("cancelled: the call ended before its message came");
  EXPECT_FALSE(running->notes.has("malformed"));
}

TEST_F(Security, BytesThatAreNoTlsAreRefused) {
  start();
  send_raw(running->port(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  expect_in_log("http request");
  send_raw(running->port(), random_bytes(3000));
  expect_in_log("it does not begin like TLS");
}

TEST_F(Security, AFloodIsRefusedToItsCallerAlone) {
  start({.per_second = 50, .burst = 200, .at_a_time = 16, .all_at_a_time = 4096});
  const Channel mine = channel(address_of("flood").certificates);
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    refused += call(mine, "Heartbeat", "").error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
  }
  EXPECT_GT(refused, 100);
  expect_in_log("flood: too many calls: 50 a second at most");
  EXPECT_EQ(running->notes.text().find("| good"), std::string::npos) << running->notes.text();
}

TEST_F(Security, WhoRegistersInALoopLocksOutNobodyElse) {
  start();
  const auto stub = CoordinatorCalls::NewStub(channel(address_of("loop").certificates));
  std::string refused;
  for (int i = 0; i < 200 && refused.empty(); ++i) {
    RegisterReply reply;
    grpc::ClientContext context;
    ASSERT_TRUE(stub->Register(&context, registration("loop"), &reply).ok());
    refused = reply.refused();
  }
  EXPECT_NE(refused.find("120 registrations a minute with this certificate"), std::string::npos);
  EXPECT_EQ(train(address_of("neighbour"), 1).error, "");
  EXPECT_EQ(running->notes.text().find("| neighbour"), std::string::npos) << running->notes.text();
}

// Bytes from the server stop after a while.
class Dam {
 public:
  Dam(int target, std::size_t most_back) : target_(target), most_back_(most_back) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof here;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&here), size) != 0 ||
        listen(listener_, 4) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&here), &size) != 0) {
      throw std::runtime_error("no port for the dam");
    }
    port = ntohs(here.sin_port);
    threads_.emplace_back([this] { run(); });
  }
  ~Dam() {
    for (const int fd : {listener_, near_, far_}) shutdown(fd, SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
    for (const int fd : {listener_, near_, far_}) close(fd);
  }
  Dam(const Dam&) = delete;
  Dam& operator=(const Dam&) = delete;

  int port = 0;

 private:
  void run() {
    near_ = accept(listener_, nullptr, nullptr);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(target_));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    far_ = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(far_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return;
    std::thread back([this] { carry(far_, near_, most_back_); });
    carry(near_, far_, ~std::size_t{0});
    back.join();
  }
  static void carry(int from, int to, std::size_t most) {
    std::vector<char> bytes(1 << 14);
    for (std::size_t all = 0; all < most;) {
      const ssize_t n = recv(from, bytes.data(), bytes.size(), 0);
      if (n <= 0) return;
      if (send(to, bytes.data(), static_cast<std::size_t>(n), MSG_NOSIGNAL) != n) return;
      all += static_cast<std::size_t>(n);
    }
  }

  const int target_;
  const std::size_t most_back_;
  int listener_ = -1, near_ = -1, far_ = -1;
  std::vector<std::thread> threads_;
};

TEST_F(Security, ASessionIsOfNoUseToOthers) {
  start();
  const auto alice = CoordinatorCalls::NewStub(channel(address_of("alice").certificates));
  const auto mallory = CoordinatorCalls::NewStub(channel(address_of("mallory").certificates));
  RegisterReply registered;
  grpc::ClientContext first;
  ASSERT_TRUE(alice->Register(&first, registration("alice"), &registered).ok());
  ASSERT_EQ(registered.refused(), "");
  HeartbeatRequest beat;
  beat.set_session(registered.session());
  HeartbeatReply reply;
  grpc::ClientContext second, third;
  ASSERT_TRUE(mallory->Heartbeat(&second, beat, &reply).ok());
  EXPECT_NE(reply.refused(), "") << "alice's session served mallory";
  ASSERT_TRUE(alice->Heartbeat(&third, beat, &reply).ok());
  EXPECT_EQ(reply.refused(), "");
  expect_in_log("| mallory |");
}

// Twelve answers of 1 MiB: more than the buffers of both ends hold.
TEST_F(Security, ASlowReaderIsCutOff) {
  constexpr std::int64_t kMany = 600'000;
  start({}, kMany);
  const std::string certificates = address_of("slow").certificates;
  const auto near = CoordinatorCalls::NewStub(channel(certificates));
  RegisterReply registered;
  grpc::ClientContext context;
  while (running->status().parameters_round < 0) std::this_thread::sleep_for(10ms);
  ASSERT_TRUE(near->Register(&context, registration("slow", kMany), &registered).ok());
  ASSERT_EQ(registered.refused(), "");
  GetChunkRequest request;
  request.set_session(registered.session());
  request.set_kind(PARAMETERS);
  request.set_round(registered.state().parameters_round());
  const Dam dam(running->port(), 200'000);
  const Channel slow = channel(certificates, dam.port);
  std::vector<std::thread> callers;
  for (int i = 0; i < 12; ++i) {
    callers.emplace_back([&] { call(slow, "GetChunk", request.SerializeAsString()); });
  }
  expect_in_log("slow reader: it did not read its reply within 2 s");
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace pride::coord::testing

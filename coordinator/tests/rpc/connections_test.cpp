// Connections without a call: the server ends them, and they lock no worker out.
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coord/certificates/certificate_files.h"
#include "coord/coord.grpc.pb.h"
#include "project.h"

namespace pride::coord::testing {
namespace {

// A connection that sends these bytes and no more.
class Idle {
 public:
  explicit Idle(int port, const std::string& bytes = "") {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  ~Idle() { close(fd_); }
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;

  bool ends() const {
    char bytes[4096];
    ssize_t n = 0;
    do n = recv(fd_, bytes, sizeof bytes, 0);
    while (n > 0);
    return n == 0 || errno == ECONNRESET;
  }

 private:
  const int fd_ = socket(AF_INET, SOCK_STREAM, 0);
};

const std::string kHalfOpen("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);

class Connections : public ::testing::Test {
 protected:
  void start(ConnectionLimits limits, bool certificates = true) {
    running.emplace(folder / "journal", certificates ? ca / "server" : fs::path(), CallLimits{}, 1,
                    limits);
  }
  CoordinatorAddress address_of(const std::string& name) {
    CoordinatorAddress address;
    address.host_port = running->address();
    address.certificates = Authority(ca).issue_worker(name, {}).string();
    address.patience = 20s;
    return address;
  }
  // Of a connection of its own. Empty: without a certificate.
  std::shared_ptr<grpc::Channel> channel(const std::string& certificates, int number = 0) {
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = read_file(ca / kCaFile);
    if (!certificates.empty()) {
      tls.pem_private_key = read_file(fs::path(certificates) / kKeyFile);
      tls.pem_cert_chain = read_file(fs::path(certificates) / kCertFile);
    }
    grpc::ChannelArguments own;
    own.SetInt("number", number);
    return grpc::CreateCustomChannel("localhost:" + std::to_string(running->port()),
                                     grpc::SslCredentials(tls), own);
  }
  static void register_by(const std::shared_ptr<grpc::Channel>& channel, const std::string& name) {
    RegisterReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(
        CoordinatorCalls::NewStub(channel)->Register(&context, registration(name), &reply).ok());
    EXPECT_EQ(reply.refused(), "");
  }
  void expect_in_log(const std::string& part) {
    for (int i = 0; i < 500 && !running->notes.has(part); ++i) std::this_thread::sleep_for(20ms);
    EXPECT_TRUE(running->notes.has(part)) << part << " is not among:\n" << running->notes.text();
  }

  Folder folder;
  fs::path ca = make_project(folder / "ca");
  std::optional<Running> running;
};

TEST_F(Connections, EndWithoutAnAcceptedCallAndSilentWorkersStay) {
  start({.without_call = 1s});
  const auto worker = channel(address_of("alice").certificates);
  register_by(worker, "alice");
  const Idle plain(running->port());
  // TLS, and no certificate: its calls are refused
  const auto stranger = channel("");
  RegisterReply reply;
  grpc::ClientContext context;
  EXPECT_FALSE(CoordinatorCalls::NewStub(stranger)->Register(&context, {}, &reply).ok());
  EXPECT_TRUE(plain.ends());
  EXPECT_TRUE(
      stranger->WaitForStateChange(GRPC_CHANNEL_READY, std::chrono::system_clock::now() + 30s));
  expect_in_log("no accepted call within 1 s");
  EXPECT_EQ(worker->GetState(false), GRPC_CHANNEL_READY);
}

TEST_F(Connections, WithoutCertificatesEndTooWhereHttp2IsHalfOpen) {
  start({.without_call = 1s}, false);
  const Idle half(running->port(), kHalfOpen);
  EXPECT_TRUE(half.ends());
  expect_in_log("no accepted call within 1 s");
}

TEST_F(Connections, OfAnAddressMakeRoomForNewOnes) {
  start({.of_one = 8, .a_second = 1000});
  std::vector<std::unique_ptr<Idle>> idle;
  for (int i = 0; i < 100; ++i) idle.push_back(std::make_unique<Idle>(running->port()));
  expect_in_log("too many connections: 8 of 127.0.0.1 at most");
  EXPECT_EQ(train(address_of("good"), 3).error, "");
}

TEST_F(Connections, InAllMakeRoomForNewOnes) {
  start({.all = 8});
  std::vector<std::unique_ptr<Idle>> idle;
  for (int i = 0; i < 100; ++i) idle.push_back(std::make_unique<Idle>(running->port()));
  expect_in_log("too many connections: 8 in all at most");
  EXPECT_EQ(train(address_of("good"), 3).error, "");
}

TEST_F(Connections, ASecondAreLimited) {
  start({.a_second = 2});
  std::vector<std::unique_ptr<Idle>> idle;
  for (int i = 0; i < 30; ++i) idle.push_back(std::make_unique<Idle>(running->port()));
  expect_in_log("too many connections: 2 a second from this address");
}

TEST_F(Connections, OfOneCertificateAreLimited) {
  start({.of_one = 3});
  const std::string mallory = address_of("mallory").certificates;
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < 6; ++i) {
    channels.push_back(channel(mallory, i));
    register_by(channels.back(), "mallory");
  }
  expect_in_log("too many connections: 3 of worker mallory at most");
  EXPECT_EQ(train(address_of("good"), 3).error, "");
}

}  // namespace
}  // namespace pride::coord::testing

// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "coord/certificates/certificate_files.h"
#include "coord/certificates/checker.h"
#include "coord/rpc/acceptor.h"
#include "coord/rpc/address.h"
#include "coord/rpc/grpc_log.h"
#include "coord/rpc/service.h"
#include "coord/run_message.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLongestSleep = 20ms;   // of the clock's thread: a call may move an event forward
constexpr unsigned kLookForNew_s = 5;  // between two looks for new certificates
constexpr int kMostStreams = 8;        // calls of one connection at a time; a worker makes two
constexpr std::size_t kMemory = std::size_t{1} << 30;  // of gRPC's buffers

namespace tls = grpc::experimental;

// Ends the connections of strangers after the handshake, before their first HTTP/2 frame. gRPC 1.51
// has no defence against floods of these (calls opened and reset, headers without an end), which
// cost it far more than their bytes.
class Doorkeeper final : public tls::ExternalCertificateVerifier {
 public:
  explicit Doorkeeper(std::shared_ptr<CertificateChecker> checker) : checker_(std::move(checker)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* verdict) override {
    const grpc::string_ref pem = request->peer_cert();
    const std::string why = checker_->stranger({pem.data(), pem.size()});
    if (!why.empty()) *verdict = {grpc::StatusCode::UNAUTHENTICATED, why};
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::shared_ptr<CertificateChecker> checker_;
};

std::shared_ptr<CertificateChecker> checker_of(const ServerOptions& options) {
  if (!options.certificates) return nullptr;
  return std::make_shared<CertificateChecker>(*options.certificates, options.on_warning);
}

std::shared_ptr<grpc::ServerCredentials> credentials_of(
    const ServerOptions& options, const std::shared_ptr<CertificateChecker>& checker) {
  const HostPort where = parse_host_port(options.listen, "--listen");
  if (!options.certificates) {
    PRIDE_CHECK(is_loopback(where.host), "--listen ", options.listen,
                ": other machines could call, so certificates are needed (--certificates, made by "
                "`pride certs`); without them listen on 127.0.0.1 or [::1]");
    return grpc::InsecureServerCredentials();
  }
  const CertificateFiles files = read_certificate_files(*options.certificates);
  check_is_of_server(files, *options.certificates);
  const std::filesystem::path& folder = *options.certificates;
  tls::TlsServerCredentialsOptions watched(std::make_shared<tls::FileWatcherCertificateProvider>(
      folder / kKeyFile, folder / kCertFile, folder / kCaFile, kLookForNew_s));
  watched.watch_root_certs();
  watched.watch_identity_key_cert_pairs();
  watched.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  watched.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<Doorkeeper>(checker));
  return tls::TlsServerCredentials(watched);
}

void set_limits(grpc::ServerBuilder& builder) {
  // above this limit gRPC refuses a message and informs only the caller; below it pride refuses
  // messages that are too large for their call, with a line in the log
  builder.SetMaxReceiveMessageSize(static_cast<int>(2 * kMostRunBytes));
  builder.SetResourceQuota(grpc::ResourceQuota("pride").Resize(kMemory));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  builder.AddChannelArgument("grpc.server_handshake_timeout_ms", 10'000);
  // pings also without calls, and no penalty for a worker that pings; a silently lost worker is
  // detected after 40 s
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
}

}  // namespace

struct Server::Impl {
  Impl(ServerOptions given, Coordinator& coordinator)
      : options(std::move(given)),
        coordinator(coordinator),
        log([this](const FailedConnection& failed) { on_failed(failed); }),
        checker(checker_of(options)),
        service(options, coordinator, checker,
                [this](const Peer& peer, std::size_t bytes) {
                  acceptor.accepted(peer.address, peer.certificate, bytes);
                }),
        credentials(credentials_of(options, checker)),
        acceptor(
            options.listen, options.connections,
            [this](const std::string& address, const std::string& why) { refuse(address, why); }) {
    grpc::ServerBuilder builder;
    auto grpc = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    builder.RegisterService(&service);
    set_limits(builder);
    server = builder.BuildAndStart();
    if (server == nullptr) throw CommError("gRPC cannot start a server");
    acceptor.start(std::move(grpc));
    clock = std::thread([this] { keep_time(); });
  }

  // Connections that end before any call.
  void on_failed(const FailedConnection& failed) const {
    refuse(peer_address(failed.address), failed.why);
  }
  void refuse(const std::string& address, const std::string& why) const {
    if (options.on_refused) options.on_refused({"connection", "", address, why});
  }

  void keep_time() {
    std::unique_lock lock(mutex);
    Clock::time_point looked = Clock::now();
    for (;;) {
      const Clock::time_point now = Clock::now();
      const auto next = coordinator.next_event().value_or(now + kLongestSleep);
      if (next <= now) coordinator.tick(now);
      if (now - looked > 1s) {
        service.cut_slow_readers(now);
        looked = now;
      }
      const auto sleep = std::clamp<Clock::duration>(next - now, 1ms, kLongestSleep);
      if (wake.wait_for(lock, sleep, [this] { return stopping; })) return;
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      if (std::exchange(stopping, true)) return;
    }
    wake.notify_all();
    if (clock.joinable()) clock.join();
    coordinator.shutdown();
    if (server == nullptr) return;
    acceptor.stop();
    server->Shutdown(std::chrono::system_clock::now() + 2s);
    server->Wait();
  }

  ServerOptions options;
  Coordinator& coordinator;
  GrpcLog log;
  std::shared_ptr<CertificateChecker> checker;
  Service service;
  std::shared_ptr<grpc::ServerCredentials> credentials;
  Acceptor acceptor;
  std::unique_ptr<grpc::Server> server;
  std::mutex mutex;  // guards stopping
  std::condition_variable wake;
  bool stopping = false;
  std::thread clock;
};

Server::Server(ServerOptions options, Coordinator& coordinator)
    : impl_(std::make_unique<Impl>(std::move(options), coordinator)) {}

Server::~Server() { stop(); }

int Server::port() const { return impl_->acceptor.port(); }

void Server::stop() { impl_->stop(); }

}  // namespace pride::coord

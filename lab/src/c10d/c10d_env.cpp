// The rendezvous of torchrun: a TCPStore at MASTER_ADDR, and Gloo between all ranks.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/c10d_env.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <future>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "c10d/engine.h"
#include "c10d/sigpipe.h"
#include "pride/error.h"

namespace pride {
namespace process_group {
namespace {

using StorePtr = c10::intrusive_ptr<::c10d::Store>;
using Gloo = ::c10d::ProcessGroupGloo;

// Rendezvous settings from the launcher's environment.
struct Place {
  int rank = 0, world = 1, port = 0;
  std::string host;
};

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int number(const char* name, int least, int most) {
  const std::string_view text = variable(name);
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  PRIDE_CHECK(
      error == std::errc() && end == text.data() + text.size() && value >= least && value <= most,
      name, "=", text, ": must be a number from ", least, " to ", most);
  return value;
}

Place place_from_env() {
  Place place;
  place.world = number("WORLD_SIZE", 1, 1 << 20);
  place.rank = number("RANK", 0, place.world - 1);
  place.port = number("MASTER_PORT", 1, 65535);
  place.host = variable("MASTER_ADDR");
  PRIDE_CHECK(!place.host.empty(), "MASTER_ADDR is not set");
  return place;
}

// libuv serves thousands of clients better, but not every libtorch 2.x has it (Debian's lacks it).
template <typename Options>
void serve_without_libuv(Options& options) {
  if constexpr (requires { options.useLibUV; }) options.useLibUV = false;
}

// One store for the process: rank 0 serves it, unless torchrun does, and a port is served once.
StorePtr store_of(const Place& place, std::chrono::milliseconds timeout) {
  static std::mutex mutex;
  static StorePtr& store = *new StorePtr;  // a thread may still connect as the process ends
  const std::lock_guard lock(mutex);
  if (store) return store;
  const bool from_agent = std::string_view(variable("TORCHELASTIC_USE_AGENT_STORE")) == "True";
  ::c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.isServer = place.rank == 0 && !from_agent;
  options.numWorkers = place.world;
  options.waitWorkers = false;  // ranks wait for each other's addresses instead
  options.timeout = timeout;
  options.multiTenant = true;
  serve_without_libuv(options);
  store = c10::make_intrusive<::c10d::TCPStore>(place.host, options);
  if (from_agent) {  // the agent's store also serves the next attempt
    store = c10::make_intrusive<::c10d::PrefixStore>(
        concat("/worker/attempt_", variable("TORCHELASTIC_RESTART_COUNT")), store);
  }
  return store;
}

// This machine's address on the route to the master; empty if there is none.
std::string address_towards(const Place& place) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &found) != 0) {
    return {};
  }
  std::string address;
  const int probe = socket(found->ai_family, found->ai_socktype, 0);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  std::array<char, NI_MAXHOST> text{};
  // connecting a datagram socket sends nothing
  if (probe >= 0 && connect(probe, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(probe, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
      getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text.data(), text.size(), nullptr, 0,
                  NI_NUMERICHOST) == 0) {
    address = text.data();
  }
  if (probe >= 0) close(probe);
  freeaddrinfo(found);
  return address;
}

c10::intrusive_ptr<Gloo::Options> options_for(const Place& place,
                                              std::chrono::milliseconds timeout) {
  auto options = Gloo::Options::create(timeout);
  std::string_view names = variable("GLOO_SOCKET_IFNAME");
  while (!names.empty()) {
    const auto name = names.substr(0, names.find(','));
    if (!name.empty()) {
      options->devices.push_back(Gloo::createDeviceForInterface(std::string(name)));
    }
    names.remove_prefix(std::min(names.size(), name.size() + 1));
  }
  if (options->devices.empty()) {
    const std::string address = address_towards(place);
    options->devices.push_back(address.empty() ? Gloo::createDefaultDevice()
                                               : Gloo::createDeviceForHostname(address));
  }
  options->threads = 1;  // for c10d's own collectives, which are not used
  return options;
}

EnginePtr meet(const Place& place, std::chrono::milliseconds timeout) {
  static std::atomic<int> worlds{0};
  const std::string prefix = concat("pride/", worlds++);
  // in a thread: Gloo tries an address that does not respond five times, for its time-out each
  auto connect = [place, timeout, prefix]() -> EnginePtr {
    const auto store = c10::make_intrusive<::c10d::PrefixStore>(prefix, store_of(place, timeout));
    store->setTimeout(timeout);
    return c10::make_intrusive<Gloo>(store, place.rank, place.world, options_for(place, timeout));
  };
  std::packaged_task<EnginePtr()> task(std::move(connect));
  auto engine = task.get_future();
  std::thread(std::move(task)).detach();
  if (engine.wait_for(timeout) == std::future_status::timeout) {
    throw CommError(concat("no connection to all ranks within ", timeout.count(),
                           " ms; this rank's interface: ", c10d_interface()));
  }
  return engine.get();
}

}  // namespace
}  // namespace process_group

std::unique_ptr<Communicator> make_c10d_communicator_from_env(std::chrono::milliseconds timeout) {
  using namespace process_group;
  const Place place = place_from_env();
  if (place.world == 1) return make_world(EnginePtr(), timeout);
  const auto where = concat("rank ", place.rank, " of ", place.world,
                            ": the ranks cannot connect at ", place.host, ":", place.port, ": ");
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  EnginePtr engine;
  const NoSigpipe no_sigpipe;  // for the threads that Gloo starts
  try {
    engine = meet(place, timeout);
  } catch (const c10::Error& e) {
    throw CommError(where + e.what_without_backtrace());
  } catch (const std::exception& e) {
    throw CommError(where + e.what());
  }
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return make_world(std::move(engine), std::max(left, std::chrono::milliseconds(1)));
}

std::string c10d_interface() {
  using namespace process_group;
  const std::string named = variable("GLOO_SOCKET_IFNAME");
  return named.empty() ? address_towards(place_from_env()) : named;
}

bool launched_by_torchrun() noexcept {
  constexpr std::array kNames = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  return std::all_of(kNames.begin(), kNames.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace pride

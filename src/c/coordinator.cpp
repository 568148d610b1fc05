// Workers of a coordinator in the C interface.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <utility>

#include "c/handles.h"
#include "pride/communicator.h"
#include "pride/coord/client.h"

namespace pride::c {
namespace {

std::shared_ptr<CoordinatorClient> connect(const pride_coordinator_address& a) {
  PRIDE_CHECK(a.struct_size >= sizeof(pride_coordinator_address),
              "pride_coordinator_address: struct_size is ", a.struct_size, ", must be ",
              sizeof(pride_coordinator_address), " or more");
  const std::string host_port = &given(a.host_port, "host_port");
  const auto text = [](const char* value) { return std::string(value == nullptr ? "" : value); };
  std::function<void(const std::string&)> on_notice;
  if (a.notice != nullptr) {
    on_notice = [notice = a.notice, user = a.user](const std::string& line) {
      notice(user, line.c_str());
    };
  }
  return connect_coordinator({.host_port = host_port,
                              .certificates = text(a.certificates),
                              .name = text(a.name),
                              .secret_file = text(a.secret_file),
                              .patience = std::chrono::milliseconds(a.patience_ms),
                              .on_notice = std::move(on_notice)});
}

}  // namespace
}  // namespace pride::c

using namespace pride::c;

int pride_coordinator_connect(const pride_coordinator_address* address, pride_coordinator** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    *out = new pride_coordinator{connect(given(address, "address"))};
  });
}

void pride_coordinator_interrupt(pride_coordinator* coordinator) {
  if (coordinator != nullptr) coordinator->client->interrupt();
}

void pride_coordinator_destroy(pride_coordinator* coordinator) { delete coordinator; }

int pride_optimizer_create_worker(pride_coordinator* coordinator, const pride_layout* layout,
                                  const pride_options* options, const char* settings,
                                  pride_optimizer** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    pride::OptimizerOptions all = options_of(given(options, "options"), 1);
    PRIDE_CHECK(virtual_workers_of(*options) == 0,
                "optimizer: virtual_workers is not supported with a coordinator: each worker is a "
                "process");
    const bool on_device = all.device != nullptr;
    auto client = given(coordinator, "coordinator").client;
    auto made = std::make_unique<pride::RunWorker>(
        client, given(layout, "layout").layout, std::move(all),
        pride::RunWorkerOptions{.settings = settings == nullptr ? "" : settings});
    *out = new pride_optimizer{
        .replica = std::move(made), .coordinator = std::move(client), .on_device = on_device};
  });
}

int32_t pride_optimizer_worker(const pride_optimizer* optimizer) {
  if (optimizer == nullptr) return -1;
  const auto* const worker = dynamic_cast<const pride::RunWorker*>(optimizer->replica.get());
  return worker != nullptr ? worker->number() : optimizer->comm->rank();
}

int pride_optimizer_round(const pride_optimizer* optimizer, pride_round* out) {
  return guarded([&] {
    idle(optimizer);
    PRIDE_CHECK(given(out, "out").struct_size >= sizeof(pride_round),
                "pride_round: struct_size is ", out->struct_size, ", must be ", sizeof(pride_round),
                " or more");
    const auto& round = optimizer->round;
    *out = {.struct_size = out->struct_size,
            .counted = round && round->counted ? 1 : 0,
            .round = round ? round->round : -1,
            .replayed = round ? round->replayed : 0,
            .voters = round ? round->voters : 0,
            .took_parameters = round && round->took_parameters ? 1 : 0,
            .why_not = round ? round->why_not.c_str() : ""};
  });
}

// libpride_mpi.so: MPI as a pride_transport, for languages that call C.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "pride/c/comm.h"
#include "pride/comm/mpi_comm.h"
#include "pride/error.h"

namespace pride::c {
namespace {

// Shared by all groups of the world. One thread may report a failure while another is in a call of
// the same group, so failures have a communicator of their own.
struct World {
  MpiEnvironment environment;  // destroyed last
  std::mutex mutex;
  std::unique_ptr<Communicator> failing;
};

struct Group {
  std::shared_ptr<World> world;
  std::unique_ptr<Communicator> comm;
};

Group& group_of(void* user) { return *static_cast<Group*>(user); }

template <typename Body>
std::int32_t guarded(char* error, std::uint64_t error_size, Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    if (error != nullptr && error_size > 0) {
      const std::size_t n = std::min<std::size_t>(std::strlen(e.what()), error_size - 1);
      std::memcpy(error, e.what(), n);
      error[n] = '\0';
    }
    return 1;
  }
}

std::int32_t all_to_all_v(void* user, const void* send, const std::uint64_t* send_sizes, void* recv,
                          const std::uint64_t* recv_sizes, std::int64_t timeout_ms, char* error,
                          std::uint64_t error_size) {
  return guarded(error, error_size, [&] {
    Communicator& comm = *group_of(user).comm;
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    const auto* from = static_cast<const std::byte*>(send);
    auto* to = static_cast<std::byte*>(recv);
    for (int r = 0; r < comm.size(); ++r) {
      if (send_sizes[r] > 0) out.push_back({r, {from, send_sizes[r]}});
      if (recv_sizes[r] > 0) in.push_back({r, {to, recv_sizes[r]}});
      from += send_sizes[r];
      to += recv_sizes[r];
    }
    comm.set_timeout(std::chrono::milliseconds(timeout_ms));
    comm.all_to_all_v(out, in);
  });
}

std::int32_t all_reduce(void* user, void* values, std::uint64_t n, std::int32_t type,
                        std::int64_t timeout_ms, char* error, std::uint64_t error_size) {
  return guarded(error, error_size, [&] {
    Communicator& comm = *group_of(user).comm;
    comm.set_timeout(std::chrono::milliseconds(timeout_ms));
    const auto sum = [&]<typename T>(T* first) { comm.native_sum(std::span<T>(first, n)); };
    switch (type) {
      case PRIDE_SUM_FLOAT32:
        return sum(static_cast<float*>(values));
      case PRIDE_SUM_INT8:
        return sum(static_cast<std::int8_t*>(values));
      case PRIDE_SUM_INT16:
        return sum(static_cast<std::int16_t*>(values));
      case PRIDE_SUM_INT32:
        return sum(static_cast<std::int32_t*>(values));
      default:
        return sum(static_cast<BFloat16*>(values));
    }
  });
}

// All ranks of the parent call this at the same time, each for one new group: split() makes all.
std::int32_t group(void* user, const std::int32_t* members, std::int32_t n, std::int64_t timeout_ms,
                   void** new_user, char* error, std::uint64_t error_size) {
  return guarded(error, error_size, [&] {
    Group& parent = group_of(user);
    parent.comm->set_timeout(std::chrono::milliseconds(timeout_ms));
    const auto own = std::find(members, members + n, parent.comm->rank()) - members;
    auto made = parent.comm->split(members[0], static_cast<int>(own));
    *new_user = new Group{parent.world, std::move(made)};
  });
}

std::int32_t check(void* user, char* error, std::uint64_t error_size) {
  return guarded(error, error_size, [&] {
    Communicator& comm = *group_of(user).comm;
    comm.all_to_all_v({}, {});  // sends nothing, and throws if the world has failed
  });
}

void fail(void* user, const char* reason) {
  World& world = *group_of(user).world;
  const std::lock_guard lock(world.mutex);
  world.failing->fail(reason);
}
void release(void* user) { delete &group_of(user); }

}  // namespace
}  // namespace pride::c

int pride_mpi_transport(pride_transport* out, char* error, uint64_t error_size) {
  using namespace pride::c;
  return guarded(error, error_size,
                 [&] {
                   PRIDE_CHECK(out != nullptr, "out is NULL");
                   auto world = std::make_shared<World>();
                   PRIDE_CHECK(
                       world->environment.thread_multiple(),
                       "MPI was initialised without MPI_THREAD_MULTIPLE, which pride needs here");
                   auto comm = pride::make_mpi_communicator();
                   world->failing = comm->duplicate();
                   auto* whole = new Group{std::move(world), std::move(comm)};
                   // callers do not say how large theirs is
                   static_assert(sizeof(pride_transport) == 80, "fill in the first version");
                   *out = {.struct_size = sizeof(pride_transport),
                           .rank = whole->comm->rank(),
                           .size = whole->comm->size(),
                           .name = "mpi",
                           .user = whole,
                           .all_to_all_v = all_to_all_v,
                           .all_reduce = all_reduce,
                           .group = group,
                           .check = check,
                           .fail = fail,
                           .release = release};
                 }) == 0
             ? PRIDE_OK
             : PRIDE_INVALID;
}

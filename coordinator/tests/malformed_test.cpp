// Messages that no honest worker sends. Oracle: an honest worker's round still closes.
// fuzz/coord_fuzz.cpp looks for more.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "any_calls.h"
#include "pride/random_bits.h"
#include "rig.h"

namespace pride::coord::test {
namespace {

TEST(Malformed, MessagesLeaveAnHonestWorkersRoundsUndisturbed) {
  app::test::TempFolder folder;
  AnyCalls calls(folder.path() / "journal");
  PhiloxStream random(11, 1, 0);
  // honest messages, as text to change
  const RunDescription run = run_of_signs();
  const std::string frames = ballot_of(run, {.number = 1}, Rig::all_positive);
  PutChunkRequest put;
  put.set_total(frames.size());
  put.set_hash(hash_bytes(bytes_of(frames)));
  put.set_data(frames);
  VoteRequest vote;
  vote.set_total(frames.size());
  vote.set_hash(put.hash());
  vote.set_params_hash(Replica(run).hash());
  vote.set_scalars(scalars_text());
  RegisterRequest request;
  request.set_protocol(kProtocol);
  request.set_name("other");
  request.set_secret(std::string(16, 'o'));
  request.set_run(encode_run(run));
  MissingRequest missing;
  missing.set_total(frames.size());
  OfferParametersRequest offer;
  offer.set_total(4 * 256);
  const std::vector<std::string> honest = {request.SerializeAsString(), std::string("\x10\x05", 2),
                                           missing.SerializeAsString(), put.SerializeAsString(),
                                           vote.SerializeAsString(),    offer.SerializeAsString(),
                                           std::string("\x10\x02", 2),  std::string("\x10\x01", 2)};
  for (int i = 0; i < 20'000; ++i) {
    const auto kind = static_cast<std::uint8_t>(random.next_below(8));
    std::string bytes = honest[kind];
    for (int change = static_cast<int>(random.next_below(4)); change > 0; --change) {
      bytes[random.next_below(static_cast<std::uint32_t>(bytes.size()))] =
          static_cast<char>(random.next_u32());
    }
    if (random.next_below(10) == 0)
      bytes.resize(random.next_below(static_cast<std::uint32_t>(bytes.size())));
    calls.call(kind, bytes);
    if (i % 1000 == 0) {
      ASSERT_NO_THROW(calls.check()) << "after call " << i;
    }
  }
}

}  // namespace
}  // namespace pride::coord::test

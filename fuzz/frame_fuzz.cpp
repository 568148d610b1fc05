// A header and a payload of arbitrary bytes: open() refuses them by name, or they are exactly what
// seal() would have written.
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "codecs/frame.h"
#include "core/digest.h"
#include "fuzz_input.h"
#include "pride/error.h"

namespace pride::fuzz {
namespace {

// What would stop nearly every input: put right, if the input says so.
constexpr std::uint8_t kFixMagic = 1, kFixFields = 2, kFixChecksum = 4, kTwoParts = 8;

void put_magic(std::span<std::byte> header) {
  std::memcpy(header.data(), &kFrameMagic, 4);
  std::memcpy(header.data() + 4, &kFrameVersion, 2);
}

void put_checksum(std::span<std::byte> header, const Payload& payload) {
  std::uint64_t sum = hash_bytes(payload.first, hash_bytes(header.first(kHeaderBytes - 8)));
  if (!payload.second.empty()) sum = hash_bytes(payload.second, sum);
  std::memcpy(header.data() + kHeaderBytes - 8, &sum, 8);
}

void one_input(Input input) {
  const auto fix = static_cast<std::uint8_t>(input.number<std::uint8_t>() ^ 0xF);  // all at first
  FrameHeader expected{.codec = static_cast<Codec>(1 + input.below(10))};
  expected.rank = input.number<std::uint8_t>();
  expected.n_coords = input.number<std::uint16_t>();
  std::vector<std::byte> header(kHeaderBytes), bytes(input.below(256));
  input.fill(header);
  input.fill(bytes);
  const std::size_t cut = (fix & kTwoParts) != 0 ? bytes.size() / 2 : bytes.size();
  const Payload payload{std::span(bytes).first(cut), std::span(bytes).subspan(cut)};

  if ((fix & kFixFields) != 0) {
    // flags and poison stay as the input has them
    const std::vector<std::byte> given = header;
    seal(expected, header, payload);
    header[7] = given[7];
    std::copy_n(given.begin() + 48, 8, header.begin() + 48);
  }
  if ((fix & kFixMagic) != 0) put_magic(header);
  if ((fix & kFixChecksum) != 0) put_checksum(header, payload);
  try {
    expected.poison = open(header, payload, expected, "fuzz");
  } catch (const CommError& e) {
    must(contains(e.what(), concat("rank ", expected.rank)), "the error does not name the sender");
    return;
  }
  std::vector<std::byte> again(kHeaderBytes);
  seal(expected, again, payload);
  must(again == header, "open() took a header that seal() would not write");
}

}  // namespace
}  // namespace pride::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  pride::fuzz::one_input({data, size});
  return 0;
}

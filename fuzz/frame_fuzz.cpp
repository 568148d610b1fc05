// A head and a body of arbitrary bytes: open() refuses them by name, or the header is exactly what
// seal() would have written.
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "codecs/frame.h"
#include "fuzz_input.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride::fuzz {
namespace {

// What would stop nearly every input: put right, if the input says so.
constexpr std::uint8_t kFixMagic = 1, kFixFields = 2, kFixChecksum = 4, kTwoParts = 8;

void put_magic(std::span<std::byte> header) {
  std::memcpy(header.data(), &kFrameMagic, 4);
  std::memcpy(header.data() + 4, &kFrameVersion, 2);
}

void put_checksum(std::span<std::byte> head, std::span<const std::byte> body) {
  const std::span<const std::byte> whole = head;
  const auto header = whole.first(kHeaderBytes - 8);
  std::uint64_t sum = hash_bytes(whole.subspan(kHeaderBytes), hash_bytes(header));
  if (!body.empty()) sum = hash_bytes(body, sum);
  std::memcpy(head.data() + kHeaderBytes - 8, &sum, 8);
}

// What a header says of its payload, before anybody can trust it.
void claim(std::span<const std::byte> header, std::size_t most, int from) {
  try {
    must(claimed_payload(header, most, from, "fuzz") <= most, "a claim above what is possible");
  } catch (const CommError& e) {
    must(contains(e.what(), concat("rank ", from)), "the error does not name the sender");
  }
}

void one_input(Input input) {
  const auto fix = static_cast<std::uint8_t>(input.number<std::uint8_t>() ^ 0xF);  // all at first
  FrameHeader expected{.codec = static_cast<Codec>(1 + input.below(19))};
  expected.rank = input.number<std::uint8_t>();
  expected.n_coords = input.number<std::uint16_t>();
  const std::size_t n = input.below(256), cut = (fix & kTwoParts) != 0 ? n / 2 : n;
  std::vector<std::byte> head(kHeaderBytes + cut), body(n - cut);
  input.fill(head);
  input.fill(body);

  if ((fix & kFixFields) != 0) {
    // flags and the non-finite fields stay as the input has them
    const std::vector<std::byte> given = head;
    seal(expected, head, body);
    head[7] = given[7];
    std::copy_n(given.begin() + 48, 8, head.begin() + 48);
  }
  if ((fix & kFixMagic) != 0) put_magic(head);
  if ((fix & kFixChecksum) != 0) put_checksum(head, body);
  claim(std::span(head).first(kHeaderBytes), expected.n_coords, expected.rank);
  try {
    expected.non_finite = open({head, body}, expected, "fuzz");
  } catch (const CommError& e) {
    must(contains(e.what(), concat("rank ", expected.rank)), "the error does not name the sender");
    return;
  }
  std::vector<std::byte> again = head;
  std::fill_n(again.begin(), kHeaderBytes, std::byte{0});
  seal(expected, again, body);
  must(again == head, "open() took a header that seal() would not write");
}

}  // namespace
}  // namespace pride::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  pride::fuzz::one_input({data, size});
  return 0;
}

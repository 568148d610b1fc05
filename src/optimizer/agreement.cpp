// Compares digests over the ranks.
// SPDX-License-Identifier: Apache-2.0
#include "pride/agreement.h"

#include <algorithm>
#include <array>
#include <map>

#include "pride/digest.h"
#include "pride/error.h"

namespace pride {

std::vector<std::uint64_t> gather_rows(Communicator& comm, const std::vector<std::uint64_t>& mine) {
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  return all;
}

std::string ranks_that_differ(const std::vector<std::uint64_t>& rows, std::size_t width,
                              std::size_t k) {
  std::string ranks;
  for (std::size_t r = 1; r * width < rows.size(); ++r) {
    if (rows[r * width + k] != rows[k]) ranks += concat(ranks.empty() ? "" : ", ", r);
  }
  return ranks;
}

namespace {

constexpr const char* kAsMatrix[] = {"", ", a matrix", ", no matrix", ", unnamed"};

std::uint64_t tensor_digest(const TensorSlot& slot) {
  Digest digest;
  digest.text(slot.spec.name).number(static_cast<std::uint64_t>(slot.spec.group));
  digest.number(slot.to_whole).number(static_cast<std::uint64_t>(slot.spec.as_matrix));
  for (const std::int64_t e : slot.spec.shape) digest.number(static_cast<std::uint64_t>(e));
  return digest.value();
}

// "'weight' of shape (3, 4), group 0, no matrix"
std::string text_of(const TensorSlot& slot) {
  const TensorSpec& spec = slot.spec;
  std::string shape;
  for (const std::int64_t e : spec.shape) shape += concat(shape.empty() ? "" : ", ", e);
  return concat("'", spec.name, "' of shape (", shape, "), group ", spec.group,
                slot.to_whole != 0 ? concat(", from coordinate ", *spec.first_coord) : "",
                kAsMatrix[static_cast<std::size_t>(spec.as_matrix)]);
}

// Throws, naming the first tensor that differs, the same one on every rank. Collective.
[[noreturn]] void explain_layout(Communicator& comm, const Layout& layout,
                                 const std::string& ranks) {
  const auto counts = gather_rows(comm, {layout.tensors().size()});
  const std::size_t most = *std::max_element(counts.begin(), counts.end());
  std::vector<std::uint64_t> mine(most, 0);
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    mine[i] = tensor_digest(layout.tensors()[i]);
  }
  const auto all = gather_rows(comm, mine);
  std::size_t first = 0;
  while (first < most && ranks_that_differ(all, most, first).empty()) ++first;
  throw InvalidArgument(concat(
      "optimizer: the layouts of rank(s) ", ranks, " and of rank 0 differ: rank 0 has ", counts[0],
      " tensors; the first difference is tensor ", first,
      first < layout.tensors().size() ? concat(" (here ", text_of(layout.tensors()[first]), ")")
                                      : std::string(" (missing on this rank)")));
}

const char* name_of(std::uint64_t call) {
  static constexpr std::array<const char*, 5> kNames = {"the constructor", "add()", "broadcast()",
                                                        "load()", "step()"};
  return call < kNames.size() ? kNames[call] : "another call";
}

}  // namespace

std::vector<std::uint64_t> gather_calls(Communicator& comm, Call call, std::uint64_t value) {
  if (comm.size() == 1) return {value};
  const auto number = static_cast<std::uint64_t>(call);
  const Communicator::Scope scope(comm, concat("start of ", name_of(number)));
  const auto rows = gather_rows(comm, {number, value});
  std::vector<std::uint64_t> values;
  std::map<std::uint64_t, std::string> ranks;  // by call
  for (std::size_t r = 0; 2 * r < rows.size(); ++r) {
    std::string& list = ranks[rows[2 * r]];
    list += concat(list.empty() ? "" : ", ", r);
    values.push_back(rows[2 * r + 1]);
  }
  if (ranks.size() == 1) return values;
  std::string text = "optimizer: all ranks must make the same call:";
  for (const auto& [called, who] : ranks)
    text += concat(text.back() == ':' ? "" : ",", " rank(s) ", who, " call ", name_of(called));
  throw InvalidArgument(text);
}

void check_accepted(Communicator& comm, Call call, bool refused) {
  std::vector<std::uint64_t> refusals;
  try {
    refusals = gather_calls(comm, call, refused ? 1 : 0);
  } catch (const InvalidArgument&) {
    if (refused) return;
    throw;
  }
  std::string ranks;
  for (std::size_t r = 0; r < refusals.size(); ++r) {
    if (refusals[r] != 0) ranks += concat(ranks.empty() ? "" : ", ", r);
  }
  PRIDE_CHECK(ranks.empty() || refused, "optimizer: ", name_of(static_cast<std::uint64_t>(call)),
              " fails on rank(s) ", ranks, "; their errors give the reason");
}

std::vector<std::int64_t> check_agreement(
    Communicator& comm, const Layout& layout,
    const std::vector<std::pair<std::string, std::uint64_t>>& settings, std::int64_t own) {
  if (comm.size() == 1) return {own};
  const Communicator::Scope scope(comm, "start-up check of the optimizer");
  Digest tensors;
  for (const TensorSlot& slot : layout.tensors()) tensors.number(tensor_digest(slot));
  std::vector<std::uint64_t> mine = {tensors.value()};
  for (const auto& [name, digest] : settings) mine.push_back(digest);
  mine.push_back(static_cast<std::uint64_t>(own));
  const auto all = gather_rows(comm, mine);

  const std::string layout_ranks = ranks_that_differ(all, mine.size(), 0);
  if (!layout_ranks.empty()) explain_layout(comm, layout, layout_ranks);
  for (std::size_t k = 0; k < settings.size(); ++k) {
    const std::string ranks = ranks_that_differ(all, mine.size(), k + 1);
    PRIDE_CHECK(ranks.empty(), "optimizer: the ", settings[k].first, " of rank(s) ", ranks,
                " and of rank 0 differ");
  }
  std::vector<std::int64_t> of_all;
  for (std::size_t at = mine.size() - 1; at < all.size(); at += mine.size()) {
    of_all.push_back(static_cast<std::int64_t>(all[at]));
  }
  return of_all;
}

}  // namespace pride

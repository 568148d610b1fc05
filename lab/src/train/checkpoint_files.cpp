// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_files.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "pride/digest.h"
#include "pride/error.h"
#include "program/files.h"
#include "program/hex.h"
#include "program/io/mapped_file.h"
#include "program/io/pending_file.h"

namespace pride::train {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr const char* kAside = ".old";  // of a checkpoint that put_in_place() moves aside

// The step of a checkpoint's folder, also of one moved aside; -1 for other names.
std::int64_t step_of(const fs::path& folder) {
  std::string name = folder.filename().string();
  if (name.ends_with(kAside)) name.resize(name.size() - std::string_view(kAside).size());
  std::int64_t step = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && last == end ? step : -1;
}

// Newest first; of the same step, the one under its name before the one moved aside.
std::vector<fs::path> checkpoints_below(const fs::path& parent) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(parent, none)) {
    const fs::path& folder = entry.path();
    if (step_of(folder) >= 0 && fs::exists(folder / kCheckpointFacts)) found.push_back(folder);
  }
  std::ranges::sort(found, [](const fs::path& a, const fs::path& b) {
    const std::int64_t x = step_of(a), y = step_of(b);
    return x != y ? x > y : a < b;
  });
  return found;
}

std::string checksum(const nlohmann::json& facts) {
  const std::string text = facts.dump();
  return hex16(hash_bytes(std::as_bytes(std::span(text))));
}

// Infinity if the checkpoint was saved without an evaluation, or cannot be read.
double loss_of(const fs::path& folder) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  try {
    const nlohmann::json facts = read_checkpoint_facts(folder);
    const auto loss = facts.find("loss");
    return loss != facts.end() && loss->is_number() ? loss->get<double>() : kNone;
  } catch (const DataError&) {
    return kNone;
  }
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return concat(kPrefix, step); }

std::string state_name(int rank) { return concat("state-rank", rank, ".safetensors"); }

void write_checkpoint_facts(const fs::path& folder, nlohmann::json facts) {
  facts["checksum"] = checksum(facts);
  write_file(folder / kCheckpointFacts, facts.dump(2) + "\n");
}

nlohmann::json read_checkpoint_facts(const fs::path& folder) {
  const fs::path file = folder / kCheckpointFacts;
  nlohmann::json facts = read_json(file);
  if (!facts.is_object())
    throw DataError(concat(file.string(), ": not a checkpoint's description"));
  const std::string saved = facts.value("checksum", nlohmann::json()).dump();
  facts.erase("checksum");
  if (saved != nlohmann::json(checksum(facts)).dump() ||
      !facts.value("files", nlohmann::json()).is_object()) {
    throw DataError(concat(file.string(), ": damaged: its checksum does not match"));
  }
  return facts;
}

void check_checkpoint_files(const fs::path& folder, const nlohmann::json& facts,
                            const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string saved = facts["files"].value(name, "none"),
                      now = hex16(file_hash(folder / name));
    if (now == saved) continue;
    throw DataError(concat((folder / name).string(),
                           ": damaged, or of another checkpoint: its hash is ", now, ", ",
                           kCheckpointFacts, " has ", saved));
  }
}

std::vector<fs::path> find_checkpoints(const fs::path& folder) {
  if (fs::exists(folder / kCheckpointFacts)) return {folder};
  std::vector<fs::path> found = checkpoints_below(folder / "checkpoints");
  if (found.empty()) {
    throw DataError(concat(
        "--resume ", folder.string(),
        fs::exists(folder) ? ": no complete checkpoint there" : ": there is no such folder"));
  }
  return found;
}

void put_in_place(const fs::path& partial, const fs::path& place) {
  const fs::path aside = place.string() + kAside;
  if (fs::exists(place)) {
    fs::remove_all(aside);
    fs::rename(place, aside);
  }
  sync_folder(partial);
  fs::rename(partial, place);
  sync_folder(place.parent_path());
  fs::remove_all(aside);
}

void remove_partial(const fs::path& parent) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(parent, none)) {
    const fs::path name = entry.path().filename();
    if (name.extension() == kPartial && step_of(name.stem()) >= 0) found.push_back(entry.path());
  }
  for (const fs::path& folder : found) fs::remove_all(folder, none);
}

void keep_newest(const fs::path& parent, std::int64_t keep) {
  const std::vector<fs::path> all = checkpoints_below(parent);
  if (keep <= 0 || std::ssize(all) <= keep) return;
  const auto best = std::ranges::min_element(all, {}, loss_of);  // without any loss, the newest
  for (auto at = all.begin() + keep; at != all.end(); ++at) {
    if (at != best) fs::remove_all(*at);
  }
}

std::vector<std::string> drop_later(const fs::path& parent, std::int64_t step) {
  std::vector<std::string> dropped;
  for (const fs::path& folder : checkpoints_below(parent)) {
    if (step_of(folder) <= step) continue;
    const fs::path name = folder.string() + ".dropped";
    fs::remove_all(name);
    fs::rename(folder, name);
    dropped.push_back(folder.filename().string());
  }
  return dropped;
}

}  // namespace pride::train

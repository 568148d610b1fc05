// Folders of checkpoints: names, order, what is kept, and the lock of a folder of results.
// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_files.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "program/io/folder_lock.h"
#include "support/temp_folder.h"
#include "train/run_folder.h"

namespace pride::train {
namespace {

namespace fs = std::filesystem;
using app::test::bytes_of;
using app::test::expect_error;
using app::test::TempFolder;
using Names = std::vector<std::string>;

class CheckpointFiles : public ::testing::Test {
 protected:
  // A checkpoint's folder OUT/checkpoints/NAME with its facts.
  fs::path make(const std::string& name, std::optional<double> loss = {}) const {
    const fs::path made = parent() / name;
    fs::create_directories(made);
    nlohmann::json facts = {{"name", name}, {"files", nlohmann::json::object()}};
    if (loss) facts["loss"] = *loss;
    write_checkpoint_facts(made, facts);
    return made;
  }

  fs::path parent() const { return folder_.path() / "checkpoints"; }

  Names found() const {
    Names names;
    for (const fs::path& each : find_checkpoints(folder_.path())) {
      names.push_back(each.filename().string());
    }
    return names;
  }

  TempFolder folder_;
};

TEST_F(CheckpointFiles, AreFoundNewestFirstAndByNameBeforeTheOneSetAside) {
  for (const char* name : {"step-4.old", "step-12", "step-4", "step-9.dropped", "step-x", "step--1",
                           "step-4.partial", "other"}) {
    make(name);
  }
  fs::create_directories(parent() / "step-20");  // without facts: a save that did not end
  EXPECT_EQ(found(), (Names{"step-12", "step-4", "step-4.old"}));
}

TEST_F(CheckpointFiles, ReplaceOneOfTheSameName) {
  make("step-4");
  put_in_place(make("new"), parent() / "step-4");
  EXPECT_EQ(found(), Names{"step-4"});
  EXPECT_EQ(read_checkpoint_facts(parent() / "step-4")["name"], "new");
  EXPECT_FALSE(fs::exists(parent() / "step-4.old"));
}

TEST_F(CheckpointFiles, ThatAKilledRunWasWritingAreRemoved) {
  for (const char* name : {"step-4.partial", "step-12.partial", "step-4", "mine.partial"}) {
    make(name);
  }
  remove_partial(parent());
  for (const char* name : {"step-4.partial", "step-12.partial"}) {
    EXPECT_FALSE(fs::exists(parent() / name)) << name;
  }
  EXPECT_TRUE(fs::exists(parent() / "step-4") && fs::exists(parent() / "mine.partial"));
}

TEST_F(CheckpointFiles, LeaveTheOldOneWhereTheNewOneIsMissing) {
  make("step-4");
  EXPECT_ANY_THROW(put_in_place(parent() / "missing", parent() / "step-4"));
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(read_checkpoint_facts(find_checkpoints(folder_.path()).front())["name"], "step-4");
}

TEST_F(CheckpointFiles, KeepTheNewestAndTheBest) {
  make("step-1", 3.0), make("step-2", 1.0), make("step-3", 2.0), make("step-4"), make("step-5");
  keep_newest(parent(), 5);
  EXPECT_EQ(found().size(), 5u);
  keep_newest(parent(), 2);
  EXPECT_EQ(found(), (Names{"step-5", "step-4", "step-2"}));
  fs::remove_all(parent() / "step-2");
  make("step-3");
  keep_newest(parent(), 0);  // all
  EXPECT_EQ(found().size(), 3u);
  keep_newest(parent(), 1);  // no loss is known
  EXPECT_EQ(found(), Names{"step-5"});
}

TEST_F(CheckpointFiles, RefuseFactsAndFilesThatChanged) {
  const fs::path made = make("step-1");
  write_checkpoint_facts(made, {{"files", {{"a", "0123456789abcdef"}}}});
  const nlohmann::json facts = read_checkpoint_facts(made);
  folder_.write("checkpoints/step-1/a", "other bytes");
  expect_error<DataError>([&] { check_checkpoint_files(made, facts, {"a"}); },
                          {"step-1/a: damaged, or of another checkpoint"});
  expect_error<DataError>([&] { check_checkpoint_files(made, facts, {kCheckpointFacts}); },
                          {"checkpoint.json has none"});
  const std::string text = bytes_of(made / kCheckpointFacts);
  folder_.write(fs::path("checkpoints/step-1") / kCheckpointFacts, "");
  expect_error<DataError>([&] { read_checkpoint_facts(made); }, {"checkpoint.json: it is empty"});
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (std::isspace(static_cast<unsigned char>(text[at])) != 0) continue;
    std::string bad = text;
    bad[at] ^= 1;
    folder_.write(fs::path("checkpoints/step-1") / kCheckpointFacts, bad);
    EXPECT_THROW(read_checkpoint_facts(made), DataError) << "bit 0 of byte " << at;
  }
}

TEST(RunFolder, IsRefusedWhereARankSeesAnotherOne) {
  const TempFolder shared, own;
  run_world(3, [&](Communicator& comm) { check_shared_folder(comm, shared.path()); });
  EXPECT_TRUE(fs::is_empty(shared.path()));
  std::atomic<int> refused = 0;
  run_world(3, [&](Communicator& comm) {
    try {
      check_shared_folder(comm, comm.rank() == 2 ? own.path() : shared.path());
    } catch (const DataError& e) {
      refused +=
          std::string(e.what()).find("rank 2 does not see rank 0's --out") != std::string::npos;
    }
  });
  EXPECT_EQ(refused, 3);
}

TEST(FolderLock, SeesThatItsFileOrFolderIsGone) {
  const TempFolder parent;
  const fs::path folder = parent.path() / "out";
  const auto locked = [&](const auto& change) {
    fs::create_directories(folder);
    const FolderLock lock(folder, "run");
    lock.check();
    change();
    expect_error<DataError>([&] { lock.check(); }, {folder.string(), "removed or replaced"});
    fs::remove_all(folder);
  };
  locked([&] { fs::remove(folder / kLockFile); });
  locked([&] { fs::remove_all(folder); });
  locked([&] { fs::remove(folder / kLockFile), parent.write("out/.lock", "1\n"); });
  locked([&] { fs::rename(folder, parent.path() / "moved"); });
}

TEST(FolderLock, IsForOneAtATime) {
  const TempFolder folder;
  {
    const FolderLock lock(folder.path(), "run");
    expect_error<Error>([&] { FolderLock(folder.path(), "sweep"); },
                        {"another sweep (process ", "uses this folder"});
  }
  FolderLock(folder.path(), "run").check();
}

}  // namespace
}  // namespace pride::train

// Reading a journal whose files were cut, changed and copied. Oracle: the records that were
// appended.
// SPDX-License-Identifier: Apache-2.0
#include "coord/journal.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "pride/error.h"
#include "support/temp_folder.h"
#include "support/texts.h"

namespace pride::coord::test {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kSegment = 110;  // bytes: two records

// Of a size and content that differ by round.
Bytes record_of(std::int64_t round) {
  Bytes bytes(static_cast<std::size_t>(4 + round * 7 % 6));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = std::byte(round * 31 + static_cast<std::int64_t>(i));
  return bytes;
}

std::vector<float> params_of(std::int64_t round) { return {static_cast<float>(round), 2, 3}; }

class JournalTest : public testing::Test {
 protected:
  fs::path folder() const { return temp_.path() / "journal"; }

  void write(std::int64_t first, std::int64_t end, bool retain_all = true,
             std::int64_t parameters_every = 4) {
    Journal journal(folder(), kSegment, retain_all);
    if (!journal.run()) {
      journal.begin("the run");
      journal.save_registrations("the names");
    }
    for (std::int64_t round = first; round < end; ++round) {
      if (round % parameters_every == 0) {
        const auto hash = static_cast<std::uint64_t>(round);
        journal.keep_parameters(round, hash, params_of(round));
      }
      journal.append(round, record_of(round));
    }
  }

  // The rounds that are there, after each was compared.
  static std::int64_t check(const Journal& journal) {
    for (std::int64_t round = journal.first_record(); round < journal.next_round(); ++round) {
      const auto stored = journal.record(round);
      if (!stored) return -1;
      const std::string bytes = stored->read(0, stored->size());
      const Bytes expected = record_of(round);
      if (bytes.size() != expected.size() ||
          std::memcmp(bytes.data(), expected.data(), bytes.size()) != 0) {
        return -1;
      }
    }
    return journal.next_round();
  }

  static std::string read(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void put(const fs::path& file, std::string_view bytes) {
    std::ofstream(file, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  // As a copy made while it is written: without the lock.
  fs::path copy() const {
    const fs::path to = temp_.path() / "copy";
    fs::remove_all(to);
    fs::copy(folder(), to);
    return to;
  }
  std::vector<fs::path> segments(const fs::path& in) const {
    std::vector<fs::path> files;
    for (const JournalSegment& segment : scan_journal(in).segments) files.push_back(segment.file);
    return files;
  }
  static std::string error_of(const fs::path& in) {
    return texts::error_of<DataError>([&] { scan_journal(in); });
  }

  app::test::TempFolder temp_;
};

TEST_F(JournalTest, GivesBackWhatWasAppendedBeforeAndAfterItIsOpenedAgain) {
  write(0, 7);
  write(7, 12);
  EXPECT_GT(segments(folder()).size(), 2U);
  const Journal journal(folder(), kSegment, true);
  EXPECT_EQ(journal.run(), "the run");
  EXPECT_EQ(check(journal), 12);
  EXPECT_EQ(journal.first_record(), 0);
  EXPECT_FALSE(journal.record(12));
  EXPECT_EQ(journal.newest_parameters()->before_round, 8);
  EXPECT_EQ(journal.newest_parameters()->params_hash, 8U);
  const std::string bytes = journal.parameters(4)->read(4, 4);
  EXPECT_EQ(std::memcmp(bytes.data(), &params_of(4)[1], 4), 0);
}

TEST_F(JournalTest, TakesNoFolderOfOtherThings) {
  const fs::path other = temp_.path() / "other";
  fs::create_directories(other);
  std::ofstream(other / "summary.json") << "{}";
  EXPECT_EQ(
      texts::error_of<DataError>([&] { const Journal journal(other, kSegment, true); }),
      other.string() + ": holds summary.json and no journal; a journal needs a folder of its own");
  EXPECT_EQ(std::distance(fs::directory_iterator(other), {}), 1);
}

// Every write of append() ends at some byte: whatever was not whole when the process was killed is
// cut off, and the journal goes on from there.
TEST_F(JournalTest, GoesOnAfterItsLastSegmentWasCutAtAnyByte) {
  write(0, 3, true, 100);
  const std::vector<fs::path> files = segments(folder());
  const std::string whole = read(files.back());
  const JournalFiles scanned = scan_journal(folder());
  for (std::size_t n = 0; n <= whole.size(); ++n) {
    const fs::path to = copy();
    put(to / files.back().filename(), std::string_view(whole).substr(0, n));
    std::int64_t expected = scanned.segments.back().first_round;
    for (const JournalEntry& entry : scanned.segments.back().entries) {
      if (entry.offset + entry.length <= n) expected = entry.round + 1;
    }
    {
      Journal journal(to, kSegment, true);
      ASSERT_EQ(check(journal), expected) << "cut to " << n << " bytes";
      journal.append(expected, record_of(expected));
    }
    const Journal journal(to, kSegment, true);
    ASSERT_EQ(check(journal), expected + 1) << "cut to " << n << " bytes";
  }
}

TEST_F(JournalTest, GoesOnAfterAnEndThatWasNeverWritten) {
  write(0, 3, true, 100);
  const fs::path last = segments(folder()).back();
  put(last, read(last) + std::string(5000, '\0'));
  EXPECT_EQ(check(Journal(folder(), kSegment, true)), 3);
}

TEST_F(JournalTest, RefusesEveryBitThatIsWrongByFileAndOffset) {
  write(0, 3, true, 3);
  for (const auto& entry : fs::directory_iterator(folder())) {
    const std::string name = entry.path().filename().string();
    if (name == ".lock") continue;
    const std::string whole = read(entry.path());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ 4);
      const fs::path to = copy();
      put(to / name, changed);
      const std::string error = error_of(to);
      ASSERT_NE(error.find(name), std::string::npos) << name << ", byte " << i << ": " << error;
    }
  }
}

// Version 1 had frames whose zeros and ties were decided by other bits.
TEST_F(JournalTest, SaysOfVersion1WhatIsDifferent) {
  write(0, 3, true, 3);
  for (const auto& entry : fs::directory_iterator(folder())) {
    const std::string name = entry.path().filename().string();
    if (name == ".lock") continue;
    std::string old = read(entry.path());
    ASSERT_EQ(old[4], 3) << name;
    old[4] = 2;
    const fs::path to = copy();
    put(to / name, old);
    const std::string error = error_of(to);
    EXPECT_NE(error.find(name + ": of version 2 of the journal, this program reads 3: zeros"),
              std::string::npos)
        << error;
  }
}

TEST_F(JournalTest, RefusesACutWhereMoreFollows) {
  write(0, 12, true, 100);
  const std::vector<fs::path> files = segments(folder());
  ASSERT_GT(files.size(), 2U);
  const std::string first = read(files[0]);
  for (std::size_t n = 0; n < first.size(); ++n) {
    const fs::path to = copy();
    put(to / files[0].filename(), std::string_view(first).substr(0, n));
    ASSERT_NE(error_of(to), "") << n;
  }
  const fs::path to = copy();
  fs::remove(to / files[1].filename());
  EXPECT_NE(error_of(to).find("records are missing"), std::string::npos);
}

TEST_F(JournalTest, NamesAFileThatIsMissing) {
  write(0, 9, true, 8);
  const std::vector<fs::path> files = segments(folder());
  ASSERT_GT(files.size(), 2U);
  const auto error_without = [&](const std::vector<fs::path>& gone) {
    const fs::path to = copy();
    for (const fs::path& file : gone) fs::remove(to / file.filename());
    return error_of(to);
  };
  const std::string copied = (temp_.path() / "copy" / "").string();
  EXPECT_EQ(error_without({kRegistrationsFile}),
            copied + "registrations: missing; records or parameters exist");
  EXPECT_EQ(error_without({files[0]}),
            copied +
                "records-00000000000000000000: missing; of the records since "
                "parameters-00000000000000000000 the first existing one is " +
                copied + files[1].filename().string());
  const fs::path newest = parameters_file({}, 8);
  std::vector<fs::path> all = files;
  all.push_back(newest);
  EXPECT_EQ(
      error_without(all),
      copied + "records-00000000000000000000: missing; the run exists, but none of its records");
}

TEST_F(JournalTest, NotesWhatATornEndAndMissingParametersTake) {
  write(0, 9, true, 4);
  EXPECT_EQ(scan_journal(folder()).notes(true).size(), 0U);
  const fs::path last = segments(folder()).back();
  const JournalFiles whole = scan_journal(folder());
  const std::uint64_t end = whole.segments.back().good_bytes;
  put(last, read(last) + std::string(7, 'x'));
  const auto torn = [&](std::uint64_t from, std::uint64_t n, std::int64_t round) {
    return concat(last.string(), ": torn at byte ", from, ": the ", n,
                  " bytes from there on are not a complete record. A coordinator cuts them off at "
                  "its start; the journal ends before round ",
                  round);
  };
  EXPECT_EQ(scan_journal(folder()).notes(true), std::vector<std::string>{torn(end, 7, 9)});
  {
    const Journal journal(folder(), kSegment, true);
    EXPECT_EQ(journal.notes(), std::vector<std::string>{torn(end, 7, 9)});
  }
  EXPECT_EQ(Journal(folder(), kSegment, true).notes().size(), 0U) << "it was cut off";

  fs::remove(parameters_file(folder(), 0));
  const std::string first = parameters_file(folder(), 0).string();
  EXPECT_EQ(scan_journal(folder()).notes(true),
            std::vector<std::string>{first +
                                     ": missing: the records of rounds 0 to 3 cannot be replayed"});
  EXPECT_EQ(scan_journal(folder()).notes(false).size(), 0U) << "--keep recent removes them";
  for (const std::int64_t round : {4, 8}) fs::remove(parameters_file(folder(), round));
  EXPECT_EQ(scan_journal(folder()).notes(false),
            std::vector<std::string>{first + ": missing, with all later ones: no new worker can "
                                             "join before a worker has sent its parameters"});
}

// Killed between the first segment and the run.
TEST_F(JournalTest, BeginsWhereOnlyItsFirstSegmentWasMade) {
  write(0, 0);
  fs::remove(folder() / kRunFile);
  fs::remove(folder() / kRegistrationsFile);
  write(0, 3, false, 3);
  EXPECT_EQ(check(Journal(folder(), kSegment, false)), 3);
}

TEST_F(JournalTest, RefusesParametersOfRoundsThatAreNotThere) {
  write(0, 9, true, 8);
  const fs::path to = copy();
  for (const fs::path& file : segments(to)) fs::remove(file);
  EXPECT_NE(error_of(to).find("only a part of the folder copied"), std::string::npos);
  fs::remove(to / kRunFile);
  EXPECT_NE(error_of(to).find("missing"), std::string::npos);
}

// A copy made file by file in the order of the names, while the coordinator writes: each file as
// it is at some moment, later files at later moments.
TEST_F(JournalTest, IsWholeInACopyMadeInOrderOfNamesAtAnyMoment) {
  write(0, 12);
  const JournalFiles all = scan_journal(folder());
  const fs::path to = temp_.path() / "copy";
  for (std::int64_t moment = 0; moment <= 12; ++moment) {
    for (std::int64_t later = moment; later <= 12; ++later) {
      fs::remove_all(to);
      fs::create_directory(to);
      for (const JournalParameters& p : all.parameters) {
        if (p.before_round <= moment) fs::copy(p.file, to / p.file.filename());
      }
      std::int64_t end = 0;
      for (const JournalSegment& segment : all.segments) {
        if (segment.first_round > later) continue;
        std::uint64_t n = kSegmentHeaderBytes;
        for (const JournalEntry& entry : segment.entries) {
          if (entry.round < later) n = entry.offset + entry.length, end = entry.round + 1;
        }
        put(to / segment.file.filename(), read(segment.file).substr(0, n + 9));
      }
      fs::copy(folder() / kRegistrationsFile, to / kRegistrationsFile);
      fs::copy(folder() / kRunFile, to / kRunFile);
      const Journal journal(to, kSegment, true);
      ASSERT_EQ(check(journal), end) << moment << " " << later;
    }
  }
}

TEST_F(JournalTest, KeepsRecordsSinceTheOlderOfTheNewestTwoParameters) {
  write(0, 30, false, 6);
  const Journal journal(folder(), kSegment, false);
  EXPECT_EQ(journal.next_round(), 30);
  EXPECT_GT(journal.first_record(), 6);
  EXPECT_LE(journal.first_record(), 18);
  EXPECT_TRUE(journal.parameters(18));
  EXPECT_TRUE(journal.parameters(24));
  EXPECT_FALSE(journal.parameters(12));
  EXPECT_EQ(check(journal), 30);
  EXPECT_FALSE(journal.record(journal.first_record() - 1));
}

TEST_F(JournalTest, HasNothingMissingOnceRecentRoundsWereKeptForAWhile) {
  for (const bool all : {true, false}) {
    Journal journal(folder(), 1 << 20, all);
    if (all) journal.begin("the run"), journal.save_registrations("the names");
    for (std::int64_t round = all ? 0 : 20; round < (all ? 20 : 22); ++round) {
      if (round % 4 == 0) journal.keep_parameters(round, 1, params_of(round));
      journal.append(round, record_of(round));
    }
  }
  EXPECT_EQ(Journal(folder(), 1 << 20, true).notes().size(), 0U);
}

TEST_F(JournalTest, RefusesTheRegistrationsOfAnotherRun) {
  write(0, 3);
  Journal other(temp_.path() / "other", kSegment, true);
  other.begin("another run");
  other.save_registrations("the names");
  fs::copy(temp_.path() / "other" / kRegistrationsFile, folder() / kRegistrationsFile,
           fs::copy_options::overwrite_existing);
  EXPECT_NE(error_of(folder()).find("it is of another run than the file run"), std::string::npos);
}

TEST_F(JournalTest, KeepsBytesReadableThatAreRemovedMeanwhile) {
  Journal journal(folder(), kSegment, false);
  journal.begin("the run");
  std::optional<StoredBytes> first, params;
  for (std::int64_t round = 0; round < 30; ++round) {
    if (round % 6 == 0) journal.keep_parameters(round, 1, params_of(round));
    journal.append(round, record_of(round));
    if (round == 0) first = journal.record(0), params = journal.parameters(0);
  }
  ASSERT_FALSE(journal.record(0));
  EXPECT_EQ(first->read(0, first->size()).size(), record_of(0).size());
  EXPECT_EQ(params->read(0, 4), std::string(4, '\0'));
}

TEST_F(JournalTest, IsOfOneCoordinatorAtATime) {
  const Journal journal(folder(), kSegment, true);
  EXPECT_THROW(Journal(folder(), kSegment, true), Error);
}

TEST_F(JournalTest, LeavesNothingOfFilesThatWereNotFinished) {
  write(0, 1);
  put(folder() / "parameters-00000000000000000008.tmp.77", "half");
  EXPECT_EQ(check(Journal(folder(), kSegment, true)), 1);
  EXPECT_FALSE(fs::exists(folder() / "parameters-00000000000000000008.tmp.77"));
}

}  // namespace
}  // namespace pride::coord::test

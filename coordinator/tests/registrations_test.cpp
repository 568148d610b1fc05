// Names, secrets, certificates and limits of registrations.
// SPDX-License-Identifier: Apache-2.0
#include "coord/registrations.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "coord/journal_scan.h"
#include "pride/error.h"
#include "rig.h"
#include "support/texts.h"

namespace pride::coord::test {
namespace {

class RegistrationsTest : public ::testing::Test {
 protected:
  Registrations::Found add(const std::string& name, const std::string& certificate = "",
                           const std::string& secret = "", int minute = 0,
                           const std::string& address = "192.0.2.1:4000") {
    return registrations_.find_or_add(name, secret.empty() ? secret_of(name) : secret, 1,
                                      {certificate, address}, Time(std::chrono::minutes(minute)));
  }
  CoordinatorOptions options_{
      .max_workers = 5, .registrations_per_minute = 3, .attempts_per_minute = 8};
  Registrations registrations_{options_};
};

TEST_F(RegistrationsTest, KeepTheNumberOfANameWhateverConnectionItComesBy) {
  EXPECT_EQ(add("ann").number, 0);
  EXPECT_EQ(add("bob").number, 1);
  const auto again = add("ann", "", "", 0, "198.51.100.7:1");
  EXPECT_EQ(again.number, 0);
  EXPECT_FALSE(again.added);
  EXPECT_FALSE(again.changed);
}

TEST_F(RegistrationsTest, RefuseANameWithoutItsSecret) {
  add("ann");
  EXPECT_TRUE(has(add("ann", "", secret_of("eve")).refused, "another secret"));
  EXPECT_TRUE(has(add("bob", "", "short").refused, "has 5 bytes, not 16"));
}

TEST_F(RegistrationsTest, TakeTheCertificatesNameAndNoOther) {
  EXPECT_EQ(add("", "site-1").number, 0);
  EXPECT_EQ(add("site-1", "site-1", "whatever").number, 0);  // a certificate needs no secret
  EXPECT_TRUE(has(add("site-2", "site-1").refused, "the certificate is of 'site-1'"));
  EXPECT_TRUE(has(add("site-1").refused, "belongs to a certificate"));
}

TEST_F(RegistrationsTest, RefuseNamesThatAreNone) {
  for (const char* name : {"", "a b", "a/b", "\n"}) EXPECT_NE(add(name).refused, "") << name;
  EXPECT_NE(add(std::string(65, 'x')).refused, "");
}

TEST_F(RegistrationsTest, LimitNewNamesAndAttemptsAMinuteAndNamesInAll) {
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(add(name).refused, "");
  EXPECT_TRUE(has(add("d").refused, "more than 3 new workers a minute"));
  EXPECT_EQ(add("a").refused, "");  // not a new one
  EXPECT_EQ(add("d", "", "", 1).refused, "");
  EXPECT_EQ(add("e", "", "", 1).refused, "");
  EXPECT_TRUE(has(add("f", "", "", 1).refused, "has 5 workers"));
  for (int i = 0; i < 5; ++i) add("a", "", "", 1, concat("192.0.2.1:", i));
  EXPECT_TRUE(has(add("a", "", "", 1).refused, "more than 8 registrations a minute"));
  EXPECT_EQ(add("a", "", "", 1, "198.51.100.7:1").refused, "");
  EXPECT_EQ(add("a", "", "", 2).refused, "");
}

TEST_F(RegistrationsTest, CountAttemptsByCertificateNotByTheAddressItShares) {
  for (int i = 0; i < 9; ++i) add("mallory", "mallory");
  EXPECT_TRUE(has(add("mallory", "mallory").refused,
                  "more than 8 registrations a minute with this certificate"));
  EXPECT_EQ(add("ann", "ann").refused, "");
}

TEST_F(RegistrationsTest, AreTheSameAfterSaveAndLoadAndHoldNoSecret) {
  add("ann");
  add("", "site-1");
  const std::string saved = registrations_.save();
  EXPECT_EQ(saved.find(secret_of("ann")), std::string::npos);
  Registrations loaded(options_);
  loaded.load(saved, "file");
  const Time now{};
  EXPECT_EQ(loaded.find_or_add("ann", secret_of("ann"), 1, {}, now).number, 0);
  EXPECT_NE(loaded.find_or_add("ann", secret_of("eve"), 1, {}, now).refused, "");
  EXPECT_EQ(loaded.find_or_add("", "", 1, {"site-1", ""}, now).number, 1);
  EXPECT_THROW(Registrations(options_).load(saved.substr(0, saved.size() - 3), "file"), DataError);
}

// Of two runs with equal settings, too: each has an id of its own.
TEST(Registration, OfAnotherRunIsRefused) {
  Rig rig, other;
  for (Rig* one : {&rig, &other}) one->join("ann");
  rig.kill();
  const auto copy = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(other.folder() / kRegistrationsFile, rig.folder() / kRegistrationsFile,
                             copy);
  texts::expect_error<DataError>([&] { rig.start(); }, {"it is of another run than the file run"});
}

}  // namespace
}  // namespace pride::coord::test

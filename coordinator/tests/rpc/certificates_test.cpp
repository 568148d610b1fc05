// Certificates of a project: what is made, who is taken, and why others are not.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "coord/certificates/certificate_files.h"
#include "coord/certificates/checker.h"
#include "pride/error.h"
#include "project.h"
#include "support/texts.h"

namespace pride::coord::testing {
namespace {

const auto kNow = std::chrono::system_clock::now();
constexpr long kDay = 86'400;

// Where the text is, its part must be; else it is a name.
void expect_refused(const Verdict& verdict, const std::string& part) {
  EXPECT_NE(verdict.refused.find(part), std::string::npos)
      << verdict.refused << "\nhas no: " << part;
}

struct Project {
  Folder folder;
  fs::path ca = make_project(folder / "ca");
  Authority authority{ca};
  CertificateChecker checker{ca / "server"};

  std::string worker(const std::string& name, Validity validity = {}) {
    return read_file(authority.issue_worker(name, validity) / kCertFile);
  }
};

TEST(Certificates, OfAWorkerAreTakenWithTheirName) {
  Project project;
  const Verdict verdict = project.checker.check(project.worker("alice"), kNow);
  EXPECT_EQ(verdict.refused, "");
  EXPECT_EQ(verdict.name, "alice");
}

TEST(Certificates, AreRefusedWithTheReason) {
  Project project, other;
  expect_refused(project.checker.check("", kNow), "no certificate");
  expect_refused(project.checker.check("-----BEGIN", kNow), "cannot be read");
  expect_refused(project.checker.check(other.worker("eve"), kNow), "is not of this project's CA");
  expect_refused(project.checker.check(project.worker("old", {-2 * kDay, -kDay}), kNow),
                 "the certificate of old has expired, on 20");
  expect_refused(project.checker.check(project.worker("new", {kDay, 2 * kDay}), kNow),
                 "the certificate of new is not valid before 20");
  const std::string server = read_file(project.ca / "server" / kCertFile);
  expect_refused(project.checker.check(server, kNow), "is not a worker's");
  const std::string ca = read_file(project.ca / kCaFile);
  EXPECT_NE(project.checker.check(ca, kNow).refused, "") << "the CA is a worker";
}

TEST(Certificates, OfAServerAreRefusedOutsideTheirDates) {
  Project project;
  const auto refusal = [&](Validity validity) {
    const fs::path folder = project.authority.issue_server({"localhost"}, validity, true);
    return texts::error_of<DataError>(
        [&] { check_is_of_server(read_certificate_files(folder), folder); });
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_NE(refusal({-2 * kDay, -kDay}).find("cert.pem has expired, on 20"), std::string::npos);
  EXPECT_NE(refusal({kDay, 2 * kDay}).find("cert.pem is not valid before 20"), std::string::npos);
}

TEST(Certificates, ADamagedListOfRevokedOnesIsAWarning) {
  Project project;
  std::vector<std::string> warnings;
  project.worker("alice");
  project.authority.revoke("alice");
  CertificateChecker checker(project.ca / "server",
                             [&](const std::string& what) { warnings.push_back(what); });
  const fs::path list = project.ca / "server" / kRevokedFile;
  write_file(list, read_file(list) + "no serial\n", 0644);
  EXPECT_EQ(checker.check(project.worker("bob"), kNow).refused, "");
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("revoked.txt:2: does not begin with a serial"), std::string::npos);
}

TEST(Certificates, ExpireWhileTheyAreKnown) {
  Project project;
  const std::string pem = project.worker("alice");
  EXPECT_EQ(project.checker.check(pem, kNow).refused, "");
  expect_refused(project.checker.check(pem, kNow + 24h * 366), "has expired");
  EXPECT_EQ(project.checker.check(pem, kNow).refused, "");
}

TEST(Certificates, AreRevokedFromTheNextLookOn) {
  Project project;
  const std::string alice = project.worker("alice"), bob = project.worker("bob");
  EXPECT_EQ(project.checker.check(alice, kNow).refused, "");
  EXPECT_EQ(project.authority.revoke("alice").size(), 1U);
  expect_refused(project.checker.check(alice, kNow), "the certificate of alice has been revoked");
  EXPECT_EQ(project.checker.check(bob, kNow).refused, "");
  const std::string serial = serial_of(*read_certificate(bob));
  EXPECT_EQ(project.authority.revoke(serial).at(0).serial, serial);
  expect_refused(project.checker.check(bob, kNow), "(serial " + serial + ")");
  EXPECT_THROW(project.authority.revoke("nobody"), DataError);
}

TEST(Certificates, StayRevokedWhenTheListIsLost) {
  Project project;
  const std::string alice = project.worker("alice");
  project.authority.revoke("alice");
  expect_refused(project.checker.check(alice, kNow), "revoked");
  fs::remove(project.ca / "server" / kRevokedFile);
  expect_refused(project.checker.check(alice, kNow), "revoked");
}

TEST(Certificates, StayRevokedWhenTheListIsDamaged) {
  Project project;
  const std::string pem = project.worker("alice");
  project.authority.revoke("alice");
  expect_refused(project.checker.check(pem, kNow), "has been revoked");
  const fs::path list = project.ca / "server" / kRevokedFile;
  write_file(list, "garbage\n", 0644);
  expect_refused(project.checker.check(pem, kNow), "has been revoked");
  EXPECT_EQ(
      texts::error_of<DataError>([&] { CertificateChecker begun_with_it{project.ca / "server"}; }),
      list.string() + ":1: does not begin with a serial");
}

TEST(Certificates, AreNotMadeByADamagedAuthority) {
  Project project, other;
  project.worker("alice");
  const auto refused = [&](const std::function<void()>& body, const std::string& part) {
    texts::expect_error<DataError>([&] { body(); }, {part});
  };
  fs::permissions(project.ca / "ca.key", fs::perms(0644));
  refused([&] { Authority readable_by_all{project.ca}; }, "ca.key can be read by others");
  fs::permissions(project.ca / "ca.key", fs::perms(0600));
  write_file(project.ca / "ca.key", read_file(other.ca / "ca.key"), 0600);
  refused([&] { project.worker("dave"); }, "ca.key is not the key of ca.pem");
  write_file(project.ca / "issued.txt", "garbage\n", 0644);
  refused([&] { project.authority.revoke("alice"); }, "issued.txt:1: not a certificate's serial");
}

TEST(CertificateFiles, OfAWorkerAreNoneOfAServer) {
  Project project;
  const fs::path server = project.ca / "server",
                 alice = project.authority.issue_worker("alice", {});
  check_is_of_server(read_certificate_files(server), server);
  EXPECT_THROW(check_is_of_server(read_certificate_files(alice), alice), DataError);
}

TEST(Certificates, AreListedWithWhatBecameOfThem) {
  Project project;
  project.worker("alice");
  project.worker("bob");
  project.authority.revoke("bob");
  const std::vector<Issued> all = project.authority.issued();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].kind, "server");
  EXPECT_EQ(all[1].name, "alice");
  EXPECT_FALSE(all[1].revoked);
  EXPECT_TRUE(all[2].revoked);
  EXPECT_NE(all[1].serial, all[2].serial);
}

TEST(Certificates, OfANameAreMadeOnce) {
  Project project;
  project.worker("alice");
  EXPECT_THROW(project.worker("alice"), DataError);
  EXPECT_THROW(Authority::create(project.ca, "again", {}), DataError);
  EXPECT_THROW(Authority(project.folder / "elsewhere"), DataError);
}

TEST(Certificates, OfAServerAreReplacedOnlyWhereThisIsMeant) {
  Project project;
  const std::string before = read_file(project.ca / "server" / kCertFile);
  EXPECT_EQ(texts::error_of<DataError>([&] { project.authority.issue_server({"localhost"}, {}); }),
            "the coordinator has a certificate, in " + (project.ca / "server").string() +
                ": --overwrite replaces it");
  EXPECT_EQ(read_file(project.ca / "server" / kCertFile), before);
  project.authority.issue_server({"localhost"}, {}, true);
  EXPECT_NE(read_file(project.ca / "server" / kCertFile), before);
}

TEST(Certificates, OfAServerAreListedAndRevokedByAnyOfItsNames) {
  Project project;
  project.authority.issue_server({"pride.example", "10.0.0.7"}, {}, true);
  const Issued made = project.authority.issued().back();
  EXPECT_EQ(made.name, "pride.example,10.0.0.7");
  const std::filesystem::path server = project.ca / "server";
  check_is_of_server(read_certificate_files(server), server);
  EXPECT_THROW(project.authority.revoke("10.0.0"), DataError);
  EXPECT_EQ(project.authority.revoke("10.0.0.7").at(0).serial, made.serial);
  EXPECT_TRUE(project.authority.issued().back().revoked);
  EXPECT_THROW(check_is_of_server(read_certificate_files(server), server), DataError);
  project.authority.issue_server({"pride.example"}, {}, true);
  check_is_of_server(read_certificate_files(server), server);
}

TEST(Certificates, HaveAFolderOfTheirOwn) {
  const Folder folder;
  fs::create_directory(folder / "other");
  write_file(folder / "other" / "thesis.tex", "text", 0644);
  EXPECT_EQ(
      texts::error_of<DataError>([&] { Authority::create(folder / "other", "test", {}); }),
      (folder / "other").string() + ": holds thesis.tex and no CA; a CA needs its own folder");
  fs::create_directory(folder / "empty");
  Authority::create(folder / "empty", "test", {});
}

TEST(Certificates, OfAServerNeedPlainNames) {
  Project project;
  EXPECT_THROW(project.authority.issue_server({}, {}), InvalidArgument);
  EXPECT_THROW(project.authority.issue_server({"a,DNS:b"}, {}), InvalidArgument);
}

TEST(CertificateFiles, AreRefusedWhereTheyAreNotWhatTheySay) {
  Project project;
  const fs::path alice = project.authority.issue_worker("alice", {});
  EXPECT_NO_THROW(read_certificate_files(alice));
  const auto mode = fs::status(alice / kKeyFile).permissions() & fs::perms::all;
  EXPECT_EQ(mode, fs::perms::owner_read | fs::perms::owner_write);
  const auto why = [&] {
    return texts::error_of<DataError>([&] { read_certificate_files(alice); });
  };
  fs::permissions(alice / kKeyFile, fs::perms::group_read, fs::perm_options::add);
  EXPECT_NE(why().find("can be read by others"), std::string::npos) << why();
  fs::permissions(alice / kKeyFile, mode);
  const fs::path bob = project.authority.issue_worker("bob", {});
  fs::copy_file(bob / kCertFile, alice / kCertFile, fs::copy_options::overwrite_existing);
  EXPECT_NE(why().find("is not the key of cert.pem"), std::string::npos) << why();
  write_file(alice / kCertFile, "garbage", 0644);
  EXPECT_NE(why().find("is not a certificate in PEM"), std::string::npos) << why();
  fs::remove(alice / kCertFile);
  EXPECT_NE(why().find("cannot read "), std::string::npos) << why();
}

}  // namespace
}  // namespace pride::coord::testing

// Folders of images: the images found, their order, and refusals.
// SPDX-License-Identifier: Apache-2.0
#include "train/vision/image_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "pride/error.h"
#include "support/temp_folder.h"
#include "train_names.h"

namespace pride::app {
namespace {

using namespace test;
using Names = std::vector<std::string>;

// Nothing is read: the files need not be images.
void write_two_classes(const TempFolder& folder) {
  folder.write("train/b/2.jpg", "22");
  folder.write("train/b/10.JPEG", "1");
  folder.write("train/a-x/images/z.jpeg", "333");
  folder.write("train/a/y.JPG", "4444");
  folder.write("val/b/1.jpg", "1");
  folder.write("val/a/1.jpg", "1");
}

TEST(ImageFolder, SortsClassesAndTheirFilesByBytes) {
  const TempFolder folder;
  write_two_classes(folder);
  const ImageFolder images = scan_images(folder.path());
  EXPECT_EQ(images.classes, (Names{"a", "a-x", "b"}));
  EXPECT_EQ(images.train.names, (Names{"a/y.JPG", "a-x/images/z.jpeg", "b/10.JPEG", "b/2.jpg"}));
  EXPECT_EQ(images.train.labels, (std::vector<std::uint16_t>{0, 1, 2, 2}));
  EXPECT_EQ(images.val.names, (Names{"a/1.jpg", "b/1.jpg"}));
  EXPECT_EQ(images.val.labels, (std::vector<std::uint16_t>{0, 2})) << "labels are train's";
  EXPECT_EQ(images.train.file(1), folder.path() / "train" / "a-x/images/z.jpeg");
}

TEST(ImageFolder, CountsOtherFilesAndLeavesHiddenOnesOut) {
  const TempFolder folder;
  write_two_classes(folder);
  const ImageFolder before = scan_images(folder.path());
  folder.write("train/b/._2.jpg", "x");
  folder.write("train/.cache/1.jpg", "x");
  folder.write("train/b/.thumbs/1.jpg", "x");
  folder.write("train/readme.txt", "x");
  EXPECT_EQ(scan_images(folder.path()).hash, before.hash);
  folder.write("train/b/3.png", "x");
  const ImageFolder after = scan_images(folder.path());
  EXPECT_EQ(after.hash, before.hash);
  EXPECT_EQ(before.n_others, 0U);
  EXPECT_EQ(after.n_others, 1U);
}

TEST(ImageFolder, HashTellsNamesSizesAndSplitsApart) {
  const TempFolder folder;
  write_two_classes(folder);
  const std::uint64_t hash = scan_images(folder.path()).hash;
  folder.write("train/b/2.jpg", "23");
  EXPECT_EQ(scan_images(folder.path()).hash, hash) << "names and sizes only";
  folder.write("train/b/2.jpg", "223");
  EXPECT_NE(scan_images(folder.path()).hash, hash) << "another size";
  folder.write("train/b/2.jpg", "22");
  EXPECT_EQ(scan_images(folder.path()).hash, hash);
  std::filesystem::rename(folder.path() / "train/b/2.jpg", folder.path() / "train/b/3.jpg");
  EXPECT_NE(scan_images(folder.path()).hash, hash) << "another name";
  std::filesystem::rename(folder.path() / "train/b/3.jpg", folder.path() / "val/b/2.jpg");
  EXPECT_NE(scan_images(folder.path()).hash, hash) << "another split";
}

TEST(ImageFolder, FollowsALinkToAClass) {
  const TempFolder folder, other;
  write_two_classes(folder);
  other.write("1.jpg", "1");
  std::filesystem::create_directory_symlink(other.path(), folder.path() / "train/c");
  const ImageFolder images = scan_images(folder.path());
  EXPECT_EQ(images.classes, (Names{"a", "a-x", "b", "c"}));
  EXPECT_EQ(images.train.names.back(), "c/1.jpg");
}

TEST(ImageFolder, RefusesImagesThatItWouldHaveToLeaveOut) {
  const auto refuses = [](const std::filesystem::path& name, const auto& make,
                          std::string_view why) {
    const TempFolder folder;
    write_two_classes(folder);
    folder.write("train/a/readme", "x");
    make(folder.path() / name);
    expect_error<DataError>([&] { scan_images(folder.path()); }, {name.string(), why});
  };
  const auto link = [](const std::filesystem::path& at) {
    std::filesystem::create_symlink("/nowhere/1.jpg", at);
  };
  const auto link_to_folder = [](const std::filesystem::path& at) {
    std::filesystem::create_directory_symlink("/", at);
  };
  refuses("train/a/gone.jpg", link, "a broken link");
  refuses("val/b/gone.JPEG", link, "a broken link");
  refuses("train/a/more", link_to_folder, "a link to a folder");
  refuses(
      "train/a/pipe.jpg",
      [](const std::filesystem::path& at) { ASSERT_EQ(mkfifo(at.c_str(), 0600), 0); },
      "not a file");
  refuses(
      "train/\xFF", [](const auto& at) { std::filesystem::create_directory(at); }, "UTF-8");
}

TEST(ImageFolder, LeavesOutWhatCouldBeNoImage) {
  const TempFolder folder;
  write_two_classes(folder);
  std::filesystem::create_symlink("/nowhere", folder.path() / "train/a/notes");
  std::filesystem::create_directory(folder.path() / "train/a/empty.jpg");
  EXPECT_EQ(scan_images(folder.path()).n_others, 1U);
}

TEST(ImageFolder, SaysWhatIsMissing) {
  const TempFolder folder;
  const auto refuse = [&](std::initializer_list<std::string_view> parts) {
    expect_error<DataError>([&] { scan_images(folder.path()); }, parts);
  };
  refuse({"/train is not a folder", "train/CLASS/*.jpg"});
  folder.write("train/readme", "x");
  refuse({"/val is not a folder"});
  folder.write("val/readme", "x");
  refuse({"/train: 0 folders"});
  folder.write("train/a/1.png", "x");
  refuse({"/train: 1 folder, expected one for each of 2 to 65536 classes"});
  folder.write("train/c/1.jpg", "x");
  refuse({"/train/a: no image (.jpg, .jpeg)"});
  folder.write("train/a/1.jpg", "x");
  refuse({"/val: no folder of a class"});
  folder.write("val/b/1.jpg", "x");
  refuse({"/val/b: train/ has no such class"});
}

}  // namespace
}  // namespace pride::app

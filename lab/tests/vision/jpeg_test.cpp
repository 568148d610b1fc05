// JPEG files, whole, in every colour space that ImageNet has, and damaged in every way.
// SPDX-License-Identifier: Apache-2.0
// Oracle: flat pictures, whose colours survive compression within a few units; libjpeg itself.
#include "train/vision/jpeg.h"

#include <gtest/gtest.h>

#include "pride/error.h"
#include "support/temp_folder.h"
#include "train_names.h"
#include "vision/jpeg_files.h"

namespace pride::app {
namespace {

using namespace test;

// of a flat picture: quantisation of the mean, and the rounding of two colour conversions
constexpr int kFlatError = 3;

RgbImage decode(const std::string& bytes) {
  return decode_jpeg(std::as_bytes(std::span(bytes)), "x.jpg");
}

std::string flat(JpegKind kind, const std::vector<int>& colour) {
  return make_jpeg(kind, [&](int, int, int c) {
    return static_cast<std::uint8_t>(colour[static_cast<std::size_t>(c)]);
  });
}

void expect_flat(const RgbImage& image, const std::vector<int>& colour) {
  ASSERT_EQ(image.pixels.size(), static_cast<std::size_t>(3 * image.width * image.height));
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    ASSERT_NEAR(image.pixels[i], colour[i % 3], kFlatError) << "byte " << i;
  }
}

TEST(Jpeg, KeepsColoursAndSizes) {
  const RgbImage image = decode(flat({.width = 21, .height = 13}, {200, 30, 90}));
  EXPECT_EQ(image.width, 21);
  EXPECT_EQ(image.height, 13);
  expect_flat(image, {200, 30, 90});
}

TEST(Jpeg, KeepsPlaces) {
  // four quarters of 16 pixels, so that no block or subsampled pair crosses a border
  const auto bytes = make_jpeg({.width = 32, .height = 32}, [](int x, int y, int c) {
    return static_cast<std::uint8_t>(c == 0 ? (x < 16 ? 40 : 220) : (y < 16 ? 60 : 180));
  });
  const RgbImage image = decode(bytes);
  const auto at = [&](int x, int y, int c) { return image.pixels[(y * 32 + x) * 3 + c]; };
  EXPECT_NEAR(at(3, 3, 0), 40, 8);
  EXPECT_NEAR(at(28, 3, 0), 220, 8);
  EXPECT_NEAR(at(3, 3, 1), 60, 8);
  EXPECT_NEAR(at(3, 28, 1), 180, 8);
}

TEST(Jpeg, MakesGreyThreeTimesTheSame) {
  expect_flat(decode(flat({.components = 1}, {77})), {77, 77, 77});
}

TEST(Jpeg, ConvertsCmykAsAdobeStoresIt) {
  // inverted: 255 is no ink. red = (255 - C)(255 - K) / 255
  for (const bool ycck : {false, true}) {
    SCOPED_TRACE(ycck ? "YCCK" : "CMYK");
    const JpegKind kind{.components = 4, .ycck = ycck, .quality = 100};
    expect_flat(decode(flat(kind, {255, 255, 255, 255})), {255, 255, 255});
    expect_flat(decode(flat(kind, {255, 255, 255, 0})), {0, 0, 0});
    expect_flat(decode(flat(kind, {200, 100, 50, 128})), {100, 50, 25});
  }
}

TEST(Jpeg, OfSeveralScansIsTheSamePicture) {
  JpegKind kind{.width = 67, .height = 45};
  const RgbImage baseline = decode(make_jpeg(kind, test::landscape));
  kind.progressive = true;
  const RgbImage progressive = decode(make_jpeg(kind, test::landscape));
  EXPECT_EQ(baseline.pixels, progressive.pixels);
}

TEST(Jpeg, CutShortAnywhereIsAnErrorWithTheName) {
  for (const bool progressive : {false, true}) {
    const std::string whole =
        make_jpeg({.width = 24, .height = 24, .progressive = progressive}, test::landscape);
    for (std::size_t n = 0; n < whole.size(); ++n) {
      SCOPED_TRACE(concat("first ", n, " of ", whole.size(), " bytes"));
      expect_error<DataError>([&] { decode(whole.substr(0, n)); }, {"x.jpg: "});
    }
  }
}

TEST(Jpeg, IsReadWhereOnlyBytesBetweenItsPartsAreWrong) {
  const std::string whole = make_jpeg({.width = 24, .height = 24}, test::landscape);
  std::string untidy = whole;
  untidy.insert(untidy.size() - 2, "\x11\x22\x33");  // before the mark of its end
  EXPECT_EQ(decode(untidy).pixels, decode(whole).pixels);
  EXPECT_EQ(decode(whole + "more").pixels, decode(whole).pixels);
}

TEST(Jpeg, ThatIsNoneSaysWhatItIs) {
  const auto refuse = [](const std::string& bytes, std::string_view what) {
    expect_error<DataError>([&] { decode(bytes); }, {"x.jpg: ", what});
  };
  refuse("", "an empty file");
  refuse("\x89PNG\r\n\x1a\n....", "a PNG, not a JPEG");
  refuse("GIF89a", "a GIF, not a JPEG");
  refuse("RIFF\1\1\1\1WEBPVP8", "a WebP, not a JPEG");
  refuse("hello", "not a JPEG file");
  refuse("\xFF\xD8\xFF", "bad JPEG");
}

// the height and width in the header of a baseline file
std::string claiming(std::string bytes, int width, int height) {
  const std::size_t at = bytes.find("\xFF\xC0");
  EXPECT_NE(at, std::string::npos);
  const int values[] = {height >> 8, height & 255, width >> 8, width & 255};
  for (std::size_t i = 0; i < 4; ++i) bytes[at + 5 + i] = static_cast<char>(values[i]);
  return bytes;
}

TEST(Jpeg, ThatClaimsToBeHugeIsRefusedBeforeRoomIsMade) {
  const std::string small = make_jpeg({}, test::landscape);
  expect_error<DataError>([&] { decode(claiming(small, 65000, 65000)); },
                          {"x.jpg: 65000 x 65000 pixels, at most 134217728"});
  expect_error<DataError>([&] { decode(claiming(small, 0, 16)); }, {"x.jpg: bad JPEG"});
}

TEST(Jpeg, FilesAreReadAndNamed) {
  const test::TempFolder folder;
  const std::string bytes = make_jpeg({.width = 600, .height = 500}, test::landscape);
  ASSERT_GT(bytes.size(), std::size_t{1} << 17) << "more than is read at a time";
  EXPECT_EQ(read_jpeg(folder.write("a.jpg", bytes)).pixels, decode(bytes).pixels);
  expect_error<DataError>([&] { read_jpeg(folder.path() / "none.jpg"); },
                          {"none.jpg", "No such file"});
  expect_error<DataError>([&] { read_jpeg(folder.path()); },
                          {folder.path().string(), "it is a folder"});
}

}  // namespace
}  // namespace pride::app

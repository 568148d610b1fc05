// safetensors: files written byte by byte here are the oracle; then round trips and damaged files.
// SPDX-License-Identifier: Apache-2.0
#include "program/io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "pride/error.h"
#include "support/temp_folder.h"

namespace pride::app {
namespace {

using namespace test;

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i) & 255);
  return bytes + rest;
}

std::string file_of(const std::string& header, const std::string& data) {
  return with_length(header.size(), header + data);
}

template <typename T>
std::string raw(std::initializer_list<T> values) {
  std::string bytes;
  for (const T value : values) {
    char item[sizeof(T)];
    std::memcpy(item, &value, sizeof(T));
    bytes.append(item, sizeof(T));
  }
  return bytes;
}

std::map<std::string, SafeTensor> read_bytes(const std::string& bytes) {
  const TempFolder folder;
  return read_safetensors(folder.write("in.safetensors", bytes));
}

SafeTensor tensor(std::vector<std::int64_t> shape, std::vector<float> values) {
  return {.dtype = "F32", .shape = std::move(shape), .values = std::move(values)};
}

TEST(SafetensorsWrite, GivesTheseBytes) {
  const TempFolder folder;
  const auto file = folder.path() / "out.safetensors";
  write_safetensors(file, {{"b", tensor({}, {-2.0F})}, {"a", tensor({1, 2}, {1.0F, 0.5F})}},
                    {{"k", "v"}});
  std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"F32","shape":[],"data_offsets":[8,12]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(bytes_of(file), file_of(header, raw({1.0F, 0.5F, -2.0F})));
  EXPECT_EQ(header.size() % 8, 0U);
}

TEST(SafetensorsWrite, LeavesNothingButTheFile) {
  const TempFolder folder;
  const auto file = folder.write("out.safetensors", "old");
  write_safetensors(file, {{"a", tensor({1}, {1.0F})}});
  EXPECT_EQ(read_safetensors(file).at("a").values, std::vector<float>{1.0F});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SafetensorsWrite, KeepsTheOldFileWhenItRefuses) {
  const TempFolder folder;
  const auto file = folder.write("out.safetensors", "old");
  const auto refuse = [&](const std::string& name, const SafeTensor& t, std::string_view why) {
    expect_error<InvalidArgument>(
        [&] {
          write_safetensors(file, {{name, t}});
        },
        {"out.safetensors", why});
  };
  refuse("a", tensor({2}, {1.0F}), "its shape has 2 elements, 1 values given");
  refuse("a", tensor({-1}, {}), "dimension -1 is negative");
  refuse("a", tensor({1LL << 62, 1LL << 62}, {}), "overflows");
  refuse("a", {.dtype = "F16", .shape = {1}, .values = {1.0F}}, "dtype F16");
  refuse("", tensor({1}, {1.0F}), "a name that cannot be used");
  refuse("__metadata__", tensor({1}, {1.0F}), "a name that cannot be used");
  refuse("\xFF", tensor({1}, {1.0F}), "not UTF-8");
  EXPECT_EQ(bytes_of(file), "old");
}

TEST(SafetensorsWrite, SaysWhyItCannotWrite) {
  const TempFolder folder;
  expect_error<DataError>([&] { write_safetensors(folder.path() / "none" / "x", {}); },
                          {"cannot create", "none/x", "No such file"});
  std::filesystem::create_directory(folder.path() / "taken");
  expect_error<DataError>([&] { write_safetensors(folder.path() / "taken", {}); },
                          {"cannot create", "taken: it is a folder"});
  // what stands for something else, as /dev/null does, is not to be replaced by a file
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_error<DataError>([&] { write_safetensors(pipe, {}); }, {"pipe: it is not a regular file"});
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
  // what /dev/stdout leads to: a link to a regular file, and not to be followed. It cannot be
  // replaced if this goes wrong, as /dev/stdout can by root
  const std::string file = folder.write("file", "old").string();
  std::FILE* open = std::fopen(file.c_str(), "r");
  ASSERT_NE(open, nullptr);
  const std::string link = concat("/proc/self/fd/", fileno(open));
  expect_error<DataError>([&] { write_safetensors(link, {}); },
                          {link + ": it is not a regular file"});
  std::fclose(open);
  EXPECT_EQ(bytes_of(file), "old");
}

TEST(SafetensorsWrite, FollowsALink) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() / "real");
  const auto file = folder.write("real/f", "old"), link = folder.path() / "link";
  std::filesystem::create_symlink("real/f", link);
  write_safetensors(link, {});
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(read_safetensors(file).empty());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path() / "real"), {}), 1);
}

TEST(SafetensorsRoundTrip, KeepsEveryBitShapeAndText) {
  const TempFolder folder;
  const auto file = folder.path() / "f";
  const float nan = std::bit_cast<float>(0x7FC12345U);
  const std::map<std::string, SafeTensor> tensors = {
      {"h.0.weight", tensor({2, 3}, {0.0F, -0.0F, 1e-45F, INFINITY, -3.4e38F, nan})},
      {"scalar", tensor({}, {7.0F})},
      {"empty", tensor({3, 0, 5}, {})},
      {"empty first", tensor({0}, {})},
      {"caf\xC3\xA9 \"quoted\"\n", tensor({1, 1, 1}, {-1.5F})}};
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"\xE2\x82\xAC", ""}};
  write_safetensors(file, tensors, metadata);
  const auto back = read_safetensors(file);
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, expected] : tensors) {
    const SafeTensor& actual = back.at(name);
    EXPECT_EQ(actual.dtype, "F32") << name;
    EXPECT_EQ(actual.shape, expected.shape) << name;
    ASSERT_EQ(actual.values.size(), expected.values.size()) << name;
    for (std::size_t i = 0; i < expected.values.size(); ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(actual.values[i]),
                std::bit_cast<std::uint32_t>(expected.values[i]))
          << name << " at " << i;
    }
  }
  EXPECT_EQ(read_safetensors_metadata(file), metadata);
  EXPECT_EQ(read_safetensors_shapes(file).at("h.0.weight"), tensors.at("h.0.weight").shape);
}

TEST(SafetensorsRoundTrip, HoldsWithoutTensors) {
  const TempFolder folder;
  write_safetensors(folder.path() / "f", {});
  EXPECT_EQ(bytes_of(folder.path() / "f"), file_of("{}      ", ""));
  EXPECT_TRUE(read_safetensors(folder.path() / "f").empty());
  EXPECT_TRUE(read_safetensors_metadata(folder.path() / "f").empty());
}

TEST(SafetensorsRead, ConvertsOtherFloatsAndKeepsTheirNames) {
  const std::string header = R"({"d":{"dtype":"F64","shape":[3],"data_offsets":[0,24]},)"
                             R"("h":{"dtype":"F16","shape":[4],"data_offsets":[24,32]},)"
                             R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[32,36]}})";
  const auto tensors = read_bytes(
      file_of(header, raw({0.1, -1e300, 2.5}) +
                          raw<std::uint16_t>({0x3C00, 0xC000, 0x0001, 0x7C00, 0x3F80, 0xC049})));
  EXPECT_EQ(tensors.at("d").dtype, "F64");
  EXPECT_EQ(tensors.at("d").values, (std::vector<float>{0.1F, -INFINITY, 2.5F}));
  EXPECT_EQ(tensors.at("h").dtype, "F16");
  EXPECT_EQ(tensors.at("h").values, (std::vector<float>{1.0F, -2.0F, 0x1p-24F, INFINITY}));
  EXPECT_EQ(tensors.at("b").dtype, "BF16");
  EXPECT_EQ(tensors.at("b").values, (std::vector<float>{1.0F, -3.140625F}));
}

// Oracle: sign, exponent and fraction put together by ldexp.
TEST(HalfToFloat, EqualsTheDefinitionForAllBits) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double fraction = bits & 1023;
    double expected =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) expected = fraction == 0 ? INFINITY : NAN;
    if (bits >> 15 != 0) expected = -expected;
    const float actual = half_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << bits;
    } else {
      EXPECT_EQ(actual, static_cast<float>(expected)) << bits;
      EXPECT_EQ(std::signbit(actual), bits >> 15 != 0) << bits;
    }
  }
}

struct BadFile {
  const char* what;
  std::string bytes;
  const char* message;
};

// One tensor entry "t" with the given text, over 8 bytes of data.
std::string entry(const std::string& text) {
  return file_of(R"({"t":{)" + text + "}}", std::string(8, '\0'));
}

std::string f32(const char* shape, const char* offsets) {
  return entry(concat(R"("dtype":"F32","shape":)", shape, R"(,"data_offsets":)", offsets));
}

std::vector<BadFile> bad_files() {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const std::string two = R"("dtype":"F32","shape":[1],"data_offsets":)";
  const std::string data8(8, '\0');
  return {
      {"empty", "", "it has 0 bytes"},
      {"seven bytes", "1234567", "it has 7 bytes"},
      {"length beyond the file", with_length(100, "{}"), "truncated: header of 100 bytes, 2"},
      {"length over the limit", with_length(100'000'001, "{}"), "at most 100000000"},
      {"length of all ones", with_length(~std::uint64_t{0}, "{}"), "header of 1844674407370955161"},
      {"no header", with_length(0, ""), "not JSON"},
      {"half a header", file_of("{\"a\":", ""), "not JSON"},
      {"text after the header", file_of("{}{}", ""), "not JSON"},
      {"an array", file_of("[]", ""), "not a JSON object"},
      {"a number", file_of("1", ""), "not a JSON object"},
      {"not UTF-8", file_of("{\"\xFF\xFE\":{}}", ""), "not JSON"},
      {"deep nesting", file_of(std::string(100'000, '['), ""), "more than 100 levels deep"},
      {"name twice", file_of("{\"t\":{" + good + "},\"t\":{" + good + "}}", data8),
       "\"t\" appears twice"},
      {"key twice", entry(R"("dtype":"F32",)" + good), "\"dtype\" appears twice"},
      {"empty name", file_of("{\"\":{" + good + "}}", data8), "without a name"},
      {"entry is a number", file_of("{\"t\":1}", ""), "tensor \"t\": its entry"},
      {"no dtype", entry(R"("shape":[2],"data_offsets":[0,8])"), "tensor \"t\": it has no dtype"},
      {"dtype a number", entry(R"("dtype":4,"shape":[2],"data_offsets":[0,8])"), "has no dtype"},
      {"unknown dtype", entry(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"),
       "tensor \"t\": dtype \"F31\"; F32, F16, BF16 and F64 are known"},
      {"integers", entry(R"("dtype":"I32","shape":[2],"data_offsets":[0,8])"), "dtype \"I32\""},
      {"no shape", entry(R"("dtype":"F32","data_offsets":[0,8])"), "shape is not a list"},
      {"shape a number", f32("2", "[0,8]"), "shape is not a list"},
      {"negative size", f32("[-2]", "[0,8]"), "shape is not"},
      {"fraction of a size", f32("[2.0]", "[0,8]"), "shape is"},
      {"size beyond 64 bits", f32("[18446744073709551616]", "[0,8]"), "shape is not a list"},
      {"size beyond 63 bits", f32("[9223372036854775808]", "[0,8]"),
       "tensor \"t\": the size of its shape overflows"},
      {"product wraps to 2", f32("[4294967296,4294967296,2]", "[0,8]"), "overflows"},
      {"product wraps with item size", f32("[4611686018427387906]", "[0,8]"), "overflows"},
      {"huge size beside a zero", f32("[0,9223372036854775808]", "[0,0]"), "overflows"},
      {"no offsets", entry(R"("dtype":"F32","shape":[2])"), "data_offsets is not a pair"},
      {"one offset", f32("[2]", "[8]"), "data_offsets is not a pair"},
      {"three offsets", f32("[2]", "[0,8,8]"), "not a pair"},
      {"negative offset", f32("[2]", "[-8,0]"), "not a pair"},
      {"offsets reversed", f32("[2]", "[8,0]"), "out of range"},
      {"data truncated", f32("[3]", "[0,12]"),
       "tensor \"t\": data_offsets [0, 12] in 8 bytes of data: out of range or truncated"},
      {"offset of all ones", f32("[2]", "[18446744073709551608,0]"), "out of range"},
      {"too few bytes for the shape", f32("[2]", "[0,4]"),
       "its shape takes 8 bytes, its data_offsets give 4"},
      {"scalar of no bytes", f32("[]", "[0,0]"), "takes 4 bytes"},
      {"overlap",
       file_of("{\"a\":{" + two + "[0,4]},\"b\":{" + two + "[2,6]},\"c\":{" + two + "[4,8]}}",
               data8),
       "tensor \"b\": its data begins at byte 2, inside another tensor's; expected 4"},
      {"same place twice",
       file_of("{\"a\":{" + two + "[0,4]},\"b\":{" + two + "[0,4]}}", std::string(4, '\0')),
       "inside another tensor's"},
      {"gap at the start", file_of("{\"a\":{" + two + "[4,8]}}", data8), "after a gap; expected 0"},
      {"gap between",
       file_of("{\"a\":{" + two + "[0,4]},\"b\":{" + two + "[8,12]}}", std::string(12, '\0')),
       "tensor \"b\": its data begins at byte 8, after a gap"},
      {"bytes left over", file_of("{\"a\":{" + two + "[0,4]}}", data8), "4 bytes after the last"},
      {"bytes without tensors", file_of("{}", "x"), "1 bytes after the last"},
      {"metadata a list", file_of(R"({"__metadata__":[]})", ""),
       "__metadata__ is not a JSON object"},
      {"metadata a number", file_of(R"({"__metadata__":{"k":1}})", ""), "\"k\" is not a string"},
  };
}

TEST(SafetensorsRead, RefusesDamagedFilesByName) {
  const TempFolder folder;
  for (const BadFile& bad : bad_files()) {
    SCOPED_TRACE(bad.what);
    const auto file = folder.write("bad.safetensors", bad.bytes);
    expect_error<DataError>([&] { read_safetensors(file); }, {"bad.safetensors", bad.message});
    EXPECT_THROW(read_safetensors_metadata(file), DataError);
  }
}

TEST(SafetensorsRead, RefusesMissingFilesAndFolders) {
  const TempFolder folder;
  expect_error<DataError>([&] { read_safetensors(folder.path() / "none"); }, {"none", "No such"});
  expect_error<DataError>([&] { read_safetensors(folder.path()); }, {"it is a folder"});
  ASSERT_EQ(mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  expect_error<DataError>([&] { read_safetensors(folder.path() / "pipe"); },
                          {"pipe: it is not a regular file"});
}

std::string valid_file() {
  const TempFolder folder;
  write_safetensors(folder.path() / "f",
                    {{"w", tensor({2, 3}, {1, 2, 3, 4, 5, 6})}, {"x", tensor({}, {7})}},
                    {{"note", "text"}});
  return bytes_of(folder.path() / "f");
}

TEST(SafetensorsRead, RefusesEveryTruncation) {
  const std::string bytes = valid_file();
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_THROW(read_bytes(bytes.substr(0, n)), DataError) << "first " << n << " bytes";
  }
  EXPECT_EQ(read_bytes(bytes).size(), 2U);
}

}  // namespace
}  // namespace pride::app

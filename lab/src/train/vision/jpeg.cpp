// libjpeg reports errors by a jump: the functions that call it hold nothing that has a destructor.
// SPDX-License-Identifier: Apache-2.0
#include "train/vision/jpeg.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csetjmp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include <jpeglib.h>

// the numbers of libjpeg's messages depend on what jpeglib.h defines
#include <jerror.h>

#include "pride/error.h"
#include "program/io/mapped_file.h"

namespace pride::train {
namespace {

// A progressive file may need any number of passes over all coefficients; encoders make ten.
constexpr int kMostScans = 200;

// Warnings after which libjpeg invents pixels. Others concern bytes between the parts of a file.
bool loses_pixels(int code) {
  constexpr std::array kCodes = {JWRN_JPEG_EOF,    JWRN_HIT_MARKER,        JWRN_HUFF_BAD_CODE,
                                 JWRN_MUST_RESYNC, JWRN_BOGUS_PROGRESSION, JWRN_ARITH_BAD_CODE};
  return std::find(kCodes.begin(), kCodes.end(), code) != kCodes.end();
}

struct Errors {
  jpeg_error_mgr manager;  // first: libjpeg has a pointer to this part
  std::jmp_buf jump;
  std::array<char, JMSG_LENGTH_MAX> text;
};

[[noreturn]] void on_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<Errors*>(info->err);
  info->err->format_message(info, errors->text.data());
  std::longjmp(errors->jump, 1);
}

void on_message(j_common_ptr info, int level) {
  if (level < 0 && loses_pixels(info->err->msg_code)) on_error(info);
}

void on_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMostScans) return;
  auto* errors = reinterpret_cast<Errors*>(info->err);
  std::snprintf(errors->text.data(), errors->text.size(), "more than %d scans", kMostScans);
  std::longjmp(errors->jump, 1);
}

// x y / 255, rounded
std::uint8_t product(unsigned x, unsigned y) {
  const unsigned p = x * y + 128;
  return static_cast<std::uint8_t>((p + (p >> 8)) >> 8);
}

void cmyk_to_rgb(const std::uint8_t* cmyk, int width, std::uint8_t* rgb) {
  for (int x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    for (int c = 0; c < 3; ++c) rgb[c] = product(cmyk[c], cmyk[3]);  // stored inverted
  }
}

class Decoder {
 public:
  Decoder() {
    info_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = on_error;
    errors_.manager.emit_message = on_message;
    progress_.progress_monitor = on_progress;
  }
  ~Decoder() { jpeg_destroy_decompress(&info_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  int width() const { return static_cast<int>(info_.image_width); }
  int height() const { return static_cast<int>(info_.image_height); }
  bool cmyk() const { return info_.out_color_space == JCS_CMYK; }
  const char* error() const { return errors_.text.data(); }

  // Both return false on an error.
  bool read_header(const unsigned char* bytes, std::size_t n) {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, bytes, static_cast<unsigned long>(n));
    jpeg_read_header(&info_, TRUE);
    const bool four = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = four ? JCS_CMYK : JCS_RGB;
    return true;
  }

  // `row`: four bytes a pixel, needed for CMYK only.
  bool read_pixels(std::uint8_t* out, std::uint8_t* row) {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_start_decompress(&info_);
    while (info_.output_scanline < info_.output_height) {
      std::uint8_t* line = out + std::size_t{3} * info_.output_scanline * info_.output_width;
      JSAMPROW target = cmyk() ? row : line;
      jpeg_read_scanlines(&info_, &target, 1);
      if (cmyk()) cmyk_to_rgb(row, width(), line);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }

 private:
  jpeg_decompress_struct info_ = {};
  Errors errors_ = {};
  jpeg_progress_mgr progress_ = {};
};

// The type of a file that does not begin like a JPEG.
std::string other_format(std::string_view bytes) {
  if (bytes.empty()) return "an empty file";
  if (bytes.starts_with("\x89PNG")) return "a PNG, not a JPEG";
  if (bytes.starts_with("GIF8")) return "a GIF, not a JPEG";
  if (bytes.starts_with("RIFF") && bytes.substr(0, 12).ends_with("WEBP")) {
    return "a WebP, not a JPEG";
  }
  if (bytes.starts_with("BM")) return "a BMP, not a JPEG";
  return "not a JPEG file";
}

}  // namespace

std::vector<std::byte> read_jpeg_bytes(const std::string& name) {
  require_regular_file(name);
  std::vector<std::byte> bytes(std::filesystem::file_size(name));
  // not mapped: here a failing disk is an error, with a mapping it would kill the process
  std::ifstream in(name, std::ios::binary);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (static_cast<std::size_t>(in.gcount()) != bytes.size()) {
    const std::string why =
        in.eof() ? "it became shorter while being read" : std::generic_category().message(errno);
    throw DataError(concat("cannot read ", name, ": ", why));
  }
  return bytes;
}

RgbImage decode_jpeg(std::span<const std::byte> bytes, const std::string& name,
                     std::int64_t most_pixels) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with("\xFF\xD8")) throw DataError(concat(name, ": ", other_format(text)));
  Decoder decoder;
  const auto refuse = [&] { return DataError(concat(name, ": bad JPEG: ", decoder.error())); };
  if (!decoder.read_header(data, bytes.size())) throw refuse();
  RgbImage image{.width = decoder.width(), .height = decoder.height()};
  const std::int64_t n = std::int64_t{image.width} * image.height;
  if (n > most_pixels) {
    throw DataError(concat(name, ": ", image.width, " x ", image.height, " pixels, at most ",
                           most_pixels, " in all are read"));
  }
  image.pixels.resize(static_cast<std::size_t>(3 * n));
  std::vector<std::uint8_t> row(decoder.cmyk() ? static_cast<std::size_t>(image.width) * 4 : 0);
  if (!decoder.read_pixels(image.pixels.data(), row.data())) throw refuse();
  return image;
}

RgbImage read_jpeg(const std::filesystem::path& file) {
  const std::string name = file.string();
  return decode_jpeg(read_jpeg_bytes(name), name);
}

}  // namespace pride::train

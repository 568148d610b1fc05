// SPDX-License-Identifier: Apache-2.0
#include "bench/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "pride/error.h"
#include "train/vision/jpeg.h"
#include "train/vision/prefetcher.h"
#include "train/vision/view.h"

namespace pride::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBatch = 64;

std::int64_t since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// Calls use(index) for every index below n. Up to three batches are in work, as in training.
template <typename Use>
void for_all(std::size_t n, int threads, const Use& use) {
  Prefetcher prefetcher(threads - 1);  // this thread works, too
  std::size_t begun = 0;
  while (begun < n || prefetcher.pending() > 0) {
    while (begun < n && prefetcher.pending() < 3) {
      const std::size_t rows = std::min(kBatch, n - begun);
      prefetcher.begin(rows, [&use, begun](std::size_t row) { use(begun + row); });
      begun += rows;
    }
    prefetcher.wait();
  }
}

}  // namespace

LoaderRow bench_loader(const ImageFolder& folder, std::size_t images, int size, int threads) {
  const ImageSplit& train = folder.train;
  LoaderRow row{.threads = threads, .images = std::min(images, train.size())};
  const auto file = [&](std::size_t i) { return train.file(i * train.size() / row.images); };
  for (std::size_t i = 0; i < row.images; ++i) {
    row.bytes += std::filesystem::file_size(file(i));
    read_jpeg_bytes(file(i).string());
  }
  std::atomic<std::int64_t> decode_ns = 0, view_ns = 0;
  const auto start = Clock::now();
  for_all(row.images, threads, [&](std::size_t i) {
    const auto begun = Clock::now();
    const RgbImage image = read_jpeg(file(i));
    decode_ns += since(begun);
    const auto decoded = Clock::now();
    std::vector<float> out(view_floats(size));
    train_view(image, size, PhiloxStream(0, 0, i), out);
    view_ns += since(decoded);
  });
  row.seconds = static_cast<double>(since(start)) * 1e-9;
  row.decode_ms = static_cast<double>(decode_ns) * 1e-6 / static_cast<double>(row.images);
  row.view_ms = static_cast<double>(view_ns) * 1e-6 / static_cast<double>(row.images);
  return row;
}

std::vector<std::string> check_images(const ImageFolder& folder, int threads) {
  std::vector<std::string> errors;
  std::mutex mutex;  // guards errors
  for (const ImageSplit* split : {&folder.train, &folder.val}) {
    for_all(split->size(), threads, [&](std::size_t i) {
      try {
        read_jpeg(split->file(i));
      } catch (const DataError& error) {
        const std::lock_guard lock(mutex);
        errors.emplace_back(error.what());
      }
    });
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

Fields fields_of(const LoaderRow& row) {
  const double rate = static_cast<double>(row.images) / row.seconds;
  const double bytes = static_cast<double>(row.bytes) / row.seconds;
  const auto number = [](const char* key, const char* head, double value) {
    return Field{key, value, head, 10, decimals(value, 1)};
  };
  return kind_field("loader") +
         Fields{{"threads", row.threads, "threads", 7},
                {"images", row.images, "images", 9},
                {"seconds", row.seconds},
                number("images_per_s", "images/s", rate),
                number("images_per_s_and_thread", "per thread", rate / row.threads),
                {"bytes_per_s", bytes, "MB/s", 8, decimals(bytes * 1e-6, 1)},
                number("decode_ms", "decode ms", row.decode_ms),
                number("view_ms", "crop ms", row.view_ms)};
}

}  // namespace pride::app

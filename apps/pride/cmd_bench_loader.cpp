// `pride bench loader`: images a second from a folder of JPEG files, or a check of all of them.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/loader.h"
#include "commands.h"
#include "integer_check.h"
#include "pride/error.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string data;
  std::size_t images = 1000;
  int size = 224;
  std::vector<int> threads = {1};
  bool check = false, json = false;
};

Json row_json(const LoaderRow& row) {
  const auto images = static_cast<double>(row.images);
  return {{"row", "loader"},
          {"threads", row.threads},
          {"images", row.images},
          {"seconds", row.seconds},
          {"images_per_s", images / row.seconds},
          {"images_per_s_and_thread", images / row.seconds / row.threads},
          {"bytes_per_s", static_cast<double>(row.bytes) / row.seconds},
          {"decode_ms", row.decode_ms},
          {"view_ms", row.view_ms}};
}

void print_row(const LoaderRow& row) {
  const double rate = static_cast<double>(row.images) / row.seconds;
  std::printf("%7d %8zu %9.1f %11.1f %8.1f %10.2f %9.2f\n", row.threads, row.images, rate,
              rate / row.threads, static_cast<double>(row.bytes) / row.seconds * 1e-6,
              row.decode_ms, row.view_ms);
  std::fflush(stdout);
}

void run_check(const Arguments& args, const ImageFolder& folder) {
  const std::vector<std::string> errors = check_images(folder, args.threads.back());
  for (const std::string& error : errors) std::cout << error << "\n";
  const std::size_t n = folder.train.size() + folder.val.size();
  if (!errors.empty()) {
    throw DataError(concat(errors.size(), " of ", n, " images cannot be read"));
  }
  std::cout << "all " << n << " images can be read" << std::endl;
}

void run_loader(const Arguments& args) {
  const ImageFolder folder = scan_images(find_image_folder(args.data));
  if (args.check) return run_check(args, folder);
  if (!args.json) {
    std::printf("%7s %8s %9s %11s %8s %10s %9s\n", "threads", "images", "images/s", "per thread",
                "MB/s", "decode ms", "crop ms");
  }
  for (const int threads : args.threads) {
    const LoaderRow row = bench_loader(folder, args.images, args.size, threads);
    if (args.json) {
      std::cout << row_json(row) << std::endl;
    } else {
      print_row(row);
    }
  }
}

}  // namespace

void add_bench_loader_command(CLI::App& bench) {
  const auto args = std::make_shared<Arguments>();
  CLI::App* loader = bench.add_subcommand(
      "loader", "Images of the task imagenet, decoded and cropped as in training; no ranks");
  loader->add_option("--data", args->data,
                     "Folder with train/CLASS/*.jpg and val/CLASS/*.jpg; default: $PRIDE_DATA");
  loader->add_option("--images", args->images, "Of the training set, evenly spread")
      ->capture_default_str()
      ->check(integer_check<std::size_t>(1));
  loader->add_option("--image-size", args->size, "Side of the crops in pixels")
      ->capture_default_str()
      ->check(integer_check<int>(1, 4096));
  loader->add_option("--threads", args->threads, "Numbers of threads, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(integer_check<int>(1, 256));
  loader->add_flag("--check", args->check,
                   "Instead: decode every image of both splits, and name those that cannot be");
  loader->add_flag("--json", args->json, "JSON lines, one for each row");
  loader->callback([args] { run_loader(*args); });
}

}  // namespace pride::app

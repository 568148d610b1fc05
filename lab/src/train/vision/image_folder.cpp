// SPDX-License-Identifier: Apache-2.0
#include "train/vision/image_folder.h"

#include <algorithm>
#include <string_view>
#include <system_error>

#include "pride/digest.h"
#include "pride/error.h"
#include "program/files.h"
#include "program/utf8.h"
#include "train/data/find_data.h"

namespace pride::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFewestClasses = 2;  // with one class there is nothing to learn
constexpr std::size_t kMostClasses = 65536;

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool is_jpeg_name(const fs::path& file) {
  const std::string ending = ending_of(file);
  return ending == ".jpg" || ending == ".jpeg";
}

std::vector<std::string> folders_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& entry : entries_in(folder)) {
    std::error_code gone;
    if (!fs::is_directory(entry, gone) || hidden(entry)) continue;
    names.push_back(entry.filename().string());
    if (!is_utf8(names.back())) {
      throw DataError(concat(entry.string(), ": a class whose name is not UTF-8"));
    }
  }
  return names;
}

struct Found {
  std::string name;
  std::uintmax_t size = 0;
};

// Refuses the entry, because without it this would be another data set.
[[noreturn]] void refuse_entry(const fs::path& path, const char* what) {
  throw DataError(concat(path.string(), ": ", what));
}

// The images of one class, in order of their names.
std::vector<Found> images_of(const fs::path& split, const std::string& name, std::size_t& others) {
  const fs::path folder = split / name;
  std::vector<Found> found;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error), end;
  for (; !error && at != end; at.increment(error)) {
    std::error_code gone;
    if (hidden(at->path())) {
      at.disable_recursion_pending();
      continue;
    }
    const bool is_link = at->is_symlink(gone), is_folder = at->is_directory(gone);
    if (is_folder && is_link) refuse_entry(at->path(), "a link to a folder, which is not followed");
    if (is_folder) continue;
    if (!is_jpeg_name(at->path())) {
      ++others;
      continue;
    }
    if (!at->is_regular_file(gone)) {
      refuse_entry(at->path(), is_link ? "a broken link" : "the name of an image, but not a file");
    }
    const std::uintmax_t size = at->file_size(error);
    if (error) break;
    found.push_back({at->path().lexically_relative(split).generic_string(), size});
  }
  if (error) throw DataError(concat("cannot list ", folder.string(), ": ", error.message()));
  if (found.empty()) throw DataError(concat(folder.string(), ": no image (.jpg, .jpeg) in it"));
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.name < b.name; });
  return found;
}

// Adds one class's images to the split and to the hash.
void add_class(const std::string& name, std::size_t label, ImageSplit& split, Digest& hash,
               std::size_t& others) {
  for (Found& image : images_of(split.folder, name, others)) {
    // with their final NUL bytes, which no file name contains
    for (const std::string& word : {image.name, std::to_string(image.size)}) {
      hash.bytes(std::as_bytes(std::span(word.c_str(), word.size() + 1)));
    }
    split.names.push_back(std::move(image.name));
    split.labels.push_back(static_cast<std::uint16_t>(label));
  }
}

}  // namespace

ImageFolder scan_images(const fs::path& folder) {
  ImageFolder images;
  images.train.folder = folder / "train";
  images.val.folder = folder / "val";
  for (const fs::path& split : {images.train.folder, images.val.folder}) {
    std::error_code error;
    if (fs::is_directory(split, error)) continue;
    throw DataError(concat("no images found: ", split.string(),
                           " is not a folder; expected train/CLASS/*.jpg and val/CLASS/*.jpg in ",
                           folder.string()));
  }
  images.classes = folders_in(images.train.folder);
  const std::size_t n = images.classes.size();
  if (n < kFewestClasses || n > kMostClasses) {
    throw DataError(concat(images.train.folder.string(), ": ", n, n == 1 ? " folder" : " folders",
                           ", expected one for each of ", kFewestClasses, " to ", kMostClasses,
                           " classes"));
  }
  Digest hash;
  hash.bytes(std::as_bytes(std::span("train")));
  for (std::size_t label = 0; label < n; ++label) {
    add_class(images.classes[label], label, images.train, hash, images.n_others);
  }
  hash.bytes(std::as_bytes(std::span("val")));
  for (const std::string& name : folders_in(images.val.folder)) {
    const auto at = std::lower_bound(images.classes.begin(), images.classes.end(), name);
    if (at == images.classes.end() || *at != name) {
      throw DataError(concat((images.val.folder / name).string(), ": train/ has no such class"));
    }
    const auto label = static_cast<std::size_t>(at - images.classes.begin());
    add_class(name, label, images.val, hash, images.n_others);
  }
  if (images.val.size() == 0) {
    throw DataError(concat(images.val.folder.string(), ": no folder of a class in it"));
  }
  images.hash = hash.value();
  return images;
}

fs::path find_image_folder(const std::string& flag) {
  return find_data(flag, "imagenet", "train/CLASS/*.jpg and val/CLASS/*.jpg");
}

}  // namespace pride::train

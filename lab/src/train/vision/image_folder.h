// Folders of images in ImageNet's layout: train/CLASS/*.jpg and val/CLASS/*.jpg.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pride::train {

struct ImageSplit {
  std::filesystem::path folder;
  std::vector<std::string> names;     // of files, below `folder`, with '/'
  std::vector<std::uint16_t> labels;  // one per file: the index of its class

  std::size_t size() const noexcept { return names.size(); }
  std::filesystem::path file(std::size_t index) const { return folder / names.at(index); }
};

struct ImageFolder {
  std::vector<std::string> classes;  // the folders below train/, in order of their bytes
  ImageSplit train, val;             // class by class; within a class by the names' bytes
  std::uint64_t hash = 0;            // XXH3-64 of all names and sizes
  std::size_t n_others = 0;          // files without a JPEG's name
};

// Reads no image. Files end in .jpg or .jpeg, in any case; those below folders of a class count,
// hidden ones (".x") do not. Links to folders are followed for a class, not below it.
// Throws DataError: no such folder, fewer than two classes, a class without images, a class in val/
// that train/ does not have, more than 65,536 classes, a folder that cannot be listed.
ImageFolder scan_images(const std::filesystem::path& folder);

// --data, or $PRIDE_DATA: see find_data().
std::filesystem::path find_image_folder(const std::string& flag);

}  // namespace pride::train

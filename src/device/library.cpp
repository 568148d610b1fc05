// SPDX-License-Identifier: Apache-2.0
#include "device/library.h"

#include <dlfcn.h>
#include <link.h>

#include "pride/error.h"

namespace pride {
namespace {

std::string loader_reason() {
  const char* reason = dlerror();
  return reason != nullptr ? reason : "no reason given";
}

std::string path_of(void* handle, const std::string& name) {
  link_map* map = nullptr;
  const bool known = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr;
  return known && map->l_name[0] != '\0' ? map->l_name : name;
}

int add_path(dl_phdr_info* info, std::size_t, void* paths) {
  if (info->dlpi_name != nullptr && info->dlpi_name[0] != '\0') {
    static_cast<std::vector<std::string>*>(paths)->emplace_back(info->dlpi_name);
  }
  return 0;
}

}  // namespace

Library::Library(const std::string& name) : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr)
    throw InvalidArgument(concat("cannot load ", name, ": ", loader_reason()));
  path_ = path_of(handle_, name);
}

void* Library::find(const char* symbol) const noexcept { return dlsym(handle_, symbol); }

void* Library::get(const char* symbol) const {
  void* const address = find(symbol);
  if (address == nullptr) throw InvalidArgument(concat(path_, " has no function ", symbol));
  return address;
}

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> paths;
  dl_iterate_phdr(add_path, &paths);
  return paths;
}

}  // namespace pride

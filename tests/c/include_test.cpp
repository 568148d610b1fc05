// The C interface's headers compile as C++, with C's names of functions and aggregate structs.
// SPDX-License-Identifier: Apache-2.0
#include "pride/c/pride.h"

#include <type_traits>

static_assert(std::is_aggregate_v<pride_options> && std::is_trivially_copyable_v<pride_transport>);

int main() {
  const pride_tensor tensor{"w", nullptr, 0, 0};
  pride_layout* layout = nullptr;
  if (pride_layout_create(&tensor, 1, &layout) != PRIDE_OK) return 1;
  const bool good = pride_layout_coords(layout) == 1 && pride_c_version() == PRIDE_C_VERSION;
  pride_layout_destroy(layout);
  return good ? 0 : 1;
}

// libpride_coord.so consists of libraries alone.
// SPDX-License-Identifier: Apache-2.0

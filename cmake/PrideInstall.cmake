# Install rules and the CMake package that find_package(pride) reads.
# SPDX-License-Identifier: Apache-2.0

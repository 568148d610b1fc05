#!/usr/bin/env bash
# Installs the Debian packages that pride is built and tested with. Fast if all are installed.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/setup.sh [--minimal] [--list]

Installs the missing packages that pride needs on Debian 12, with apt.

  --minimal   only the packages of the `core` preset: no torch, no MPI, no lint tools
  --list      print the packages, one per line, and install nothing
  -h, --help  this text

On other systems install the same libraries yourself; CMake builds what it finds.
TEXT
}

# for the `core` preset: the library, the program without training, their tests
core_packages=(
  build-essential cmake ninja-build ccache git ca-certificates
  libhwy-dev
  libcli11-dev nlohmann-json3-dev libxxhash-dev zlib1g-dev libpcre2-dev libjpeg62-turbo-dev
  libgtest-dev librandom123-dev
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libssl-dev  # the coordinator
  libcpp-httplib-dev  # its status page
  python3
)
# also for training, the MPI transport, the Python package and the lint stage
full_packages=(
  libtorch-dev libgloo-dev libopenblas-dev libopenblas0-pthread libtomlplusplus-dev
  libopenmpi-dev openmpi-bin openssh-client
  python3-torch python3-numpy python3-pytest python3-venv python3-pip python3-setuptools
  python3-wheel  # the Python package and its tests
  iproute2
  clang-format shellcheck pyflakes3 curl
  chromium  # a test looks at the page of `pride report` in it
  librsvg2-bin  # `pride report --png`
  clang libclang-rt-dev  # the fuzzers
)

die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# Prints the arguments that dpkg does not list as installed.
missing_of() {
  local installed
  # dpkg-query fails on names that it does not know
  installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "$@" 2>/dev/null |
    awk '$1 == "ii" { print $2 }') || true
  comm -23 <(printf '%s\n' "$@" | sort -u) <(printf '%s\n' "$installed" | sort -u)
}

install_packages() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      die "not root and no sudo; ask an administrator to run: apt-get install $*"
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq
    -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
  "${apt[@]}" update </dev/null || die "apt-get update failed; is the network up?"
  "${apt[@]}" install -y --no-install-recommends "$@" </dev/null >/dev/null ||
    die "apt-get could not install: $*"
}

main() {
  local packages=("${core_packages[@]}" "${full_packages[@]}") list=false
  while [ $# -gt 0 ]; do
    case $1 in
      --minimal) packages=("${core_packages[@]}") ;;
      --list) list=true ;;
      -h | --help) usage && return ;;
      *) usage >&2 && die "unknown argument '$1'" ;;
    esac
    shift
  done
  if $list; then
    printf '%s\n' "${packages[@]}"
    return
  fi
  command -v apt-get >/dev/null ||
    die "this machine has no apt; install these by other means: ${packages[*]}"

  local missing
  mapfile -t missing < <(missing_of "${packages[@]}")
  if [ ${#missing[@]} -eq 0 ]; then
    printf 'setup: all %d packages are installed\n' "${#packages[@]}"
    return
  fi
  printf 'setup: installing %d of %d packages: %s\n' "${#missing[@]}" "${#packages[@]}" \
    "${missing[*]}"
  install_packages "${missing[@]}"
  mapfile -t missing < <(missing_of "${packages[@]}")
  [ ${#missing[@]} -eq 0 ] || die "still missing after apt-get: ${missing[*]}"
  printf 'setup: done\n'
}

main "$@"

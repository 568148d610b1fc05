#!/usr/bin/env bash
# Compiles the kernels for GPUs with the versions of NVRTC that PyTorch's wheels bring.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: scripts/nvrtc.sh [BUILD]

Compiles every kernel for every chip (Kernels.* of cuda_device_test in BUILD, by default build/dev) with
this machine's NVRTC, if there is one, and with 11.8, 12.1, 12.4, 12.8 and 13 from PyPI. A version that
compiled the same kernels before is not tried again. Without PyPI, versions not yet downloaded are left out.

The libraries, 400 MB, and what passed are kept in ~/.cache/pride-nvrtc.
TEXT
}

readonly packages=('nvidia-cuda-nvrtc-cu11==11.8.*' 'nvidia-cuda-nvrtc-cu12==12.1.*'
  'nvidia-cuda-nvrtc-cu12==12.4.*' 'nvidia-cuda-nvrtc-cu12==12.8.*' 'nvidia-cuda-nvrtc==13.*')
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/pride-nvrtc

# Prints the file of the library in a folder, if it is there.
library_in() {
  find "$1" -path '*/lib/libnvrtc.so.1*' -print -quit 2>/dev/null || true
}

# fetch PACKAGE FOLDER: downloads it. Whoever finds the folder finds all of it.
fetch() {
  local new
  new=$(mktemp -d "$cache/new.XXXX")
  if python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --retries 1 --timeout 15 --dest "$new" "$1" >"$new/log" 2>&1; then
    python3 -m zipfile -e "$new"/*.whl "$new"
    rm -rf "$new"/*.whl "$2"
    mv "$new" "$2"
  else
    rm -rf "$new"
    return 1
  fi
}

# compile LIBRARY TEST: fails with the test's output unless all kernels compile.
compile() {
  local output
  if ! output=$(PRIDE_NVRTC=$1 "$2" --gtest_filter='Kernels.*' 2>&1) ||
    ! grep -q 'registers by NVRTC' <<<"$output"; then
    printf '%s\nnvrtc.sh: %s does not compile the kernels\n' "$output" "$1" >&2
    return 1
  fi
  grep 'registers by NVRTC' <<<"$output" | sed 's/registers by \(NVRTC [0-9.]*\).*/\1: all kernels compile/'
}

main() {
  case ${1:-} in
    -h | --help) usage && return ;;
    -*) usage >&2 && return 2 ;;
  esac
  local build=${1:-build/dev} own key package folder library lock
  local test=$build/tests/device/cuda/cuda_device_test
  mkdir -p "$cache"
  exec {lock}>"$cache/lock"
  flock "$lock"
  # of the kernels in the program: the files here may be newer
  key=$("$test" --gtest_filter='KernelSource.*' | grep '^kernel source ')
  own=$(PRIDE_NVRTC='' "$build/apps/pride/pride" info | grep '^NVRTC .* version ') || own=
  if [ -n "$own" ] && [ "$(cat "$cache/passed_here" 2>/dev/null)" != "$key $own" ]; then
    compile '' "$test"
    printf '%s\n' "$key $own" >"$cache/passed_here"
  fi
  for package in "${packages[@]}"; do
    folder=$cache/${package%.\*}
    [ "$(cat "$folder/passed" 2>/dev/null)" != "$key" ] || continue
    library=$(library_in "$folder")
    if [ -z "$library" ] && ! fetch "$package" "$folder"; then
      printf 'nvrtc.sh: %s cannot be downloaded (is PyPI reachable?): the rest is not tried\n' "$package"
      return
    fi
    compile "$(library_in "$folder")" "$test"
    printf '%s\n' "$key" >"$folder/passed"
  done
  printf 'nvrtc.sh: the kernels compile with NVRTC 11.8, 12.1, 12.4, 12.8 and 13\n'
}

main "$@"

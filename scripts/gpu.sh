#!/usr/bin/env bash
# Builds, tests and measures what needs a GPU, in one run.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu.sh [options]
       scripts/gpu.sh --pack DIR

Runs the stages on this machine's first GPU of CUDA, within 8 minutes. The table of kernels comes last.

  build      the preset `core` in build/core, as far as it is missing
  tests      pride info, then the tests of a CUDA device: kernels against the host's bits, a tensor of 2.2e9
             coordinates, events, streams
  sanitizer  compute-sanitizer's memcheck and racecheck over the kernels, small sizes
  step       pride bench optimizer: steps of 1e9 coordinates in 148 tensors, one rank, beside the card's copy
  kernels    pride bench kernels: each kernel at 1e6, 1e8 and 1e9 coordinates beside the card's copies

  --stages A,B,...  these stages only (build,tests,sanitizer,step,kernels)
  --no-build        take the programs that lie beside this script, in bin/, or else in build/core
  --pack DIR        copy this script, the programs and their libraries into DIR, for a machine that lacks the
                    packages of scripts/setup.sh. There: DIR/gpu.sh --no-build
  -h, --help        this text

Exit status: 0 all is well; 1 a stage failed; 2 a wrong argument; 77 there is no GPU here.

Without a GPU only --pack and --help can be tried: no other stage of this script ever ran without one.
TEXT
}

readonly seconds_in_all=470
here=$(cd "$(dirname "$0")" && pwd)
readonly here
stages=build,tests,sanitizer,step,kernels
build=yes pack=''
failed=()

die() {
  printf 'gpu: %s\n' "$*" >&2
  exit 2
}

has_stage() { [[ ,$stages, == *,$1,* ]]; }

# program PATH: prints where the file with this path in build/core is.
program() {
  if [ -d "$here/bin" ]; then
    printf '%s\n' "$here/bin/$(basename "$1")"
  else
    printf '%s\n' "$here/../build/core/$1"
  fi
}

has_gpu() {
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then return; fi
  [ -e /dev/nvidia0 ]
}

# stage NAME SECONDS COMMAND...: notes a failure; later stages still run. The whole run has a limit, too.
stage() {
  local name=$1 most=$2 left=$((seconds_in_all - SECONDS)) begin=$SECONDS status=0
  shift 2
  [ "$most" -le "$left" ] || most=$left
  printf '\n== %s\n' "$name"
  if [ "$most" -le 5 ]; then
    status=124
  else
    timeout "$most" "$@" || status=$?
  fi
  [ "$status" -ne 124 ] || printf 'gpu: %s: no time left\n' "$name"
  [ "$status" -eq 0 ] || failed+=("$name")
  printf '== %s: %s after %d s\n' "$name" "$([ "$status" -eq 0 ] && echo well || echo FAILED)" $((SECONDS - begin))
}

run_build() {
  cd "$here/.."
  [ -f build/core/CMakeCache.txt ] || cmake --preset core
  cmake --build build/core --target cuda_device_test cuda_report_test pride
}

run_tests() {
  local info
  info=$(program apps/pride/pride)
  if [ -x "$info" ]; then "$info" info; fi
  # a GPU that pride cannot use is a failure, not a skipped test
  PRIDE_TEST_NEEDS_GPU=1 "$(program tests/device/cuda/cuda_device_test)" --gtest_brief=1
}

run_sanitizer() {
  local tool
  if ! command -v compute-sanitizer >/dev/null; then
    printf 'gpu: no compute-sanitizer here: left out\n'
    return
  fi
  for tool in memcheck racecheck; do
    printf -- '-- %s\n' "$tool"
    compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$(program tests/device/cuda/cuda_device_test)" --gtest_brief=1 \
      --gtest_filter='Machines/CudaDevice.KernelsGiveTheHostsBits/gpu'
  done
}

run_step() {
  "$(program apps/pride/pride)" bench optimizer --device cuda --workers 1 --sizes 1e9 --tensors 148 \
    --methods dlion-vote,adamw --exchange-threads 0
}
run_kernels() { "$(program apps/pride/pride)" bench kernels --device cuda --sizes 1e6,1e8,1e9; }

# Copies the programs, the tests' fake libraries, and the shared libraries that not every system has.
run_pack() {
  local folder=$1 name library
  mkdir -p "$folder/bin"
  cp "$here/gpu.sh" "$folder/"
  for name in tests/device/cuda/{cuda_device_test,libfake_cuda.so,libfake_nvrtc.so} apps/pride/pride; do
    [ -e "$here/../build/core/$name" ] || die "no build/core/$name: build the preset core first"
    cp "$here/../build/core/$name" "$folder/bin/"
  done
  strip "$folder"/bin/*
  for name in "$folder"/bin/*; do
    while IFS= read -r library; do
      case $(basename "$library") in
        libc.so.* | libm.so.* | libstdc++.so.* | libgcc_s.so.* | ld-linux*) ;;
        *) cp -n "$library" "$folder/bin/" ;;
      esac
    done < <(ldd "$name" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }')
  done
  printf 'gpu: packed, %s\n' "$(du -sh "$folder" | cut -f 1)"
}

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --no-build) build=no ;;
    --stages | --pack)
      [ $# -ge 2 ] || die "$1 needs a value"
      if [ "$1" = --pack ]; then pack=$2; else stages=$2; fi
      shift
      ;;
    *) die "unknown: $1; --help lists the options" ;;
  esac
  shift
done
for name in ${stages//,/ }; do
  [[ ,build,tests,sanitizer,step,kernels, == *,$name,* ]] || die "no stage $name; --help lists them"
done

if [ -n "$pack" ]; then
  run_pack "$pack"
  exit
fi
if ! has_gpu; then
  printf 'gpu: no GPU here: nothing was run\n'
  exit 77
fi
[ ! -d "$here/bin" ] || export LD_LIBRARY_PATH=$here/bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export -f program run_build run_tests run_sanitizer run_step run_kernels
export here
if [ "$build" = yes ] && has_stage build; then stage build 240 bash -euc run_build; fi
if has_stage tests; then stage tests 120 bash -euc run_tests; fi
if has_stage sanitizer; then stage sanitizer 150 bash -euc run_sanitizer; fi
if has_stage step; then stage step 40 bash -euc run_step; fi
if has_stage kernels; then stage kernels 120 bash -euc run_kernels; fi
[ ${#failed[@]} -eq 0 ] || printf 'gpu: failed: %s\n' "${failed[*]}"
[ ${#failed[@]} -eq 0 ]

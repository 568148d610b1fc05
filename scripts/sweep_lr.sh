#!/usr/bin/env bash
# Chooses the demo's learning rates: the same grid for every method, on a seed that is not shown.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lm_run.sh
source scripts/lm_run.sh

usage() {
  cat <<'TEXT'
usage: scripts/sweep_lr.sh [--seed N] [--out DIR] [LR...]

Trains the demo's run with every method at every rate (default: 1e-4 3e-4 1e-3 3e-3) and
prints the validation bits per byte of each, the best of each method marked. A best at the edge of
the grid is pointed out: widen the grid then, for all methods. Runs that are complete are not
repeated, so that an interrupted sweep goes on. About twenty minutes on two cores.

  --seed N    default 2; the demo shows seed 1
  --out DIR   default out/sweep
  -h, --help  this text
TEXT
}

main() {
  local seed=2 out=out/sweep rates=() method rate run runs=()
  while [ $# -gt 0 ]; do
    case $1 in
      --seed) seed=${2:?--seed needs a number} && shift ;;
      --out) out=${2:?--out needs a folder} && shift ;;
      -h | --help) usage && return ;;
      -*)
        usage >&2
        printf 'sweep_lr.sh: unknown argument "%s"\n' "$1" >&2
        return 2
        ;;
      *) rates+=("$1") ;;
    esac
    shift
  done
  [ ${#rates[@]} -gt 0 ] || rates=(1e-4 3e-4 1e-3 3e-3)

  lm_build
  for method in "${lm_methods[@]}"; do
    for rate in "${rates[@]}"; do
      run=$out/seed$seed-steps$lm_steps-workers$lm_workers/$method-$rate
      runs+=("$run")
      [ ! -f "$run/summary.json" ] || continue
      printf '\n=== %s at %s ===\n' "$method" "$rate"
      lm_run "$method" "$rate" "$seed" "$run"
    done
  done
  printf '\n'
  scripts/demo_table.py --by-rate "${runs[@]}"
}

main "$@"

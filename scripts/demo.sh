#!/usr/bin/env bash
# Trains the same small GPT on the same batches by four methods, and prints what each one cost.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lm_run.sh
source scripts/lm_run.sh

usage() {
  cat <<'TEXT'
usage: scripts/demo.sh [--steps N] [--workers N] [--seed N] [--out DIR]

Installs missing packages, builds pride, then trains a small GPT with 4 workers (threads of one
process) on the text that came with the compiler, by adamw, lion, dlion-vote and dlion-avg. Ends in
a table: validation bits per byte, bytes that a rank sends per step, ratio to fp32, time per step.
About five minutes on two cores once pride is built; that takes about ten minutes there.

  --steps N    optimizer steps of each run (default 200, or $PRIDE_DEMO_STEPS)
  --workers N  default 4, or $PRIDE_DEMO_WORKERS
  --seed N     default 1; the learning rates were chosen on another seed
  --out DIR    default out/demo; each run writes DIR/<method>
  -h, --help   this text

Environment: PRIDE_TEST_JOBS (default 2) is the number of compilers at a time.
TEXT
}

# Peak learning rates. They come from scripts/sweep_lr.sh on seed 2, which is not the seed shown
# here: one grid for every method, then the neighbours of a best at the edge. Validation bits per byte
# after 200 steps:
#                 3e-4    1e-3    3e-3    1e-2    3e-2
#   adamw                 3.569   3.213   2.991   4.159
#   lion          3.811   3.619   3.957
#   dlion-vote    3.823   3.631   4.136
#   dlion-avg     3.840   3.669   3.871
declare -rA lr=(
  [adamw]=1e-2
  [lion]=1e-3
  [dlion-vote]=1e-3
  [dlion-avg]=1e-3
)

main() {
  local seed=1 out=out/demo method runs=()
  while [ $# -gt 0 ]; do
    case $1 in
      --steps) lm_steps=${2:?--steps needs a number} && shift ;;
      --workers) lm_workers=${2:?--workers needs a number} && shift ;;
      --seed) seed=${2:?--seed needs a number} && shift ;;
      --out) out=${2:?--out needs a folder} && shift ;;
      -h | --help) usage && return ;;
      *)
        usage >&2
        printf 'demo.sh: unknown argument "%s"\n' "$1" >&2
        return 2
        ;;
    esac
    shift
  done

  lm_build
  for method in "${lm_methods[@]}"; do
    printf '\n=== %s ===\n' "$method"
    lm_run "$method" "${lr[$method]}" "$seed" "$out/$method"
    runs+=("$out/$method")
  done
  printf '\n'
  scripts/demo_table.py "${runs[@]}"
}

main "$@"

#!/usr/bin/env bash
# Trains the same small GPT on the same batches by four methods, and prints what each one cost.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: scripts/demo.sh [FLAG...]

Installs missing packages, builds pride, then trains a small GPT with 4 workers (threads of one
process) on the text that came with the compiler, by adamw, lion, dlion-vote and dlion-muon. Ends in
a table: validation loss, bytes that a worker sends per step, time per step.
About five minutes on two cores once pride is built; that takes six minutes there.

Flags are those of `pride sweep` but --out, for experiments/demo.toml: --set steps=50 makes shorter
runs. They go to out/demo; runs that are there already are not repeated.

Environment: PRIDE_TEST_JOBS (default 2) is the number of compilers at a time.
TEXT
}

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  usage
  exit
fi
scripts/setup.sh
cmake --preset release >/dev/null
cmake --build build/release --parallel "${PRIDE_TEST_JOBS:-2}" --target pride
build/release/apps/pride/pride sweep experiments/demo.toml --out out/demo "$@" </dev/null

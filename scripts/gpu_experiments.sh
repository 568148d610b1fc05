#!/usr/bin/env bash
# Runs the experiments of lab/experiments/gpu.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu_experiments.sh NAME [options]
       scripts/gpu_experiments.sh --table FILE...
       scripts/gpu_experiments.sh --charts DIR FILE...
       scripts/gpu_experiments.sh --text OUT [--cache DIR] [PACKAGE...]
       scripts/gpu_experiments.sh --shards OUT --vocab DIR TEXT...

  NAME         makes the runs of an experiment that are missing; NAME --list lists them, NAME --help the options
  --table      Markdown from the lines of runs
  --charts     loss against what was seen, bits, and time on networks: numbers, and SVG if pride is built
  --text OUT   English text from Debian's documentation packages, each document a file
  --shards     shards of GPT-2 tokens from texts and folders of them
  -h, --help   this text

Environment: PYTHON (default python3; torch 2.x); PRIDE_LIBRARY_DIR, the folder of libpride.so, where the
package is not installed (default build/gpu/src/c); PRIDE_DATA, the folder of the data.
TEXT
}

root=$(cd "$(dirname "$0")/.." && pwd)
readonly root
python=${PYTHON:-python3}

# Uses this tree's package and library if the library is there; otherwise the installed package.
use_package() {
  if [ -e "$root/lib/libpride.so" ]; then
    export PRIDE_LIBRARY_DIR=$root/lib LD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  elif [ -z "${PRIDE_LIBRARY_DIR:-}" ] && [ -e "$root/build/gpu/src/c/libpride.so" ]; then
    export PRIDE_LIBRARY_DIR=$root/build/gpu/src/c
  fi
  if [ -z "${PRIDE_DATA:-}" ] && [ -d "$root/data" ]; then export PRIDE_DATA=$root/data; fi
  [ -z "${PRIDE_LIBRARY_DIR:-}" ] || export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH}
  PRIDE_COMMIT=${PRIDE_COMMIT:-$(cat "$root/commit" 2>/dev/null || git -C "$root" rev-parse --short HEAD)}
  export PRIDE_COMMIT
}

main() {
  case ${1:-} in
    -h | --help) usage && return ;;
    '') usage >&2 && return 2 ;;
  esac
  use_package
  case $1 in
    --table) exec "$python" "$root/lab/experiments/gpu/table.py" "${@:2}" ;;
    --charts) exec "$python" "$root/lab/experiments/gpu/charts.py" "${@:2}" ;;
    --text) exec "$python" "$root/lab/experiments/gpu/gather_text.py" "${@:2}" ;;
    --shards) exec "$python" "$root/lab/experiments/gpu/make_shards.py" --out "${@:2}" ;;
    *) exec "$python" "$root/lab/experiments/gpu/run.py" "$@" ;;
  esac
}

main "$@"

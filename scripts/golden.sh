#!/usr/bin/env bash
# Writes tests/golden/table.txt: the parameters' hash, bytes and messages of every method.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: scripts/golden.sh [--check]

Builds golden_table in build/dev and writes its output to tests/golden/table.txt.

  --check     show the changes, and fail if there are any
  -h, --help  this text
TEXT
}

case ${1:-} in
  '' | --check) ;;
  -h | --help) usage && exit ;;
  *) usage >&2 && exit 2 ;;
esac
cmake --preset dev >/dev/null
cmake --build build/dev --target golden_table >/dev/null
if [ "${1:-}" = --check ]; then
  build/dev/tests/golden/golden_table | diff tests/golden/table.txt - && echo "golden: no change"
else
  build/dev/tests/golden/golden_table >tests/golden/table.txt
fi

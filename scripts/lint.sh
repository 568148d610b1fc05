#!/usr/bin/env bash
# Checks that need no build: includes, the package's tensors, pages, formatting, shell scripts, file length, SPDX lines.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: scripts/lint.sh [--fix]

Checks the files that git does not ignore. Long files are a warning; everything else is an error.

  --fix       let clang-format rewrite what is not formatted
  -h, --help  this text
TEXT
}

readonly format_version=14  # what Debian 12 has; other versions format differently
readonly longest_file=400 longest_header=120
n_faults=0

fault() {
  printf 'lint: %s\n' "$*" >&2
  n_faults=$((n_faults + 1))
}

# Prints the files of these patterns that git does not ignore and that exist, one per line.
source_files() {
  local file
  git ls-files --cached --others --exclude-standard -- "$@" | while IFS= read -r file; do
    if [ -f "$file" ]; then printf '%s\n' "$file"; fi
  done
}

find_clang_format() {
  local name
  for name in "clang-format-$format_version" clang-format; do
    if command -v "$name" >/dev/null &&
      "$name" --version | grep -q "version $format_version\."; then
      printf '%s\n' "$name"
      return
    fi
  done
}

check_format() {
  local formatter
  formatter=$(find_clang_format)
  if [ -z "$formatter" ]; then
    printf 'lint: warning: no clang-format %s here, formatting not checked\n' "$format_version"
  elif [ "$1" = fix ]; then
    xargs -r "$formatter" -i <<<"$sources"
  else
    xargs -r "$formatter" --dry-run -Werror <<<"$sources" ||
      fault "files are not formatted; scripts/lint.sh --fix formats them"
  fi
}

check_scripts() {
  if command -v shellcheck >/dev/null; then
    source_files 'scripts/*.sh' .ci/run | xargs -r shellcheck -x || fault "shellcheck found faults"
  else
    printf 'lint: warning: no shellcheck here, shell scripts not checked\n'
  fi
  if command -v pyflakes3 >/dev/null; then
    source_files '*.py' | xargs -r pyflakes3 || fault "pyflakes3 found faults"
  else
    printf 'lint: warning: no pyflakes3 here, names in Python not checked\n'
  fi
}

check_licences() {
  local file
  while IFS= read -r file; do
    head -n 15 -- "$file" | grep -Eqx '(//|#|<!--) SPDX-License-Identifier: Apache-2.0( -->)?' ||
      fault "$file: no line of its own with the SPDX licence among its first 15"
  done < <(
    printf '%s\n' "$sources"
    source_files 'scripts/*' .ci/run '*CMakeLists.txt' 'cmake/*.cmake'
  )
}

warn_of_long_files() {
  local file lines limit
  while IFS= read -r file; do
    lines=$(wc -l <"$file")
    limit=$longest_file
    [[ $file != include/* ]] || limit=$longest_header
    [ "$lines" -le "$limit" ] || printf 'lint: warning: %s has %d lines, aim at %d\n' \
      "$file" "$lines" "$limit"
  done <<<"$sources"
}

main() {
  local mode=check
  case ${1:-} in
    '') ;;
    --fix) mode=fix ;;
    -h | --help) usage && return ;;
    *) usage >&2 && return 2 ;;
  esac
  sources=$(source_files '*.h' '*.c' '*.cpp')
  scripts/check_includes.py --self-test || fault "the include checker misses what it should find"
  scripts/check_includes.py || fault "includes point upwards, see the lines above"
  scripts/check_python.py --self-test || fault "the checker of Python misses what it should find"
  scripts/check_python.py || fault "tensors are made by torch's defaults, see the lines above"
  scripts/check_docs.py --self-test || fault "the checker of pages misses what it should find"
  scripts/check_docs.py || fault "pages have faults, see the lines above"
  check_format "$mode"
  check_scripts
  check_licences
  warn_of_long_files
  printf 'lint: %d faults\n' "$n_faults"
  [ "$n_faults" -eq 0 ]
}

main "$@"

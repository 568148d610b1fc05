#!/usr/bin/env bash
# Every flag of every command is in the manual page and in the completion, and bash completes them.
# usage: manual_test.sh PRIDE
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
pride=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  printf 'manual_test: %s\n' "$*" >&2
  exit 1
}

"$pride" manual >"$folder/pride.1"
"$pride" completion >"$folder/pride.bash"
"$pride" --help-all | grep -oE -- '--[a-z][a-z0-9-]+' | sort -u >"$folder/flags"
[ "$(wc -l <"$folder/flags")" -gt 20 ] || fail "--help-all has too few flags"
sed 's/\\-/-/g' "$folder/pride.1" >"$folder/plain"
while IFS= read -r flag; do
  grep -q -- "$flag\b" "$folder/plain" || fail "the manual lacks $flag"
  case $flag in --version | --help-all) continue ;; esac
  grep -q -- "$flag\b" "$folder/pride.bash" || fail "the completion lacks $flag"
done <"$folder/flags"

if command -v groff >/dev/null; then
  said=$(groff -man -ww -z "$folder/pride.1" 2>&1) || fail "groff: $said"
  [ -z "$said" ] || fail "groff: $said"
fi

# complete WORD...: what bash offers for the last word
complete_words() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _pride
  printf '%s ' "${COMPREPLY[@]}"
}
# shellcheck disable=SC1091
source "$folder/pride.bash"
expect() {
  local want=$1 got
  shift
  got=$(complete_words "$@")
  case " $got" in *" $want "*) ;; *) fail "for '$*': '$got', expected '$want' among it" ;; esac
}
expect methods pride me
expect --params pride plan --par
expect dlion-vote pride replay --method dlion-v
expect kernels pride bench k
expect --bandwidth pride plan --latency 1ms --ban
if "$pride" --help-all | grep -q -- --save-every; then
  expect --save-every pride train --sa
  expect cosine pride train --steps 3 --schedule co
  expect cosine pride train --schedule = co
fi
printf 'manual_test: %s flags\n' "$(wc -l <"$folder/flags")"

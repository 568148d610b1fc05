#!/usr/bin/env bash
# Fetches the pinned version of uPlot by npm, checks it, and replaces the copy in third_party/uplot.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: scripts/update_uplot.sh [--check]

Needs npm and the network. For another version change `version` and `sha512` in this script; npm
prints the checksum: npm view uplot@VERSION dist.integrity

  --check     replace nothing; fail if third_party/uplot differs from what npm has
  -h, --help  this text
TEXT
}

readonly version=1.6.32
# of the package, in base 64, as npm gives it
readonly sha512=KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==
readonly target=third_party/uplot

die() {
  printf 'update_uplot: %s\n' "$*" >&2
  exit 1
}

main() {
  local check=false
  case ${1-} in
    --check) check=true ;;
    -h | --help) usage && return ;;
    '') ;;
    *) usage >&2 && die "unknown argument '$1'" ;;
  esac
  command -v npm >/dev/null || die "npm is not installed"

  local folder package have file
  folder=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder's name as it is now
  trap "rm -rf '$folder'" EXIT
  (cd "$folder" && npm pack --silent "uplot@$version" >/dev/null) || die "npm could not fetch uplot@$version"
  package=$folder/uplot-$version.tgz
  have=$(openssl dgst -sha512 -binary "$package" | base64 -w 0)
  [ "$have" = "$sha512" ] || die "wrong checksum of uplot@$version: $have"
  tar -xzf "$package" -C "$folder"

  for file in LICENSE dist/uPlot.iife.min.js dist/uPlot.min.css; do
    if $check; then
      cmp -s "$folder/package/$file" "$target/${file#dist/}" || die "$target/${file#dist/} differs"
    else
      install -D -m 644 "$folder/package/$file" "$target/${file#dist/}"
    fi
  done
  printf 'update_uplot: uplot %s, %s\n' "$version" "$($check && echo unchanged || echo "in $target")"
}

main "$@"

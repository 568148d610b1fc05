#!/usr/bin/env bash
# Fetches CIFAR-10 and tiny Shakespeare from their authors' servers, or checks a folder.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/get_data.sh [cifar10] [text] [--into DIR]
       scripts/get_data.sh --check DIR

Downloads the named data sets (all of them if none is named) into DIR (default: data), checks them
and unpacks them: DIR/cifar10/*.bin and DIR/text/tinyshakespeare.txt. An interrupted download resumes.
A file with a wrong checksum is refused and kept as NAME.bad.

  --into DIR   where to put the data
  --check DIR  download nothing: check the files of these data sets in DIR (two levels deep; plain or
               .gz); fails if one differs or none exists
  -h, --help   this text

`pride train --task lm` needs no download: its default text is the compiler's headers.
TEXT
}

readonly cifar_url=https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz
readonly cifar_md5=c32a1d4ab5d03f1284b67883e8d87530
readonly text_repo=https://raw.githubusercontent.com/karpathy/char-rnn/master
readonly text_url=$text_repo/data/tinyshakespeare/input.txt

# sha256 of the unpacked files
declare -rA sha256=(
  [data_batch_1.bin]=cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5
  [data_batch_2.bin]=a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed
  [data_batch_3.bin]=bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67
  [data_batch_4.bin]=014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48
  [data_batch_5.bin]=755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add
  [test_batch.bin]=8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b
  [tinyshakespeare.txt]=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
)

die() {
  printf 'get_data: %s\n' "$*" >&2
  exit 1
}

# unpacked_sha256 FILE: prints the checksum of the content, unpacked if the name ends in .gz
unpacked_sha256() {
  local sum
  if [[ $1 == *.gz ]]; then
    sum=$(gzip -dc -- "$1" | sha256sum) || return 1
  else
    sum=$(sha256sum <"$1") || return 1
  fi
  printf '%s\n' "${sum%% *}"
}

# check_file FILE: true if its checksum is the one for its name
check_file() {
  local name sum
  name=$(basename -- "${1%.gz}")
  sum=$(unpacked_sha256 "$1") || { printf 'BAD  %s: cannot be read\n' "$1" && return 1; }
  if [ "$sum" != "${sha256[$name]}" ]; then
    printf 'BAD  %s: sha256 %s, expected %s\n' "$1" "$sum" "${sha256[$name]}"
    return 1
  fi
  printf 'good %s\n' "$1"
}

check_folder() {
  [ -d "$1" ] || die "$1 is not a folder"
  local n_files=0 n_bad=0 file
  while IFS= read -r -d '' file; do
    [ -n "${sha256[$(basename -- "${file%.gz}")]:-}" ] || continue
    n_files=$((n_files + 1))
    check_file "$file" || n_bad=$((n_bad + 1))
  done < <(find -L "$1" -maxdepth 2 -type f -print0 | sort -z)
  printf 'get_data: %d files checked, %d bad\n' "$n_files" "$n_bad"
  [ "$n_files" -gt 0 ] || die "$1 holds no file of CIFAR-10 or tiny Shakespeare"
  [ "$n_bad" -eq 0 ] || die "$n_bad of $n_files files differ from the originals"
}

# sum_is TOOL SUM FILE: true if the file exists and has this checksum
sum_is() {
  local sum
  [ -f "$3" ] && sum=$("$1" <"$3") && [ "${sum%% *}" = "$2" ]
}

# fetch URL FILE TOOL SUM: resumes FILE.part of an earlier try; FILE appears only if its checksum is
# right.
fetch() {
  local url=$1 file=$2 tool=$3 sum=$4
  command -v curl >/dev/null || die "curl is not installed; scripts/setup.sh installs it"
  printf 'get_data: %s\n' "$url"
  mkdir -p -- "$(dirname -- "$file")"
  if ! sum_is "$tool" "$sum" "$file.part"; then
    curl --fail --location --retry 3 --continue-at - --output "$file.part" -- "$url" ||
      die "could not download $url (run again to go on where it stopped)"
  fi
  if ! sum_is "$tool" "$sum" "$file.part"; then
    # renamed, so that the next call starts a new download
    mv -- "$file.part" "$file.bad"
    die "$url is not what was expected ($tool $sum); kept as $file.bad"
  fi
  mv -- "$file.part" "$file"
}

get_cifar10() {
  local folder=$1/cifar10 archive=$1/cifar10/cifar-10-binary.tar.gz file
  [ -f "$archive" ] || fetch "$cifar_url" "$archive" md5sum "$cifar_md5"
  tar -xzf "$archive" -C "$folder" --strip-components=1 --no-same-owner
  for file in "$folder"/*.bin; do
    check_file "$file" || die "$file is not the original after unpacking $archive"
  done
}

get_text() {
  local file=$1/text/tinyshakespeare.txt
  [ -f "$file" ] || fetch "$text_url" "$file" sha256sum "${sha256[tinyshakespeare.txt]}"
  check_file "$file" || die "$file is not the original"
}

main() {
  local into=data sets=() set
  while [ $# -gt 0 ]; do
    case $1 in
      cifar10 | text) sets+=("$1") ;;
      --into) into=${2:?--into needs a folder} && shift ;;
      --check) check_folder "${2:?--check needs a folder}" && return ;;
      -h | --help) usage && return ;;
      *) usage >&2 && die "unknown argument '$1'" ;;
    esac
    shift
  done
  [ ${#sets[@]} -gt 0 ] || sets=(cifar10 text)
  for set in "${sets[@]}"; do
    "get_$set" "$into"
  done
}

main "$@"

#!/usr/bin/env bash
# Makes pride's Debian package, and tries it in a clean Debian 12.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: scripts/package.sh [--try]

Builds the preset release and makes build/release/package/pride_VERSION_ARCHITECTURE.deb: program,
libraries, headers, examples, documents, manual page and completion. Not the Python package.

  --try       install it in a clean Debian 12 (debootstrap, in build/package-root; needs root and a
              mirror of Debian), train there, run the coordinator's commands, and compile the C example
  -h, --help  this text

Environment: PRIDE_MIRROR (default http://deb.debian.org/debian).
TEXT
}

readonly root=$PWD/build/package-root

make_package() {
  cmake --preset release
  cmake --build build/release --parallel "$(nproc)"
  (cd build/release && cpack)
}

in_root() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  DEBIAN_FRONTEND=noninteractive HOME=/root "$@"; }

try_package() {
  if ! command -v debootstrap >/dev/null || [ "$(id -u)" != 0 ]; then
    printf 'package.sh: skipped: --try needs root and debootstrap (apt-get install debootstrap)\n'
    return
  fi
  # unpacked beside it: one that was interrupted is not taken for whole
  if [ ! -e "$root/usr/bin/apt-get" ]; then
    ! mountpoint -q "$root.part/proc" || umount "$root.part/proc"
    rm -rf --one-file-system "$root" "$root.part"
    debootstrap --variant=minbase bookworm "$root.part" \
      "${PRIDE_MIRROR:-http://deb.debian.org/debian}"
    mv "$root.part" "$root"
  fi
  mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
  trap 'umount "$root/proc"' EXIT
  cp build/release/package/pride_*.deb "$root/tmp/pride.deb"
  in_root apt-get update -q
  in_root apt-get install -q -y --no-install-recommends /tmp/pride.deb libopenblas0-pthread gcc \
    libc6-dev pkg-config
  in_root pride --version
  in_root pride train --data /usr/share/doc/pride/docs --steps 20 --workers 2 --out /tmp/run \
    --overwrite --quiet
  in_root test -s /tmp/run/model.safetensors
  # the commands of the coordinator are a program of their own
  in_root sh -c "pride serve --help | grep -q -- --quorum"
  in_root sh -c 'rm -rf /tmp/certs && pride certs init /tmp/certs'
  in_root pride journal --help >/dev/null
  in_root test -s /usr/share/doc/pride/docs/federated.md
  in_root test -s /usr/share/man/man1/pride.1
  in_root test -s /usr/share/bash-completion/completions/pride
  # shellcheck disable=SC2016
  in_root sh -c 'cd /tmp && cc -Wall -Werror /usr/share/doc/pride/examples/c_interface.c \
    $(pkg-config --cflags --libs pride) -lm -o c_interface && ./c_interface'
  in_root apt-get remove -q -y pride
  in_root sh -c '! command -v pride' || { printf 'package.sh: files are left\n' >&2 && exit 1; }
  printf 'package.sh: installed, ran, and removed in a clean Debian 12\n'
}

case ${1:-} in
  '') make_package ;;
  --try) make_package && try_package ;;
  -h | --help) usage ;;
  *) usage >&2 && exit 2 ;;
esac

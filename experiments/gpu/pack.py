#!/usr/bin/env python3
# Packs code, library and data in parts, for a machine without packages.
# SPDX-License-Identifier: Apache-2.0
"""usage: scripts/gpu_experiments.sh --pack DIR DATA...

DATA are folders: of CIFAR-10's binary files, of shards, of questions (NAME.jsonl), of GPT-2's vocabulary. DIR gets part-01.tar, ... of at most 55 MiB,
which unpack into one folder pride-gpu.
"""
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST, ROUND = 55 << 20, 64 << 10  # most bytes of a part, and of what tar adds to it
COMMON = re.compile(r"(libc|libm|libstdc\+\+|libgcc_s|libdl|libpthread|librt|ld-linux.*|linux-vdso)\.so")


def library():
    """libpride.so, and those of its libraries that not every system has."""
    folder = pathlib.Path(os.environ.get("PRIDE_LIBRARY_DIR", ROOT / "build/core/src/c"))
    file = (folder / "libpride.so").resolve()
    if not file.exists():
        sys.exit(f"pack.py: no {folder}/libpride.so: build the preset core, or set PRIDE_LIBRARY_DIR")
    yield "libpride.so", file
    listed = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
    for name, path in re.findall(r"(\S+) => (/\S+)", listed):
        if not COMMON.match(name):
            yield name, pathlib.Path(path).resolve()


def contents(folders):
    """(name in the pack, file)."""
    for pattern in ("scripts/gpu_experiments.sh", "experiments/gpu/*.py", "python/pride/*.py"):
        for file in sorted(ROOT.glob(pattern)):
            yield str(file.relative_to(ROOT)), file
    for name, file in library():
        yield f"lib/{name}", file
    for folder in folders:
        vocabulary = [file for file in (folder / "encoder.json", folder / "vocab.bpe") if file.exists()]
        patterns = () if vocabulary else ("*.bin", "*.bin.gz", "*.jsonl")
        files = vocabulary or sorted(file for pattern in patterns for file in folder.glob(pattern))
        if not files:
            sys.exit(f"pack.py: no *.bin, *.bin.gz, *.jsonl or encoder.json in {folder}")
        kind = ("gpt2_bpe" if vocabulary else "fewshot" if files[0].suffix == ".jsonl" else
                "cifar10" if any(file.name.startswith("data_batch") for file in files) else "shards")
        for file in files:
            yield f"data/{kind}/{file.name}", file


def divide(files):
    """Parts in order: a file goes into the first part that has room for it."""
    parts = []
    for name, file in files:
        size = file.stat().st_size + 1024
        if size > MOST - ROUND:
            sys.exit(f"pack.py: {file} has {size} bytes, more than a part: make smaller shards")
        for part in parts:
            if part[0] + size <= MOST - ROUND:
                break
        else:
            part = [0, []]
            parts.append(part)
        part[0] += size + 512
        part[1].append((name, file))
    return [part[1] for part in parts]


def main(given):
    if not given or given[0] in ("-h", "--help"):
        sys.exit(__doc__)
    out, folders = pathlib.Path(given[0]), [pathlib.Path(folder) for folder in given[1:]]
    out.mkdir(parents=True, exist_ok=True)
    if any(out.glob("part-*.tar")):
        sys.exit(f"pack.py: {out} has parts already")
    with tempfile.NamedTemporaryFile("w") as commit:
        commit.write(os.environ.get("PRIDE_COMMIT", "") + "\n")
        commit.flush()
        files = [*contents(folders), ("commit", pathlib.Path(commit.name))]
        for number, part in enumerate(divide(files), 1):
            path = out / f"part-{number:02}.tar"
            with tarfile.open(path, "w") as tar:
                for name, file in part:
                    tar.add(file, arcname=f"pride-gpu/{name}")
            print(f"{path}: {path.stat().st_size:,} bytes, {len(part)} files")


if __name__ == "__main__":
    main(sys.argv[1:])

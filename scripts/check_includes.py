#!/usr/bin/env python3
# Checks that #include points only downwards in the library, that the houses include its installed headers
# alone, and that torch, MPI and Highway stay where they belong. Every file of include/, src/ and apps/ must be
# placed in a layer below.
# SPDX-License-Identifier: Apache-2.0
"""usage: check_includes.py [ROOT]        check the tree at ROOT (default: this repository)
       check_includes.py --self-test   check the checker: bad includes in a made-up tree are found
"""
import pathlib
import re
import sys
import tempfile

# The layers of the library, lowest first. A file may include files of its own layer and of the layers
# below it. A pattern names a folder (ends in "/") or a file without its extension; a "*" at the end of a
# file pattern matches any rest of its name. The most specific (longest) pattern decides.
LAYERS = [
    ("base", [
        "include/pride/cost", "include/pride/digest", "include/pride/error",
        "include/pride/flat_buffer", "include/pride/layout", "include/pride/nodes",
        "include/pride/bf16", "include/pride/float16", "include/pride/random_bits",
        "include/pride/schedule", "include/pride/state", "include/pride/step_scalars",
        "include/pride/tensors", "src/base/",
    ]),
    ("kernels", ["include/pride/cpu", "src/kernels/"]),
    ("device", ["include/pride/device", "src/device/"]),
    ("communicator", ["include/pride/communicator", "include/pride/comm/", "src/comm/"]),
    ("codecs", ["src/codecs/"]),
    ("routes", ["src/routes/"]),
    ("rules", ["src/rules/"]),
    ("methods", ["include/pride/choose_tensors", "include/pride/registry", "src/methods/"]),
    ("optimizer", ["include/pride/agreement", "include/pride/replica", "include/pride/optimizer",
                   "include/pride/virtual_workers", "include/pride/run_worker", "include/pride/coord/",
                   "include/pride/coordinator", "include/pride/round_record", "include/pride/serving",
                   "include/pride/result_follower", "include/pride/gradient_mean", "src/optimizer/"]),
    ("plan", ["include/pride/plan", "src/plan/"]),
    ("libraries", ["include/pride/torch/", "src/torch/", "include/pride/comm/mpi_comm", "src/comm/mpi*",
                   "include/pride/c/", "src/c/"]),
    ("program", ["apps/program/"]),
    ("apps", ["apps/pride/"]),
]
# What the layers of the programs may see of the library's inside: the benchmarks of kernels and exchanges.
INSIDERS = ["apps/pride/bench/", "apps/pride/cmd_bench"]
# The houses on the library: folders that include its installed headers (include/, apps/program) and their own
# files, and nothing of each other. Their tests may use the library's inside and its tests' helpers.
HOUSES = ["coordinator", "lab"]
INSTALLED = ("include/", "apps/program/")

# Where foreign libraries may be included, and the headers of pride's own that bring them along.
# Paths are prefixes.
TORCH_USERS = ["src/torch/", "include/pride/torch", "lab/", "tests/torch/", "tests/install/", "examples/libtorch"]
MPI_USERS = ["src/comm/mpi", "include/pride/comm/mpi", "src/c/mpi", "apps/", "tests/"]
FOREIGN = [
    ("torch", re.compile(r"(torch|ATen|c10|caffe2)/"), TORCH_USERS),
    ("MPI", re.compile(r"mpi\.h$"), MPI_USERS),
    ("CLI11", re.compile(r"CLI/"), ["apps/", "tests/apps/", "lab/app/", "lab/tests/", "coordinator/app/"]),
    ("JSON", re.compile(r"nlohmann/"), ["apps/", "tests/", "fuzz/", "lab/", "coordinator/"]),
    ("protobuf", re.compile(r"(google/protobuf/|grpc|coord/\w+\.(grpc\.)?pb\.h)"), ["coordinator/"]),
    ("OpenSSL", re.compile(r"openssl/"), ["coordinator/"]),
    ("Highway", re.compile(r"hwy/"), ["src/kernels/", "tests/kernels/"]),
]
CARRIERS = [
    (re.compile(r"pride/comm/mpi_comm\.h$"), [*MPI_USERS, "examples/"]),
    (re.compile(r"pride/comm/c10d_comm\.h$"), [*TORCH_USERS, "examples/"]),
    (re.compile(r"(pride/torch|torch/).*\.h$"), [*TORCH_USERS, "examples/"]),
]
SUFFIXES = {".h", ".c", ".cpp", ".cc", ".hpp"}
TOPS = ["include", "src", "apps", "tests", "examples", "fuzz", *HOUSES]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def layer_of(path):
    """(index, name) of the layer of a path such as src/base/bucket.h, or None."""
    stem = path.rsplit(".", 1)[0]
    best = None
    for index, (name, patterns) in enumerate(LAYERS):
        for pattern in patterns:
            if pattern.endswith("/"):
                hit = path.startswith(pattern)
            elif pattern.endswith("*"):
                hit = stem.startswith(pattern[:-1])
            else:
                hit = stem == pattern
            if hit and (best is None or len(pattern) > best[0]):
                best = (len(pattern), index, name)
    return best and best[1:]


def house_of(path):
    """The house that a path is in; "": the library."""
    top = path.split("/", 1)[0]
    return top if top in HOUSES else ""


def resolve(root, including, text):
    """The repository path that an include of pride's own means, or None if it is foreign."""
    folder = including.rsplit("/", 1)[0]
    house = house_of(including)
    own = [f"{house}/{inner}/" for inner in ("include", "src", "app", "tests")] if house else []
    others = [f"{h}/{inner}/" for h in HOUSES for inner in ("include", "src")]
    roots = [folder + "/", *own, "include/", "src/", "apps/pride/", "apps/", "tests/", *others]
    return next((r + text for r in roots if (root / (r + text)).is_file()), None)


def check_own(path, target):
    """The fault of including pride's own file `target` in `path`, or None."""
    house = house_of(path)
    if house_of(target) and house_of(target) != house:
        return f"{house or 'the library'} includes {target} of another house"
    if house and not house_of(target) and not target.startswith(INSTALLED):
        return None if path.startswith(house + "/tests/") else f"{house} includes {target}, which is not installed"
    if path.startswith("include/") and not target.startswith("include/"):
        return f"a public header includes the private {target}"
    if path.startswith("examples/") and not target.startswith(("include/", "examples/")):
        return f"an example includes the private {target}"
    if path.startswith("apps/") and target.startswith("src/") and not path.startswith(tuple(INSIDERS)):
        return f"a program includes the private {target}"
    if path.startswith(("include/", "src/", "apps/")):
        here, there = layer_of(path), layer_of(target)
        if there is None:
            return f"{target} is in no layer"
        if here and there[0] > here[0]:
            return f"upwards: {here[1]} includes {target} of {there[1]}"
    return None


def check_line(root, path, quote, text):
    """The faults of one include."""
    target = resolve(root, path, text)
    faults = []
    if target:
        faults.append(check_own(path, target))
        for pattern, allowed in CARRIERS:
            if pattern.match(text) and not path.startswith(tuple(allowed)):
                faults.append(f"{text} brings a foreign library and is not allowed here")
    elif quote == '"' and text.startswith("pride/"):
        faults.append(f"{text} does not exist")
    else:
        for library, pattern, allowed in FOREIGN:
            if pattern.match(text) and not path.startswith(tuple(allowed)):
                faults.append(f"{library} header {text} is not allowed here")
    return [f for f in faults if f]


def check_tree(root):
    """All faults of the tree, as 'path:line: what', and the number of files read."""
    faults, n_files = [], 0
    for file in sorted(f for top in TOPS for f in (root / top).rglob("*") if f.suffix in SUFFIXES):
        path = file.relative_to(root).as_posix()
        n_files += 1
        if path.startswith(("include/", "src/", "apps/")) and layer_of(path) is None:
            faults.append(f"{path}:1: in no layer; place it in scripts/check_includes.py")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if match:
                for fault in check_line(root, path, *match.groups()):
                    faults.append(f"{path}:{number}: {fault}")
    return faults, n_files


GOOD_TREE = {
    "include/pride/error.h": "#include <string>\n",
    "include/pride/communicator.h": '#include "pride/error.h"\n',
    "include/pride/comm/mpi_comm.h": '#include <mpi.h>\n#include "pride/communicator.h"\n',
    "include/pride/optimizer.h": '#include "pride/communicator.h"\n',
    "src/kernels/kernels.h": "#include <cstddef>\n",
    "src/kernels/vote.cpp": '#include "hwy/highway.h"\n#include "kernels/kernels.h"\n',
    "src/methods/lion.cpp": '#include "kernels/kernels.h"\n',
    "src/methods/method.h": "#include <span>\n",
    "src/torch/module.h": "#include <torch/torch.h>\n",
    "apps/program/table.h": "#include <string>\n",
    "apps/pride/main.cpp": '#include "program/table.h"\n#include "pride/comm/mpi_comm.h"\n',
    "apps/pride/bench/kernels.cpp": '#include "kernels/kernels.h"\n',
    "lab/include/pride/train/task.h": '#include "pride/optimizer.h"\n',
    "lab/src/train/task.cpp": '#include <torch/torch.h>\n#include "pride/train/task.h"\n'
                              '#include "program/table.h"\n',
    "lab/tests/train/task_test.cpp": '#include "kernels/kernels.h"\n',
    "coordinator/src/coord/journal.h": '#include "pride/error.h"\n',
}
BAD_FILES = [  # path, content, a part of the fault that must be found
    ("src/kernels/bad.cpp", '#include "pride/optimizer.h"\n', "upwards: kernels"),
    ("src/routes/bad.cpp", '#include "methods/method.h"\n', "upwards: routes"),
    ("src/codecs/bad.cpp", '#include "pride/optimizer.h"\n', "upwards: codecs"),
    ("src/base/layout.cpp", '#include "kernels/kernels.h"\n', "upwards: base"),
    ("src/newcomers/bad.cpp", "#include <string>\n", "in no layer"),
    ("src/methods/bad.cpp", "#include <mpi.h>\n", "MPI header mpi.h"),
    ("src/methods/bad.cpp", '#include "pride/comm/mpi_comm.h"\n', "upwards: methods"),
    ("src/methods/bad.cpp", "  #  include <ATen/core/Tensor.h>\n", "torch header"),
    ("src/optimizer/pipeline.cpp", '#include "torch/module.h"\n', "upwards: optimizer"),
    ("src/codecs/bad.cpp", '#include "hwy/highway.h"\n', "Highway header"),
    ("include/pride/layout.h", '#include "kernels/kernels.h"\n', "public header includes"),
    ("examples/bad.cpp", '#include "kernels/kernels.h"\n', "an example includes the private"),
    ("tests/methods/bad.cpp", "#include <torch/torch.h>\n", "torch header"),
    ("src/methods/bad.cpp", '#include "pride/gone.h"\n', "does not exist"),
    ("apps/pride/bad.cpp", '#include "kernels/kernels.h"\n', "a program includes the private"),
    ("apps/program/bad.cpp", '#include "methods/method.h"\n', "a program includes the private"),
    ("src/optimizer/bad.cpp", '#include "program/table.h"\n', "upwards: optimizer"),
    ("src/optimizer/bad.cpp", '#include "pride/train/task.h"\n', "of another house"),
    ("lab/src/train/bad.cpp", '#include "methods/method.h"\n', "which is not installed"),
    ("lab/app/bad.cpp", '#include "coord/journal.h"\n', "of another house"),
    ("coordinator/app/bad.cpp", '#include "pride/train/task.h"\n', "of another house"),
    ("coordinator/tests/bad.cpp", '#include "pride/train/task.h"\n', "of another house"),
    ("coordinator/src/coord/bad.cpp", '#include <torch/torch.h>\n', "torch header"),
]


def write(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content, encoding="utf-8")


def self_test():
    """Every bad include in a made-up tree is found, and nothing in the good one."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write(root, GOOD_TREE)
        faults, n_files = check_tree(root)
        failures = [f"false alarm: {fault}" for fault in faults]
        if n_files != len(GOOD_TREE):
            failures.append(f"read {n_files} files of {len(GOOD_TREE)}")
        for path, content, expected in BAD_FILES:
            write(root, {path: content})
            faults, _ = check_tree(root)
            if not any(f.startswith(path) and expected in f for f in faults):
                failures.append(f"not found in {path}: {expected!r}; got {faults}")
            (root / path).unlink()
    for failure in failures:
        print(failure)
    print(f"self-test: {len(BAD_FILES)} bad includes, {len(failures)} failures")
    return 1 if failures else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        print(__doc__)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    default = pathlib.Path(__file__).resolve().parent.parent
    root = pathlib.Path(arguments[0]) if arguments else default
    faults, n_files = check_tree(root)
    for fault in faults:
        print(fault)
    print(f"includes: {n_files} files, {len(faults)} faults")
    return 1 if faults or n_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
# Checks that the package makes no tensor by torch's defaults, which a caller may set, and passes
# libpride no address but those of _device.py, which are checked.
# SPDX-License-Identifier: Apache-2.0
"""usage: check_python.py               check python/pride
       check_python.py --self-test   check the checker: planted faults are found
"""
import ast
import pathlib
import sys

# functions of torch that make a tensor, with the arguments that each call must give
BOTH = ("dtype", "device")
MAKERS = {
    **dict.fromkeys((
        "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace",
        "logspace", "normal", "ones", "rand", "randint", "randn", "range", "scalar_tensor",
        "tensor", "tril_indices", "triu_indices", "zeros"), BOTH),
    "frombuffer": ("dtype",), "randperm": ("device",),
}
TYPED = ("Tensor", "FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor", "ByteTensor",
         "IntTensor", "LongTensor", "get_default_dtype", "get_default_device")
ADDRESSES = "_device.py"  # the file that may read them


def faults_of(name, text):
    """(line, text) of each fault."""
    found = []
    for node in ast.walk(ast.parse(text)):
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Attribute) and node.attr == "data_ptr" and name != ADDRESSES:
            found.append((node.lineno, "data_ptr(): pass libpride Place.address(), which checks the "
                                       "tensor; to compare memory use memory_at()"))
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            found += [(node.lineno, f"from torch import {each.name}: write torch.{each.name}")
                      for each in node.names if each.name in MAKERS or each.name in TYPED]
        if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
                and function.value.id == "torch"):
            continue
        given = {keyword.arg for keyword in node.keywords}
        missing = [each for each in MAKERS.get(function.attr, ()) if each not in given]
        if missing:
            found.append((node.lineno, f"torch.{function.attr}() without {' and '.join(missing)}: "
                                       "the caller's default would decide"))
        elif function.attr in TYPED:
            found.append((node.lineno, f"torch.{function.attr}: the caller's default would decide"))
    return found


PLANTED = {
    "torch.empty(3)": "without dtype and device", "torch.zeros(3, dtype=d)": "without device",
    "torch.arange(3, device=d)": "without dtype", "f(torch.tensor(0.0))": "without dtype and device",
    "torch.Tensor(3)": "torch.Tensor", "x.data_ptr()": "data_ptr()", "y = x.data_ptr": "data_ptr()",
    "from torch import zeros": "write torch.zeros",
}
GOOD = ("torch.empty(3, dtype=d, device=e)", "x.new_empty(3)", "torch.empty_like(x)",
        "place.address(x, d, 3)", "torch.frombuffer(x, dtype=d)", "empty(3)", "from torch import nn")


def self_test():
    good = not any(faults_of("x.py", text) for text in GOOD)
    good = good and not faults_of(ADDRESSES, "x.data_ptr()")
    for text, part in PLANTED.items():
        good = good and any(part in what for _, what in faults_of("x.py", text))
    return good


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test() else 1
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    root = pathlib.Path(__file__).resolve().parent.parent
    n = 0
    for file in sorted((root / "python" / "pride").rglob("*.py")):
        for line, what in faults_of(file.name, file.read_text()):
            print(f"{file.relative_to(root)}:{line}: {what}", file=sys.stderr)
            n += 1
    return 1 if n else 0


if __name__ == "__main__":
    sys.exit(main())

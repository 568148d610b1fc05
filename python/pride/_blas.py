# The kernels of the BLAS that libpride has loaded.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c
import os
import pathlib
import warnings


def warn_of_kernels(library):
    """An OpenBLAS that is older than the CPU takes kernels without AVX."""
    try:
        name = library.openblas_get_corename
        flags = set(pathlib.Path("/proc/cpuinfo").read_text().split())
    except (AttributeError, OSError):
        return
    name.restype = c.c_char_p
    if name() != b"Prescott" or not {"avx2", "fma"} <= flags or "OPENBLAS_CORETYPE" in os.environ:
        return
    kernels = "SkylakeX" if {"avx512dq", "avx512bw", "avx512vl"} <= flags else "Haswell"
    warnings.warn("pride: OpenBLAS does not know this CPU and takes kernels without AVX: products of "
                  "matrices take about six times as long, also torch's if it uses OpenBLAS. Set "
                  f"OPENBLAS_CORETYPE={kernels} before Python starts")

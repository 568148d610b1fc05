# Builds libpride with CMake and puts it into the package `pride`. No network, no torch headers: one
# build serves every torch. PRIDE_BUILD_DIR names a CMake build folder of pride to take it from, as
# seen from pride's source folder, or an absolute path.
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import re
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent
# the second where MPI is found, the third where gRPC is
LIBRARIES = ("libpride.so", "libpride_mpi.so", "libpride_coord.so")


def version():
    found = re.search(r"project\(pride VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text())
    return found.group(1)


def built():
    """The folder of the libraries, after building them."""
    if shutil.which("cmake") is None:
        sys.exit("pride: cmake was not found; on Debian: apt-get install cmake g++ libhwy-dev")
    folder = os.environ.get("PRIDE_BUILD_DIR")
    if folder is not None:  # pip runs this in another folder than the user's
        folder = str(SOURCE / folder)
        if not pathlib.Path(folder, "CMakeCache.txt").exists():
            sys.exit(f"pride: PRIDE_BUILD_DIR: {folder} is no build folder of CMake")
    else:
        folder = str(SOURCE / "build" / "python")
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        subprocess.check_call(
            ["cmake", "-S", str(SOURCE), "-B", folder, *generator, "-DCMAKE_BUILD_TYPE=Release",
             "-DPRIDE_WITH_TORCH=OFF", "-DPRIDE_BUILD_APPS=OFF", "-DPRIDE_BUILD_LAB=OFF",
             "-DPRIDE_BUILD_TESTS=OFF"])
    subprocess.check_call(["cmake", "--build", folder, "--target", "pride_c_all", "--parallel",
                           os.environ.get("PRIDE_BUILD_JOBS", str(os.cpu_count()))])
    return pathlib.Path(folder) / "src" / "c"


class BuildWithLibraries(build_py):
    def run(self):
        super().run()
        target = pathlib.Path(self.build_lib) / "pride" / "lib"
        target.mkdir(parents=True, exist_ok=True)
        folder = built()
        for name in LIBRARIES:
            if (folder / name).exists():
                shutil.copy2((folder / name).resolve(), target / name)
        if (folder / "licences").exists():  # of what scripts/package.sh --wheel puts into them
            shutil.copytree(folder / "licences", target / "licences", dirs_exist_ok=True)


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True  # the wheel is of this platform


commands = {"build_py": BuildWithLibraries}
try:
    from wheel.bdist_wheel import bdist_wheel

    class PlatformWheel(bdist_wheel):
        def get_tag(self):
            return "py3", "none", super().get_tag()[2]  # ctypes: any Python 3

    commands["bdist_wheel"] = PlatformWheel
except ImportError:
    pass

setup(
    name="pride", version=version(), description="Data-parallel training in PyTorch with about one "
    "bit per parameter on the wire: Distributed Lion and Lion Cub",
    license="Apache-2.0", python_requires=">=3.9", packages=["pride"],
    package_data={"pride": ["py.typed"]}, install_requires=["torch>=1.13.0a0"], distclass=BinaryDistribution, cmdclass=commands,
    zip_safe=False)

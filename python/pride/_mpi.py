# The ranks of an MPI job as a transport of libpride.
# SPDX-License-Identifier: Apache-2.0
import atexit
import ctypes as c
import datetime
import os
import sys

from . import _library as library
from .errors import Error


class MpiWorld:
    """All ranks of an MPI job, as mpirun or srun started it; libpride_mpi.so moves the bytes."""

    def __init__(self, timeout):
        path = library.find("libpride_mpi.so")
        if not path.exists():
            raise Error("pride: this build of the package has no MPI: it was not found when the "
                        "package was built")
        transport = library.Transport()
        text = c.create_string_buffer(2048)
        try:
            make = c.CDLL(str(path), mode=os.RTLD_GLOBAL).pride_mpi_transport
        except OSError as error:
            raise Error(f"pride: cannot load {path}: {error}. It needs Open MPI, 4 or 5; on "
                        "Debian: apt-get install openmpi-bin") from error
        make.argtypes = [c.POINTER(library.Transport), c.c_char_p, c.c_uint64]
        if make(c.byref(transport), text, len(text)) != 0:
            raise Error("pride: " + text.value.decode("utf-8", "replace"))
        self.rank, self.size, self.timeout = transport.rank, transport.size, timeout
        self.handle = library.Handle("comm", "pride_comm_create", c.byref(transport))
        self.set_timeout(timeout)

    def set_timeout(self, timeout):
        library.call("pride_comm_set_timeout", self.handle, int(timeout.total_seconds() * 1000))

    def call(self, name, *arguments):
        return library.call(name, *arguments)

    def reraise_interrupt(self):
        pass

    def fail(self, reason):
        library.lib.pride_comm_fail(self.handle, reason.encode())

    def silence(self):
        return ""

    def close(self):
        self.handle.close()


_mpi_world = None


def mpi(timeout=datetime.timedelta(seconds=300)):
    """All ranks of the MPI job that mpirun or srun started, for `process_group=`.

    MPI is initialised by the first call. For programs that do not use torch.distributed.
    """
    global _mpi_world
    if _mpi_world is None:
        _mpi_world = MpiWorld(timeout)
    return _mpi_world


@atexit.register  # before _construction.py registers its own, so that this runs after it
def _close_mpi():
    """MPI_Finalize, without which mpirun takes the process for a failed one: as it should after an
    uncaught exception, when other ranks may never come to MPI_Finalize, which waits for all."""
    if _mpi_world is not None and not hasattr(sys, "last_value"):
        _mpi_world.close()


def current_mpi_world():
    """What mpi() has returned, or None."""
    return _mpi_world

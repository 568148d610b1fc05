# Which network interfaces carry the bytes between machines.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes as c
import os
import socket
import sys
import warnings

from ._world import World


def report_network(world):
    """Says once on rank 0 which interfaces carry the bytes between machines, and warns about those
    that others should replace. Collective."""
    if not isinstance(world, World) or not world.is_first:
        return
    used, line, problems = os.environ.get("GLOO_SOCKET_IFNAME"), c.c_char_p(), c.c_char_p()
    world.call("pride_comm_network", world.handle, (used or _gloo_address()).encode(),
               c.byref(line), c.byref(problems))
    if world.rank == 0 and line.value:
        print(f"pride: {line.value.decode()}", file=sys.stderr, flush=True)
        for text in problems.value.decode().splitlines():
            warnings.warn(f"pride: {text}; GLOO_SOCKET_IFNAME names another interface")


def _gloo_address():
    """Where Gloo listens by default: the address of the host's name, if this machine has it."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
                socket.gethostname(), None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as own:
                own.bind(address)
                return address[0]
    return "127.0.0.1"

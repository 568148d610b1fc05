#!/usr/bin/env python3
"""Joins network devices of the given names by links with a delay in each direction.

usage: delayed_network.py MILLISECONDS NAME...

Makes one TUN device per name, prints a line, then passes IP packets on until it is killed. The caller, slownet.sh,
moves the devices into the namespaces of hosts and gives host n the address ending in n, from 1. It does what netem
would do, which many kernels of containers lack.
"""
# SPDX-License-Identifier: Apache-2.0
import collections
import fcntl
import os
import select
import struct
import sys
import time

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_LONGEST = 65536


def tun(name):
    """A new TUN device, as a file of IP packets."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return file


def forward(files, delay_s):
    files_of = dict(enumerate(files, 1))  # by the last byte of a host's address
    waiting = collections.deque()  # (when to deliver, to which file, packet), in order
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for file in select.select(files, [], [], left)[0]:
            try:
                packet = os.read(file, _LONGEST)
            except OSError:  # the device is down
                continue
            to = files_of.get(packet[19]) if packet[0] >> 4 == 4 else None
            if to is not None:
                waiting.append((time.monotonic() + delay_s, to, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, to, packet = waiting.popleft()
            try:
                os.write(to, packet)
            except OSError:  # its queue is full, or the device is down: lost, as on a network
                pass


if __name__ == "__main__":
    made = [tun(name) for name in sys.argv[2:]]
    print("ready", flush=True)
    forward(made, float(sys.argv[1]) / 1000)

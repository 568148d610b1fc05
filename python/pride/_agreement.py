# Agreement between ranks before a collective call, and failure propagation.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes as c
import functools
import hashlib
import os
import struct

import torch

from . import _device
from . import _library as library
from ._world import listed
from .errors import CommError, Error, InvalidArgument, NonFiniteGradient, without_frames

_OPERATIONS = ("construct", "step", "load_state_dict", "add_param_group", "broadcast_parameters",
               "check_replicas", "consolidate_state_dict", "join", "end of join",
               "construct with node_group")
_STEP, _ENDED = _OPERATIONS.index("step"), _OPERATIONS.index("end of join")
_ROW = 12  # numbers per rank and operation
_REFUSES, BEGINS = 1, 2  # states of a rank: it refuses; it has begun the step already
_TEXT = 1024  # bytes of a refusal's reason


def working(rows):
    """Ranks that have not reached the end of pride.join()."""
    return [r for r, row in enumerate(rows) if row[0] != _ENDED] or list(range(len(rows)))


def locked(method):
    """For a method that reads or changes the state: state_dict() may be called in another thread,
    and a state is of one moment."""
    @without_frames
    @functools.wraps(method)
    def call(self, *arguments, **keywords):
        with self._lock:
            return method(self, *arguments, **keywords)

    return call


def digest(data):
    return struct.unpack("<Q", hashlib.blake2b(data, digest_size=8).digest())[0]


class _Row:
    """A row on its way. ``with row:`` an error while ranks compare rows ends the optimizer on all of
    them if one of them has begun the step: its momentum has changed."""

    def __init__(self, optimizer, operation, problem, wait, begins=False):
        self._optimizer, self.operation, self.problem, self.wait = optimizer, operation, problem, wait
        self.begins = begins  # this rank begins the step
        self.ends = begins or optimizer._running  # some rank has

    def __enter__(self):
        return self

    def __exit__(self, kind, problem, _):
        if problem is not None and self.ends:
            self._optimizer._end_world(str(problem) or kind.__name__)


class Agreement:
    """A mixin of Optimizer.

    All ranks agree over `_world`. Votes run over `_voters`: the same ranks, or with nodes the
    same-local-rank peers.
    """

    def _agree(self, operation, prepare=None, values=None):
        """Exchanges a row of numbers before an operation. Returns the rows of all ranks: the
        operation, the rank's state, and its values.

        It calls ``prepare``, then ``values``, which returns the numbers. If one of them raises on a
        rank, all ranks raise its text.
        """
        if self._running:
            text = (f"{operation}() between backward and step() with overlap=True; call it after "
                    "step()")
            self._abandon(text)
            raise InvalidArgument(f"pride: {text}")
        with self._send_row(operation, prepare, values) as row:
            return self._rows(row)

    def _send_row(self, operation, prepare=None, values=None, begins=lambda: False):
        """Sends this rank's row. ``begins()``: whether it goes on without waiting for the others'."""
        self._operation = operation
        problem, numbers, state = None, [], 0
        try:
            if prepare is not None:
                prepare()
            if values is not None:
                numbers = values()
            state = BEGINS if begins() else 0
        except BaseException as error:  # Ctrl-C, too: the others wait
            problem, state = error, _REFUSES
        numbers = [_OPERATIONS.index(operation), state, *numbers]
        numbers += [0] * (_ROW - len(numbers))
        if self._world.size > 1:
            with self._failures(self._world):
                return _Row(self, operation, problem, self._world.all_gather(
                    (c.c_uint64 * _ROW)(*numbers)), state == BEGINS)
        return _Row(self, operation, problem, lambda _: [numbers])

    def _rows(self, row):
        """The rows of all ranks, in rank order."""
        with self._failures(self._world):
            rows = list(map(list, row.wait(self._running)))
        row.ends = any(each[1] == BEGINS for each in rows)
        if len({r[0] for r in rows}) > 1 and not {r[0] for r in rows} <= {_STEP, _ENDED}:
            self._raise_other_operations(rows)
        bad = [r for r, other in enumerate(rows) if other[1] == _REFUSES]
        if bad and self._world.size == 1:
            raise row.problem
        if bad:
            text = f"{type(row.problem).__name__}: {row.problem}" if row.problem else ""
            every = self._all_gather(c.create_string_buffer(
                text.encode("utf-8", "replace")[:_TEXT - 1], _TEXT))
            if row.problem:
                raise row.problem
            raise InvalidArgument(f"pride: rank {bad[0]} refuses {row.operation}: "
                                  + every[bad[0]].value.decode("utf-8", "replace"))
        return rows

    def _all_gather(self, mine):
        """Gathers this ctypes object from every rank, in rank order."""
        with self._failures(self._world):
            return self._world.all_gather(mine)(self._running)

    def _raise_other_operations(self, rows):
        calls = [f"rank {r}: {_OPERATIONS[row[0]] if row[0] < len(_OPERATIONS) else '?'}()"
                 for r, row in enumerate(rows)]
        raise InvalidArgument("pride: ranks call different methods of the optimizer ("
                              + ", ".join(calls) + "); each is to be called by all ranks, in the "
                              "same order")

    def _local_of(self, rank):
        """The local rank of a rank. Same-local-rank peers vote on the same tensors."""
        return self._nodes.local_of[rank] if self._nodes else 0

    def _node_of(self, rank):
        """The rank's number in saved states: that of its node, or without nodes its own."""
        return self._nodes.node_of[rank] if self._nodes else rank

    def _of_node(self):
        """All slots of the node, or of this rank without nodes."""
        return self._nodes.slots if self._nodes else self._slots

    def _same(self, rows, column, what, among=lambda _: 0):
        """Raises InvalidArgument if a value differs between ranks with equal `among(rank)`. Ranks
        at the end of pride.join() are not compared."""
        others = self._others(rows, column, among)
        if others:
            first = min(first for _, first in others)
            those = listed(r for r, other in others if other == first)
            raise InvalidArgument(f"pride: the {what} of rank(s) {those} and of rank {first} differ")

    def _others(self, rows, column, among):
        """Pairs: a rank, and the first rank of its `among`, if their values differ."""
        first = {}
        for r in working(rows):
            first.setdefault(among(r), r)
        return [(r, first[among(r)]) for r in working(rows)
                if rows[r][2 + column] != rows[first[among(r)]][2 + column]]

    def _differing(self, hashes):
        """The indices of the hashes that are not equal on all ranks. Collective."""
        every = self._all_gather((c.c_uint64 * len(hashes))(*hashes))
        return [i for i in range(len(hashes)) if len({each[i] for each in every}) > 1]

    def _call(self, name, *arguments, world=None):
        world = world or self._voters
        with self._failures(world):
            return world.call(name, *arguments)

    def _fail(self, reason):
        """Fails the worlds of this optimizer."""
        self._world.fail(reason)
        if self._voters is not self._world and self._voters is not None:
            self._voters.fail(reason)

    @contextlib.contextmanager
    def _failures(self, world=None):
        """If a collective call fails, adds the silent ranks to the text and marks the optimizer as
        broken."""
        world = world or self._voters
        try:
            yield
        except NonFiniteGradient as error:
            if self._nodes:  # other ranks of the node wait for this rank's tensors
                self._broken = str(error)
                self._fail(str(error))
            raise
        except CommError as error:
            world.reraise_interrupt()
            text = str(error)
            if not self._broken:
                silence = world.silence()
                text += silence
                if silence.endswith("life") and self._operation == "step":
                    done = library.lib.pride_optimizer_steps_done(self._handle)
                    text += f" in step {done + 1}, the first without them" + self._advice(text)
            self._broken = text
            if self._nodes:
                self._fail(text)
            raise CommError(text) from None
        except Error:
            world.reraise_interrupt()
            raise

    def _advice(self, text):
        """What may help against an error of a step in which ranks are missing."""
        advice = ""
        if "no response within" in text:
            advice = (". If they evaluate or save for longer: give the optimizer a larger timeout=. "
                      "If they call step() of several optimizers in another order: all ranks need "
                      "the same order")
        return advice if self._nodes else advice + (
            ". If their data have ended: the loop belongs in `with pride.join(optimizer):`")

    def _usable(self):
        if self._pid != os.getpid():
            raise Error(f"pride: this optimizer belongs to process {self._pid}, which forked this "
                        f"one ({os.getpid()}): make it after the fork")
        if self._broken:
            raise CommError(f"pride: no further steps: {self._broken}")
        if _device.is_capturing():
            text = ("during the capture of a CUDA graph: the exchange with other ranks cannot be "
                    "part of a graph. Capture forward and backward, with overlap=False, and call "
                    "step() after each replay")
            self._abandon(text)  # a step that began in an earlier backward
            raise InvalidArgument(f"pride: {text}")
        if self._handle is None:
            self._begin_copy()
        group = torch.distributed
        if (self._world.size == 1 and self._settings["process_group"] is None and
                group.is_available() and group.is_initialized() and group.get_world_size() > 1):
            raise InvalidArgument("pride: this optimizer was made before init_process_group() and "
                                  "works alone: make it afterwards")

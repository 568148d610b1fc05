# Agreement between ranks before a collective call, and failure propagation.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes as c
import functools
import warnings

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


class _Row:
    """A row on its way. ``with row:`` an error while ranks compare rows ends the optimizer on all of
    them if one of them has begun the step: its momentum has changed."""

    def __init__(self, ranks, operation, problem, wait, begins=False):
        self._ranks, self.operation, self.problem, self.wait = ranks, operation, problem, wait
        self.begins = begins  # this rank begins the step
        self.ends = begins or ranks.in_step  # some rank has

    def __enter__(self):
        return self

    def __exit__(self, kind, problem, _):
        if problem is not None and self.ends:
            self._ranks.step.end(str(problem) or kind.__name__)


class Ranks:
    """The ranks of an optimizer: what they agree on, and how they fail.

    All ranks agree over `world`. Votes run over `voters`: the same ranks, or with nodes the
    same-local-rank peers.
    """

    def __init__(self):
        self.step = None  # the NativeStep, which a failure ends
        self.world = self.voters = self.nodes = None
        self.operation = None  # the last on which ranks agreed
        self.in_step = False   # a step has begun and has not ended
        self.broken = None     # why the optimizer is of no more use
        self.played = 0        # virtual workers that this process plays; 0: it is one rank
        self._warned = set()

    @property
    def size(self):
        """The number of workers whose votes count, with nodes that of nodes."""
        return self.played or self.voters.size

    def warn_once(self, text, key, anywhere=False):
        """A warning, once for a key: on rank 0, or anywhere."""
        if key not in self._warned and (anywhere or self.world.rank == 0):
            self._warned.add(key)
            warnings.warn(f"pride: {text}", stacklevel=2)

    def agree(self, operation, prepare=None, values=None):
        """Exchanges a row of numbers before an operation. Returns the rows of all ranks: the
        operation, the rank's state, and its values.

        It calls ``prepare``, then ``values``, which returns the numbers. If one of them raises on a
        rank, all ranks raise its text.
        """
        if self.in_step:
            text = (f"{operation}() between backward and step() with overlap=True; call it after "
                    "step()")
            self.step.end(text)
            raise InvalidArgument(f"pride: {text}")
        with self.send(operation, prepare, values) as row:
            return self.rows(row)

    def send(self, operation, prepare=None, values=None, begins=lambda: False):
        """Sends this rank's row. ``begins()``: whether it goes on without waiting for the others'."""
        self.operation = operation
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
        if self.world.size > 1:
            with self.failures(self.world):
                return _Row(self, operation, problem, self.world.all_gather(
                    (c.c_uint64 * _ROW)(*numbers)), state == BEGINS)
        return _Row(self, operation, problem, lambda _: [numbers])

    def rows(self, row):
        """The rows of all ranks, in rank order."""
        with self.failures(self.world):
            rows = list(map(list, row.wait(self.in_step)))
        row.ends = any(each[1] == BEGINS for each in rows)
        if len({r[0] for r in rows}) > 1 and not {r[0] for r in rows} <= {_STEP, _ENDED}:
            self._raise_other_operations(rows)
        bad = [r for r, other in enumerate(rows) if other[1] == _REFUSES]
        if bad and self.world.size == 1:
            raise row.problem
        if bad:
            text = f"{type(row.problem).__name__}: {row.problem}" if row.problem else ""
            every = self.all_gather(c.create_string_buffer(
                text.encode("utf-8", "replace")[:_TEXT - 1], _TEXT))
            if row.problem:
                raise row.problem
            raise InvalidArgument(f"pride: rank {bad[0]} refuses {row.operation}: "
                                  + every[bad[0]].value.decode("utf-8", "replace"))
        return rows

    def all_gather(self, mine):
        """Gathers this ctypes object from every rank, in rank order."""
        with self.failures(self.world):
            return self.world.all_gather(mine)(self.in_step)

    def _raise_other_operations(self, rows):
        calls = [f"rank {r}: {_OPERATIONS[row[0]] if row[0] < len(_OPERATIONS) else '?'}()"
                 for r, row in enumerate(rows)]
        raise InvalidArgument("pride: ranks call different methods of the optimizer ("
                              + ", ".join(calls) + "); each is to be called by all ranks, in the "
                              "same order")

    def local_of(self, rank):
        """The local rank of a rank. Same-local-rank peers vote on the same tensors."""
        return self.nodes.local_of[rank] if self.nodes else 0

    def node_of(self, rank):
        """The rank's number in saved states: that of its node, or without nodes its own."""
        return self.nodes.node_of[rank] if self.nodes else rank

    def same(self, rows, column, what, among=lambda _: 0):
        """Raises InvalidArgument if a value differs between ranks with equal `among(rank)`. Ranks
        at the end of pride.join() are not compared."""
        others = self.others(rows, column, among)
        if others:
            first = min(first for _, first in others)
            those = listed(r for r, other in others if other == first)
            raise InvalidArgument(f"pride: the {what} of rank(s) {those} and of rank {first} differ")

    def others(self, rows, column, among=lambda _: 0):
        """Pairs: a rank, and the first rank of its `among`, if their values differ."""
        first = {}
        for r in working(rows):
            first.setdefault(among(r), r)
        return [(r, first[among(r)]) for r in working(rows)
                if rows[r][2 + column] != rows[first[among(r)]][2 + column]]

    def differing(self, hashes):
        """The indices of the hashes that are not equal on all ranks. Collective."""
        every = self.all_gather((c.c_uint64 * len(hashes))(*hashes))
        return [i for i in range(len(hashes)) if len({each[i] for each in every}) > 1]

    def call(self, name, *arguments, world=None):
        world = world or self.voters
        with self.failures(world):
            return world.call(name, *arguments)

    def fail(self, reason):
        """Fails the worlds of this optimizer."""
        self.world.fail(reason)
        if self.voters is not self.world and self.voters is not None:
            self.voters.fail(reason)

    @contextlib.contextmanager
    def failures(self, world=None):
        """If a collective call fails, adds the silent ranks to the text and marks the optimizer as
        broken."""
        world = world or self.voters
        try:
            yield
        except NonFiniteGradient as error:
            if self.nodes:  # other ranks of the node wait for this rank's tensors
                self.broken = str(error)
                self.fail(str(error))
            raise
        except CommError as error:
            world.reraise_interrupt()
            text = str(error)
            if not self.broken:
                silence = world.silence()
                text += silence
                if silence.endswith("life") and self.operation == "step":
                    text += (f" in step {self.step.steps_done() + 1}, the first without them" +
                             self._advice(text))
            self.broken = text
            if self.nodes:
                self.fail(text)
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
        return advice if self.nodes else advice + (
            ". If their data have ended: the loop belongs in `with pride.join(optimizer):`")

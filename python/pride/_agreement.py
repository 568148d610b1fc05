# What all ranks agree on before a step.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c

from . import _library as library
from ._amp import FOUND, IN_FRAMES, NOT_FOUND
from ._hashes import digest, hash_of, sample_of
from ._outside import digests
from ._ranks import BEGINS, working
from ._world import listed
from .errors import InvalidArgument, NonFiniteGradient

CHECKED_STEPS = 2  # first steps, in which ranks compare their gradients
LOOK = 8  # steps from one look at the parameters outside to the next
_RARE = 256
_NO_PROOF = 1
_IN_A_ROW = 3  # equal gradients that end a run in which they have differed before


class Agreement:
    """Each rank's row of a step, and what follows from the rows of all."""

    def __init__(self, parameters, native, state, traffic):
        self._parameters, self._native = parameters, native
        self._state, self._traffic = state, traffic
        self._groups, self._ranks = parameters.groups, parameters.ranks
        self._refuses_equal = parameters.groups.settings["equal_gradients"] == "refuse"
        self.outside = None       # the model's other parameters, with several ranks
        self.checks_left = CHECKED_STEPS
        self._have_differed = False  # ranks' gradients, in some step
        self._equal_steps = 0     # in how many steps in a row they were equal
        self.rows_first = True    # in the next step rows come before encode: it may be refused
        self._scalers = set()     # what the rows of the last step say of GradScalers
        self.scaled = False       # in this step some rank's frames carry found_inf

    def must_read_scaler(self):
        """Whether the last step's rows were about scalers that are read on the host."""
        return bool({FOUND, NOT_FOUND} & self._scalers)

    def is_checked(self):
        """Whether ranks compare all gradients in the next step."""
        return self.checks_left > 0 and self._ranks.voters.size > 1

    def check_next(self):
        """Ranks compare all gradients in the next step."""
        self.checks_left = max(1, self.checks_left)

    def send(self, prepare, amp=None, checked=False, unused=(), values=(), begins=lambda: False):
        """Sends this rank's row of a step. amp None: the step begins in backward."""
        nodes = self._ranks.nodes
        return self._ranks.send("step", prepare, lambda: [
            digest(b"".join(self._groups.sent) + bytes([self._parameters.factor < 0]) +
                   (repr(self._parameters.factor).encode() if nodes else b"")),
            amp.found if amp is not None else 0,
            *(_compared(values, unused) if checked else (0, 0)),
            digest(repr(self._parameters.frozen_names()).encode()),
            nodes.not_finite if nodes else 0,
            0 if checked else self._sample(values),
            *self._look_outside(checked), int(self._state.saved_alone)], begins)

    def compare(self, row, amp=None, checked=False, unused=(), values=()):
        """Compares the ranks' rows of a step; False if all ranks skip it."""
        with row:
            return self.evaluate(self._ranks.rows(row), amp, checked, unused, values)

    def evaluate(self, rows, amp, checked, unused, values):
        """Evaluates all ranks' rows of a step; False if they skip it."""
        self._groups.check_equal(rows, 0, self._groups.sent, self._parameters.factor)
        self._ranks.same(rows, 4, "set of parameters with requires_grad=False")
        if len(working(rows)) < len(rows):
            self._follow(working(rows)[0])
        self._check_scalers(rows)
        found = [r for r, row in enumerate(rows) if row[3] == FOUND]
        if found:
            if amp is not None:
                amp.share_inf()
            self._traffic.skip("found_inf on rank(s) " + listed(found))
            self._parameters.hooks.reset()
            return False
        nodes = self._ranks.nodes
        for r, row in enumerate(rows):
            if row[7] and self._groups.settings["on_non_finite"] == "raise":
                raise NonFiniteGradient(
                    f"pride: step {self._native.steps_done() + 1}: the mean gradient of "
                    f"{nodes.slots[row[7] - 1].name} in node {self._ranks.node_of(r)}, held by rank "
                    f"{r}, is not finite; nothing was changed")
        self._check_outside(rows)
        self._check_saved(rows)
        samples = self._by_nodes(rows, 8)
        if checked:
            self._check_local(self._by_nodes(rows, 4), self._by_nodes(rows, 5))
        elif not any(samples[0]) or not _all_equal(samples):
            self._equal_steps = 0
        elif self._equal_steps + 1 < _IN_A_ROW:
            self._equal_steps += 1
        else:  # are all gradients equal?
            rows = self._ranks.rows(self._ranks.send(self._ranks.operation, None, lambda: [
                *_compared(self._parameters.with_copies(values, unused), unused)]))
            self._check_local(self._by_nodes(rows, 2), self._by_nodes(rows, 3))
        return True

    def stepped(self):
        """To read a gradient on a GPU would wait for backward: there every 256th step is checked as
        the first ones are."""
        self.rows_first = False
        if self._native.steps_done() % _RARE == 0 and any(
                slot.device.type != "cpu" for slot in self._parameters.slots):
            self.check_next()

    def expects_frames(self, amp):
        """Notes whether frames carry some rank's found_inf: this rank's, or another's in the last
        step."""
        self.scaled = amp.in_frames or IN_FRAMES in self._scalers

    def _sample(self, values):
        """A digest of a few gradients, because to hash all of them in each step is slow."""
        return sample_of(values, self._native.steps_done()) if (
            self._refuses_equal and self._ranks.voters.size > 1) else 0

    def _look_outside(self, checked):
        """Digests of the parameters outside, all in a checked step, some in every 8th."""
        steps = self._native.steps_done()
        if self.outside is None or not (checked or steps % LOOK == 0):
            return [0, 0]
        self.outside.warn()
        return digests(self.outside.pairs(), None if checked else steps // LOOK)

    def _check_scalers(self, rows):
        """Refuses what a rank that has begun the step did not expect of the others' scalers."""
        found, before = {r: rows[r][3] for r in working(rows)}, self._scalers
        self._scalers = set(found.values())
        self.scaled = IN_FRAMES in self._scalers | before
        new = IN_FRAMES in self._scalers - before and len(self._scalers) > 1
        if any(row[1] == BEGINS for row in rows) and (new or FOUND in self._scalers):
            those = listed(r for r, each in found.items() if each != 0)
            raise InvalidArgument(f"pride: rank(s) {those} have a GradScaler and others none, which was "
                                  "not so in the step before: all ranks call scaler.step(optimizer)")

    def _by_nodes(self, rows, column):
        """A column's values of the working ranks, by node; without nodes each rank is one."""
        nodes = {}
        for r in working(rows):
            nodes.setdefault(self._ranks.node_of(r), []).append(rows[r][column])
        return list(map(tuple, nodes.values()))

    def _check_saved(self, rows):
        """Warns once if some ranks have called state_dict() since the last step, and others have not."""
        alone = [r for r in working(rows) if rows[r][11]]
        if self._state.saved_alone and len(alone) < len(working(rows)):
            self._ranks.warn_once(
                f"rank(s) {listed(alone)} called state_dict() and the others did not: each rank has its "
                "own momentum, and that of the others is not saved. Save one file per rank, or call "
                "consolidate_state_dict() on all ranks before", "alone", anywhere=True)
        self._state.saved_alone = False

    def _check_outside(self, rows):
        rows = [rows[r] for r in working(rows)]
        if len({row[9] for row in rows}) == 1 < len({row[10] for row in rows}):
            self.outside.warn_apart(self._ranks.differing)

    def _check_local(self, digests_of_gradients, said):
        said = list(map(max, said))
        if not any(said):
            return
        if _all_equal(digests_of_gradients) and self._refuses_equal:
            if said[0] == _NO_PROOF:
                self._equal_steps = 0
                return
            self._equal_steps += 1
            if self._have_differed and self._equal_steps < _IN_A_ROW:
                return  # by chance, as with small batches; the next step is compared, too
            raise InvalidArgument(
                "pride: the gradients of all ranks are equal, bit for bit: they have been averaged "
                "already (wrap the model with pride.local_gradients(ddp_model)), or all ranks have "
                'the same data (use a DistributedSampler). equal_gradients="allow" accepts them')
        self._have_differed, self._equal_steps = True, 0
        self.checks_left = max(0, self.checks_left - 1)

    def _follow(self, source):
        """Ranks without data adopt the hyper-parameters of a rank that continues."""
        parameters, size = self._parameters, len(bytes(library.Group()))
        n = len(parameters.slots)
        mine = b"".join(self._groups.sent) + bytes(i in parameters.frozen for i in range(n))
        theirs = bytes(self._ranks.all_gather((c.c_uint8 * len(mine)).from_buffer_copy(mine))[source])
        groups, flags = theirs[:-n], theirs[-n:]
        self._groups.adopt(parameters.handle, [
            groups[i:i + size] for i in range(0, len(groups), size)])
        parameters.send_frozen({i for i, flag in enumerate(flags) if flag})


def _all_equal(values):
    return len(values) > 1 and len(set(values)) == 1


def _compared(values, unused):
    """A digest of all gradients, and what it proves: 0 if there are none, _NO_PROOF if all are zero
    or some are not finite, otherwise more."""
    given = [v for v in values if v is not None]
    proof = any(bool(v.any()) for v in given) and all(bool(v.isfinite().all()) for v in given)
    return (digest(bytes(unused) + hash_of(values).to_bytes(8, "little")),
            0 if all(unused) else _NO_PROOF + proof)

# What all ranks agree on before a step; and pride.join(), where some have run out of data.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c
import os
import warnings

import torch

from . import _device
from . import _library as library
from . import _units
from ._hashes import digest, hash_of, sample_of
from ._ranks import BEGINS, working
from ._amp import FOUND, IN_FRAMES
from ._outside import digests
from ._world import listed
from .errors import CommError, Error, InvalidArgument, NonFiniteGradient

_NO_PROOF = 1
_IN_A_ROW = 3  # equal gradients that end a run in which they have differed before
LOOK = 8  # steps from one look at the parameters outside to the next


class Joining:
    """A mixin of Optimizer."""

    def _usable(self):
        if self._pid != os.getpid():
            raise Error(f"pride: this optimizer belongs to process {self._pid}, which forked this "
                        f"one ({os.getpid()}): make it after the fork")
        if self._ranks.broken:
            raise CommError(f"pride: no further steps: {self._ranks.broken}")
        if _device.is_capturing():
            text = ("during the capture of a CUDA graph: the exchange with other ranks cannot be "
                    "part of a graph. Capture forward and backward, with overlap=False, and call "
                    "step() after each replay")
            self._native.abandon(text)  # a step that began in an earlier backward
            raise InvalidArgument(f"pride: {text}")
        if self._handle is None:
            self._begin_copy()
        group = torch.distributed
        if (self._ranks.world.size == 1 and self._settings["process_group"] is None and
                group.is_available() and group.is_initialized() and group.get_world_size() > 1):
            raise InvalidArgument("pride: this optimizer was made before init_process_group() and "
                                  "works alone: make it afterwards")

    def _of_node(self):
        """All slots of the node, or of this rank without nodes."""
        return self._ranks.nodes.slots if self._ranks.nodes else self._slots

    def _send_step(self, prepare, amp=None, checked=False, unused=(), values=(),
                   begins=lambda: False):
        """Sends this rank's row of a step. amp None: the step begins in backward."""
        return self._ranks.send("step", prepare, lambda: [
            digest(b"".join(self._sent_groups) + bytes([self._factor < 0]) +
                   (repr(self._factor).encode() if self._ranks.nodes else b"")),
            amp.found if amp is not None else 0,
            *(_compared(values, unused) if checked else (0, 0)),
            digest(repr(self._frozen_names()).encode()),
            self._ranks.nodes.not_finite if self._ranks.nodes else 0,
            0 if checked else self._sample(values),
            *self._look_outside(checked), int(self._saved_alone)], begins)

    def _agree_on_step(self, row, amp=None, checked=False, unused=(), values=()):
        """Compares the ranks' rows of a step; False if all ranks skip it."""
        with row:
            rows = self._ranks.rows(row)
            more = ", the GradScaler's scale" if self._ranks.nodes else ""
            self._ranks.same(rows, 0, f"hyper-parameters (lr, betas, eps, weight_decay, maximize{more})")
            self._ranks.same(rows, 4, "set of parameters with requires_grad=False")
            return self._begins(rows, amp, checked, unused, values)

    def _sample(self, values):
        """A digest of a few gradients, because to hash all of them in each step is slow."""
        refused = self._settings["equal_gradients"] == "refuse" and self._ranks.voters.size > 1
        return sample_of(values, self._native.steps_done()) if refused else 0

    def _look_outside(self, checked):
        """Digests of the parameters outside, all in a checked step, some in every 8th."""
        steps = self._native.steps_done()
        if self._outside is None or not (checked or steps % LOOK == 0):
            return [0, 0]
        self._outside.warn()
        return digests(self._outside.pairs(), None if checked else steps // LOOK)

    def _begins(self, rows, amp, checked, unused, values):
        """Evaluates all ranks' rows of a step; False if they skip it."""
        if len(working(rows)) < len(rows):
            self._follow(working(rows)[0])
        self._check_scalers(rows)
        found = [r for r, row in enumerate(rows) if row[3] == FOUND]
        if found:
            if amp is not None:
                amp.share_inf()
            self._totals["skipped"] += 1
            self._last = dict(skipped=True, note="found_inf on rank(s) " + listed(found))
            self._hooks.reset()
            return False
        for r, row in enumerate(rows):
            if row[7] and self._settings["on_non_finite"] == "raise":
                done = library.lib.pride_optimizer_steps_done(self._handle)
                raise NonFiniteGradient(
                    f"pride: step {done + 1}: the mean gradient of {self._ranks.nodes.slots[row[7] - 1].name}"
                    f" in node {self._ranks.node_of(r)}, held by rank {r}, is not finite; nothing "
                    "was changed")
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
                *_compared(self._with_copies(values, unused), unused)]))
            self._check_local(self._by_nodes(rows, 2), self._by_nodes(rows, 3))
        return True

    def _expects_frames(self, amp):
        """Whether frames carry some rank's found_inf: this rank's, or another's in the last step."""
        return amp.in_frames or IN_FRAMES in self._scalers

    def _check_scalers(self, rows):
        """Refuses what a rank that has begun the step did not expect of the others' scalers."""
        found, before = {r: rows[r][3] for r in working(rows)}, self._scalers
        self._scalers = set(found.values())
        self._scaled = IN_FRAMES in self._scalers | before
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
        if self._saved_alone and len(alone) < len(working(rows)) and "alone" not in self._warned:
            self._warned.add("alone")
            warnings.warn(
                f"pride: rank(s) {listed(alone)} called state_dict() and the others did not: each "
                "rank has its own momentum, and that of the others is not saved. Save one file per "
                "rank, or call consolidate_state_dict() on all ranks before")
        self._saved_alone = False

    def _check_outside(self, rows):
        rows = [rows[r] for r in working(rows)]
        if len({row[9] for row in rows}) == 1 < len({row[10] for row in rows}):
            self._outside.warn_apart(self._ranks.differing)

    def _check_local(self, digests_of_gradients, said):
        said = list(map(max, said))
        if not any(said):
            return
        if _all_equal(digests_of_gradients) and self._settings["equal_gradients"] == "refuse":
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
        self._checks_left = max(0, self._checks_left - 1)

    def _serve_until_all_end(self):
        """Steps of a rank without data while others still have some: it serves its shards and
        abstains."""
        unused = [True] * len(self._slots)
        while True:
            self._usable()
            with torch.no_grad():
                row = self._ranks.send("end of join", self._prepare)
                with self._lock:
                    with row:
                        rows = self._ranks.rows(row)
                        if not any(each[0] != rows[self._ranks.world.rank][0] for each in rows):
                            return
                        checked = self._checks_left > 0
                        if not self._begins(rows, None, checked, unused, [None] * len(unused)):
                            continue
                        self._native.begin(scaled=self._scaled)
                    with self._native.all_fail():
                        self._hand_over([None] * len(unused), unused)
                    interrupt = self._finish()  # its errors are those of all ranks
                if interrupt is not None:
                    raise interrupt

    def _follow(self, source):
        """Ranks without data adopt the hyper-parameters of a rank that continues."""
        size = len(bytes(library.Group()))
        frozen = bytes(i in self._frozen for i in range(len(self._slots)))
        mine = b"".join(self._sent_groups) + frozen
        theirs = bytes(self._ranks.all_gather((c.c_uint8 * len(mine)).from_buffer_copy(mine))[source])
        for g, group in enumerate(self.param_groups):
            values = theirs[g * size:(g + 1) * size]
            if values == self._sent_groups[g]:
                continue
            made = library.Group.from_buffer_copy(values)
            library.call("pride_optimizer_set_group", self._handle, g, c.byref(made))
            self._sent_groups[g] = values
            _units.adopt(group, made)
        frozen = {i for i, flag in enumerate(theirs[size * len(self.param_groups):]) if flag}
        if frozen != self._frozen:
            self._send_frozen(frozen)


def _all_equal(values):
    return len(values) > 1 and len(set(values)) == 1


def _compared(values, unused):
    """A digest of all gradients, and what it proves: 0 if there are none, _NO_PROOF if all are zero
    or some are not finite, otherwise more."""
    given = [v for v in values if v is not None]
    proof = any(bool(v.any()) for v in given) and all(bool(v.isfinite().all()) for v in given)
    return (digest(bytes(unused) + hash_of(values).to_bytes(8, "little")),
            0 if all(unused) else _NO_PROOF + proof)

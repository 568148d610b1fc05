# What all ranks agree on before a step; and pride.join(), where some have run out of data.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c

import torch

from . import _library as library
from . import _units
from ._agreement import Agreement, digest, working
from ._amp import FOUND, IN_FRAMES
from ._tensors import hash_of
from ._world import listed
from .errors import InvalidArgument, NonFiniteGradient

_ZEROS = 1


class Joining(Agreement):
    """A mixin of Optimizer."""

    def _agree_on_step(self, prepare, amp=None, checked=False, unused=(), values=()):
        """Agrees on the step; False if all ranks skip it. amp None: the step begins in backward."""
        rows = self._agree("step", prepare, lambda: [
            digest(b"".join(self._sent_groups) + bytes([self._factor < 0]) +
                   (repr(self._factor).encode() if self._nodes else b"")),
            amp.found if amp is not None else 0,
            digest(bytes(unused) + hash_of(values).to_bytes(8, "little")) if checked else 0,
            _what_they_say(values, unused) if checked else 0,
            digest(repr(self._frozen_names()).encode()),
            self._nodes.not_finite if self._nodes else 0])
        more = ", the GradScaler's scale" if self._nodes else ""
        self._same(rows, 0, f"hyper-parameters (lr, betas, eps, weight_decay, maximize{more})")
        self._same(rows, 4, "set of parameters with requires_grad=False")
        return self._begins(rows, amp, checked)

    def _begins(self, rows, amp, checked):
        """Evaluates all ranks' rows before a step; False if they skip it."""
        if len(working(rows)) < len(rows):
            self._follow(working(rows)[0])
        self._scaled = any(row[3] == IN_FRAMES for row in rows)
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
                    f"pride: step {done + 1}: the mean gradient of {self._nodes.slots[row[7] - 1].name}"
                    f" in node {self._node_of(r)}, held by rank {r}, is not finite; nothing "
                    "was changed")
        if checked:
            self._check_local(self._by_nodes([rows[r] for r in working(rows)]))
        return True

    def _by_nodes(self, rows):
        """Merges the rows of each node into one, with the columns that _check_local() reads."""
        if not self._nodes:
            return rows
        nodes = {}
        for r, row in enumerate(rows):
            nodes.setdefault(self._node_of(r), []).append(row)
        return [[0, 0, 0, 0, digest(repr([row[4] for row in node]).encode()),
                 max(row[5] for row in node)] for node in nodes.values()]

    def _check_local(self, rows):
        if not any(row[5] for row in rows):
            return
        if len(rows) > 1 and len({row[4] for row in rows}) == 1 and (
                self._settings["equal_gradients"] == "refuse"):
            if rows[0][5] == _ZEROS:
                return  # zeros prove nothing
            raise InvalidArgument(
                "pride: the gradients of all ranks are equal, bit for bit: they have been averaged "
                "already (wrap the model with pride.local_gradients(ddp_model)), or all ranks have "
                'the same data (use a DistributedSampler). equal_gradients="allow" accepts them')
        self._checks_left -= 1

    def _serve_until_all_end(self):
        """Steps of a rank without data while others still have some: it serves its shards and
        abstains."""
        unused = [True] * len(self._slots)
        while True:
            self._usable()
            with torch.no_grad():
                rows = self._agree("end of join", self._prepare)
                if not any(row[0] != rows[self._world.rank][0] for row in rows):
                    return
                checked = self._checks_left > 0
                if self._begins(rows, None, checked):
                    self._begin()
                    with self._all_fail():
                        self._hand_over([None] * len(unused), unused)
                    self._finish()

    def _follow(self, source):
        """Ranks without data adopt the hyper-parameters of a rank that continues."""
        size = len(bytes(library.Group()))
        frozen = bytes(i in self._frozen for i in range(len(self._slots)))
        mine = b"".join(self._sent_groups) + frozen
        theirs = bytes(self._all_gather((c.c_uint8 * len(mine)).from_buffer_copy(mine))[source])
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


def _what_they_say(values, unused):
    """0 if there are no gradients, _ZEROS if all are zero, otherwise more."""
    return 0 if all(unused) else _ZEROS + any(bool(v.any()) for v in values if v is not None)

# pride.join(): steps of a rank that has run out of data.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c

import torch

from . import _library as library
from ._agreement import Agreement


class Joining(Agreement):
    """A part of Optimizer."""

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
            group.update({name: getattr(made, name) for name in ("lr", "weight_decay", "eps")
                          if name in group})
            if "betas" in group:
                betas = [b for b in (made.beta1, made.beta2) if b == b]
                group["betas"] = betas[0] if isinstance(group["betas"], float) else tuple(betas)
        frozen = {i for i, flag in enumerate(theirs[size * len(self.param_groups):]) if flag}
        if frozen != self._frozen:
            self._send_frozen(frozen)

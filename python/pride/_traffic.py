# What an optimizer's steps have sent, and what they cost.
# SPDX-License-Identifier: Apache-2.0
import ctypes as c

from . import _library as library
from ._groups import sections_of

_NUMBERS = ("bytes_sent", "bytes_received", "messages_sent")


class Traffic:
    """Sums over all steps so far, and the last step."""

    def __init__(self, parameters):
        self._parameters = parameters
        self._totals = dict(steps=0, skipped=0, **dict.fromkeys(_NUMBERS, 0))
        self.last = {}

    def count_nodes(self):
        """Bytes inside the node are counted, too."""
        self._totals.update(node_bytes_sent=0, node_bytes_received=0)

    def skip(self, note):
        """A step that all ranks skip before they exchange."""
        self._totals["skipped"] += 1
        self.last = dict(skipped=True, note=note)

    def add(self, report):
        """A step's report by libpride."""
        handle, nodes = self._parameters.handle, self._parameters.ranks.nodes
        self.last = {name: getattr(report, name) for name, _ in report._fields_[1:]}
        self.last["skipped"] = bool(report.skipped)
        self.last["note"] = library.lib.pride_optimizer_note(handle).decode()
        self._totals["skipped" if report.skipped else "steps"] += 1
        for name in _NUMBERS:
            self._totals[name] += self.last[name]
        for name in ("bytes_sent", "bytes_received") if nodes else ():
            self.last["node_" + name] = getattr(nodes, name)
            self._totals["node_" + name] += getattr(nodes, name)
            setattr(nodes, name, 0)

    def all(self):
        """The value of Optimizer.traffic()."""
        parameters = self._parameters
        cost, mean = library.Cost(), library.Cost()
        steps = parameters.steps_done()
        library.call("pride_optimizer_cost", parameters.handle, steps, c.byref(cost))
        library.call("pride_optimizer_mean_cost", parameters.handle, steps, c.byref(mean))
        n, world = sum(slot.n for slot in parameters.slots), parameters.ranks.size
        fp32 = 8 * n * (world - 1) // world
        last = dict(self.last, fp32_bytes=fp32) if self.last else {}
        return dict(self._totals, last_step=last,
                    cost_bytes=cost.bytes_up + cost.bytes_down, cost_exact=bool(cost.exact),
                    mean_cost_bytes=mean.bytes_up + mean.bytes_down, fp32_bytes=fp32,
                    sections=sections_of(parameters.handle, parameters.groups.methods(),
                                         parameters.slots, steps))

# Sums over model-parallel ranks: those with the model's other shards, or other tensors of a node.
# SPDX-License-Identifier: Apache-2.0
import torch
import torch.distributed as dist

from . import _library as library
from ._lane import is_interrupt, wait
from ._world import World


class ModelParallelSum:
    """Sums numbers over model-parallel ranks, in the order of the ranks, so that replicas get equal
    bits. libpride calls it between exchange and apply, on its own thread."""

    def __init__(self, world, groups, nodes=None):
        self._world, self._nodes = world, nodes
        self._groups = [(group, _device_of(group)) for group in groups]
        self.function = library.MODEL_PARALLEL_SUM(self._call)

    def _call(self, _, values, n, why, size):
        try:
            total = torch.tensor(values[:n], dtype=torch.float64, device="cpu")
            for group, device in self._groups:
                total = self._sum(total.to(device), group)
            for i, value in enumerate(total.tolist()):
                values[i] = value
            return 0
        except BaseException as problem:  # Ctrl-C too
            if is_interrupt(problem):
                self._world.interrupt = problem
            library.write_error(" ".join(str(problem).split()) or type(problem).__name__, why, size)
            return 1

    def _sum(self, values, group):
        every = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
        if isinstance(self._world, World):
            wait(self._world, lambda: dist.all_gather(every, values, group=group, async_op=True),
                 1000 * self._world.timeout.total_seconds(), group, values.device.type == "cpu")
        else:  # no other rank has this rank's tensors
            dist.all_gather(every, values, group=group)
        if self._nodes is not None:
            self._nodes.count((len(every) - 1) * values.numel() * values.element_size())
        total = every[0]
        for other in every[1:]:
            total = total + other
        return total


def _device_of(group):
    """The device of tensors in a group's collectives."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")

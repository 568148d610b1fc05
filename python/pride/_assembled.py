# Sharded matrices for methods that need whole ones: each goes to one of the ranks with its shards.
# SPDX-License-Identifier: Apache-2.0
import torch
import torch.distributed as dist

from ._tensors import is_sharded, local
from .errors import InvalidArgument


def deal_out(slots, groups):
    """Returns (slots of this rank, Assemblies). If the method needs whole matrices, one rank of the
    mesh holds each sharded tensor of two dimensions or more; the others have no slot for it."""
    meshes = {}
    for slot in slots:
        p, (method, options) = slot.param, groups.method_of(groups.every[slot.group])
        if not (is_sharded(p) and p.ndim >= 2 and p.device_mesh.size() > 1 and (
                "muon" in method or options.get("local") == "muon")):
            continue
        mesh = p.device_mesh
        if mesh.ndim > 1:
            raise InvalidArgument(f"pride: {slot.name} is sharded over a mesh of {mesh.ndim} "
                                  f"dimensions; method {method} takes one")
        if options.get("matrix_scale") == "fan-in":
            raise InvalidArgument("pride: matrix_scale=fan-in of sharded matrices: no rank has all "
                                  "of them; use rms or none")
        meshes.setdefault(tuple(mesh.mesh.tolist()), []).append(slot)
    assemblies = [Assembly(of_mesh) for of_mesh in meshes.values()]
    elsewhere = {id(slot) for assembly in assemblies for slot in assembly.elsewhere}
    return [slot for slot in slots if id(slot) not in elsewhere], assemblies


def deal(sizes, n):
    """Lists of indices for n ranks: the largest size first, to the rank with the smallest sum."""
    of, loads = [[] for _ in range(n)], [0] * n
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        r = loads.index(min(loads))
        of[r].append(i)
        loads[r] += sizes[i]
    return of


class Assembly:
    """Matrices of one mesh. Each rank holds some of them whole, balanced by size."""

    def __init__(self, slots):
        mesh = slots[0].param.device_mesh
        self._group, rank = mesh.get_group(), mesh.get_local_rank()
        self.params = [slot.param for slot in slots]
        self._of = deal([slot.n_whole for slot in slots], mesh.size())  # indices, by rank
        self._own = {i: slots[i] for i in self._of[rank]}
        self.elsewhere = [slot for i, slot in enumerate(slots) if i not in self._own]
        for slot in self._own.values():
            slot.hold_whole()

    def _shapes(self, i):
        """The sharded dimension of matrix i, and the shape of its shard on each rank."""
        p = self.params[i]
        dim, n = p.placements[0].dim, len(self._of)
        sizes = [len(part) for part in torch.arange(
            p.shape[dim], dtype=torch.int64, device="cpu").chunk(n)]
        return dim, [torch.Size([*p.shape[:dim], size, *p.shape[dim + 1:]])
                     for size in sizes + [0] * (n - len(sizes))]

    def _pieces(self):
        """Sizes by rank r: of this rank's shards of r's matrices; of r's shards of this rank's
        matrices."""
        shapes = [self._shapes(i)[1] for i in self._own]
        return ([sum(local(self.params[i]).numel() for i in of) for of in self._of],
                [sum(of_own[r].numel() for of_own in shapes) for r in range(len(self._of))])

    @torch.no_grad()
    def _whole(self, shards):
        """Exchanges shards; returns {index: whole matrix} for the matrices that this rank holds."""
        out, into = self._pieces()
        sent = torch.cat([shards[i].reshape(-1).float() for of in self._of for i in of])
        received = sent.new_empty(sum(into))
        dist.all_to_all_single(received, sent, into, out, group=self._group)
        pieces = {i: [] for i in self._own}
        for r, of_rank in enumerate(received.split(into)):
            shapes = [self._shapes(i)[1][r] for i in self._own]
            split = of_rank.split([shape.numel() for shape in shapes])
            for i, shape, piece in zip(self._own, shapes, split):
                pieces[i].append(piece.view(shape))
        return {i: torch.cat(parts, self._shapes(i)[0]) for i, parts in pieces.items()}

    def collect_values(self):
        """Copies the shards' values into the whole matrices. Collective over the mesh."""
        for i, values in self._whole([local(p) for p in self.params]).items():
            self._own[i].whole.copy_(values)

    def collect_gradients(self):
        """Copies the shards' gradients to the whole matrices; missing ones count as zeros."""
        shards = [torch.zeros_like(local(p)) if p.grad is None else local(p.grad)
                  for p in self.params]
        for i, values in self._whole(shards).items():
            self._own[i].whole.grad = values.to(self._own[i].dtype)

    @torch.no_grad()
    def hand_back(self):
        """Copies the whole matrices' values to the shards. Collective over the mesh."""
        into, out = self._pieces()
        parts = {i: slot.whole.split([s[self._shapes(i)[0]] for s in self._shapes(i)[1]],
                                     self._shapes(i)[0]) for i, slot in self._own.items()}
        sent = torch.cat([
            torch.empty(0, dtype=torch.float32, device=local(self.params[0]).device)] + [
            parts[i][r].reshape(-1).float() for r in range(len(self._of)) for i in self._own])
        received = sent.new_empty(sum(into))
        dist.all_to_all_single(received, sent, into, out, group=self._group)
        shards = [local(self.params[i]) for of in self._of for i in of]
        for shard, values in zip(shards, received.split([s.numel() for s in shards])):
            shard.copy_(values.view(shard.shape))

# Nodes average, nodes vote (node_group=): what the ranks of a node exchange among themselves.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes as c
import itertools
import os
import pathlib
import socket

import torch
import torch.distributed as dist

from . import _library as library
from ._assembled import deal
from ._device import HOST
from ._hashes import digest, hash_as_float32
from ._lane import bytes_at, size_of, wait
from ._tensors import DTYPES, Table, parts_of
from ._world import Alone, World, listed
from .errors import CommError, InvalidArgument

_ROUND = 1 << 24  # values of each rank in one exchange, or one larger tensor


def check_setting(settings):
    """Raises InvalidArgument for settings that node_group excludes."""
    others = {
        "process_group": "give one of process_group (or replicate_mesh) and node_group, which takes "
                         "all ranks of the job",
        "node_of_rank": "give one of node_of_rank, where every rank votes, and node_group",
        "overlap": "overlap=True: a node's gradients are averaged after backward"}
    text = next((text for name, text in others.items() if settings.get(name)), None)
    if text:
        raise InvalidArgument(f"pride: node_group: {text}")
    group = settings["node_group"]
    if isinstance(group, str) and group != "auto":
        raise InvalidArgument(f"pride: node_group = '{group}', must be 'auto' or a process group")
    if group != "auto" and dist.get_rank(group) < 0:
        raise InvalidArgument(f"pride: node_group: rank {dist.get_rank()} is not a member of the "
                              "group that it gives")


def _host():
    """A text that ranks of the same machine and network namespace have in common."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(os.readlink("/proc/self/ns/net"))
    return " ".join(parts)


def find_nodes(settings, ranks):
    """The Nodes of an optimizer, or None if each node has one rank. Collective."""
    world = ranks.world
    group = settings["node_group"]

    def row():
        if world.size == 1:
            return [0]
        if group == "auto":
            return [1, digest(_host().encode())]
        members = dist.get_process_group_ranks(group) if hasattr(
            dist, "get_process_group_ranks") else [
                dist.get_global_rank(group, r) for r in range(dist.get_world_size(group))]
        return [2, digest(repr(members).encode()), dist.get_rank(group), len(members)]

    rows = ranks.agree("construct with node_group", lambda: check_setting(settings), row)
    if world.size == 1:
        return None
    ranks.same(rows, 0, "kinds of node_group ('auto' or a group)")
    members = {}
    for r, (_, _, _, node, number, size, *_) in enumerate(rows):
        members.setdefault(node, []).append((number, r, size))
    nodes = [[r for _, r, _ in sorted(node)] for node in members.values()]
    for node in members.values():
        if group != "auto" and len(node) != node[0][2]:
            raise InvalidArgument(
                f"pride: node_group: the group of rank(s) {listed(r for _, r, _ in node)} has "
                f"{node[0][2]} ranks; all of them must give it")
    if len({len(node) for node in nodes}) > 1:
        hosts = [each.value.decode("utf-8", "replace") for each in ranks.all_gather(
            c.create_string_buffer(socket.gethostname().encode()[:63], 64))]
        raise InvalidArgument("pride: node_group: all nodes have the same number of ranks; here " +
                              ", ".join(f"{hosts[node[0]]} has {len(node)} (rank(s) {listed(node)})"
                                        for node in nodes))
    return Nodes(world, nodes, group) if len(nodes[0]) > 1 else None


class _Part(Table):
    """The tensors of another rank of the node. libpride applies that rank's results to them."""

    def __init__(self, handle, slots):
        super().__init__(handle, slots)
        number = c.c_int32()
        library.call("pride_optimizer_follow", handle, library.make_layout(*parts_of(slots)),
                     c.byref(number))
        self.number = number.value  # below 0: results do not determine the parameters

    def give(self):
        """Does nothing: apply() passes the addresses."""

    def result_bytes(self):
        n = c.c_uint64()
        library.call("pride_optimizer_result_bytes", self._handle, self.number, c.byref(n))
        return n.value

    def apply(self, results, frozen):
        """frozen: ids of parameters."""
        self.fill()
        flags = [id(slot.param) in frozen for slot in self._slots]
        library.call("pride_optimizer_apply_results", self._handle, self.number, self._arrays,
                     len(flags), (c.c_uint8 * len(flags))(*flags),
                     HOST.address(results, torch.uint8, results.numel()), results.numel())
        self.written({i for i, flag in enumerate(flags) if flag})


class Nodes:
    """The node of this rank. Tensors are dealt to its ranks by size. A rank averages the gradients
    of its tensors, votes on them with its peers and sends the node the results, or the values."""

    def __init__(self, world, nodes, group):
        self._world = world
        rank, self._device = self._world.rank, torch.device("cpu")
        self.node_of = {r: n for n, node in enumerate(nodes) for r in node}
        self.local_of = {r: i for node in nodes for i, r in enumerate(node)}
        self.number, self._me = self.node_of[rank], self.local_of[rank]
        self.ranks, self.first = nodes[self.number], nodes[0]
        for node in nodes if group == "auto" else ():
            made = dist.new_group(node)  # collective over all ranks
            group = made if rank in node else group
        self.group, self._is_gloo = group, dist.get_backend(group) == "gloo"
        peers = [node[self._me] for node in nodes]
        self.voters = World(None, self._world.timeout, peers) if len(peers) > 1 else Alone(
            self._world.timeout)
        self.slots, self.frozen = [], set()
        self._handle, self._parts = None, {}  # _parts: by local rank; empty: parameters travel
        self.not_finite = 0  # 1 + the index of a tensor of this rank whose mean is not finite
        self.bytes_sent = self.bytes_received = 0

    def count(self, sent, received=None):
        """Counts bytes inside the node. `received` None: equal to `sent`."""
        self.bytes_sent += sent
        self.bytes_received += sent if received is None else received

    def deal_out(self, slots, methods):
        """Deals the slots to the ranks of the node; returns this rank's."""
        if any(options.get("matrix_scale") == "fan-in" for _, options, _ in methods):
            raise InvalidArgument("pride: node_group: matrix_scale=fan-in: no rank has all matrices; "
                                  "use rms or none")
        if len(slots) < len(self.ranks):
            raise InvalidArgument(f"pride: node_group: {len(slots)} parameters for the "
                                  f"{len(self.ranks)} ranks of a node: each takes one at least")
        self.slots = slots
        if not self._is_gloo:
            self._device = slots[0].device
        of = self._of = deal([slot.n for slot in slots], len(self.ranks))
        self._rounds = []  # (dtype, for each rank the indices of its tensors)
        for dtype in DTYPES:
            cut = [self._cut([i for i in sorted(own) if slots[i].dtype == dtype]) for own in of]
            self._rounds += [(dtype, [list(each or ()) for each in row])
                             for row in itertools.zip_longest(*cut)]
        own = sorted(of[self._me])
        for i in own:
            slots[i].mean = None
        return [slots[i] for i in own]

    def digest_of(self, seed, methods):
        """A digest of what must be equal in a node; between voters libpride compares it."""
        return digest(repr([
            seed, [(name, sorted(library.texts_of(options).items()), groups)
                   for name, options, groups in methods],
            [(*slot.spec, slot.dtype) for slot in self.slots]]).encode())

    def _cut(self, indices):
        """Cuts indices into lists of at most _ROUND values, or of one tensor."""
        parts, left = [], 0
        for i in indices:
            if not parts or self.slots[i].n > left:
                parts.append([])
                left = _ROUND
            parts[-1].append(i)
            left -= self.slots[i].n
        return parts

    def hash(self):
        """A digest of all parameters."""
        return digest(repr([hash_as_float32(slot.tensor) for slot in self.slots]).encode())

    @torch.no_grad()
    def average(self, unused):
        """Averages the node's gradients: each rank gets the means of its tensors, in the gradient's
        dtype. Sums are in float32, in rank order; a rank without a gradient adds zeros. Returns for
        each tensor of this rank whether the whole node has no gradient."""
        problem = None
        try:
            for slot, missing in zip(self.slots, unused):
                slot.check()
                if not missing:
                    slot.check_gradient(slot.param.grad)
        except InvalidArgument as error:
            problem = error
        flags = torch.tensor([problem is not None, *unused], dtype=torch.uint8, device="cpu")
        with self._all_fail():
            received = self._exchange([[flags]] * len(self.ranks), [len(flags)] * len(self.ranks),
                                      flags.dtype)
        every = [(flags if r == self._me else values).tolist() for r, values in enumerate(received)]
        own = [i for i, slot in enumerate(self.slots) if slot.mean is not False]
        if problem is not None:
            raise problem
        if any(bad for bad, *_ in every):  # that rank raises when all ranks agree on the step
            return [True] * len(own)
        used = [[not flag for flag in each] for _, *each in every]
        self.not_finite = 0
        with self._all_fail():
            for dtype, indices in self._rounds:
                self._average_round(dtype, indices, used)
        return [self.slots[i].mean is None for i in own]

    def _average_round(self, dtype, indices, used):
        sent = [[self.slots[i].param.grad for i in of if used[self._me][i]] for of in indices]
        mine = indices[self._me]
        sizes = [[self.slots[i].n for i in mine if r != self._me and of_rank[i]]
                 for r, of_rank in enumerate(used)]
        received = [iter(values.split(size)) for values, size in zip(
            self._exchange(sent, list(map(sum, sizes)), dtype), sizes)]
        for i in mine:
            slot, total = self.slots[i], None
            for r, of_rank in enumerate(used):
                if of_rank[i]:
                    values = slot.param.grad.reshape(-1).to(dtype) if r == self._me else next(
                        received[r])
                    values = values.to(self._device).float()
                    total = values if total is None else total + values
            slot.mean = None
            if total is not None:
                total = total / len(self.ranks)
                if not torch.isfinite(total).all():
                    self.not_finite = 1 + i
                slot.mean = total.to(dtype).view(slot.shape).to(slot.device)

    def follow(self, handle, place):
        """Lets results travel after a step instead of parameters, if they determine the parameters:
        the method has no shared state, and no parameter has a master. All ranks decide alike."""
        self._handle, self._parts = handle, {}
        if any(slot.narrow() for slot in self.slots):
            return
        for slot in self.slots:
            slot.place = place
        parts = {r: _Part(handle, [self.slots[i] for i in sorted(of)])
                 for r, of in enumerate(self._of) if r != self._me}
        if all(part.number >= 0 for part in parts.values()):
            self._parts = parts

    def copied_bytes(self):
        """Bytes of copies of other ranks' tensors that libpride cannot read in place."""
        return sum(part.copied_bytes() for part in self._parts.values())

    @torch.no_grad()
    def stepped(self, report):
        """After a step: sends the node this rank's results, or the values of its tensors."""
        if not self._parts:
            self.hand_back(True)
        elif not report.skipped:
            with self._all_fail():
                self._share_results()

    def _share_results(self):
        data, n = c.c_void_p(), c.c_uint64()
        library.call("pride_optimizer_results", self._handle, c.byref(data), c.byref(n))
        sizes = [self._parts[r].result_bytes() if r != self._me else 0
                 for r in range(len(self.ranks))]
        received = self._exchange([[bytes_at(data.value, n.value)]] * len(self.ranks), sizes,
                                  torch.uint8)
        for r, part in self._parts.items():
            try:
                part.apply(received[r].cpu(), self.frozen)
            except CommError as error:
                raise CommError(f"rank {self.ranks[r]} of node {self.number}: {error}") from None

    @torch.no_grad()
    def hand_back(self, stepped):
        """Sends the node the values of this rank's tensors; after a step not the frozen ones."""
        with self._all_fail():
            for dtype, indices in self._rounds:
                self._hand_back_round(dtype, [
                    [i for i in of if not stepped or id(self.slots[i].param) not in self.frozen]
                    for of in indices])

    def _hand_back_round(self, dtype, indices):
        own = [self.slots[i].param for i in indices[self._me]]
        sizes = [[self.slots[i].n for i in of] for of in indices]
        received = self._exchange([own] * len(self.ranks), list(map(sum, sizes)), dtype)
        for r, of in enumerate(indices):
            if r != self._me:
                for i, values in zip(of, received[r].split(sizes[r])):
                    param = self.slots[i].param
                    param.copy_(values.view(param.shape))

    @contextlib.contextmanager
    def _all_fail(self):
        """An error in the block fails all ranks: others wait for this rank's tensors."""
        try:
            yield
        except BaseException as error:  # Ctrl-C too
            text = " ".join(str(error).split()) or type(error).__name__
            where = f"ranks {listed(self.ranks)} of a node"
            self._world.fail(f"{where}: {text}")
            if isinstance(error, (RuntimeError, CommError)):
                raise CommError(f"pride: {where}: {text}") from None
            raise

    def _exchange(self, sent, sizes, dtype):
        """Sends sent[r] to each rank r of the node; returns a tensor of sizes[r] values from it."""
        self._world.check()  # after a failure others may still be in the previous exchange
        size = size_of(dtype)
        sent = [tensors if r != self._me else [] for r, tensors in enumerate(sent)]
        out = [size * sum(tensor.numel() for tensor in tensors) for tensors in sent]
        into = [0 if r == self._me else size * n for r, n in enumerate(sizes)]
        send = torch.cat([torch.empty(0, dtype=dtype, device=self._device)] + [
            tensor.detach().reshape(-1).to(self._device, dtype) for tensors in sent
            for tensor in tensors]).view(torch.uint8)
        received = send.new_empty(sum(into))
        wait(self._world, lambda: dist.all_to_all_single(
            received, send, into, out, group=self.group, async_op=True),
            1000 * self._world.timeout.total_seconds(), self.group, self._is_gloo)
        self.count(sum(out), sum(into))
        return [values.view(dtype) for values in received.split(into)]

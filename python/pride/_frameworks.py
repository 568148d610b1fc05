# Shared by the modules for frameworks: known versions, values for the log, and each rank's state in
# files beside a checkpoint.
# SPDX-License-Identifier: Apache-2.0
import copy
import importlib.metadata
import os
import pathlib
import re

import torch
import torch.distributed as dist

from . import _library as library
from . import _units
from ._between import keep_common
from ._comm_hooks import ddp_hook, hook_of
from ._device import HOST
from ._replica import Replica
from ._groups import betas_of
from ._mean_lanes import DENSE
from ._take_over import take
from .errors import DataError, Error, InvalidArgument
from .gradients import local_gradients
from .lion import DistributedLion

_SAMPLE = 512  # coordinates of a tensor whose votes are compared
_RUN = 32  # adjacent coordinates of the sample
_TENSORS = 8  # the largest tensors are sampled


def require(package, oldest, newest_major):
    """Raises Error unless the module supports the installed version of the package."""
    version = importlib.metadata.version(package)
    found = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if not oldest <= found < (newest_major + 1, 0):
        raise Error(f"pride.{package}: {package} {version} is installed; this module is for "
                    f"{'.'.join(map(str, oldest))} to {newest_major}.x. Another version, or a loop "
                    "without it: docs/frameworks.md, \"Without these objects\"")


def _ddp_of(model, ranks):
    """The DistributedDataParallel in which a framework has wrapped a model for `ranks` ranks."""
    wrapped = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    if not isinstance(wrapped, torch.nn.parallel.DistributedDataParallel):
        raise InvalidArgument(
            f"pride: on {ranks} ranks the framework has wrapped the model in "
            f"{type(wrapped).__name__}, not in DistributedDataParallel. FSDP, DeepSpeed and "
            "similar average by themselves: use DDP")
    return wrapped


def stop_averaging(model, ranks):
    """Turns DDP's averaging off in a model that a framework has wrapped for `ranks` ranks."""
    if ranks > 1 and not hasattr(wrapped := _ddp_of(model, ranks), "pride_watches"):
        local_gradients(wrapped)


class Compressed:
    """For `compress`: gradients travel quantized, by DDP, and the optimizer stays. The other arguments are
    for an optimizer of pride's: refused."""

    def __init__(self, compress, optimizer=DistributedLion, local="keep", arguments=()):
        bits = {DENSE[bits]: bits for bits in (16, 8, 4, 2)}
        if compress not in bits:
            raise InvalidArgument(f"pride: compress={compress!r}: must be one of {', '.join(bits)}")
        others = (["optimizer"] * (optimizer is not DistributedLion) + ["local"] * (local != "keep") +
                  list(arguments))
        if others:
            raise InvalidArgument(f"pride: compress={compress!r} keeps your optimizer: leave out "
                                  f"{', '.join(others)}")
        self._bits, self._hooks = bits[compress], []

    def begin(self, models, ranks):
        """The framework has wrapped the models."""
        wrapped = [_ddp_of(model, ranks) for model in models] if ranks > 1 else []
        self._hooks = [hook_of(model) or ddp_hook(model, self._bits) for model in wrapped]
        for hook in self._hooks:
            if hook.bits != self._bits:
                raise InvalidArgument(f"pride: compress={DENSE[self._bits]!r}: the model's gradients are "
                                      f"compressed already, as {DENSE[hook.bits]!r}")

    @staticmethod
    def check(optimizer):
        """Raises InvalidArgument for an optimizer of pride's, which exchanges by itself."""
        if isinstance(optimizer, Replica):
            raise InvalidArgument(f"pride: compress: the optimizer is a {type(optimizer).__name__} of "
                                  "pride's, which exchanges by itself: leave compress out")

    def values(self):
        """For the log, as those of Meter."""
        traffic = [hook.traffic() for hook in self._hooks]
        return {"pride/bytes_sent": sum(each.get("last_step", {}).get("bytes_sent", 0)
                                        for each in traffic),
                "pride/fp32_bytes": sum(each["fp32_bytes"] for each in traffic)} if traffic else {}


def in_place_of(given, model, make, arguments, schedulers=(), every=()):
    """An optimizer of `make` over the groups of `given`, as take_over() makes it, with the rate and
    the decay in `arguments`, if there are any. One of pride's is returned unchanged."""
    if not isinstance(given, Replica):
        arguments = dict(arguments)
        values = arguments.pop("lr", None), arguments.pop("weight_decay", None)
        return take(given, model, make, arguments, values=values, schedulers=schedulers, every=every)
    if arguments:
        raise InvalidArgument(f"pride: the optimizer is a {type(given).__name__} already: give "
                              f"{list(arguments)} to it")
    keep_common(given, model)
    return given


def show_common(optimizers):
    """For a checkpoint in the middle of a step, of accumulated gradients."""
    for own in optimizers:
        parameters = getattr(own, "_parameters", None)
        if parameters is not None and parameters.between is not None:
            parameters.between.common()


def those_of(given, schedulers):
    """The schedulers that change rates of this optimizer."""
    return [each for each in schedulers
            if any(owner is given for owner in _units.owners(each))]


class Meter:
    """An optimizer's values for the log. It does not communicate."""

    def __init__(self, optimizer):
        if not isinstance(optimizer, Replica):
            raise InvalidArgument(f"pride: the optimizer is a {type(optimizer).__name__}, not one "
                                  "of pride's")
        self._optimizer, self._before, self._agreement = optimizer, [], None
        if any(_votes(optimizer, g) for g in range(len(optimizer.param_groups))):
            optimizer.register_step_pre_hook(self._read)
            optimizer.register_step_post_hook(self._compare)

    def values(self):
        """The bytes this rank sent in the last step; the bytes of a ring all-reduce of float32
        gradients; steps skipped so far; and for sign votes, the share of a sample of coordinates in
        which this rank's own sign won."""
        traffic = self._optimizer.traffic()
        made = {"pride/bytes_sent": traffic["last_step"].get("bytes_sent", 0),
                "pride/fp32_bytes": traffic["fp32_bytes"],
                "pride/skipped_steps": traffic["skipped"]}
        if self._agreement is not None:
            made["pride/vote_agreement"] = self._agreement
        return made

    @torch.no_grad()
    def _read(self, *_):
        """Parameters and momenta of the sample, before a step."""
        self._optimizer._parameters.follow_state()
        slots = sorted(((i, slot) for i, slot in enumerate(self._optimizer._parameters.slots)
                        if slot.n and _votes(self._optimizer, slot.group)),
                       key=lambda pair: -pair[1].n)[:_TENSORS]
        self._before = []
        for i, slot in slots:
            starts = range(0, slot.n, max(_RUN, -(-slot.n * _RUN // _SAMPLE)))
            at = torch.cat([torch.arange(first, min(first + _RUN, slot.n), dtype=torch.int64,
                                         device="cpu") for first in starts])
            self._before.append((i, at, *_values(self._optimizer, i, at)))

    @torch.no_grad()
    def _compare(self, *_):
        """This rank's signs, from momentum and gradient, and the signs of the step."""
        optimizer, won, counted = self._optimizer, 0, 0
        for i, at, p, m in self._before:
            slot = optimizer._parameters.slots[i]
            if slot.grad is None:
                continue
            group = optimizer.param_groups[slot.group]
            info, group = optimizer._groups.info_of(group), _units.in_method_units(group)
            beta = betas_of(info, group["betas"])[0]
            own = beta * m + (1 - beta) * optimizer._parameters.factor * _at(slot.grad, at)
            now = _values(optimizer, i, at)[0]
            step = p * (1 - group["lr"] * group["weight_decay"]) - now
            clear = (own != 0) & (step != 0)
            won += int(((own > 0) == (step > 0))[clear].sum())
            counted += int(clear.sum())
        self._before, self._agreement = [], won / counted if counted else None


def _votes(optimizer, group):
    """True if ranks vote on the group with the sign of a blend of momentum and gradient."""
    return optimizer._groups.method_of(optimizer.param_groups[group])[0] in (
        "dlion-vote", "dlion-avg", "signum-vote", "signum-avg")


def _at(tensor, index):
    return tensor.detach().reshape(-1)[index.to(tensor.device)].float().cpu()


def _values(optimizer, i, at):
    """Tensor i and its momentum at the coordinates `at`, as float32."""
    slot = optimizer._parameters.slots[i]
    entry = optimizer.state[slot.param]
    momentum = next(t for key, t in entry.items() if key.split(".")[0] == "m")
    return _at(slot.tensor, at) if not slot.narrow() else _masters(optimizer, i, at), _at(
        momentum, at)


def _masters(optimizer, tensor, at):
    """The float32 values of a narrower parameter."""
    optimizer._parameters.table.fill(collect=False)
    made = torch.empty(len(at), dtype=torch.float32, device="cpu")
    for i in range(0, len(at), _RUN):
        n = min(_RUN, len(at) - i)
        library.call("pride_optimizer_read", optimizer._parameters.handle, tensor, int(at[i]), n,
                     HOST.address(made[i:i + n], torch.float32, n))
    return made


class Beside:
    """Each rank's state in its own file, beside a framework's checkpoint with rank 0's state."""

    def __init__(self, optimizer, local="keep", name="pride"):
        self._optimizer, self._local, self._name = optimizer, local, name

    def _file(self, rank, ranks):
        return f"{self._name}.rank{rank}of{ranks}.pt"

    def _files(self, folder):
        return sorted(pathlib.Path(folder).glob(f"{self._name}.rank*of*.pt"))

    def write(self, folder):
        """Writes this rank's file. Collective: when it returns, the files of all ranks exist."""
        world = self._optimizer._ranks.world
        os.makedirs(folder, exist_ok=True)
        if world.rank == 0:  # removes files of an earlier run with another number of ranks
            for file in self._files(folder):
                if not file.name.endswith(f"of{world.size}.pt"):
                    file.unlink()
        file = os.path.join(folder, self._file(world.rank, world.size))
        torch.save(self._optimizer.state_dict(), file + ".part")
        os.replace(file + ".part", file)
        if world.size > 1:
            dist.barrier()

    def read_at_next_load(self, folder):
        """The framework's next load_state_dict() reads this rank's own file in the folder, not rank
        0's state."""
        optimizer = self._optimizer

        def load(state_dict):
            self.forget()
            optimizer.load_state_dict(self._read(folder, state_dict), local=self._local)

        optimizer.load_state_dict = load

    def forget(self):
        self._optimizer.__dict__.pop("load_state_dict", None)

    def _read(self, folder, otherwise):
        found = self._files(folder)
        if not found:  # a checkpoint of one rank, or with a consolidated state
            return otherwise
        world = self._optimizer._ranks.world
        saved = int(re.search(r"of(\d+)\.pt$", found[0].name).group(1))
        wanted = [self._file(r, saved) for r in range(saved)]
        missing = sorted(set(wanted) - {file.name for file in found})
        if missing:
            raise DataError(f"pride: the checkpoint {folder} lacks {', '.join(missing)}: copy it to "
                            "this machine, or resume from another checkpoint")
        if saved == world.size:
            wanted = [wanted[world.rank]]
        return merged([torch.load(os.path.join(folder, name), map_location="cpu", weights_only=True)
                       for name in wanted])


def merged(states):
    """One state_dict with the state of each rank, as after consolidate_state_dict()."""
    made = copy.copy(states[0])
    for other in states[1:]:
        for i, entry in other["state"].items():
            made["state"][i].update(entry)
        made["param_groups"][0]["pride"]["ranks"].update(
            other["param_groups"][0]["pride"]["ranks"])
    return made

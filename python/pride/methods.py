"""The methods of this build, the bytes of their steps, and betas by their half-life."""
# SPDX-License-Identifier: Apache-2.0
import collections.abc
import ctypes as c
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _library as library
from .errors import InvalidArgument, number, of_type, whole


@dataclass(frozen=True)
class MethodInfo:
    """A method and its defaults. A beta, eps or momentum of 0 means that the method has none."""

    name: str
    title: str
    source: str           # paper and equation
    bits_up: float        # per parameter, of one rank
    bits_down: float
    exact_cost: bool
    max_world: int
    growth: str           # growth of a rank's sent bytes with the number of ranks
    state_floats: int     # per parameter
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    momentum: float       # Nesterov's, of the matrices of Muon's rule
    options: Dict[str, Tuple[str, str]] = field(default_factory=dict)  # name: (default, help)
    on_device: bool = False  # runs on the GPU that holds the parameters


def method_info(name: str, world: int = 4,
                options: Optional[Dict[str, Any]] = None) -> MethodInfo:
    """The method ``name`` with its own ``options`` on ``world`` ranks.

    Raises:
        InvalidArgument: there is no such method, option or value; the text lists the names.
    """
    of_type("method", name, str)
    found = library.Method()
    library.call("pride_method_info", c.byref(library.make_options(name, options or {})),
                 whole("world", world, 1, 65535), c.byref(found))
    known = {}
    texts = [c.c_char_p() for _ in range(3)]
    for i in range(found.n_options):
        library.call("pride_method_option", name.encode(), i, *map(c.byref, texts))
        option, default, about = (text.value.decode() for text in texts)
        known[option] = default, about
    d = found.defaults
    return MethodInfo(found.name.decode(), found.title.decode(), found.source.decode(),
                      found.bits_up, found.bits_down, bool(found.exact_cost), found.max_world,
                      found.growth.decode(), found.state_floats, d.lr, d.beta1, d.beta2, d.eps,
                      d.weight_decay, d.momentum, known,
                      not library.why_host_only(name, options or {}))


def methods(world: int = 4) -> List[MethodInfo]:
    """All methods, in the order of ``pride methods``."""
    return [method_info(library.lib.pride_method_name(i).decode(), world)
            for i in range(library.lib.pride_method_count())]


def step_bytes(method: str, shapes: Union[int, Sequence[Sequence[int]]], world: int, *,
               options: Optional[Dict[str, Any]] = None, step: int = 1000,
               bucket_size: int = 4 << 20, vote_weights: Optional[Sequence[int]] = None) -> int:
    """Bytes sent in a step by the rank that sends most; with local steps, the mean of h steps.

    Args:
        method: the method's name.
        shapes: shapes of the parameters, or the number of parameters.
        world: number of ranks.
        options: the method's own options.
        step: number of the step, because a method may begin with dense steps.
        bucket_size: coordinates per exchange.
        vote_weights: each rank's weight; default: equal. Frames of counts grow with their sum.
    """
    shapes = [(shapes,)] if isinstance(shapes, int) else shapes
    of_type("shapes", shapes, collections.abc.Sequence)
    world = whole("world", world, 1, 65535)
    step = whole("step", step, 0, (1 << 63) - 1)
    layout = library.make_layout([(f"p{i}", tuple(s), 0) for i, s in enumerate(shapes)])
    made = library.make_options(method, options or {},
                                bucket_coords=whole("bucket_size", bucket_size, 1, (1 << 63) - 1))
    cost = library.Cost()
    weights = None
    if vote_weights is not None:
        if len(vote_weights) != world:
            raise InvalidArgument(f"{len(vote_weights)} vote weights for {world} ranks")
        weights = library.integers(c.c_int32, "a vote weight", vote_weights)
    library.call("pride_method_mean_cost", c.byref(made), layout, world, -1, step,
                 weights, c.byref(cost))
    return cost.bytes_up + cost.bytes_down


def beta_of_half_life(half_life: float, per_step: float) -> float:
    """The beta of an average in which a gradient's weight halves every ``half_life`` tokens:
    ``0.5 ** (per_step / half_life)``.

        betas = 0.9, pride.beta_of_half_life(50_000, per_step=workers * batch * length)

    Marek et al. 2025 (arXiv:2507.07101) hold the half-life of Adam's second moment in tokens, so that
    it does not change with the batch. What was measured here: docs/choosing.md.

    Args:
        half_life: in tokens, samples or bytes, above 0.
        per_step: what all workers together read in one step, in the same unit, above 0.

    Raises:
        InvalidArgument: an argument is not a finite number above 0, or the beta is 0 or 1 in float32.
    """
    half_life, per_step = (number(f"beta_of_half_life: {name}", value, 0) for name, value in (
        ("half_life", half_life), ("per_step", per_step)))
    if not half_life or not per_step:
        raise InvalidArgument(f"pride: beta_of_half_life: half_life = {half_life:g} and per_step = "
                              f"{per_step:g} must be above 0")
    beta = 0.5 ** (per_step / half_life)
    if not 0 < c.c_float(beta).value < 1:
        raise InvalidArgument(f"pride: beta_of_half_life: half_life = {half_life:g} is "
                              f"{half_life / per_step:.3g} steps of {per_step:g}: float32 has no beta "
                              "between 0 and 1 for it. Are both in one unit?")
    return beta

# The constructor's arguments: their types and ranges.
# SPDX-License-Identifier: Apache-2.0
import collections.abc

from .errors import InvalidArgument, check_one_of, flag, number, whole


def check_arguments(settings, options, flags):
    """Raises InvalidArgument. options: as given; flags: arguments that are no settings."""
    if flags.get("capturable"):
        raise InvalidArgument("pride: capturable=True: a step waits for the network and cannot be "
                              "captured in a CUDA graph")
    if flags.get("differentiable"):
        raise InvalidArgument("pride: differentiable=True: a vote has no derivative")
    if options is not None and not isinstance(options, collections.abc.Mapping):
        raise InvalidArgument(f"pride: options = {options!r}, must be a dict of "
                              f"{settings['method']}'s own")
    for name in ("overlap", "release_gradients"):
        flag(name, settings[name])
    flag("broadcast_parameters", flags["broadcast_parameters"])
    check_one_of("on_non_finite", settings["on_non_finite"], ("raise", "skip"))
    check_one_of("equal_gradients", settings["equal_gradients"], ("refuse", "allow"))
    if settings["release_gradients"] and not settings["overlap"]:
        raise InvalidArgument("pride: release_gradients=True needs overlap=True: without it nothing "
                              "is encoded before step()")
    whole("vote_weight", settings["vote_weight"], 1, 65535)
    whole("seed", settings["seed"], 0, (1 << 64) - 1)
    whole("lanes", settings["lanes"], 0, 16)
    number("clip_global_norm", settings["clip_global_norm"], 0)
    nodes = settings["node_of_rank"]
    if not isinstance(nodes, (list, tuple, type(None))):
        raise InvalidArgument(f"pride: node_of_rank = {nodes!r}, must be a list with a number of a "
                              "node for each rank")
    for node in nodes or ():
        whole("a node in node_of_rank", node, 0, (1 << 31) - 1)
    if settings["bucket_size"] is not None:
        whole("bucket_size", settings["bucket_size"], 1, (1 << 63) - 1)


def group_of(process_group, mesh):
    """The process group; with a mesh that of its ranks."""
    if mesh is None:
        return process_group
    if process_group is not None or getattr(mesh, "ndim", None) != 1:
        raise InvalidArgument("pride: replicate_mesh: give a mesh of one dimension, e.g. "
                              f"mesh['dp'], and no process_group; it is {mesh}")
    return mesh.get_group()

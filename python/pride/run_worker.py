"""pride.RunWorker: a worker of a coordinator's run, which workers join and leave."""
# SPDX-License-Identifier: Apache-2.0
import ctypes as c
import datetime
import os
import socket
import uuid
import warnings
from typing import Any, Dict, Iterable, Optional, Tuple, Union

from . import _library as library
from ._device import HOST
from ._lane import SLICE_S
from ._ranks import locked
from ._stepping import Stepping
from ._threads import Work
from ._world import Alone
from .errors import InvalidArgument, text, without_frames


@library.NOTICE
def _warn(_, message):
    warnings.warn(f"pride: {message.decode()}")


class Coordinated(Alone):
    """One worker of a coordinator."""

    line = None  # the connection, once there is one

    def call(self, name, *arguments):
        """Joins in a thread, so that the interpreter handles signals during the wait."""
        if name != "pride_optimizer_broadcast":
            return super().call(name, *arguments)
        work = Work(lambda: library.call(name, *arguments))
        try:
            while not work.done(SLICE_S):
                pass
        except BaseException as interrupt:  # Ctrl-C
            self.fail(type(interrupt).__name__)
            work.done(None)
            raise
        return work.result()

    def fail(self, reason):
        if self.line is not None:
            library.lib.pride_coordinator_interrupt(self.line)

    def close(self):
        """Leaves the run."""
        if self.line is not None:
            self.line.close()
        super().close()

    def refuse_late_group(self):
        """A run needs no group."""


class RunWorker(Stepping):
    """One worker of a run of ``pride serve``. The constructor joins the run and overwrites the
    parameters with the run's; :meth:`step` waits for the end of a round.

        optimizer = pride.RunWorker(model.parameters(), lr=1e-4, method="dlion-vote",
                                    coordinator="host:7070", certificates="worker")

    Args:
        coordinator: ``"host:port"`` of ``pride serve``.
        certificates: the folder of ``pride certs worker``; without it the coordinator must be on
            this machine.
        name: this worker's name in the run. Default: that of the certificate, or a random one.
        secret: with ``name``: a file of 16 bytes that shows the coordinator that a worker of this
            name is the same one after a restart. If it does not exist it is made, readable by its
            owner alone. Default: only this process can use the name. A certificate needs no such
            file.
        timeout: longest time without an answer of the coordinator, in seconds or as a
            ``timedelta``. Default: 300 seconds.
        Others are those of :class:`Optimizer`.

    Raises:
        InvalidArgument: an argument is out of range, or differs from the run's.
        CommError: the coordinator does not answer within ``timeout``.
    """

    @without_frames
    def __init__(self, params: Iterable, lr: Optional[float] = None,
                 betas: Union[float, Tuple[float, ...], None] = None, eps: Optional[float] = None,
                 weight_decay: Optional[float] = None, *, method: Optional[str] = None,
                 coordinator: str, certificates: Union[str, os.PathLike, None] = None,
                 name: Optional[str] = None, secret: Union[str, os.PathLike, None] = None,
                 options: Optional[Dict[str, Any]] = None,
                 momentum: Optional[float] = None, maximize: bool = False,
                 bucket_size: Optional[int] = None, seed: int = 0, vote_weight: int = 1,
                 on_non_finite: str = "raise",
                 timeout: Union[float, datetime.timedelta, None] = None,
                 run_on: str = "auto") -> None:
        self._make(params, (lr, betas, eps, weight_decay, momentum), options, dict(maximize=maximize),
                   dict(method=method, coordinator=coordinator, certificates=certificates, name=name,
                        secret=secret, bucket_size=bucket_size, seed=seed, vote_weight=vote_weight,
                        on_non_finite=on_non_finite, timeout=timeout, run_on=run_on))

    def _open(self, timeout):
        s = self._settings
        text("coordinator", s["coordinator"])
        if s["secret"] is not None and s["name"] is None:
            raise InvalidArgument("pride: secret: the file is of a worker with a name; give name, too")
        self._ranks.world = self._ranks.voters = Coordinated(timeout)

    def _bucket_size(self, place):
        return HOST.bucket_size

    def _create(self, layout, options):
        s, world = self._settings, self._ranks.world
        name = s["name"]
        if name is None and s["certificates"] is None:
            name = f"{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"

        def given(key, value, path=True):
            return None if value is None else text(key, value, path)

        address = library.CoordinatorAddress(
            host_port=text("coordinator", s["coordinator"]), notice=_warn,
            name=given("name", name, False), certificates=given("certificates", s["certificates"]),
            secret_file=given("secret", s["secret"]),
            patience_ms=int(1000 * world.timeout.total_seconds()))
        world.line = library.Handle("coordinator", "pride_coordinator_connect", c.byref(address))
        return library.Handle("optimizer", "pride_optimizer_create_worker", world.line, layout,
                              c.byref(options), None, parents=(world, world.line))

    def _start(self, broadcast):
        self.join()

    def _build_copy(self):
        super()._build_copy()
        self.join()

    def _exchanges_all(self):
        return False  # an overflow is read on the host, before the ballot

    @locked
    def join(self) -> None:
        """Overwrites the parameters with the run's, at the open round. The constructor and
        :meth:`load_state_dict` call it."""
        self._usable()
        self._ranks.agree("broadcast_parameters", self._parameters.table.fill)
        self._ranks.call("pride_optimizer_broadcast", self._parameters.handle, None)
        self._parameters.table.written()

    def load_state_dict(self, state_dict: Dict[str, Any], *, local: str = "keep") -> None:
        """Loads what :meth:`state_dict` returned, and joins the run again."""
        super().load_state_dict(state_dict, local=local)
        self.join()

    def last_round(self) -> Optional[Dict[str, Any]]:
        """The fate of the ballot in the last step; None if no round ended."""
        handle = self._parameters.handle
        if handle is None:
            return None
        out = library.Round()
        library.call("pride_optimizer_round", handle, c.byref(out))
        if out.round < 0:
            return None
        return dict(round=out.round, voters=out.voters, counted=bool(out.counted),
                    why_not=out.why_not.decode(), replayed=out.replayed,
                    took_parameters=bool(out.took_parameters))

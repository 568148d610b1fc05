"""pride.plan: methods on the host, and on a GPU whose rates are given. A GPU's own rates are measured
in test_device.py and test_cuda.py."""
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: the formulas of docs/performance.md, by hand.
import pytest

import pride
from pride import _library as library
from pride import _plan

PARAMS = 1_000_000
NETWORK = {"backward": 0.1, "bandwidth": 1e9, "latency": 1e-5, "world": 4}
SLOW = pride.DeviceRates(memory=1e6, link=1e6, operations=1e6)  # beside it a vote on the host is short


def plan(**changes):
    return pride.plan(**{"params": PARAMS, **NETWORK, **changes})


def has(method):
    try:
        pride.method_info(method)
    except pride.InvalidArgument:
        return False
    return True


def arithmetic(method, device):
    """Of a step in order, without the rest: 1e6 parameters are one bucket."""
    row, = plan(methods=[method], device=device, bandwidth=1e30, latency=0.0, backward=0.0)
    return row.in_order_s


def test_the_rows_of_the_program_are_the_default():
    rows = plan(device=pride.DeviceRates(3e12, 25e9))
    assert [row.method for row in rows] == ["lion", "lion:dense=bf16", "dlion-vote", "dlion-avg",
                                            "lion-cub"]
    fp32, bf16 = rows[0].bytes, rows[1].bytes
    assert abs(bf16 / fp32 - 0.5) < 0.01  # options are used


def test_on_a_gpu_arithmetic_takes_the_time_of_its_bytes():
    assert arithmetic("lion", SLOW) == pytest.approx(28)  # 8 to add, 4 of the sum, 8 and 8 of Lion
    assert arithmetic("lion", SLOW._replace(memory=2e6)) == pytest.approx(14)
    assert arithmetic("dlion-vote", SLOW) == pytest.approx(20.25, abs=0.2)  # and the host's vote
    assert arithmetic("dlion-vote", SLOW._replace(link=1e5)) == pytest.approx(22.5, abs=0.2)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_without_a_gpu_it_is_measured_here(device):
    assert 0 < arithmetic("lion", device) < 28


@pytest.mark.skipif(not has("dlion-muon"), reason="this build has no CBLAS")
def test_matrices_take_their_operations():
    device = pride.DeviceRates(1e15, 1e15, 1e9)
    some = arithmetic("dlion-muon", device)
    more = arithmetic("dlion-muon", device._replace(operations=0.5e9))
    fewer = arithmetic("dlion-vote", device)
    assert more - fewer == pytest.approx(2 * (some - fewer), rel=0.1)
    assert some - fewer > 1
    with pytest.raises(pride.InvalidArgument, match="dlion-muon.*DeviceRates.operations"):
        arithmetic("dlion-muon", device._replace(operations=0))


@pytest.mark.skipif(not has("dlion-muon"), reason="this build has no CBLAS")
def test_newton_schulz_is_timed_after_it_has_warmed_up(monkeypatch):
    """Of one block of a transformer: pride counts 140 products of w x w matrices."""
    clock = iter([0, 0.5, 10, 11, 20, 22, 30, 33])  # the first counts not
    monkeypatch.setattr(_plan, "_WIDTH", 8)
    monkeypatch.setattr(_plan.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(_plan.torch.cuda, "synchronize", lambda gpu: None)
    assert _plan._product_rate(_plan.torch.device("cpu")) == 140 * 8 ** 3 / 1
    assert next(clock, None) is None


@pytest.mark.parametrize("changes, text", [
    ({"device": pride.DeviceRates(0, 1)}, r"device\.memory = 0, must be above 0"),
    ({"device": pride.DeviceRates(1, float("inf"))}, r"device\.link = inf"),
    ({"device": pride.DeviceRates(1, 1, -1)}, r"device\.operations = -1, must be a finite number, 0 or more"),
    ({"device": "meta"}, "device = 'meta', must be a GPU"),
    ({"device": "gpu"}, "device = 'gpu', must be a GPU"),
    ({"device": (3e12, 25e9)}, "device = .*, must be a GPU"),
    ({"device": "cuda:99"}, "device = 'cuda:99': .*give pride.DeviceRates"),
    ({"methods": "lion"}, "methods = 'lion', must be a list"),
    ({"methods": ["lion:dense"]}, "methods: 'lion:dense': 'dense' must be option=value"),
    ({"methods": ["lion:"]}, "methods: 'lion:': '' must be option=value"),
    ({"methods": ["lion:dense=bf16:dense=fp32"]}, "'dense' is given twice"),
    ({"methods": ["lion:bits=2"]}, "lion: no option 'bits'"),
    ({"methods": ["lion", "lyon"]}, "unknown method 'lyon'"),
    ({"world": 2**32 + 2}, "world = 4294967298, must be a whole number from 1 to 65535"),
    ({"world": 2.0}, "world = 2.0, must be a whole number"),
    ({"lanes": 1.5}, "lanes = 1.5, must be a whole number from 0 to 16"),
    ({"backward": -1}, "backward = -1, must be a finite number, 0 or more"),
    ({"bandwidth": 0}, "bandwidth = 0, must be above 0"),
    ({"params": 0}, "params = 0, must be above 0"),
    ({"cores": 0}, "cores = 0, must be above 0"),
    ({"latency": float("nan")}, "latency = nan"),
])
def test_errors_name_the_argument(monkeypatch, changes, text):
    if "methods" in changes:  # nothing is measured before
        monkeypatch.setattr(library, "Handle", forbid_communicators(library.Handle))
    with pytest.raises(pride.InvalidArgument, match=text):
        plan(**changes)


def forbid_communicators(handle):
    def make(kind, *arguments, **more):
        assert kind != "comm", "a plan was begun"
        return handle(kind, *arguments, **more)
    return make

"""Methods on a GPU, which a driver of the tests plays on the CPU: the bits of the host."""
# SPDX-License-Identifier: Apache-2.0
import os
import tempfile

import pytest
import torch

import models
from processes import context


FAKES = models.BUILD / "tests" / "device" / "cuda"
pytestmark = pytest.mark.skipif(
    not (FAKES / "libfake_cuda.so").exists(), reason=f"no driver of the tests in {FAKES}")

SCRIPT = """
import contextlib, copy, os, time, warnings
import torch, pride
from fake_gpu import driver, emptied, for_room, install, synchronize
from pride import _device, _library as library

install()


def two(named, **more):
    named = list(named)
    return [{"params": named[:2]}, {"params": named[2:], "method": "adamw", **more}]


def train(run_on, dtype=torch.float32, steps=6, stop=None, scale=None, groups=list, **arguments):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Tanh(), torch.nn.Linear(40, 8))
    model = model.to(dtype)
    door = pride.VirtualWorkers if "workers" in arguments else pride.Optimizer
    make = lambda: door(groups(model.named_parameters()), lr=0.01, run_on=run_on, **arguments)
    optimizer = make()
    torch.manual_seed(4)
    for step in range(steps):
        if step == stop:
            state = optimizer.state_dict()
            optimizer = make()
            optimizer.load_state_dict(state)
        for worker in range(arguments.get("workers") or 1):
            block = (optimizer.worker(worker) if arguments.get("workers")
                     else contextlib.nullcontext())
            held = []  # a GPU's allocator keeps memory until the stream is done with it
            with block:
                optimizer.zero_grad()
                x = torch.randn(16, 24, dtype=dtype)
                model(x).square().mean().backward()
                if step == 2 and worker == 0:
                    model[2].bias.grad = None
                held += [p.grad for p in model.parameters()]
            synchronize()
        if scale is not None:  # as a GradScaler
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.zeros(())
        optimizer.step()
        synchronize()
        optimizer.grad_scale = optimizer.found_inf = None
    optimizer.check_replicas()
    with optimizer.common_parameters():
        synchronize()
        values = [p.detach().float().clone() for p in model.parameters()]
    state = optimizer.state_dict()["state"]
    live = optimizer.state[next(model.parameters())]
    return values, state, {k: v.clone() for k, v in live.items()}, optimizer


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a, b)


def compare(exact=True, **arguments):
    values, state, live, on = train("device", **arguments)
    assert on._parameters.slots[0].place.code == 1, "it ran on the host"
    wanted, wanted_state, wanted_live, host = train("host", **arguments)
    assert host._parameters.slots[0].place.code == 0
    for a, b in zip(values, wanted):
        assert same(a, b) if exact else torch.allclose(a, b, atol=2e-2), (arguments, (a - b).abs().max())
    assert on.traffic()["bytes_sent"] == host.traffic()["bytes_sent"]
    for i in wanted_state:
        assert state[i].keys() == wanted_state[i].keys()
        for key, value in wanted_state[i].items():
            assert not exact or same(state[i][key], value), key
    assert live.keys() == wanted_live.keys()
    for key, value in wanted_live.items():
        assert not exact or same(live[key], value), key

"""


def program(source, environment, file):
    """What a process runs; its end is the exit status, what it prints is in the file."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    out = os.open(file, os.O_CREAT | os.O_WRONLY)
    os.dup2(out, 1), os.dup2(out, 2)
    exec(compile(source, "program", "exec"), {"__name__": "__main__"})  # pylint: disable=exec-used


def run(body, **environment):
    environment.update(PRIDE_CUDA_DRIVER=str(FAKES / "libfake_cuda.so"),
                       PRIDE_NVRTC=str(FAKES / "libfake_nvrtc.so"), FAKE_CUDA_FOREIGN="1")
    with tempfile.NamedTemporaryFile() as file:
        process = context.Process(target=program, args=(SCRIPT + body, environment, file.name))
        process.start()
        process.join(300)
        process.kill()
        process.join()
        assert process.exitcode == 0, (process.exitcode, file.read().decode())


def test_methods_have_the_bits_of_the_host(tmp_path):
    run("""
for dtype in (torch.float32, torch.bfloat16):
    for method in ("dlion-vote", "dlion-avg", "signum-vote"):
        compare(method=method, dtype=dtype)
for method in ("lion", "adamw", "sgdm"):
    compare(method=method)
for method in ("local-vote", "diloco", "dsm"):
    compare(method=method, options={"h": 2}, dtype=torch.bfloat16)
compare(method="local-vote", options={"h": 2, "drift_feedback": 0.5})
compare(method="dlion-vote", stop=3)
compare(method="dlion-vote", dtype=torch.bfloat16, stop=3)
compare(method="dlion-vote", workers=3)
# torch 1.13 has no products of float16 on the CPU
for dtype in (torch.float32, torch.float16)[:int(torch.__version__.split('.')[0])]:
    for method in ("dlion-vote", "adamw", "lion-cub"):
        compare(method=method, dtype=dtype, scale=3.0)
""", PRIDE_CACHE=str(tmp_path))


def test_sections_have_the_bits_of_the_host(tmp_path):
    run("""
compare(method="dlion-vote", groups=two, dtype=torch.bfloat16, stop=3)
compare(method="lion", groups=two, clip_global_norm=0.1)
compare(method="dlion-avg", groups=two, workers=2)
compare(method="dlion-vote", groups=two, scale=3.0)
assert "\\ndlion-vote, adamw: on the GPU\\n" in pride.device_report()
graddrop = lambda named: two(named, method="graddrop")
assert train("auto", method="dlion-vote", groups=graddrop, steps=1)[3]._parameters.slots[0].place.code == 0
try:
    train("device", method="dlion-vote", groups=graddrop)
    raise SystemExit("not refused")
except pride.InvalidArgument as error:
    assert "graddrop has no kernels for devices" in str(error), error
""", PRIDE_CACHE=str(tmp_path))


def test_results_of_the_other_rank_of_a_node(tmp_path):
    run("""
import torch.distributed as dist
other = os.fork()
dist.init_process_group("gloo", init_method="file://" + os.environ["PRIDE_CACHE"] + "/ranks",
                        rank=int(other > 0), world_size=2)
for method in ("dlion-vote", "dlion-avg"):
    on = train("device", method=method, node_group="auto")
    host = train("host", method=method, node_group="auto")
    assert on[3]._parameters.slots[0].place.code == 1 and len(on[3]._parameters.slots) in (1, 3)
    assert all(map(same, on[0], host[0]))
    sent = on[3].traffic()["last_step"]["node_bytes_sent"]
    own = sum(slot.n for slot in on[3]._parameters.slots)
    assert sent < 4 * (24 * 40 + 40 + 40 * 8 + 8 - own) + own, "parameters travelled"
    on[3].close(), host[3].close()
dist.destroy_process_group()
if other == 0:
    os._exit(0)
assert os.waitpid(other, 0)[1] == 0
""", PRIDE_CACHE=str(tmp_path))


def test_matrices_are_orthogonalised_by_torch(tmp_path):
    run("""
compare(method="dlion-muon", exact=False, steps=3)
def split(run_on, rows, options):  # query, key and value side by side, or below each other
    p = torch.nn.Parameter(torch.zeros(rows, 108 // rows))
    optimizer = pride.Optimizer([("qkv", p)], lr=1.0, method="dlion-muon", run_on=run_on,
                                options=options)
    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(3))
    optimizer.step()
    synchronize()
    return p.detach().clone()
for each in ((6, {}), (6, {"split": "qkv=10+2*4"}), (18, {"split": {"qkv": [10, 4, 4]}}),
             (6, {"split": "qkv=6*1"})):
    assert (split("device", *each) != split("host", *each)).sum() <= 5, each
matrix = torch.randn(2, 30, 70)
mine = [m.clone() for m in matrix]
_device.newton_schulz(mine, 5)
for result in mine:
    values = torch.linalg.svdvals(result)
    assert values.min() > 0.6 and values.max() < 1.3, values
zero = [torch.zeros(4, 3)]
_device.newton_schulz(zero, 5)
assert not zero[0].any()
""", PRIDE_CACHE=str(tmp_path))


def test_what_runs_on_the_host_says_so(tmp_path):
    run("""
for method, options, text in (
        ("dgc", {}, "dgc has no kernels for devices"),
        ("lion-cub", {"scale": "l0"}, "scale = l0"),
        ("diloco", {"delay": 1}, "fragments or delay")):
    assert train("auto", method=method, options=options, steps=1)[3]._parameters.slots[0].place.code == 0
    try:
        train("device", method=method, options=options)
        raise SystemExit("not refused")
    except pride.InvalidArgument as error:
        assert text in str(error), error
try:
    train("gpu", method="dlion-vote")
    raise SystemExit("not refused")
except pride.InvalidArgument as error:
    assert "run_on = 'gpu'" in str(error), error
""", PRIDE_CACHE=str(tmp_path))


def test_a_missing_nvrtc_is_a_warning(tmp_path):
    run("""
import os
os.environ["PRIDE_NVRTC"] = "/nowhere/libnvrtc.so"
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    assert train("auto", method="dlion-vote", steps=1)[3]._parameters.slots[0].place.code == 0
assert any("copied to the host" in str(w.message) for w in seen), seen
""", PRIDE_CACHE=str(tmp_path))


def test_the_host_takes_over_before_the_first_step(tmp_path):
    run("""
def place(run_on, **arguments):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        code = train(run_on, method="dlion-vote", steps=1, **arguments)[3]._parameters.slots[0].place.code
    return code, [str(w.message) for w in seen if "copied to the host" in str(w.message)]

def refused(kind, text):
    try:
        train("device", method="dlion-vote")
        raise SystemExit("not refused")
    except kind as error:
        assert text in str(error), error

full = lambda: driver().fake_cuda_fail(b"cuMemAllocAsync", 2, 0)
driver().fake_cuda_wrong(b"apply_signs")
code, (text,) = place("auto")
assert code == 0, code
for part in ("cuda:0 (Fake A)", "kernel apply_signs", "sm_90", "NVRTC 13.1", "driver of CUDA 13.1"):
    assert part in text, text
assert place("auto") == (0, []), "warned twice"
refused(pride.InvalidArgument, "kernel apply_signs")
assert "off: cuda:0 (Fake A): kernel apply_signs" in pride.device_report()
driver().fake_cuda_wrong(b"")
for call, result, kind in ((b"cuModuleLoadData", 2, pride.OutOfMemory),
                           (b"cuStreamCreateWithPriority", 400, pride.InvalidArgument),
                           (b"cuMemAllocAsync", 2, pride.OutOfMemory)):
    for_room[0] = lambda: driver().fake_cuda_fail(call, result, 0)
    for_room[0]()
    code, (text,) = place("auto")
    assert code == 0 and call.decode() in text, text
    for_room[0]()
    refused(kind, call.decode())
for_room[0] = lambda: None
driver().fake_cuda_fail(b"cuModuleLoadData", 2, 0)
emptied.clear()
assert place("auto") == (1, []) and emptied, "room was made as the GPU was opened"
report = pride.device_report()
for part in ("GPU path: on", "dlion-vote: on the host: cuda:0 (Fake A): kernel apply_signs",
             "dlion-vote: on the GPU"):
    assert part in report, report
for dtype in (torch.float32, torch.bfloat16):
    for_room[0] = full
    full()
    code, texts = place("auto", dtype=dtype)
    assert code == 0 and len(texts) == 1 and "OUT_OF_MEMORY" in texts[0], texts
    full()
    refused(pride.OutOfMemory, "cuda:0 (")
    for_room[0] = lambda: None
    assert place("auto", dtype=dtype) == (1, [])
driver().fake_cuda_fail(b"cuMemAllocAsync", 999, 0)  # not memory, but the check finds it
code, (text,) = place("auto")
assert code == 0 and "cuMemAllocAsync failed: error 999" in text, text
""", PRIDE_CACHE=str(tmp_path))


def test_ranks_may_choose_different_places(tmp_path):
    run("""
import torch.distributed as dist
other = os.fork()
dist.init_process_group("gloo", init_method="file://" + os.environ["PRIDE_CACHE"] + "/ranks",
                        rank=int(other > 0), world_size=2)
if other == 0:
    os.environ["PRIDE_CACHE"] += "/other"  # else it may find the good verdict of rank 1
    driver().fake_cuda_wrong(b"scale")
on = train("auto", method="dlion-vote", equal_gradients="allow")
assert on[3]._parameters.slots[0].place.code == int(other > 0)
assert on[3]._parameters.bucket_size == 16 << 20, "equal on all ranks, that of a GPU"
made = copy.deepcopy(on[3])  # a copy has no GPU's size once no rank has a GPU
made._settings["run_on"] = "host"
made.check_replicas()
assert made._parameters.bucket_size == 4 << 20
made.close(), on[3].close()
# memory that goes after the choice: an error at once, on all ranks
driver().fake_cuda_wrong(b"")
train("device", method="dlion-vote", equal_gradients="allow", steps=1)[3].close()
if other == 0:
    for_room[0] = lambda: driver().fake_cuda_fail(b"cuMemAllocAsync", 2, 0)
    driver().fake_cuda_fail(b"cuMemAllocAsync", 2, 1)
begin = time.monotonic()
try:
    train("device", method="dlion-vote", equal_gradients="allow")
    raise SystemExit("not refused")
except pride.Error as error:
    assert isinstance(error, pride.OutOfMemory) == (other == 0), error
assert time.monotonic() - begin < 20
dist.destroy_process_group()
if other == 0:
    os._exit(0)
assert os.waitpid(other, 0)[1] == 0
""", PRIDE_CACHE=str(tmp_path))


def test_torch_makes_room_on_a_full_gpu(tmp_path):
    run("""
full = lambda calls: driver().fake_cuda_fail(b"cuMemAllocAsync", 2, calls)
train("device", method="dlion-vote", steps=1)
for dtype, allocations in ((torch.float32, 2), (torch.bfloat16, 6)):
    for calls in range(allocations):
        emptied.clear()
        full(calls)
        train("device", method="dlion-vote", steps=2, dtype=dtype)
        assert emptied == [torch.device("cuda", 0)], (calls, emptied)
for_room[0] = lambda: full(0)
full(0)
try:
    train("device", method="dlion-vote")
    raise SystemExit("no error")
except pride.OutOfMemory as error:
    assert isinstance(error, (torch.cuda.OutOfMemoryError, pride.Error)), error
    for text in ("cuda:0 (", " bytes: cuMemAllocAsync failed"):
        assert text in str(error), error
for_room[0] = lambda: None


# memory that goes in torch's products
def fails(matrices, _):
    held = matrices[0].clone()
    raise kind("2 GiB")
newton_schulz, _device.newton_schulz = _device.newton_schulz, fails
for kind, caught in ((torch.cuda.OutOfMemoryError, torch.cuda.OutOfMemoryError), (KeyError, pride.Error)):
    try:
        train("device", method="dlion-muon")
        raise SystemExit("no error")
    except caught as error:
        assert isinstance(error, pride.Error) and isinstance(error.__cause__, kind), error
        assert isinstance(error, pride.OutOfMemory) == (caught is not pride.Error) and "2 GiB" in str(error)
        trace = error.__cause__.__traceback__.tb_next
        assert trace.tb_frame.f_code.co_name == "fails" and not trace.tb_frame.f_locals
kind = KeyboardInterrupt
try:
    train("device", method="dlion-muon")
    raise SystemExit("Ctrl-C was ignored")
except KeyboardInterrupt:
    pass
""", PRIDE_CACHE=str(tmp_path))


def test_a_gradient_that_is_not_finite_is_named(tmp_path):
    run("""
torch.manual_seed(1)
model = torch.nn.Linear(8, 4)
optimizer = pride.Optimizer(model.named_parameters(), method="dlion-vote", run_on="device")
model(torch.ones(2, 8)).sum().backward()
model.weight.grad[0, 0] = float("nan")
try:
    optimizer.step()
    raise SystemExit("not refused")
except pride.NonFiniteGradient as error:
    assert "'weight' on rank 0" in str(error), error
""", PRIDE_CACHE=str(tmp_path))


def test_plans_measure_the_rates_of_the_gpu(tmp_path):
    run("""
from pride import _plan
_plan._COPIED, _plan._MEASURED_S = 1 << 16, 0.0
measured = []
rates_of = _plan._rates_of
_plan._rates_of = lambda *arguments: measured.append(rates_of(*arguments)) or measured[-1]
network = dict(params=100_000, backward=0.1, bandwidth=1e9, latency=1e-5, methods=["lion"])
for device in "cuda", torch.device("cuda", 1):
    row, = pride.plan(**network, device=device)
    rates = measured[-1]
    assert rates.memory > 0 and rates.link > 0 and rates.operations == 0, rates
    assert [row] == pride.plan(**network, device=rates)
    assert [row] != pride.plan(**network, device=rates._replace(memory=rates.memory / 1000))
try:
    pride.plan(**network, device="cuda:9")
    assert False
except pride.InvalidArgument as error:
    assert "device = 'cuda:9'" in str(error), error
""", PRIDE_CACHE=str(tmp_path))

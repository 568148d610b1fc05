"""Means of communication hooks on a GPU, which a driver of the tests plays: the bits of the host."""
# SPDX-License-Identifier: Apache-2.0
import test_device

pytestmark, run = test_device.pytestmark, test_device.run

HOOK = """
from types import SimpleNamespace
from pride._mean_lanes import MeanLanes
nothing = lambda *_: contextlib.nullcontext()
torch.cuda.device = torch.cuda.stream = torch.cuda.Stream = nothing
torch.cuda.current_stream = lambda: SimpleNamespace(wait_event=nothing)


def places(bits, dtype, lanes=None):
    values = torch.randn(300, generator=torch.Generator().manual_seed(1)).to(dtype)
    lanes = lanes or MeanLanes("test", None, bits, None, 1)
    wanted, future = lanes.start(values.clone(), [77, 223]).wait(), torch.futures.Future()
    lanes._lanes[0]._average_on_gpu(values, [77, 223], None, future)
    synchronize()
    assert same(future.wait(), wanted) and wanted.any(), (values, wanted)
    return {place.code for place in lanes._lanes[0]._means}
"""


def test_a_hooks_means_on_a_gpu_have_the_bits_of_the_host(tmp_path):
    run(HOOK + """
for bits in (32, 8, 4, 2):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert places(bits, dtype) == {0, 1}, (bits, dtype)
""", PRIDE_CACHE=str(tmp_path))


def test_lanes_share_a_gpu(tmp_path):
    run(HOOK + """
import threading
opened, of_device = [], _device.Device._open
_device.Device._open = lambda self: (opened.append(1), time.sleep(0.2), of_device(self))[2]
threads = [threading.Thread(target=places, args=(4, torch.float32)) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(opened) == len(_device._KEPT) == 1
""", PRIDE_CACHE=str(tmp_path))


def test_a_hook_copies_to_the_host_if_the_gpu_cannot_be_used(tmp_path):
    run(HOOK + """
driver().fake_cuda_wrong(b"scale")
opened, of_device = [], _device.Device._open
_device.Device._open = lambda self: (opened.append(1), of_device(self))[1]
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    lanes = MeanLanes("test", None, 4, None, 1)
    for _ in range(3):  # the GPU is tried once
        assert places(4, torch.float32, lanes) == {0}
assert len(opened) == 1
assert ["copied to the host" in str(w.message) for w in seen] == [True], seen
""", PRIDE_CACHE=str(tmp_path))

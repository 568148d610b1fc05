"""scripts/gpu.sh: no run passes that ran nothing, or ran it elsewhere than on the GPU."""
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import subprocess

import pytest
import torch

import pride
from processes import PATIENCE

ROOT = pathlib.Path(__file__).resolve().parents[2]


def gpu_sh(*arguments, **environment):
    """The status and the output of the script, as on a machine without a GPU."""
    if pathlib.Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")
    env = dict(os.environ, PRIDE_CUDA_DRIVER="none", **environment)
    result = subprocess.run([ROOT / "scripts" / "gpu.sh", *arguments], env=env, text=True, timeout=PATIENCE,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return result.returncode, result.stdout


@pytest.mark.parametrize("stages", ["facts tests", "", ",", "facts,", "facts,,tests", "fact"])
def test_stages_that_are_not_names_are_refused(stages):
    status, text = gpu_sh("--stages", stages)
    assert status == 2 and "stage" in text and "==" not in text, text


def test_a_stage_that_is_left_out_has_not_passed():
    status, text = gpu_sh("--stages", "sanitizer", "--seconds", "080")
    assert status == 1 and "== sanitizer: left out" in text and "no stage ran" in text, text


def test_a_killed_stage_had_no_time_left(tmp_path):
    python, deaf = tmp_path / "python", tmp_path / "deaf"
    python.write_text("#!/bin/sh\nexec sleep 30\n")
    python.chmod(0o755)
    deaf.write_text("trap '' TERM\n")
    status, text = gpu_sh("--stages", "facts", "--seconds", "6", PYTHON=str(python), BASH_ENV=str(deaf))
    assert status == 1 and "facts: no time left" in text and "== facts: FAILED" in text, text


@pytest.mark.skipif(int(torch.__version__.split(".")[0]) < 2, reason="the experiments need torch 2.x")
def test_steps_are_measured_on_the_gpu_or_fail(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "python" / "benchmarks"))
    import gpu_step

    made = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(pride, "Optimizer", lambda *_, **arguments: made.append(arguments["run_on"]))
    for name, make in gpu_step.rows():
        if not name.startswith("AdamW"):
            make(torch.nn.Linear(2, 2))
            assert made.pop() == ("host" if "on the host" in name else "device"), name

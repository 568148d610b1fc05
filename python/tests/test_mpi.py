# Over MPI: the same parameters, bit for bit, as over Gloo.
# SPDX-License-Identifier: Apache-2.0
import hashlib
import shutil
import subprocess
import sys
import textwrap

import pytest

import models
import pride
from pride import _library as library
from processes import PATIENCE, environment

pytestmark = [
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun"),
    pytest.mark.skipif(not library.find("libpride_mpi.so").exists(),
                       reason="libpride_mpi.so was not built")]
METHODS = ["dlion-vote", "lion-cub", "adamw", "onebit-adam"]

PROGRAM = """
    import hashlib, sys, torch, models, pride
    torch.set_num_threads(1)
    world = pride.mpi()
    means = [pride.mean_over_ranks(world.rank + 0.0), pride.mean_over_ranks(world.rank, world)]
    assert means == [0.5, 0.5], means
    lines = []
    for method in sys.argv[1].split(","):
        for overlap in (False, True):
            model, optimizer = models.make(method, overlap=overlap, process_group=world)
            models.train(model, optimizer, 6, rank=world.rank)
            optimizer.consolidate_state_dict()
            state = optimizer.state_dict()
            digest = hashlib.sha256(models.ended(model, optimizer)).hexdigest()
            lines.append(f"{world.rank} {method} {digest} {len(state['state'][0])}")
    try:
        pride.Optimizer(models.mlp(1 + world.rank).parameters(), 1e-2, method="dlion-vote",
                        process_group=world)
    except pride.InvalidArgument as error:
        lines.append(f"{world.rank} refused {error}")
    with open(f"{sys.argv[2]}/{world.rank}", "w") as file:  # mpirun mixes lines of ranks
        file.write("\\n".join(lines))
"""


def over_gloo(method):
    model, optimizer = models.make(method)
    models.train(model, optimizer, 6)
    optimizer.consolidate_state_dict()
    keys = len(optimizer.state_dict()["state"][0])
    return hashlib.sha256(models.ended(model, optimizer)).hexdigest(), keys


def mpirun(program, *arguments):
    allowed = environment(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return subprocess.run(
        ["mpirun", "-n", "2", "--oversubscribe", "--mca", "btl_vader_single_copy_mechanism", "none",
         sys.executable, "-c", textwrap.dedent(program), *arguments], env=allowed, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE, check=False)


def test_the_same_bits_as_over_gloo(world, tmp_path):
    done = mpirun(PROGRAM, ",".join(METHODS), str(tmp_path))
    assert done.returncode == 0, done.stdout
    expected = {method: world(2).run(over_gloo, method) for method in METHODS}
    for rank in range(2):
        lines = (tmp_path / str(rank)).read_text().splitlines()
        assert len(lines) == 2 * len(METHODS) + 1
        assert "initial parameters of rank(s) 1 are not those of rank 0" in lines.pop()
        for line in lines:
            _, method, digest, keys = line.split()
            assert (digest, int(keys)) == expected[method][rank], line


def test_a_missing_mpi_is_an_error_that_says_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "libpride_mpi.so").write_text("no library")
    monkeypatch.setenv("PRIDE_LIBRARY_DIR", str(tmp_path))
    with pytest.raises(pride.Error, match="cannot load .*libpride_mpi.so.*openmpi-bin"):
        pride.mpi()

# Programs as users start them with torchrun, in processes forked from one that has imported the
# frameworks: these take 20 s to import.
# SPDX-License-Identifier: Apache-2.0
import atexit
import contextlib
import importlib
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import time
import traceback

SECONDS = 300  # a compiled model took 100 at a load of 30


class Programs:
    """The process from which programs are forked."""

    def __init__(self, *imports):
        from processes import environment

        self._server = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), *imports], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment(OPENBLAS_NUM_THREADS="1", WANDB_MODE="offline", HF_HUB_OFFLINE="1"))

    def results(self, file, *arguments, ranks=2, die_in=None, to_the_end=False):
        """(exit status, output) of each rank; -9 where it was killed, in step `die_in`. To the end: the
        interpreter ends as one that ran the file, with all that this takes."""
        task = dict(file=str(file), arguments=arguments, ranks=ranks, die_in=die_in,
                    to_the_end=to_the_end)
        print(json.dumps(task), file=self._server.stdin, flush=True)
        answer = self._server.stdout.readline()
        assert answer, f"the process that programs are forked from ended: {self._server.wait(10)}"
        statuses = json.loads(answer)
        return [(status, log_of(file, rank).read_text()) for rank, status in enumerate(statuses)]

    def run(self, file, *arguments, **options):
        """The outputs; fails where a rank did."""
        results = self.results(file, *arguments, **options)
        for rank, (status, output) in enumerate(results):
            assert status == 0, f"rank {rank} of {file}: {status}\n{output}"
        return [output for _, output in results]

    def close(self):
        self._server.stdin.close()
        self._server.wait(60)


def log_of(file, rank):
    return pathlib.Path(file).parent / f"rank{rank}.log"


def _die_in(step):
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = []

    def count(optimizer, *_):
        if type(optimizer).__module__.startswith(("pride", "torch.optim")):
            steps.append(None)
            if len(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(count)


def run_rank(task, rank, port):
    """What a forked process does: runs the program as this rank, and ends."""
    file = task["file"]
    os.chdir(os.path.dirname(file))
    sys.path.insert(0, os.path.dirname(file))
    out = os.open(log_of(file, rank), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for number, where in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, out)):
        os.dup2(where, number)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(task["ranks"]),
                      LOCAL_WORLD_SIZE=str(task["ranks"]), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test", GROUP_RANK="0")
    sys.argv = [file, *task["arguments"]]
    if task["die_in"]:
        _die_in(task["die_in"])
    if task["to_the_end"]:  # its names live until the interpreter's end
        exec(compile(pathlib.Path(file).read_text(), file, "exec"),  # pylint: disable=exec-used
             vars(sys.modules["__main__"]))
        sys.exit()
    status = 0
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status:
            print(end.code, file=sys.stderr)
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    os._exit(status)


def _run(task):
    from processes import free_port

    port, children = free_port(), {}
    for rank in range(task["ranks"]):
        pid = os.fork()
        if pid == 0:
            run_rank(task, rank, port)
        children[pid] = rank
    statuses, until = [None] * len(children), time.monotonic() + SECONDS
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            statuses[children.pop(pid)] = os.waitstatus_to_exitcode(status)
            if any(statuses) and not task["to_the_end"]:  # the others wait for this one
                until = min(until, time.monotonic() + 20)
        elif time.monotonic() > until:
            for each in children:
                os.kill(each, signal.SIGKILL)
        else:
            time.sleep(0.01)
    return statuses


def _serve(imports):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imports print
    import torch

    torch.set_num_threads(1)
    for name in imports:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])

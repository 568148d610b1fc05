# Folders as `pride train` and `pride sweep` write them, with predictable numbers.
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib

PARAMETERS = 1000
STEPS = 40

HOSTILE = '<img src="http://example.invalid/x" onerror="document.title=1">&amp;\'</script>'


def settings(method, workers, seed, batch=32):
    return {"task": "cifar10", "data": "", "model": "", "method": method, "method-opt": [], "lr": 0.001,
            "weight-decay": None, "workers": workers, "batch": batch, "steps": STEPS, "epochs": None,
            "seed": seed, "sharding": "replicate", "eval-every": 10}


def write_run(folder, method, workers, seed, accuracy, bytes_sent, data_source="made up", batch=32):
    """Accuracy rises in four evaluations to `accuracy`, the loss falls from 2."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    with open(folder / "metrics.jsonl", "w") as out:
        for step in range(1, STEPS + 1):
            record = {"type": "step", "step": step, "loss": 2 - step / STEPS, "lr": 0.001 * (2 - step / STEPS),
                      "bytes_sent": bytes_sent, "bytes_received": bytes_sent, "backward_s": 0.01,
                      "encode_s": 0.001, "exchange_s": 0.002, "apply_s": 0.0005}
            out.write(json.dumps(record) + "\n")
            if step % 10 == 0:
                share = step / STEPS
                out.write(json.dumps({"type": "eval", "step": step, "seconds": 0.1, "loss": 2 - share,
                                      "accuracy": accuracy * share, "images": 100}) + "\n")
    summary = {"versions": {"pride": "0.1.0", "commit": "abc"}, "settings": settings(method, workers, seed, batch),
               "task": "cifar10", "data": {"source": data_source, "hash": "00ff"},
               "model": {"name": "vit-small", "size": {}, "parameters": PARAMETERS},
               "method": {"name": method, "title": method, "options": {}, "lr": 0.001, "beta1": 0.9,
                          "beta2": 0.99, "eps": 0.0, "weight_decay": 0.1},
               "world": workers, "samples_per_step": workers * batch, "steps": STEPS, "steps_planned": STEPS,
               "steps_run": STEPS, "steps_skipped": 0, "epochs": 2.0, "interrupted": False, "bytes": {},
               "seconds": {"backward_s": 0.4, "encode_s": 0.04, "exchange_s": 0.08, "apply_s": 0.02},
               "step_ms": 15.0, "final": {"loss": 1.0, "accuracy": accuracy, "images": 100},
               "param_hash": "0123456789abcdef"}
    (folder / "summary.json").write_text(json.dumps(summary))


def write_sweep(folder, methods=9, worlds=(4, 16), seeds=(1, 2, 3), batches=(32,)):
    """Method k reaches 0.4 + 0.02 k at 4 workers; seed 2 is the mean, 1 and 3 lie 0.01 off."""
    folder = pathlib.Path(folder)
    records = []
    for k in range(methods):
        label = HOSTILE if k == 1 else f"method-{k}"
        for workers in worlds:
            for batch in batches:
                for seed in seeds:
                    run = f"{k}-{workers}-{batch}-{seed}"
                    accuracy = 0.4 + 0.02 * k - 0.002 * workers + 0.01 * (seed - 2)
                    write_run(folder / "runs" / run, f"m{k}", workers, seed, accuracy,
                              125 * 2 ** (k % 6), HOSTILE if k == 0 else "made up", batch)
                    records.append({"id": run, "phase": "run", "status": "done", "label": label,
                                    "command": f"pride train --method=m{k}", "folder": f"runs/{run}"})
    records.append({"id": "gone", "phase": "run", "status": "failed", "label": "method-0",
                    "error": HOSTILE, "command": "pride train", "folder": "runs/gone"})
    (folder / "sweep.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    overview = {"experiment": "try", "title": "Nine methods on made-up data", "note": HOSTILE,
                "complete": False, "missing": 2, "file": HOSTILE}
    (folder / "sweep.json").write_text(json.dumps(overview))

# The experiments: their runs, and the expected minutes of each.
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import hashlib
import json
from typing import Any, Dict, Tuple


@dataclasses.dataclass
class Run:
    """One run. All fields except `minutes` decide what it trains; its name shows the ones that vary."""

    experiment: str
    label: str  # the method's name in tables
    method: str
    workers: int
    seed: int
    steps: int
    batch: int  # of one worker
    layers: int
    heads: int
    width: int
    lr: float
    weight_decay: float
    betas: Tuple[float, ...] = (0.9, 0.99)
    options: Dict[str, Any] = dataclasses.field(default_factory=dict)
    context: int = 0  # tokens of a sequence; 0: images
    warmup: int = 0
    every: int = 1  # steps from one evaluation to the next
    samples: int = 0  # of the data, 0: all
    dtype: str = "bfloat16"
    how: str = "eager"
    joined: bool = False  # workers' gradients are summed before the method, which takes their mean
    at_once: int = 0  # workers in one forward and backward; 0: the faster number, measured at the start
    init: str = ""  # the experiment whose weights it fine-tunes, on questions
    lora: int = 0  # rank; 0: all parameters train
    keep: bool = False  # saves its weights, for the init of other runs
    length: str = ""  # of the schedule, for the name
    minutes: float = 0.0

    @property
    def name(self):
        kind = "" if (self.dtype, self.how) == ("bfloat16", "eager") else f"-{self.dtype}-{self.how}"
        kind += f"-{self.at_once}atonce" if self.at_once else ""
        tuned = f"-lr{self.lr:g}-wd{self.weight_decay:g}" if self.experiment.endswith("-tune") else ""
        return f"{self.experiment}-{self.label}-n{self.workers}-{self.length}-s{self.seed}{tuned}{kind}"

    @property
    def per_step(self):
        """Images, tokens or questions of one worker in a step."""
        return self.batch * (1 if self.init else self.context or 1)

    @property
    def positions(self):
        """Tokens, or patches of images, of one worker in a step."""
        return self.batch * (self.context or 64)

    @property
    def positions_at_once(self):
        """Most positions in one forward: logits of 32,768 tokens take 16 GB."""
        return 32768 if self.context else 65536

    def settings(self):
        made = dataclasses.asdict(self)
        del made["minutes"]
        return made

    def digest(self):
        """Hash of the settings: a run with other settings is another run."""
        text = json.dumps(self.settings(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


LION, ADAMW = (0.9, 0.99), (0.9, 0.999)
# Rate, decay and betas for images. Those of the Distributed Lion paper are in its Table 4, which could
# not be read: these are from memory and uncertain. The last two methods are not in the paper.
IMAGES = {
    "adamw": ("adamw", {}, 1e-4, 5e-4, ADAMW),
    "lion": ("lion", {}, 5e-5, 5e-3, LION),
    "dlion-vote": ("dlion-vote", {}, 5e-5, 5e-3, LION),
    "dlion-avg": ("dlion-avg", {}, 5e-5, 5e-3, LION),
    "signum-vote": ("signum-vote", {}, 5e-5, 5e-3, (0.99,)),
    "terngrad": ("terngrad", {}, 1e-3, 5e-4, None),
    "dgc": ("dgc", {"ratio": 0.04}, 1e-2, 5e-4, None),
    "graddrop": ("graddrop", {"ratio": 0.04}, 1e-3, 5e-4, None),
    "lion-cub": ("lion-cub", {}, 5e-5, 5e-3, LION),
    "dlion-muon": ("dlion-muon", {}, 1e-3, 5e-3, (0.9, 0.95)),
}
TORCH_ADAMW = ("torch-adamw", {}, 1e-4, 5e-4, ADAMW)  # for throughput
IMAGES_ON_GPU = ["dlion-vote", "adamw", "lion", "dlion-muon", "dlion-avg", "signum-vote", "lion-cub"]
SEEDS = (42, 52, 62)  # the paper's
WORKERS = (4, 8, 16, 32)

MUON = {"local": "muon"}
# Rates for language: a step around those of small models in lab/docs/results/language.md, lowered
# for larger ones. `lm-tune` tries their neighbours.
TEXT = {
    "adamw": ("adamw", {}, 1e-3, 0.1, (0.9, 0.95)),
    "dlion-vote": ("dlion-vote", {}, 2e-4, 0.5, (0.9, 0.95)),
    "dlion-muon": ("dlion-muon", {}, 1e-3, 0.1, (0.9, 0.95)),
    "muon": ("muon", {}, 3e-3, 0.1, (0.9, 0.95)),
    "lion": ("lion", {}, 2e-4, 0.5, (0.9, 0.95)),
    "dlion-avg": ("dlion-avg", {}, 2e-4, 0.5, (0.9, 0.95)),
    **{f"local-muon-h{h}": ("local-muon", {"h": h, **MUON}, 3e-3, 0.1, (0.9, 0.95)) for h in (8, 16, 30)},
    "muloco-h30": ("diloco", {"h": 30, **MUON, "outer_beta1": 0.9, "outer_lr": 0.8}, 3e-3, 0.1,
                        (0.9, 0.95)),
    "lion-cub": ("lion-cub", {}, 2e-4, 0.5, (0.9, 0.95)),
    "turn-muon": ("turn-muon", {}, 1e-3, 0.1, (0.9, 0.95)),
    **{f"local-ef-h{h}": ("local-ef", {"h": h, **MUON}, 3e-3, 0.1, (0.9, 0.95)) for h in (8, 16, 30)},
}

QUICK = ("adamw", "muon", "dlion-vote", "dlion-muon")

PAPER, SMALL = (6, 8, 512), (6, 8, 128)
GPT_30M, GPT_124M = (6, 6, 384), (12, 12, 768)

# The basis of --list's minutes. None was measured on an H100 (README.md).
HAND_OVER_MS = 1.0  # of one worker, beside forward and backward
STEP_MS = 3.0  # bits to the host, the vote, the result
BACKWARD_MS = {PAPER: 4.0, SMALL: 3.5, GPT_30M: 7.0, GPT_124M: 25.0}  # of one worker
ORTHOGONAL_MS = {PAPER: 5.0, SMALL: 2.0, GPT_30M: 4.0, GPT_124M: 12.0}  # of one worker
PARAMETERS = {PAPER: 18.97e6, SMALL: 1.2e6, GPT_30M: 30.1e6, GPT_124M: 124.0e6}
HOST_NS = {"terngrad": 12.0, "dgc": 17.0, "graddrop": 13.0}  # of a coordinate and worker
HOST_COPY_NS = 1.0
DENSE_NS = 1.5  # a float32 gradient to the host, its mean, and back
CUB_NS = 0.3  # levels of four bits to the host, and their sums


def expected_minutes(run):
    shape = run.layers, run.heads, run.width
    if shape not in BACKWARD_MS:
        return 0.02
    worker = BACKWARD_MS[shape] + HAND_OVER_MS
    trained = 2.4e6 if run.lora else PARAMETERS[shape]
    if run.method == "lion-cub":
        worker += CUB_NS * PARAMETERS[shape] / 1e6
    elif run.method in HOST_NS:
        worker += (HOST_COPY_NS + HOST_NS[run.method]) * PARAMETERS[shape] / 1e6
    elif run.method == "dlion-muon":
        worker += ORTHOGONAL_MS[shape]
    if run.options.get("local") == "muon":
        worker += ORTHOGONAL_MS[shape]
    if run.init:  # half of the tokens; three evaluations of 22,000 choices
        worker *= 0.5
    step = run.workers * worker + STEP_MS
    if run.joined or run.method == "diloco":  # float32 to the host and back
        times = 1 if run.joined else run.workers / run.options["h"]
        step += times * DENSE_NS * trained / 1e6
    if run.method == "muon":
        step += ORTHOGONAL_MS[shape]
    return run.steps * step / 6e4 + (0.6 if run.init else 0.15)  # evaluations, the start


MEAN = ("adamw", "lion", "muon")


def images(experiment, methods, shape, workers, seeds, images_in_all, **more):
    """Runs that all see the same number of images: with more workers, fewer steps."""
    for seed in seeds:
        for n in workers:
            for label in methods:
                method, options, lr, decay, betas = IMAGES[label]
                steps = max(1, images_in_all // (32 * n))
                run = Run(experiment, label, method, n, seed, steps, 32, *shape, lr, decay, betas,
                          dict(options), every=max(1, steps // 8), joined=method in MEAN, length=f"e{32 * steps / 50000:.3g}")
                yield dataclasses.replace(run, **more)


def text(experiment, methods, shape, workers, seeds, tokens, **more):
    for seed in seeds:
        for n in workers:
            for label in methods:
                method, options, lr, decay, betas = TEXT[label]
                steps = max(1, tokens // (8 * 512 * n))
                run = Run(experiment, label, method, n, seed, steps, 8, *shape, lr, decay, betas,
                          dict(options), context=512, warmup=max(1, steps // 20),
                          every=max(1, steps // 8), joined=method in MEAN, length=f"{tokens / 1e6:.3g}Mt")
                yield dataclasses.replace(run, **more)


# Rate, decay and betas for fine-tuning: first of all parameters, then of LoRA's. Decays and betas are those
# of the Distributed Lion paper for LLaMA-7B; its rates, 2e-5 and 6e-6, are for a model 50 times larger.
QUESTIONS = {
    "adamw": ("adamw", (5e-5, 1e-3), 0.0, ADAMW),
    "lion": ("lion", (1.5e-5, 3e-4), 0.01, LION),
    "dlion-vote": ("dlion-vote", (1.5e-5, 3e-4), 0.01, LION),
    "dlion-avg": ("dlion-avg", (1.5e-5, 3e-4), 0.01, LION),
    "dlion-muon": ("dlion-muon", (5e-5, 1e-3), 0.01, (0.9, 0.95)),
}


def base():
    """A GPT of 124 million parameters, for the runs that fine-tune it."""
    for run in text("base", ["adamw"], GPT_124M, (4,), (42,), 13_107_200):
        yield dataclasses.replace(run, keep=True)


def finetune(experiment, seeds, steps=500):
    """500 steps of 32 questions are 3 passes over half of the seven tasks."""
    for seed in seeds:
        for lora in (0, 16):
            for label, (method, rates, decay, betas) in QUESTIONS.items():
                yield Run(experiment, f"{label}-{'lora' if lora else 'whole'}", method, 4, seed, steps, 8, *GPT_124M,
                          rates[lora > 0], decay, betas, context=256, warmup=steps // 20,
                          every=max(1, steps // 2), joined=method in MEAN, init="base", lora=lora,
                          length=f"{steps}steps")


def speed():
    """The same total batch for every number of workers, beside torch's AdamW without pride."""
    for shape, unit, context, each in ((PAPER, "images", 0, 1024), (GPT_30M, "sequences", 512, 64)):
        for label in ("torch-adamw", "dlion-vote", "dlion-muon", "adamw"):
            for n in (4, 32) if label != "torch-adamw" else (4,):
                method, options, lr, decay, betas = (TORCH_ADAMW if label == "torch-adamw" else IMAGES[label])
                yield Run("speed", label, method, n, 42, 110, each // n, *shape, lr, decay, betas, dict(options),
                          context=context, every=110, joined=method in MEAN,
                          length=f"{each}{unit}")


def tuned(runs, rates, decays=(1,)):
    """Each run at all factors of its own rate and decay."""
    for run in runs:
        for a in rates:
            for b in decays:
                yield dataclasses.replace(run, lr=run.lr * a, weight_decay=run.weight_decay * b)


def paper_grid(runs):
    for run in runs:
        for lr in (5e-5, 1e-3, 5e-3, 1e-2):
            for decay in (5e-4, 1e-3, 5e-3):
                yield dataclasses.replace(run, lr=lr, weight_decay=decay)


EXPERIMENTS = {
    "speed": ("images and tokens a second beside torch's AdamW, the same total batch", speed),
    "cifar": ("CIFAR-10, the paper's ViT, methods that run on the GPU, as many images for each N",
              lambda: images("cifar", IMAGES_ON_GPU, PAPER, WORKERS, SEEDS, 640_000)),
    "cifar-host": ("the same ViT, all methods, 4 workers, as far as methods on the host get",
                   lambda: images("cifar-host", IMAGES, PAPER, (4,), SEEDS, 20_000)),
    "cifar-small": ("a ViT of width 128, all methods",
                    lambda: images("cifar-small", IMAGES, SMALL, WORKERS, SEEDS, 256_000)),
    "cifar-tune": ("the paper's grid of rates and decays, on a seed of its own",
                   lambda: paper_grid(images("cifar-tune", IMAGES, SMALL, (4,), (100,), 32_000))),
    "lm-30m": ("GPT of 30 million parameters",
               lambda: text("lm-30m", TEXT, GPT_30M, (4, 16), SEEDS, 49_152_000)),
    "lm-124m": ("GPT of 124 million parameters",
                lambda: text("lm-124m", TEXT, GPT_124M, (4, 16), SEEDS, 13_107_200)),
    "lm-tune": ("the 30 million, a third of the rate, the rate and three times it",
                lambda: tuned(text("lm-tune", TEXT, GPT_30M, (4,), (100,), 6_553_600),
                              (1 / 3, 1, 3))),
    "lm-quick": ("the 30 million, 8 workers, in a minute a run; its rates are from lm-quick-tune",
                 lambda: text("lm-quick", [*QUICK, "turn-muon"], GPT_30M, (8,), SEEDS, 19_660_800)),
    "lm-quick-tune": ("a quarter of lm-quick: the rate, twice the rate and half of it",
                      lambda: (run for factor in (1, 2, 1 / 2) for run in tuned(
                          text("lm-quick-tune", QUICK, GPT_30M, (8,), (100,), 4_915_200), (factor,)))),
    "base": ("a GPT of 124 million parameters whose weights are kept, for finetune", base),
    "finetune": ("that GPT on questions with choices, whole and with LoRA", lambda: finetune("finetune", SEEDS)),
    "finetune-tune": ("a third of finetune's rate, the rate and three times it, 100 steps",
                      lambda: tuned(finetune("finetune-tune", (100,), 100), (1 / 3, 1, 3))),
}


def tiny(run):
    """The same run for two cores and seconds."""
    small = dict(workers=2, layers=1, heads=2, width=32, length="tiny", warmup=1, dtype=run.dtype)
    if run.context:
        small.update(steps=4, every=2, batch=2, context=32, samples=16 if run.init else 256)
        small.update(lora=min(run.lora, 4))
        if "h" in run.options:
            small.update(options={**run.options, "h": 2})
    else:
        small.update(steps=6, every=3, batch=8, samples=128)
    return dataclasses.replace(run, **small)


def runs_of(name, is_tiny=False, **changes):
    """All runs of an experiment. Tiny: with one seed, without runs that become equal."""
    made = {}
    for run in EXPERIMENTS[name][1]():
        run = dataclasses.replace(tiny(run) if is_tiny else run, **changes)
        if is_tiny and run.seed != 42 and not name.endswith("-tune"):
            continue
        run.minutes = expected_minutes(run)
        made.setdefault((run.name, run.digest()), run)
    return list(made.values())

# A plain training script beside torch.optim.AdamW: parameters are tied, frozen, released, averaged
# (EMA), swapped, reordered in memory, saved and loaded between steps.
# SPDX-License-Identifier: Apache-2.0
#
# Oracle: torch's AdamW on the mean loss of all ranks. The rounding of the two differs, so values are
# compared with a tolerance after each step.
import copy
import io

import pytest
import torch
import torch.distributed as dist

import models
import pride

TOLERANCE = 2e-5  # of values around 1 after 64 steps of 1e-2
# with these betas the bias corrections are 1 when parameters are frozen: torch counts the steps of
# each parameter, pride those of the optimizer
VALUES = dict(lr=1e-2, betas=(0.5, 0.75), eps=1e-4, weight_decay=0.1)
FIRST = 40  # steps before the first edit


class Net(torch.nn.Module):
    """An embedding that is tied to the head, a convolution, and a branch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.Embedding(11, 8)
        self.convolution = torch.nn.Conv2d(2, 8, 2, padding=1)
        self.branch = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        image = x.view(-1, 2, 2, 2)
        y = torch.tanh(self.convolution(image)).mean((2, 3))
        return self.head(x + y + torch.tanh(self.branch(x)))


def loss_of(model, step, rank):
    g = torch.Generator().manual_seed(1000 * rank + step)
    tokens, targets = torch.randint(11, (16,), generator=g), torch.randint(11, (16,), generator=g)
    return torch.nn.functional.cross_entropy(model(tokens), targets)


class Script:
    """What a user does with a model and an optimizer, which are `make(model)`."""

    def __init__(self, make):
        self.make = make
        self.model = Net()
        self.optimizer = make(self.model)
        self.average = copy.deepcopy(self.model.state_dict())

    def step(self, loss, to_none=True):
        self.optimizer.zero_grad(set_to_none=to_none)
        loss(self.model).backward()
        self.optimizer.step()
        with torch.no_grad():
            for key, p in self.model.state_dict().items():
                self.average[key].lerp_(p, 0.25)

    def freeze(self):
        self.model.branch.requires_grad_(False)
        self.optimizer.zero_grad(set_to_none=True)

    def release(self):
        self.model.branch.requires_grad_(True)

    def use_average(self):
        with torch.no_grad():
            for key, p in self.model.state_dict().items():
                p.copy_(self.average[key])

    def evaluate_average(self):
        """Exchanges the tensors, and back."""
        for _ in range(2):
            for p, key in zip(self.model.parameters(), dict(self.model.named_parameters())):
                p.data, self.average[key] = self.average[key], p.data
            self.model(torch.arange(4))

    def new_data(self):
        for p in self.model.parameters():
            p.data = p.data.clone() * 0.75

    def swap(self):
        if not hasattr(torch.utils, "swap_tensors"):  # torch before 2.3
            return self.new_data()
        for p in self.model.parameters():
            p.grad = None
            torch.utils.swap_tensors(p, torch.nn.Parameter(0.75 * p.detach()))

    def channels_last(self):
        self.model.to(memory_format=torch.channels_last)

    def columns(self):
        self.model.branch.weight.data = self.model.branch.weight.data.t().contiguous().t()

    def shrink(self):
        with torch.no_grad():
            self.model.embedding.weight[3:5] *= 0.5
            self.model.convolution.bias.data.fill_(0.125)

    def resume(self):
        """In new objects, as another process would."""
        file = io.BytesIO()
        torch.save((self.model.state_dict(), self.optimizer.state_dict()), file)
        file.seek(0)
        weights, state = torch.load(file)
        if isinstance(self.optimizer, pride.Optimizer):
            self.optimizer.close()
        self.model = Net()
        self.optimizer = self.make(self.model)
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(state)

    def roll_back(self):
        self.model.load_state_dict(self.average)

    def move_nowhere(self):
        self.model.to("cpu", torch.float32)


ACTIONS = ["freeze", "release", "use_average", "evaluate_average", "new_data", "swap",
           "channels_last", "columns", "shrink", "resume", "freeze", "roll_back", "release",
           "move_nowhere", "resume", "swap"]


def distances(overlap):
    """The largest difference after each step, and what stood before it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ours = Script(lambda model: pride.Optimizer(
        model.named_parameters(), method="adamw", overlap=overlap, bucket_size=64, timeout=30,
        **VALUES))
    torchs = Script(lambda model: torch.optim.AdamW(model.parameters(), **VALUES))
    actions = dict(enumerate(ACTIONS, FIRST))
    found = []
    for step in range(FIRST + len(ACTIONS) + 8):
        for script in (ours, torchs):
            getattr(script, actions.get(step, "move_nowhere"))()
        ours.step(lambda model, s=step: loss_of(model, s, rank), step % 2 == 0)
        torchs.step(lambda model, s=step: sum(
            loss_of(model, s, r) for r in range(world)) / world, step % 2 == 0)
        assert ours.model.head.weight is ours.model.embedding.weight
        found.append((actions.get(step), max(
            (p - q).abs().max().item()
            for p, q in zip(ours.model.parameters(), torchs.model.parameters()))))
    ours.optimizer.check_replicas()
    ours.optimizer.close()
    return found


@pytest.mark.parametrize("n, overlap", [(1, False), (2, False), (2, True)])
def test_every_step_is_that_of_torchs_adamw(world, n, overlap):
    for found in world(n).run(distances, overlap):
        for step, (action, distance) in enumerate(found):
            assert distance < TOLERANCE, f"step {step}, after {action}"


# --- Saving. --------------------------------------------------------------------------------------


def test_a_part_of_a_model_is_saved_alone():
    model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.Linear(1000, 10))
    optimizer = pride.DistributedLion(model.parameters())
    models.set_gradients(list(model.parameters()), 0)
    optimizer.step()
    file = io.BytesIO()
    torch.save(model[1].state_dict(), file)
    assert 4 * 10_010 < file.tell() < 4 * 10_010 + 4_000


def test_safetensors_writes_and_reads_the_model(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = models.mlp()
    optimizer = pride.DistributedLion(model.parameters())
    models.train(model, optimizer, 2)
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    for key, values in safetensors.load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(values, model.state_dict()[key])

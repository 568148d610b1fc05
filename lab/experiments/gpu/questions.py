# Questions with choices on the device: batches of right answers, and accuracy on those held out.
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import zlib

import torch

from images import NoData
from make_shards import END_OF_TEXT, Encoder


def read(folder):
    """[(task, query, choices, gold)] of all NAME.jsonl of a folder."""
    made = []
    for file in sorted(pathlib.Path(folder or "").glob("*.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            row = json.loads(line)
            if not {"query", "choices", "gold"} <= row.keys():
                raise NoData(f"{file}:{number}: no query, choices and gold")
            made.append((file.stem, row["query"].strip(), row["choices"], row["gold"]))
    if not made:
        raise NoData(f"no *.jsonl in the folder {folder} of questions: name it with --data or PRIDE_DATA")
    return made


def delimiters(questions):
    """{task: what follows a query}, as in lab/docs/fewshot.md; "Answer:" if all its queries are questions."""
    plain = {task for task, query, _, _ in questions if not any(
        line.startswith("Question:") for line in query.split("\n"))}
    return {task: "" if task in plain else "\nAnswer:" for task, *_ in questions}


def row_of(prompt, answer, context):
    """(tokens [context + 1], weights [context]); the weights of the answer's tokens add up to 1. Long rows
    lose tokens on the left."""
    tokens = [*prompt, *answer][-(context + 1):]
    n = min(len(answer), len(tokens) - 1)
    weights = [0.0] * (len(tokens) - 1 - n) + [1 / n] * n
    return tokens + [END_OF_TEXT] * (context + 1 - len(tokens)), weights + [0.0] * (context - len(weights))


class Rows:
    """Sequences of tokens and their weights, as tensors on the device."""

    def __init__(self, device):
        self.device, self.tokens, self.weights = device, [], []

    def add(self, row):
        self.tokens.append(row[0])
        self.weights.append(row[1])

    def tensors(self):
        return (torch.tensor(self.tokens, dtype=torch.int32, device=self.device),
                torch.tensor(self.weights, device=self.device))


def prepare(folder, context, device, most):
    """(right answers to train on, all choices of held-out questions, the right ones among these, digest).
    A question trains if the CRC-32 of its query is even."""
    vocabulary = next((f for f in (pathlib.Path(folder), pathlib.Path(folder).parent / "gpt2_bpe")
                       if (f / "encoder.json").exists()), None)
    if vocabulary is None:
        raise NoData(f"no gpt2_bpe with encoder.json and vocab.bpe beside {folder}, nor in it")
    encoder, questions = Encoder(vocabulary), read(folder)
    between = delimiters(questions)
    train, held_out, golds, digest = Rows(device), Rows(device), [], 0
    for task, query, choices, gold in questions:
        digest = zlib.crc32(json.dumps([query, choices, gold]).encode(), digest)
        trains = zlib.crc32(query.encode()) % 2 == 0
        if most and len(train.tokens if trains else golds) >= most:
            continue
        prompt = encoder.encode(query + between[task])
        rows = [row_of(prompt, encoder.encode(" " + choice.strip()), context)
                for choice in ([choices[gold]] if trains else choices)]
        for row in rows:
            (train if trains else held_out).add(row)
        if not trains:
            golds.append((len(rows), gold))
    return train.tensors(), held_out.tensors(), golds, digest


class Questions:
    """The task: batches of some workers, the model of an earlier run, the evaluation."""

    unit = "questions"

    def __init__(self, run, folder, device, cache):
        self.run, self.device = run, device
        key = "questions", run.context, run.samples
        if key not in cache:
            cache[key] = prepare(folder, run.context, device, run.samples)
        (self.tokens, self.weights), self.held_out, self.golds, self.digest = cache[key]

    def begin(self, workers):
        """Sets the workers of later batches. In a pass each question goes to one worker."""
        self.workers = torch.tensor(list(workers), device=self.device)
        self.drawn, self.order = torch.Generator().manual_seed(self.run.seed), torch.empty(0, dtype=torch.long)

    def batches(self, step):
        """The model's arguments for each worker."""
        size = self.run.batch
        first = step * self.run.workers * size
        while len(self.order) < first + self.run.workers * size:
            self.order = torch.cat([self.order, torch.randperm(len(self.tokens), generator=self.drawn)])
        places = first + self.workers[:, None].cpu() * size + torch.arange(size)
        picked = self.order[places.flatten()].to(self.device)
        return list(zip(self.tokens[picked].split(size), self.weights[picked].split(size)))

    @torch.no_grad()
    def evaluate(self, model):
        """Of the held-out questions: the loss per token of the right answers, and how often that loss is the
        lowest of the choices."""
        losses = torch.cat([model.losses(*part) for part in zip(*(x.split(64) for x in self.held_out))]).tolist()
        loss, right, first = 0.0, 0, 0
        for n, gold in self.golds:
            mine = losses[first:first + n]
            loss += mine[gold]
            right += mine.index(min(mine)) == gold
            first += n
        return dict(loss=loss / len(self.golds), accuracy=right / len(self.golds))

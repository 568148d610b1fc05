#!/usr/bin/env python3
# Shards of GPT-2 tokens from texts, like `pride tokenize`, in plain Python without packages.
# SPDX-License-Identifier: Apache-2.0
"""usage: make_shards.py --out OUT --vocab DIR TEXT... ; --help lists the options."""
import argparse
import array
import hashlib
import json
import pathlib
import re
import sys
import unicodedata
import zlib

END_OF_TEXT = 50256
SOURCES = "sources.json"  # written by gather_text.py: the sources of the texts


def ranges(prefix):
    """The characters of the Unicode categories with this prefix, as the inside of [...] in a pattern."""
    made, first = [], None
    for code in range(sys.maxunicode + 2):
        there = code <= sys.maxunicode and unicodedata.category(chr(code)).startswith(prefix)
        if there and first is None:
            first = code
        elif not there and first is not None:
            made.append(f"\\U{first:08x}-\\U{code - 1:08x}")
            first = None
    return "".join(made)


def splitter():
    """GPT-2's expression; re has no \\p{L}, and its \\s has four characters more."""
    letters, numbers = ranges("L"), ranges("N")
    spaces = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
    return re.compile(rf"'(?:s|t|re|ve|m|ll|d)| ?[{letters}]+| ?[{numbers}]+| ?[^{spaces}{letters}{numbers}]+"
                      rf"|[{spaces}]+(?![^{spaces}])|[{spaces}]+")


def byte_names():
    """The character that stands for each byte in the vocabulary's files."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


class Encoder:
    """GPT-2's byte-level BPE, from encoder.json (or vocab.json) and vocab.bpe (or merges.txt)."""

    def __init__(self, folder):
        names = [next((folder / n for n in pair if (folder / n).exists()), None)
                 for pair in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt"))]
        if None in names:
            sys.exit(f"make_shards.py: --vocab {folder}: no encoder.json and vocab.bpe there")
        self.ids = json.loads(names[0].read_text(encoding="utf-8"))
        merges = names[1].read_text(encoding="utf-8").split("\n")
        merges = [tuple(line.split(" ")) for line in merges if line and not line.startswith("#version")]
        self.ranks = {pair: i for i, pair in enumerate(merges)}
        self.names, self.splitter, self.known = byte_names(), splitter(), {}

    def encode(self, text):
        tokens = array.array("H")
        for word in self.splitter.findall(text):
            found = self.known.get(word)
            if found is None:
                found = self.known[word] = self._word(word)
            tokens.extend(found)
        return tokens

    def _word(self, word):
        parts = [self.names[b] for b in word.encode("utf-8")]
        while len(parts) > 1:
            best = min(zip(parts, parts[1:]), key=lambda pair: self.ranks.get(pair, 1 << 30))
            if best not in self.ranks:
                break
            joined, i = [], 0
            while i < len(parts):
                if tuple(parts[i:i + 2]) == best:
                    joined.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    joined.append(parts[i])
                    i += 1
            parts = joined
        return [self.ids[part] for part in parts]


def shuffled(paths):
    """(name, file) in the order of the names' hashes, so that each shard is a sample of all."""
    named = []
    for path in paths:
        files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file() and f.name != SOURCES]
        named += [(str(file.relative_to(path)) if file != path else file.name, file) for file in files]
    return sorted(named, key=lambda pair: (zlib.crc32(("order " + pair[0]).encode()), pair[0]))


def documents(paths):
    """(name, text) of each file; binaries and empty files are left out."""
    for name, file in shuffled(paths):
        data = file.read_bytes()
        if data and b"\0" not in data:
            yield name, data.decode("utf-8", "replace")


class Shards:
    """Writes train_000.bin, ... or val_000.bin, ..., of `most` tokens each."""

    def __init__(self, folder, name, most):
        self.folder, self.name, self.most = folder, name, most
        self.held, self.files, self.total, self.documents = array.array("H"), [], 0, 0

    def add(self, tokens):
        self.held.extend(tokens)
        self.total += len(tokens)
        self.documents += 1
        while len(self.held) >= self.most:
            self._write(self.held[:self.most])
            self.held = self.held[self.most:]

    def close(self):
        if self.held:
            self._write(self.held)
        print(f"{self.name}: {self.total:,} tokens of {self.documents:,} documents in {len(self.files)} shards")

    def _write(self, tokens):
        if sys.byteorder == "big":
            tokens.byteswap()
        data = tokens.tobytes()
        name = f"{self.name}_{len(self.files):03}.bin"
        (self.folder / name).write_bytes(data)
        self.files.append(dict(file=name, tokens=len(data) // 2, sha256=hashlib.sha256(data).hexdigest()))

    def summary(self):
        return dict(tokens=self.total, documents=self.documents, shards=self.files)


def main(given=None):
    parser = argparse.ArgumentParser(description="Shards of GPT-2 tokens from texts.")
    add = parser.add_argument
    add("texts", nargs="+", type=pathlib.Path, help="text files and folders of them")
    add("--out", type=pathlib.Path, required=True, help="folder; it must have no shards")
    add("--vocab", type=pathlib.Path, required=True, help="folder of GPT-2's encoder.json and vocab.bpe")
    add("--val-fraction", type=float, default=0.01, help="of the documents (0.01)")
    add("--shard-tokens", type=int, default=25_000_000, help="50 MB each (25000000)")
    args = parser.parse_args(given)
    missing = [str(path) for path in args.texts if not path.exists()]
    if missing:
        sys.exit(f"make_shards.py: not there: {', '.join(missing)}")
    args.out.mkdir(parents=True, exist_ok=True)
    if any(args.out.glob("*.bin")):
        sys.exit(f"make_shards.py: --out {args.out} has shards already")
    encoder = Encoder(args.vocab)
    parts = [Shards(args.out, name, args.shard_tokens) for name in ("train", "val")]
    for name, text in documents(args.texts):  # the hash of its name chooses train or val
        validates = zlib.crc32(name.encode()) < args.val_fraction * 2 ** 32
        tokens = encoder.encode(text)
        tokens.append(END_OF_TEXT)
        parts[validates].add(tokens)
    for part in parts:
        part.close()
    sources = [json.loads(f.read_text()) for path in args.texts for f in [path / SOURCES] if f.is_file()]
    manifest = {**{part.name: part.summary() for part in parts}, "sources": sources}
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    if not all(part.total for part in parts):
        sys.exit("make_shards.py: train or val is empty: give more documents, or another --val-fraction")


if __name__ == "__main__":
    main()

# `pride train --tensorboard`: an independent reader (framing, CRC-32C bit by bit, protocol buffers)
# finds the values of metrics.jsonl in the event file. usage: tensorboard_test.py PRIDE
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import struct
import subprocess
import sys
import tempfile


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    while data:
        (size,), (length_crc,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
        assert masked(data[:8]) == length_crc, "checksum of a length"
        body, (crc,) = data[12:12 + size], struct.unpack("<I", data[12 + size:16 + size])
        assert masked(body) == crc, "checksum of a record"
        yield body
        data = data[16 + size:]


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack("<d", data[at:at + 8])[0], at + 8
        elif kind == 5:
            value, at = struct.unpack("<f", data[at:at + 4])[0], at + 4
        else:
            assert kind == 2, kind
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        yield field, value
    assert at == len(data)


def read(file):
    """(version, steps at which a session starts, {(tag, step): value})"""
    version, starts, scalars = None, [], {}
    for body in records(file.read_bytes()):
        event = dict(fields(body))
        assert event[1] > 1.6e9, "seconds since 1970"
        if 3 in event:
            version = event[3]
        if 7 in event:
            assert dict(fields(event[7])) == {1: 1}
            starts.append(event[2])
        if 5 in event:
            for field, value in fields(event[5]):
                assert field == 1
                one = dict(fields(value))
                scalars[one[1].decode(), event[2]] = one[2]
    return version, starts, scalars


def float32(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


def main():
    assert crc32c(b"123456789") == 0xE3069283, "the reader's own checksum"
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 900)

        def train(*more, code=0):
            command = [program, "train", "--data", str(folder / "text"), "--layers", "1", "--heads", "2",
                       "--width", "16", "--context", "16", "--batch", "2", "--workers", "2", "--quiet",
                       "--steps", "6", "--eval-every", "3", "--tensorboard", str(folder / "tb"), *more]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == code, done.stderr
            return done.stderr

        out = str(folder / "out")
        train("--out", out, "--save-every", "4")
        (file,) = (folder / "tb").iterdir()
        assert file.name.startswith("events.out.tfevents."), file.name
        version, starts, scalars = read(file)
        assert version == b"brain.Event:2" and starts == []
        wanted = {}
        for line in (folder / "out" / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            step = record["step"]
            if record["type"] == "step":
                wanted["train/loss", step] = record["loss"]
                wanted["train/lr", step] = record["lr"]
                for end in ("sent", "received"):
                    wanted["bytes/" + end, step] = record["bytes_" + end]
                for stage in ("data", "backward", "encode", "exchange", "apply"):
                    wanted["ms/" + stage, step] = record[stage + "_s"] * 1e3
            elif record["type"] == "eval":
                for key, value in record.items():
                    if key not in ("type", "step", "seconds"):
                        wanted["eval/" + key, step] = value
        assert scalars == {key: float32(value) for key, value in wanted.items()}
        assert ("eval/loss", 6) in scalars and ("train/loss", 1) in scalars

        error = train(code=2)
        assert "event files of an earlier run" in error, error
        train("--resume", out)
        _, newer = sorted((folder / "tb").iterdir())
        _, starts, scalars = read(newer)
        assert starts == [5], starts
        assert min(step for _, step in scalars) == 5, "goes on after step 4"
        train("--overwrite")
        assert len(list((folder / "tb").iterdir())) == 1

        # this reader would notice
        spoilt = bytearray(newer.read_bytes() if newer.exists() else next((folder / "tb").iterdir()).read_bytes())
        spoilt[len(spoilt) // 2] ^= 1
        (folder / "spoilt").write_bytes(spoilt)
        try:
            read(folder / "spoilt")
        except (AssertionError, struct.error):
            pass
        else:
            raise AssertionError("a flipped bit was not noticed")
    print("ok")


if __name__ == "__main__":
    main()

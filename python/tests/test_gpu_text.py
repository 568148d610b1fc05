# lab/experiments/gpu: text from packages, and its shards.
# SPDX-License-Identifier: Apache-2.0
#
# The package is made here; oracles: what stands in its documents.
import gzip
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab" / "experiments" / "gpu"))

import gather_text  # noqa: E402  pylint: disable=wrong-import-position
import make_shards  # noqa: E402  pylint: disable=wrong-import-position
from test_gpu_experiments import vocabulary  # noqa: E402  pylint: disable=wrong-import-position

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb: text comes from packages")

SENTENCE = "The {0} of the machine is a part that turns to the left when it is pushed, and to the right otherwise."
LICENCE = "This paragraph stands at the end of each of the pages, and it is to be counted a single time in all."
PAGE = """<html><head><title>Not text</title><style>p {{ color: red }}</style></head><body>
<nav><a href="x">Home</a></nav><h1>Parts &amp; wheels</h1>{0}<table><tr><td>1.25</td><td>2,000 / 17 + 3 = 4</td></tr></table>
<pre>turn (left)
turn (right)</pre><p>{1}</p></body></html>"""
MANUAL = """.\\" A comment
.TH turn 1
.SH NAME
turn \\- turns the \\fIwheel\\fR
.PP
{0}
.BR turn (1)
"""


def sentences(first, n=6):
    return [SENTENCE.format(f"{word}{'x' * first}") for word in ("wheel", "lever", "valve", "screw", "gear", "pump")[:n]]


def package(folder):
    """A .deb in the cache, with pages in English and in German, a manual, and the same page twice."""
    root, cache = folder / "root", folder / "cache"
    page = PAGE.format("".join(f"<p>{text}</p>" for text in sentences(0)), LICENCE)
    other = PAGE.format("".join(f"<p>{text}</p>" for text in sentences(1)), LICENCE)
    german = "Das Rad der Maschine dreht sich nach links, wenn man darauf drückt.\n\n"
    files = {"doc/parts/page.html": page, "doc/parts/copy.html": page.replace("<p>", "<div>"),
             "doc/parts/other.html": other, "doc/parts/de/page.html": page.replace("wheel", "reel"),
             "doc/parts/rad.txt": german * 20, "doc/parts/photo.png": "\0" * 500,
             "man/man1/turn.1.gz": MANUAL.format("\n.PP\n".join(sentences(2)))}
    for name, text in files.items():
        file = root / "usr/share" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode()
        file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    control = root / "DEBIAN/control"
    control.parent.mkdir()
    control.write_text("Package: parts-doc\nVersion: 1:2.5\nArchitecture: all\nMaintainer: M <m@example.org>\n"
                       "Description: parts\n")
    cache.mkdir()
    subprocess.run(["dpkg-deb", "-b", root, cache / "parts-doc_1%3a2.5_all.deb"], check=True, capture_output=True)
    return cache


def test_documents_of_a_package_are_text(tmp_path, capsys):
    out = tmp_path / "texts"
    gather_text.main([str(out), "--cache", str(package(tmp_path)), "parts-doc"])
    texts = {file.name: file.read_text() for file in (out / "parts-doc").iterdir()}
    assert sorted(name.replace("copy", "page").rsplit(".", 2)[0] for name in texts) == [
        "usr_share_doc_parts_other.html", "usr_share_doc_parts_page.html", "usr_share_man_man1_turn.1.gz"]
    page = next(text for name, text in texts.items() if "copy" in name or "page" in name)
    assert page.startswith("Parts & wheels\n\n" + sentences(0)[0])
    assert not any(part in page for part in ("Not text", "color", "Home", "1.25", "<"))
    manual = next(text for name, text in texts.items() if "turn" in name)
    assert "NAME\nturn - turns the wheel" in manual and "comment" not in manual
    assert sum(text.count(LICENCE) for text in texts.values()) == 1
    row, = json.loads((out / "sources.json").read_text())["packages"]
    assert row == dict(package="parts-doc", version="1:2.5", documents=3,
                       characters=sum(len(text) - 1 for text in texts.values()))
    assert "were repetitions" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="has texts already"):
        gather_text.main([str(out), "parts-doc", "--cache", str(tmp_path / "cache")])


def test_the_manifest_of_shards_names_their_sources(tmp_path):
    texts, out = tmp_path / "texts", tmp_path / "shards"
    gather_text.main([str(texts), "parts-doc", "--cache", str(package(tmp_path))])
    make_shards.main(["--out", str(out), "--vocab", str(vocabulary()), "--val-fraction", "0.5",
                      "--shard-tokens", "300", str(texts)])
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["train"]["documents"] + manifest["val"]["documents"] == 3
    assert manifest["sources"][0]["packages"][0]["package"] == "parts-doc"
    for part in ("train", "val"):
        shards = manifest[part]["shards"]
        assert manifest[part]["tokens"] == sum(shard["tokens"] for shard in shards)
        for shard in shards:
            data = (out / shard["file"]).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (2 * shard["tokens"], shard["sha256"])


def test_a_package_that_does_not_exist_is_named(tmp_path):
    if shutil.which("apt-get") is None:
        pytest.skip("no apt-get")
    with pytest.raises(SystemExit, match="apt-get download no-such-package-of-pride"):
        gather_text.main([str(tmp_path / "out"), "no-such-package-of-pride", "--cache", str(tmp_path / "cache")])

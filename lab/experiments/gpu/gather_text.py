#!/usr/bin/env python3
# English text from Debian's documentation packages: each document a file, for make_shards.py.
# SPDX-License-Identifier: Apache-2.0
"""usage: scripts/gpu_experiments.sh --text OUT [--cache DIR] [PACKAGE...]; --help lists the options."""
import argparse
import gzip
import html
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import zlib

# Packages of Debian 12's main, read in this order: a text in two of them counts for the first.
PACKAGES = """
linux-doc-6.1 python3.11-doc postgresql-doc-15 debian-reference-en debian-policy developers-reference
git-doc perl-doc manpages manpages-dev debian-faq installation-guide-amd64 qt5-doc-html sqlite3-doc
r-doc-html python-django-doc python-sqlalchemy-doc apache2-doc libreoffice-help-en-us gnome-user-docs
postfix-doc exim4-doc-html cmake-doc octave-doc maxima-doc dict-gcide dict-foldoc dict-jargon vim-doc
llvm-14-doc clang-14-doc nodejs-doc swi-prolog-doc lintian tcl8.6-doc libglib2.0-doc libgtk-3-doc
cppreference-doc-en-html openjdk-17-doc qtbase5-doc-html libboost1.74-doc erlang-doc rust-doc grass-doc
racket-doc python-pandas-doc python-scipy-doc gap-doc lilypond-doc-html ghc-doc python-sympy-doc
python-sklearn-doc
""".split()

LARGEST = 8 << 20  # bytes of a file: larger ones are data, except dictionaries
LONGEST = 200_000  # characters of a document: a longer file, such as a book, becomes several
BEGINNING = 80  # letters: paragraphs with the same beginning count as one
HTML_TAGS = (".html", ".htm", ".xhtml", ".page", ".xml")
PLAIN = (".txt", ".rst", ".md", ".info", ".dict", ".adoc")
LANGUAGES = ("ar|bg|bn|ca|cs|da|de|el|eo|es|et|eu|fa|fi|fr|gl|gu|he|hi|hr|hu|id|it|ja|ka|kn|ko|lt|lv|ml|mr|nb|"
             "nl|nn|oc|pa|pl|pt|ro|ru|sk|sl|sq|sr|sv|ta|te|th|tr|uk|vi|zh")
OTHERS = re.compile(  # skipped: sources of HTML pages, other languages, no prose
    rf"/(linux-doc-[^/]*/html|translations|_sources|_static|_modules|src|({LANGUAGES})([_-][A-Za-z@]+)?)/|"
    rf"[._]({LANGUAGES})([_-][A-Za-z]+)?\.(html?|txt)|changelog|copyright|COPYING|genindex|NEWS")
FREQUENT = {"the", "of", "and", "to", "is", "a", "for"}


def fetch(name, cache):
    """The .deb of a package, from the cache, or downloaded into it with apt-get."""
    found = sorted(cache.glob(f"{name}_*.deb"))
    if not found:
        made = subprocess.run(["apt-get", "download", name], cwd=cache, capture_output=True, text=True)
        found = sorted(cache.glob(f"{name}_*.deb"))
        if made.returncode or not found:
            sys.exit(f"gather_text.py: apt-get download {name}: {made.stderr.strip()}")
    return found[-1]


def members(deb):
    """(path, bytes) of the files of a package that may be text, by path."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as unpacked:
        with tarfile.open(fileobj=unpacked.stdout, mode="r|") as tar:
            for member in tar:
                path = member.name.lstrip(".")
                if member.isfile() and not OTHERS.search(path):
                    if member.size <= LARGEST or path.endswith(".dict.dz"):
                        yield path, tar.extractfile(member).read()
    if unpacked.returncode:
        sys.exit(f"gather_text.py: dpkg-deb cannot unpack {deb}")


SKIPPED = re.compile(r"<!--.*?-->|<(script|style|head|nav|header|footer|math|svg|form|select)\b.*?</\1\s*>",
                     re.S | re.I)
PRE = re.compile(r"(<pre\b.*?</pre\s*>)", re.S | re.I)
BLOCK = re.compile(r"</?(p|div|li|ul|ol|dl|dt|dd|h[1-6]|tr|table|pre|br|hr|blockquote|section|article|title|"
                   r"item|note|steps|td|th)\b[^>]*>", re.I)
TAG = re.compile(r"<[^>]*>")


def of_html(text):
    made = []
    for part in PRE.split(SKIPPED.sub(" ", text)):
        if not part[:4].lower() == "<pre":
            part = re.sub(r"\s+", " ", part)
        made.append(html.unescape(TAG.sub("", BLOCK.sub("\n\n", part))))
    return "".join(made).replace("¶", "").replace("\u00a0", " ")


def of_roff(text):
    """The text of a manual page, without macros but with the words in them."""
    made = []
    for line in text.split("\n"):
        macro = re.match(r"[.'](\w*|\\\")\s*(.*)", line)
        if macro:
            if macro[1] in ("SH", "SS", "TP", "PP", "P", "LP", "IP", "HP"):
                made.append("")
            if macro[1] not in ("SH", "SS", "B", "I", "BR", "IR", "RB", "RI", "BI", "IB", "IP"):
                continue
            joined = re.sub(r'"', "", macro[2])
            line = joined if macro[1] in ("SH", "SS", "B", "I", "IP") else joined.replace(" ", "")
        made.append(re.sub(r"\\f\(?\w|\\[&|/,]|\\s[+-]?\d", "", line))
    text = "\n".join(made)
    for name, character in (("\\-", "-"), ("\\(aq", "'"), ("\\(dq", '"'), ("\\(bu", "-"), ("\\e", "\\"),
                            ("\\(lq", '"'), ("\\(rq", '"'), ("\\ ", " "), ("\\~", " "), ("\\.", ".")):
        text = text.replace(name, character)
    return re.sub(r"\\\(..|\\\[\w+\]", "", text)


def text_of(path, data):
    """The text of a file, without markup; None if it is no document."""
    if path.endswith((".gz", ".dz")):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return None
        path = path[:-3]
    path = re.sub(r"(\.html?)\.en(\.utf8)?$", r"\1", path)
    if b"\0" in data[:4096]:
        return None
    if path.endswith(HTML_TAGS):
        return of_html(data.decode("utf-8", "replace"))
    if re.search(r"/man/man\d/", path):
        return of_roff(data.decode("utf-8", "replace"))
    if path.endswith(".pod"):
        return re.sub(r"^=\w+ ?|[A-Z]<+ ?|(?<!-)>", "", data.decode("utf-8", "replace"), flags=re.M)
    if path.endswith(PLAIN) or re.search(r"/info/[^/]*\.info(-\d+)?$", path):
        return re.sub(r"\x1f|^File: .*, +Node: .*$", "", data.decode("utf-8", "replace"), flags=re.M)
    return None


def is_prose(line):
    """False for a row of numbers or of a table, and for a rule."""
    dense = line.replace(" ", "")
    return not dense or sum(c.isalpha() for c in dense) >= 0.5 * len(dense)


class Cleaner:
    """Drops paragraphs that an earlier document had, lines without prose, and lists of links."""

    def __init__(self):
        self.seen, self.repeated = set(), 0

    def clean(self, text):
        made, short = [], []
        for block in re.split(r"\n\s*\n", text.replace("\r", "").replace("\t", " ")):
            block = "\n".join(line.rstrip() for line in block.split("\n") if line.strip() and is_prose(line))
            if len(block) < 40:
                if block:
                    short.append(block.strip())
                continue
            key = re.sub(r"[\W\d_]+", "", block.lower())[:BEGINNING]  # without line breaks, digits and marks
            if key in self.seen:
                self.repeated += len(block)
                short.clear()
                continue
            self.seen.add(key)
            made += short[-2:] if len(short) <= 5 else []  # headings; more than five are a list of links
            short.clear()
            made.append(block.strip("\n"))
        return "\n\n".join(made)


def is_english(text):
    words = re.findall(r"[a-z]+", text[:20000].lower())
    return sum(word in FREQUENT for word in words) >= 0.08 * max(1, len(words))


def pieces(text):
    """The text in parts of at most LONGEST characters, cut between paragraphs."""
    while len(text) > LONGEST:
        end = text.rfind("\n\n", LONGEST // 2, LONGEST)
        end = end if end > 0 else LONGEST
        yield text[:end]
        text = text[end:].lstrip("\n")
    yield text


def gather(deb, out, cleaner):
    """Writes the documents of a package; returns its entry of sources.json."""
    name, version = deb.name.split("_")[:2]
    documents = characters = 0
    for path, data in members(deb):
        text = text_of(path, data)
        if text is None:
            continue
        text = cleaner.clean(text)
        if len(text) < 400 or not is_english(text):
            continue
        (out / name).mkdir(exist_ok=True)
        for piece in pieces(text):
            file = re.sub(r"[^\w.+-]+", "_", path.strip("/"))[-150:] + f".{documents}.txt"
            (out / name / file).write_text(piece + "\n", encoding="utf-8")
            documents, characters = documents + 1, characters + len(piece)
    return dict(package=name, version=version.replace("%3a", ":"), documents=documents, characters=characters)


def main(given=None):
    parser = argparse.ArgumentParser(
        prog="gpu_experiments.sh --text", description="English text from Debian's documentation packages.")
    add = parser.add_argument
    add("out", type=pathlib.Path, metavar="OUT", help="folder; it must have no texts")
    add("packages", nargs="*", metavar="PACKAGE", help=f"({len(PACKAGES)} of Debian 12: the script lists them)")
    add("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/pride/doc-packages",
        help="where the packages are kept (~/.cache/pride/doc-packages)")
    args = parser.parse_intermixed_args(given)  # packages may follow --cache DIR
    if (args.out / "sources.json").exists():
        sys.exit(f"gather_text.py: OUT {args.out} has texts already")
    args.out.mkdir(parents=True, exist_ok=True)
    args.cache.mkdir(parents=True, exist_ok=True)
    cleaner, rows = Cleaner(), []
    for name in args.packages or PACKAGES:
        rows.append(gather(fetch(name, args.cache), args.out, cleaner))
        print("{package:<28} {version:<32} {documents:6} documents {characters:12,} characters".format(
            **rows[-1]), flush=True)
    total = sum(row["characters"] for row in rows)
    print(f"{total:,} characters; {cleaner.repeated:,} were repetitions and are left out")
    if not total:
        sys.exit("gather_text.py: no text was found")
    (args.out / "sources.json").write_text(json.dumps(dict(
        packages=rows, characters=total, repeated=cleaner.repeated), indent=1) + "\n")


if __name__ == "__main__":
    main()

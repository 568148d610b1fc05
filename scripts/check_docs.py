#!/usr/bin/env python3
# Checks that links and anchors of the pages exist, that the pages named in comments and in the pages' own
# text exist, and that the messages quoted in the errors.md of each house are in its sources.
# SPDX-License-Identifier: Apache-2.0
"""usage: check_docs.py [ROOT]        check the tree at ROOT (default: this repository)
       check_docs.py --self-test   check the checker: made-up faults are found
"""
import pathlib
import re
import subprocess
import sys
import tempfile

LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
# Extensions of the files whose comments, help texts or code may name a page.
NAMING = (".h", ".c", ".cpp", ".py", ".sh", ".txt", ".toml", ".cmake", ".proto", ".service",
          ".md")
# Pages are named by their paths from the root.
NAMED_PAGE = re.compile(r"(?<![\w/.-])(?:(?:coordinator|lab)/)?docs/[\w./-]*\.md\b")
# Matches character literals only to skip them: one may be a quotation mark.
LITERAL = re.compile(r"""'(?:\\.|[^'\\\n])'|R"\((?P<raw>.*?)\)"|f?"(?P<text>(?:\\.|[^"\\\n])*)\"""", re.S)
# What may stand between two parts of a message in the sources, in characters of other literals.
GAP = "[\\s\\S]{0,300}?"
# The page of messages of each house, and the folders of its sources.
MESSAGES = {
    "docs/errors.md": ("src", "apps", "include", "python/pride"),
    "coordinator/docs/errors.md": ("coordinator/src", "coordinator/app", "coordinator/include"),
    "lab/docs/errors.md": ("lab/src", "lab/app", "lab/include"),
}


def anchor(title):
    """The anchor of a heading: as on GitHub, without the -1 of repeated headings."""
    title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def without_code(text):
    """The page without fenced and indented code blocks and code in a line; lines are kept."""
    lines, fenced = [], False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        hidden = fenced or fence or (line.startswith("    ") and not line.lstrip().startswith(("-", "*")))
        fenced = fenced != fence
        lines.append("" if hidden else re.sub(r"`[^`]*`", lambda m: "" if "](" in m[0] else m[0], line))
    return "\n".join(lines)


def anchors(page):
    return {anchor(m[1]) for m in re.finditer(r"(?m)^#+ (.*)$", without_code(page.read_text()))}


def check_links(root, page):
    for number, line in enumerate(without_code(page.read_text()).split("\n"), 1):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, wanted = target.partition("#")
            there = page.parent / path if path else page
            where = f"{page.relative_to(root)}:{number}: {target}"
            if not there.exists():
                yield f"{where}: no such file"
            elif wanted and there.suffix == ".md" and wanted not in anchors(there):
                yield f"{where}: no such heading"


def check_named_pages(root, path):
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return
    if path.suffix == ".md":
        text = LINK.sub("", text)
    for name in sorted(set(NAMED_PAGE.findall(text))):
        if not (root / name).exists():
            yield f"{path.relative_to(root)}: names {name}, which is not there"


def unescaped(text):
    return text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")


def literals(text):
    """The string literals of a source: joined where at most a comma is between them, else separated by NUL."""
    parts, end = [], 0
    for match in LITERAL.finditer(text):
        if text[end:match.start()].strip(" \t\n,"):
            parts.append("\0")
        parts.append(match["raw"] or unescaped(match["text"] or ""))
        end = match.end()
    return "".join(parts)


def quoted_messages(page):
    """The code in the first column of each table whose first heading is `message`."""
    in_table = False
    for number, line in enumerate(page.read_text().split("\n"), 1):
        if not line.startswith("|"):
            in_table = False
        elif re.match(r"\| *message *\|", line):
            in_table = True
        elif in_table and not line.startswith("|--"):
            first = re.match(r"\| *`([^`]*)`", line)
            yield number, first[1] if first else None


def check_messages(root, name, folders):
    page = root / name
    if not page.exists():
        return
    streams = [literals(path.read_text()) for folder in folders
               for path in sorted((root / folder).rglob("*")) if path.suffix in (".h", ".cpp", ".py")]
    for number, message in quoted_messages(page):
        parts = [part for part in (message or "").split("...") if part.strip()]
        if not parts:
            yield f"{name}:{number}: a row without a message in its first column"
            continue
        # "..." may begin or end a literal, so that the blanks beside it may belong to either side.
        found = re.compile(GAP.join(re.escape(part.strip()) for part in parts))
        if not any(found.search(stream) for stream in streams):
            yield f"{name}:{number}: no source has the message \"{message}\""


def tracked(root):
    """The tracked and new files of the repository, or all files where there is none."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                            cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        files = [root / name for name in listed.stdout.split("\n") if name]
    else:
        files = sorted(root.rglob("*"))
    return [path for path in files if path.is_file()]


def faults(root):
    for path in tracked(root):
        if path.suffix == ".md":
            yield from check_links(root, path)
        if path.suffix in NAMING and path.name != "check_docs.py":
            yield from check_named_pages(root, path)
    for name, folders in MESSAGES.items():
        yield from check_messages(root, name, folders)


def self_test():
    """Each made-up fault must be found, and nothing else."""
    tree = {
        "README.md": "# A tree\n[ok](docs/a.md#two-words-x), [gone](docs/b.md), [top](#a-tree), [no](#b)\n"
                     "    [code](is/not/checked.md) docs/not.md\n[out](https://example.org/x.md)\n",
        "docs/a.md": "## Two words, `x`\n```\n# no heading\n```\n[up](../README.md#no-heading)\n",
        "src/x.cpp": '// docs/gone.md has more; docs/a.md is there.\n'
                     'f("one part ", "and " + x + " the \\"end\\"");\n',
        "lab/src/y.cpp": '// lab/docs/gone.md has more; lab/docs/errors.md is there; so is docs/a.md.\n'
                         'g("a message of the lab");\n',
        "lab/docs/errors.md": "| message | |\n|---|---|\n| `a message of the lab` | |\n"
                              "| `one part and` | |\n",
        "docs/errors.md": "| message | |\n|---|---|\n| `one part and ... the \"end\"` | |\n"
                          "| `the \"end\" ... one part and` | |\n| `part that is gone` | |\n| no code | |\n\n"
                          "| other |\n|---|\n| `not checked` |\n",
    }
    expected = [
        "README.md: names docs/not.md, which is not there",
        "README.md:2: docs/b.md: no such file", "README.md:2: #b: no such heading",
        "docs/a.md:5: ../README.md#no-heading: no such heading",
        "docs/errors.md:4: no source has the message \"the \"end\" ... one part and\"",
        "docs/errors.md:5: no source has the message \"part that is gone\"",
        "docs/errors.md:6: a row without a message in its first column",
        "lab/docs/errors.md:4: no source has the message \"one part and\"",
        "lab/src/y.cpp: names lab/docs/gone.md, which is not there",
        "src/x.cpp: names docs/gone.md, which is not there",
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in tree.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = sorted(faults(root))
    if found != sorted(expected):
        print("check_docs.py --self-test: expected", *sorted(expected), "found", *found, sep="\n  ")
        return 1
    return 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        print(__doc__, end="")
        return 0 if arguments in (["-h"], ["--help"]) else 2
    default = pathlib.Path(__file__).resolve().parent.parent
    root = pathlib.Path(arguments[0]).resolve() if arguments else default
    found = list(faults(root))
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The guide in docs/: its code blocks, and a working copy of the repository in which they are run.

A page is one shell script. `sh` blocks stand in it as they are, `python` blocks are run from the
top of the copy, blocks with a title are files that are written, and a `text` block says what the
block before it prints: `…` stands for anything, and numbers may differ, since training is short,
unless `<!-- exact -->` stands above. A block below the comment `<!-- not run: REASON -->` is left
out, and so is what it would print.

`python` and `headwise` are those of `warm_python`, which also makes training short; `make` takes
the same Python, and finds everything installed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warm_python import client

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# What a reader has in a checkout after `make demo`; of docs/ what its commands write.
COPIED = (
    "conf", "scripts", "src", "tests", "train.py", "Makefile", "pyproject.toml", "README.md",
    "docs/variants.md",
)  # fmt: skip
# Set by whoever runs the tests, not by a reader.
OWN = ("PYTHONPATH", "HEADWISE_DATA", "HEADWISE_PLUGINS")
STAMPS = (".created", ".installed", ".installed-test")

_BLOCK = re.compile(
    r"^(?:<!-- (?:not run: *(?P<not_run>.*?)|(?P<exact>exact)) *-->\n)?"
    r"```(?P<language>sh|python|yaml|text)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FENCE_OR_MARK = re.compile(r"^\s*```|^<!-- (?:not run:|exact -->)", re.MULTILINE)
_ENDED = "the block has ended"
_OVERRIDE = re.compile(r"[a-z][\w.@]*=[^…]+")
_NUMBER = r"[+−-]?\d+(?:\.\d+)?"


@dataclass(frozen=True)
class Block:
    """One fenced block of a page.

    Attributes:
        line: of the opening fence, from 1.
        language: what stands behind the fence.
        title: path of the file that the block is, or None.
        text: what stands between the fences.
        not_run: the reason of the mark before it, or None.
        exact: a `text` block whose numbers are those that are printed.
    """

    line: int
    language: str
    title: str | None
    text: str
    not_run: str | None
    exact: bool

    @property
    def runs(self) -> bool:
        """Whether it is a command that is run."""
        return self.title is None and self.not_run is None and self.language in ("sh", "python")


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page, in order.

    Raises:
        ValueError: a fence that is not understood or not closed, or a mark before no fence.
    """
    text = page.read_text(encoding="utf-8")
    blocks = [
        Block(
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["title"],
            found["text"],
            found["not_run"],
            found["exact"] is not None,
        )
        for found in _BLOCK.finditer(text)
    ]
    n_marks = sum(block.not_run is not None or block.exact for block in blocks)
    if len(_FENCE_OR_MARK.findall(text)) != 2 * len(blocks) + n_marks:
        raise ValueError(f"{page.name}: a fence or a mark right before it is not understood")
    return blocks


def inline_overrides(page: Path) -> list[list[str]]:
    """Inline code of a page that is overrides and nothing else, each once."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    spans = [span.split() for span in re.findall(r"`([^`]+)`", text)]
    found = [span for span in spans if all(map(_OVERRIDE.fullmatch, span))]
    return [span for number, span in enumerate(found) if span not in found[:number]]


def misses(shown: str, printed: str, exact: bool = False) -> list[str]:
    """Lines of a `text` block that were not printed in this order.

    `…` stands for anything, white space for white space, numbers for any number unless `exact`,
    whichever of them is the best and thus in bold.
    """
    if not exact:
        shown, printed = shown.replace("**", ""), printed.replace("**", "")
    told = printed.splitlines()
    missing: list[str] = []
    start = 0
    for line in shown.splitlines():
        if line.strip() in ("", "…"):
            continue
        pattern = re.compile(_pattern(line.strip(), exact))
        place = next((n for n in range(start, len(told)) if pattern.fullmatch(told[n])), None)
        if place is None:
            missing.append(line)
        else:
            start = place + 1
    return missing


def _pattern(line: str, exact: bool) -> str:
    parts = []
    for piece in re.split(rf"(\s+|…|{_NUMBER})", line):
        if piece == "…":
            parts.append(".*")
        elif piece.isspace():
            parts.append(r"\s+")
        elif not exact and re.fullmatch(_NUMBER, piece):
            parts.append(_NUMBER)
        else:
            parts.append(re.escape(piece))
    return rf"\s*{''.join(parts)}\s*"


@dataclass(frozen=True)
class Printed:
    """What a block of a page did."""

    block: Block
    ended: bool  # with exit code 0
    text: str  # both streams


class WorkingCopy:
    """A fresh copy of the repository in which pages are run.

    Args:
        folder: to be made.
        address: of the `warm_python` whose commands run here.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, folder / name, ignore=ignored)
            else:
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copy2(source, folder / name)
        (folder / "requirements.lock").touch()
        commands = folder / ".venv" / "bin"
        commands.mkdir(parents=True)
        for name in ("python", "headwise"):
            (commands / name).write_text(client(address, folder / "src"), encoding="utf-8")
            (commands / name).chmod(0o755)
        for name in STAMPS:  # newer than all that make compares them with
            (folder / ".venv" / name).touch()

    def run(self, blocks: Sequence[Block], timeout: float = 600) -> list[Printed]:
        """Run a page as one shell script; what was run, up to the first block that failed."""
        script = "set -eu -o pipefail\n"
        for block in blocks:
            quoted = shlex.quote(block.text)
            if block.runs:
                script += block.text if block.language == "sh" else f"python -c {quoted}\n"
                script += f"echo {_ENDED}\n"
            elif block.title is not None and block.not_run is None:
                place = shlex.quote(block.title)
                script += f"mkdir -p $(dirname {place}); printf %s {quoted} > {place}\n"
        environment = {
            **{name: value for name, value in os.environ.items() if name not in OWN},
            "PATH": f"{self.folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
        }
        ended = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
            timeout=timeout, check=False,
        )  # fmt: skip
        texts = ended.stdout.split(f"{_ENDED}\n")  # one more than blocks that ended
        run = zip((block for block in blocks if block.runs), texts, strict=False)
        return [
            Printed(block, number < len(texts), text) for number, (block, text) in enumerate(run, 1)
        ]

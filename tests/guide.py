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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from warm_python import client

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LANGUAGES = ("sh", "python", "yaml", "text")
# What a reader has in a checkout after `make demo`; of docs/ what its commands write.
COPIED = (
    "conf", "scripts", "src", "tests", "train.py", "Makefile", "pyproject.toml", "README.md",
    "docs/variants.md",
)  # fmt: skip
# Set by whoever runs the tests, not by a reader.
OWN = ("PYTHONPATH", "HEADWISE_DATA", "HEADWISE_PLUGINS")
STAMPS = (".created", ".installed", ".installed-test")

_FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\s*$")
_MARK = re.compile(r"^<!-- not run:(.*)-->\s*$")
_EXACT = "<!-- exact -->"
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
    def is_command(self) -> bool:
        """Whether it is run, if nothing is said against it."""
        return self.title is None and self.language in ("sh", "python")


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page, in order.

    Raises:
        ValueError: a fence that is not understood or not closed, or a mark before no fence.
    """
    blocks: list[Block] = []
    mark: str | None = None
    exact = False
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    for number, line in lines:
        found = _MARK.match(line)
        if found:
            mark = found[1].strip()
        elif line.rstrip() == _EXACT:
            exact = True
        elif line.lstrip().startswith("```"):
            opened = _FENCE.match(line)
            if not opened or opened[1] not in LANGUAGES:
                raise ValueError(f"{page.name}:{number}: no fence of {', '.join(LANGUAGES)}")
            text = "".join(f"{inner}\n" for inner in _until_closed(lines, page, number))
            blocks.append(Block(number, opened[1], opened[2], text, mark, exact))
            mark, exact = None, False
        elif mark is not None or exact:
            raise ValueError(f"{page.name}:{number}: a mark stands right before its block")
    return blocks


def _until_closed(lines: Iterator[tuple[int, str]], page: Path, opened: int) -> Iterator[str]:
    for _, line in lines:
        if line.rstrip() == "```":
            return
        yield line
    raise ValueError(f"{page.name}:{opened}: the block is not closed")


def inline_overrides(page: Path) -> list[list[str]]:
    """Inline code of a page that is overrides and nothing else, each once."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    spans = [span.split() for span in re.findall(r"`([^`]+)`", text)]
    found = [span for span in spans if all(map(_OVERRIDE.fullmatch, span))]
    return [span for number, span in enumerate(found) if span not in found[:number]]


def misses(shown: str, printed: str, exact: bool = False) -> list[str]:
    """Lines of a `text` block that were not printed in this order.

    `…` stands for anything, white space for white space, numbers for any number unless `exact`.
    """
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
        told = self.folder / ".told"
        told.mkdir()
        script = "set -eu -o pipefail\n"
        for number, block in enumerate(blocks):
            if block.not_run is not None:
                continue
            kept = told / f"{number}.txt"
            if block.title is not None:
                path = self.folder / block.title
                kept.write_text(block.text, encoding="utf-8")
                script += f"mkdir -p {_quoted(path.parent)}; cp {_quoted(kept)} {_quoted(path)}\n"
            elif block.is_command:
                text = block.text
                if block.language == "python":
                    kept.write_text(text, encoding="utf-8")
                    text = f"python {_quoted(kept)}\n"
                log = told / f"{number}.log"
                script += f"exec > {_quoted(log)} 2>&1\n{text}touch {_quoted(log)}.ended\n"
        environment = {
            **{name: value for name, value in os.environ.items() if name not in OWN},
            "PATH": f"{self.folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
        }
        subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
        return list(self._printed(blocks))

    def _printed(self, blocks: Sequence[Block]) -> Iterator[Printed]:
        for number, block in enumerate(blocks):
            log = self.folder / ".told" / f"{number}.log"
            if log.is_file():
                text = log.read_text(encoding="utf-8", errors="replace")
                yield Printed(block, Path(f"{log}.ended").is_file(), text)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))

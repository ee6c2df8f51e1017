"""The guide in docs/: its code blocks, and a working copy of the repository in which they are run.

A page becomes one shell script. `sh` blocks are its lines, `python` blocks are run from the top of
the copy, blocks with a title are written to files, and a `text` block is the output of the block
before it: `…` matches anything, and numbers may differ, since training is short, unless
`<!-- exact -->` precedes the block. A block below the comment `<!-- not run: REASON -->` is
skipped, and so is its output.

`python` and `headwise` are those of `warm_python`, which also makes training short; `make` takes
the same Python, with everything installed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from warm_python import client

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# A checkout after `make demo`; from docs/ only what a command writes, and that command.
COPIED = (
    "conf", "scripts", "src", "tests", "train.py", "Makefile", "pyproject.toml", "README.md",
    "docs/generate.py", "docs/settings.md", "docs/variants.md",
)  # fmt: skip
# Variables of the tests' environment that readers do not have.
UNSET_VARIABLES = ("PYTHONPATH", "HEADWISE_DATA", "HEADWISE_PLUGINS")
STAMPS = (".created", ".installed", ".installed-test")

_BLOCK = re.compile(
    r"^(?:<!-- (?:not run: *(?P<not_run>.*?)|(?P<exact>exact)) *-->\n)?"
    r"```(?P<language>sh|python|yaml|text)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FENCE_OR_MARK = re.compile(r"^\s*```|^<!-- (?:not run:|exact -->)", re.MULTILINE)
_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:python|headwise \w+|make|pip|wandb) .*|headwise runs")
# Beginnings of commands in README and within lines of pages that are not run, with the reason.
NOT_RUN = {
    "make": "installs packages, or runs these tests",
    "pip": "installs packages",
    "python -m build": "needs a network; see test_release.py",
    "wandb": "needs a network and an account",
    "python -m benchmarks": "measures for minutes to hours; see test_benchmarks.py",
    "OMP_NUM_THREADS=1": "measures for hours; see test_benchmarks.py",
    "HEADWISE_DATA=FOLDER": "measures for hours on a corpus",
    "headwise table study=five_tasks": "prints a published table; see test_studies.py",
    "headwise table study=variants": "trains every variant; see test_table.py",
    "python docs/generate.py": "writes pages; see test_architecture.py",
    "WRITE_TABLES=1": "writes golden files for minutes; see test_studies.py",
}
# One small run of each kind of task; `runnable` puts them in place of FOLDER.
SMALL_RUNS = """
python train.py experiment=demo
python train.py experiment=demo_text
python train.py experiment=demo_classification
RUN=$(ls -td outputs/demo/* | head -1)
TEXT=$(ls -td outputs/demo_text/* | head -1)
LABELLED=$(ls -td outputs/demo_classification/* | head -1)
cp $RUN/hypotheses/test.src.txt my.de
cp $RUN/hypotheses/test.ref.txt my.en
cp my.en texts.txt
mkdir outputs/correia2019
cp -r $RUN outputs/correia2019
"""
_BLOCK_END = "the block has ended"
_OVERRIDE = re.compile(r"[a-z][\w.@]*=[^…]+")
_NUMBER = r"[+−-]?\d+(?:\.\d+)?"


@dataclass(frozen=True)
class Block:
    """One fenced block of a page.

    Attributes:
        line: of the opening fence, from 1.
        language: after the opening fence.
        title: path of the file with this content, or None.
        text: between the fences.
        not_run: the reason in the mark before it, or None.
        exact: whether the numbers of a `text` block are compared.
    """

    line: int
    language: str
    title: str | None
    text: str
    not_run: str | None
    exact: bool

    @property
    def runs(self):
        """Whether the block is a command that is run."""
        return self.title is None and self.not_run is None and self.language in ("sh", "python")


def blocks_of(page):
    """Every fenced block of a page, in order.

    Raises:
        ValueError: an invalid or open fence, or a mark without a fence.
    """
    text = page.read_text(encoding="utf-8")
    blocks = [
        Block(
            text.count("\n", 0, match.start("language")) + 1,
            match["language"],
            match["title"],
            match["text"],
            match["not_run"],
            match["exact"] is not None,
        )
        for match in _BLOCK.finditer(text)
    ]
    n_marks = sum(block.not_run is not None or block.exact for block in blocks)
    if len(_FENCE_OR_MARK.findall(text)) != 2 * len(blocks) + n_marks:
        raise ValueError(f"{page.name}: a fence or a mark right before it is not understood")
    return blocks


def inline_overrides(page):
    """Inline code of a page that consists of overrides, without duplicates."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    spans = [span.split() for span in re.findall(r"`([^`]+)`", text)]
    overrides = [span for span in spans if all(map(_OVERRIDE.fullmatch, span))]
    return [span for number, span in enumerate(overrides) if span not in overrides[:number]]


def inline_commands(page):
    """Commands in code within lines, and in blocks without a language; those with … are left out.

    Comments are removed.
    """
    text = page.read_text(encoding="utf-8")
    plain = "".join(block for language, block in _FENCED.findall(text) if not language).splitlines()
    spans = re.findall(r"`([^`]+)`", _FENCED.sub("", text))
    lines = [re.sub(r" +# .*", "", " ".join(line.split())) for line in [*plain, *spans]]
    return [line for line in lines if _COMMAND.fullmatch(line) and "…" not in line]


def runnable(command):
    """A command with the names of SMALL_RUNS and of files; a training is a dry run."""
    name = re.sub(r"(?:python |headwise )(\w+).*", r"\1", command)
    run = {"sample": "$TEXT", "predict": "$LABELLED"}.get(name, "$RUN")
    names = {"run=FOLDER": f"run={run}", "FOLDER": "written", "seed=1,2,3": "seed=1"}
    names |= {"input=FILE": "input=texts.txt", "FILE": "labels"}
    for shown, used in names.items():
        command = command.replace(shown, used)
    return f"{command} dry_run=true" if re.search(r"train(?!.*--)", name) else command


def missing_lines(shown, printed, exact=False):
    """Lines of a `text` block that were not printed in this order.

    `…` matches anything, white space any white space, a number any number unless `exact`, in bold
    or not.
    """
    if not exact:
        shown, printed = shown.replace("**", ""), printed.replace("**", "")
    lines = printed.splitlines()
    missing = []
    start = 0
    for line in shown.splitlines():
        if line.strip() in ("", "…"):
            continue
        pattern = re.compile(_pattern(line.strip(), exact))
        index = next((n for n in range(start, len(lines)) if pattern.fullmatch(lines[n])), None)
        if index is None:
            missing.append(line)
        else:
            start = index + 1
    return missing


def _pattern(line, exact):
    parts = []
    for part in re.split(rf"(\s+|…|{_NUMBER})", line):
        if part == "…":
            parts.append(".*")
        elif part.isspace():
            parts.append(r"\s+")
        elif not exact and re.fullmatch(_NUMBER, part):
            parts.append(_NUMBER)
        else:
            parts.append(re.escape(part))
    return rf"\s*{''.join(parts)}\s*"


@dataclass(frozen=True)
class BlockResult:
    """Result of running a block."""

    block: Block
    succeeded: bool  # exit code 0
    output: str  # both streams


class WorkingCopy:
    """A fresh copy of the repository in which pages are run.

    Args:
        folder: is created.
        address: of the `warm_python` whose commands run here.
    """

    def __init__(self, folder, address):
        self.folder = folder
        folder.mkdir(parents=True)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name)  # with bytecode: modification times are kept
            else:
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copy2(source, folder / name)
        (folder / "requirements.lock").touch()
        commands = folder / ".venv" / "bin"
        commands.mkdir(parents=True)
        for name in ("python", "headwise"):
            (commands / name).write_text(client(address, folder / "src"), encoding="utf-8")
            (commands / name).chmod(0o755)
        for name in STAMPS:  # newer than the files that make compares them with
            (folder / ".venv" / name).touch()
        cache = folder / ".pytest_cache" / "d"  # with the compiled C++ kernels
        cache.mkdir(parents=True)
        (cache / "native").symlink_to(ROOT / ".pytest_cache" / "d" / "native")

    def run(self, blocks, timeout=600):
        """Run a page as one shell script; results up to the first block that failed."""
        script = "set -eu -o pipefail\n"
        for block in blocks:
            quoted = shlex.quote(block.text)
            if block.runs:
                script += block.text if block.language == "sh" else f"python -c {quoted}\n"
                script += f"echo {_BLOCK_END}\n"
            elif block.title is not None and block.not_run is None:
                path = shlex.quote(block.title)
                script += f"mkdir -p $(dirname {path}); printf %s {quoted} > {path}\n"
        environment = {
            **{name: value for name, value in os.environ.items() if name not in UNSET_VARIABLES},
            "PATH": f"{self.folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
        }
        completed = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
            timeout=timeout, check=False,
        )  # fmt: skip
        texts = completed.stdout.split(f"{_BLOCK_END}\n")  # one more than completed blocks
        run = zip((block for block in blocks if block.runs), texts, strict=False)
        return [
            BlockResult(block, number < len(texts), text)
            for number, (block, text) in enumerate(run, 1)
        ]

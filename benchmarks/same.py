"""Whether two checkouts train, score and analyse alike, bit by bit.

    python -m benchmarks.same OTHER [--recipes NAME …]

Each recipe is trained for some updates through the command line, then its heads are analysed, and
of two pruned. Compared are the files of the run folders: last tensors, losses, results, hypotheses,
sums of test items, tables of heads. Each checkout runs its own copy of this file in a process a
recipe with its own sources and one thread. OTHER may also be a file that `--record FILE` wrote on
this machine.
What was renamed since is mapped to the name it had first, in `RENAMED`. Prints what differs; exits
with 1 if anything does.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
SMALL = """
    model=tiny model.d_model=32 model.n_heads=2 model.d_ff=64 scheduler.warmup_updates=6
    trainer=debug trainer.max_updates=24 trainer.validate_every=12 trainer.save_every=12
    trainer.keep=2 trainer.average=2 trainer.valid_sentences=32 trainer.head_sentences=16
    trainer.precision=fp32 trainer.progress=false tracker=none
"""
PAIRS = "data=builtin tokenizer.vocab_size=400 decode.beam=2 decode.max_length_extra=2"
TEXT = "data=builtin_text tokenizer=bpe tokenizer.vocab_size=400 data.window=32"
PICTURES = "data=images data.dir={scratch} data.shape=[6,6,1] data.window=36"
RECIPES = {
    "softmax": f"{PAIRS} attention=softmax",
    "α-entmax": f"{PAIRS} attention=alpha_entmax",
    "a pattern": f"{PAIRS} attention=entmax15 pattern=fixed",
    "repulsion": f"{PAIRS} attention=softmax repulsion=svgd tokenizer.dropout=0.1",
    "a whole kernel": f"{PAIRS} attention=linformer",
    "gates": f"{PAIRS} attention=alpha_entmax gates=hard_concrete scaling=length",
    "density": f"{TEXT} task=density attention=alpha_entmax decode.min_context=8",
    "pictures": f"{PICTURES} attention=entmax15 positions=data_dims",
    "masked LM": f"{TEXT} task=masked_lm attention=alpha_entmax positions=rotary",
    "classification": "data=builtin_labelled tokenizer.vocab_size=400 model.cls_tokens=2",
    "block-sparse": f"{PAIRS} attention=alpha_entmax pattern=strided pattern.block_sparse_from=1",
    "entmax loss": f"{PAIRS} attention=softmax loss=entmax15",
    "without kernels": f"{PAIRS} attention=alpha_entmax loss=entmax15",
}
ENVIRONMENT = {"without kernels": {"HEADWISE_NATIVE": "0"}}
PRUNED = ("gates", "classification")
COMPARED = """
    metrics.jsonl heads.jsonl results.json data.json checkpoints/last.pt sums/*.npz hypotheses/*
    predictions/* samples/* analysis/*.csv pruning/*.csv
"""
# Of a path in these files: what may differ.
IGNORED = re.compile(
    r"results\.json/(fingerprint|wall_seconds|tokens_per_second|other_seconds|peak_memory_bytes|git"
    r"|versions|finished_at)|data\.json/(fingerprint|identity|versions)|metrics\.jsonl/\d+/time/"
)
# What a path or a tensor's name matches in this checkout -> its name when this file was written.
RENAMED: dict[str, str] = {}


def record(name: str) -> dict[str, str]:
    """Values by path in the files of the run folder of a recipe."""
    import torch

    torch.set_num_threads(1)
    os.environ.update(ENVIRONMENT.get(name, {}))
    with tempfile.TemporaryDirectory() as scratch:
        generator = np.random.default_rng(1)
        for split in ("train", "valid", "test"):
            pictures = generator.integers(0, 256, (64, 6, 6, 1), dtype=np.uint8)
            np.save(Path(scratch) / f"{split}.npy", pictures)
        return of_recipe(name, Path(scratch))


def of_recipe(name: str, scratch: Path) -> dict[str, str]:
    """Run the commands of a recipe, and read its run folder."""
    recipe = f"{SMALL} {RECIPES[name]}".format(scratch=scratch).split()
    headwise("train", *recipe, f"paths.outputs={scratch}/{name}", f"paths.cache={scratch}/cache")
    (run,) = (path.parent for path in scratch.glob(f"{name}/*/*/results.json"))
    headwise("analyze", f"run={run}", "data.sentences=50")
    if name in PRUNED:
        headwise("prune", f"run={run}", "table=true", "data.sentences=20")
    values = {}
    for path in (path for pattern in COMPARED.split() for path in sorted(run.glob(pattern))):
        for key, value in leaves(str(path.relative_to(run)), content(path)):
            for now, first in RENAMED.items():
                key = re.sub(now, first, key)
            values[key] = value
    return {key: value for key, value in values.items() if not IGNORED.match(key)}


def headwise(*arguments: str) -> None:
    """Run a command in this process."""
    from headwise.cli import main

    sys.argv = ["headwise", *arguments]
    main()


def content(path: Path) -> Any:
    """A file as nested dicts and lists; arrays as digests of shape, type and bits."""
    import torch

    if path.suffix in (".pt", ".npz"):
        arrays = np.load(path) if path.suffix == ".npz" else torch.load(path)["model"]
        bits = ((k, f"{a.shape} {a.dtype}", np.asarray(a).tobytes()) for k, a in arrays.items())
        return {name: sha256(kind.encode() + of_one).hexdigest() for name, kind, of_one in bits}
    if path.suffix == ".png":
        return sha256(path.read_bytes()).hexdigest()
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".json":
        return json.loads("\n".join(lines))
    if path.suffix == ".csv":
        return list(csv.DictReader(lines))
    return [json.loads(line) for line in lines] if path.suffix == ".jsonl" else lines


def leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """The path of each value in nested dicts and lists, and the value as JSON."""
    if not value or not isinstance(value, dict | list):
        yield path, json.dumps(value, ensure_ascii=False)
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(f"{path}/{key}", inner)


def recorded_in(checkout: Path, names: list[str]) -> Any:
    """What `record` returns in a checkout, in a process a recipe, or read from a file."""
    if checkout.is_file():
        values = json.loads(checkout.read_text(encoding="utf-8"))
        return {name: values[name] for name in names}
    path = os.pathsep.join((str(checkout / "src"), str(checkout)))
    return {name: recorded_in_process(name, checkout, path) for name in names}


def recorded_in_process(name: str, checkout: Path, path: str) -> Any:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.same", "--record", file.name, "--recipes", name],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return json.loads(Path(file.name).read_text(encoding="utf-8"))[name]


def differences(recipe: str, here: dict[str, str], there: dict[str, str]) -> list[str]:
    """What is not the same in a recipe, a line each, the first ones."""
    lines = [
        f"{recipe}: {path}: {here.get(path, 'missing')} here, {there.get(path, 'missing')} there"
        for path in {**here, **there}
        if here.get(path) != there.get(path)
    ]
    return lines[:5] + [f"{recipe}: {len(lines)} differences in all"] * bool(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", nargs="?", type=Path, help="another checkout, or its record")
    parser.add_argument("--record", type=Path, help="write what this checkout does to a file")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    arguments = parser.parse_args()
    if arguments.record is not None:
        names = arguments.recipes
        values = {names[0]: record(names[0])} if len(names) == 1 else recorded_in(ROOT, names)
        arguments.record.write_text(json.dumps(values), encoding="utf-8")
        return
    if arguments.other is None:
        parser.error("name another checkout, or a file that --record wrote there")
    checkouts = ROOT, arguments.other.resolve()
    here, there = (recorded_in(checkout, arguments.recipes) for checkout in checkouts)
    lines = [line for name in here for line in differences(name, here[name], there[name])]
    n_values = sum(map(len, here.values()))
    print("\n".join(lines) or f"the same: {n_values} values of {len(here)} recipes")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()

"""An update of a small language model, beside nanoGPT's own training loop.

    git clone https://github.com/karpathy/nanoGPT
    python -m benchmarks.nanogpt nanoGPT [--updates N] [--rounds N] [--json FILE]

Both train nanoGPT's CPU model on Tiny Shakespeare (4 layers, 4 heads, width 128, 12 windows of 64
characters, no dropout) as commands of their own, in turn, on one thread in float32, without
validation. Printed are milliseconds of an update, the median of the rounds: nanoGPT's from the
times that it prints, ours from its records. nanoGPT's files are copied, its folder stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.command import keep
from headwise.config.density_data import TextDataConfig
from headwise.config.folders import group_node
from headwise.data.plain_text import TextCorpus
from headwise.files import machine_cache_dir

HERE = Path(__file__).parents[1]
MODEL = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "batch_size": 12}
SETTINGS = {**MODEL, "dropout": 0.0, "device": "cpu", "compile": False, "dtype": "float32"}


def main() -> None:
    """Time both loops in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a clone of nanoGPT")
    parser.add_argument("--updates", type=int, default=300, help="of a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the figures to this file")
    args = parser.parse_args()
    taken: dict[str, list[float]] = {"nanoGPT": [], "headwise": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_nanogpt(args.folder, folder)
        for number in range(args.rounds):
            taken["nanoGPT"].append(nanogpt(folder, args.updates))
            taken["headwise"].append(ours(folder / f"run{number}", args.updates))
            print({name: f"{times[-1]:.1f} ms" for name, times in taken.items()}, flush=True)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    print(f"headwise / nanoGPT: {medians['headwise'] / medians['nanoGPT']:.2f}")
    keep(args.json, {"milliseconds": medians, "updates": args.updates, "rounds": args.rounds})


def copy_nanogpt(source: Path, folder: Path) -> None:
    """Copy nanoGPT's scripts and write its data files from ours, as its prepare.py does."""
    for name in ("train.py", "model.py", "configurator.py"):
        shutil.copy(source / name, folder)
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    corpus = TextCorpus(
        TextDataConfig(**group_node("data", "tinyshakespeare")), machine_cache_dir()
    )
    texts = {split: b"".join(corpus.chunks(split)).decode() for split in ("train", "valid")}
    characters = sorted(set("".join(texts.values())))
    number = {character: index for index, character in enumerate(characters)}
    for split, name in (("train", "train.bin"), ("valid", "val.bin")):
        np.array([number[c] for c in texts[split]], np.uint16).tofile(data / name)
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(characters)}))


def nanogpt(folder: Path, updates: int) -> float:
    """Median milliseconds of an update in nanoGPT's loop."""
    loop = {"dataset": "shakespeare_char", "eval_interval": 10**9, "eval_iters": 1}
    loop |= {"log_interval": 1, "max_iters": updates, "gradient_accumulation_steps": 1}
    options = [f"--{key}={value}" for key, value in (SETTINGS | loop).items()]
    printed = run([sys.executable, "train.py", *options], folder)
    times = [float(time) for time in re.findall(r"^iter \d+: .*time ([\d.]+)ms", printed, re.M)]
    return statistics.median(times[len(times) // 10 :])


def ours(folder: Path, updates: int) -> float:
    """Median milliseconds of an update in our loop."""
    overrides = {
        "paths.outputs": folder,
        "tracker": "none",
        "trainer.max_updates": updates,
        "scheduler.warmup_updates": 10,
        "trainer.log_every": 10,
        "trainer.validate_every": updates,
        "trainer.save_every": updates,
        "trainer.head_sentences": 0,
        "trainer.valid_samples": 0,
        "decode.max_windows": 1,
    }
    options = [f"{key}={value}" for key, value in overrides.items()]
    run([sys.executable, "train.py", "experiment=nanogpt", *options], HERE)
    (records,) = folder.glob("nanogpt/*/metrics.jsonl")
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    seconds = [row["time/train_seconds"] for row in rows if "time/train_seconds" in row]
    return float(np.median(np.diff(seconds)[len(seconds) // 10 :])) / 10 * 1000


def run(command: list[str], folder: Path) -> str:
    """What a command prints, on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(ran.stdout + ran.stderr)
    return ran.stdout


if __name__ == "__main__":
    main()

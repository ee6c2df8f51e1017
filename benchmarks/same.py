"""Whether two checkouts start from the same weights and train with the same losses, bit by bit.

    HEADWISE_DATA=FOLDER python -m benchmarks.same OTHER_CHECKOUT

Six recipes of `RECIPES`, `model=tiny` on the first pairs of Multi30k: the sha256 of every initial
tensor, and the loss of each of 20 updates. Each checkout runs its own copy of this file in a
separate process, from its own sources, with one thread in float32. What was renamed since is
mapped in one table, `RENAMED`, to the name it had first. Prints what differs; exits with 1 if
anything does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
UPDATES = 20
COMMON = (
    "data=multi30k",
    "data.max_train_pairs=4000",
    "data.test=[]",
    "model=tiny",
    "tokenizer.vocab_size=2000",
    "trainer.max_tokens=1024",
    "trainer.precision=fp32",
    "trainer.progress=false",
    "trainer.n_workers=1",
    "tracker=none",
)
RECIPES = {
    "softmax": ("attention=softmax",),
    "α-entmax": ("attention=alpha_entmax",),
    "a pattern": ("attention=entmax15", "pattern=fixed"),
    "repulsion": ("attention=softmax", "repulsion=svgd"),
    "a whole kernel": ("attention=linformer",),
    "gates": ("attention=alpha_entmax", "gates=hard_concrete", "scaling=length"),
}
# What a tensor's name matches in this checkout -> what it was called when this file was written.
RENAMED = {
    r"^(encoder\.layers\.\d+)\.self_attention": r"\1.attention",
    r"^(encoder\.layers\.\d+)\.self_residual": r"\1.attention_residual",
}


def canonical(name: str) -> str:
    """The first name of a tensor."""
    for now, first in RENAMED.items():
        name = re.sub(now, first, name)
    return name


def record() -> dict[str, Any]:
    """Hashes of the initial tensors and the losses, by recipe."""
    import torch

    torch.set_num_threads(1)
    recorded = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, overrides in RECIPES.items():
            recorded[name] = of_recipe((*COMMON, *overrides), Path(scratch))
    return recorded


def of_recipe(overrides: tuple[str, ...], scratch: Path) -> dict[str, Any]:
    """One recipe, trained for some updates on its corpus."""
    import torch

    from benchmarks.updates import run_config
    from headwise.config.instantiate import instantiate
    from headwise.data.corpus import open_corpus
    from headwise.data.encoded import prepare_corpus
    from headwise.model.build import build_model
    from headwise.seed import seed_everything
    from headwise.tasks.task import task_of
    from headwise.train.batches import training_batches
    from headwise.train.distributed import Ranks
    from headwise.train.step import build_step

    config = run_config(*overrides)
    corpus = open_corpus(config.data, scratch)
    prepared = prepare_corpus(corpus, config.tokenizer, n_workers=1, progress=False)
    tokenizers, ranks = prepared.tokenizers, Ranks(0, 1, torch.device("cpu"))
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    seed_everything(config.seed, "model")
    model = build_model(config, *sizes, tokenizers.joint)
    tensors = {canonical(name): digest(tensor) for name, tensor in model.state_dict().items()}
    step = build_step(config, model, instantiate(config.loss, "loss"), ranks)
    losses = []
    examples = task_of(config).examples(config, prepared, ranks, scratch / "epoch")
    with training_batches(examples, ranks) as batches:
        for update in range(1, UPDATES + 1):
            step.window.zero_()
            n_targets = step(update, [next(batches)])
            losses.append(step.window[0].item() / n_targets)
    return {"tensors": tensors, "losses": losses}


def digest(tensor: Any) -> str:
    """sha256 of shape and bits."""
    bits = tensor.detach().contiguous().numpy().tobytes()
    return hashlib.sha256(f"{tuple(tensor.shape)} {tensor.dtype}".encode() + bits).hexdigest()


def recorded_in(checkout: Path) -> dict[str, Any]:
    """Return the record of a checkout, computed in a separate process."""
    path = os.pathsep.join((str(checkout / "src"), str(checkout)))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.same", "--record", file.name],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            check=True,
        )
        recorded: dict[str, Any] = json.loads(Path(file.name).read_text(encoding="utf-8"))
    return recorded


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What is not the same, a line each."""
    lines = []
    for recipe in ours:
        here, there = ours[recipe], theirs[recipe]
        for name in sorted(set(here["tensors"]) | set(there["tensors"])):
            if here["tensors"].get(name) != there["tensors"].get(name):
                missing = [
                    w for w, r in (("here", here), ("there", there)) if name not in r["tensors"]
                ]
                what = f"missing {missing[0]}" if missing else "other values"
                lines.append(f"{recipe}: initial tensor {name}: {what}")
        pairs = zip(here["losses"], there["losses"], strict=True)
        unlike = [update for update, (a, b) in enumerate(pairs, start=1) if a != b]
        if unlike:
            a, b = here["losses"][unlike[0] - 1], there["losses"][unlike[0] - 1]
            lines.append(f"{recipe}: loss from update {unlike[0]} on: {a!r} here, {b!r} there")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", nargs="?", type=Path, help="another checkout")
    parser.add_argument("--record", type=Path, help="write what this checkout does to a file")
    arguments = parser.parse_args()
    if arguments.record is not None:
        arguments.record.write_text(json.dumps(record()), encoding="utf-8")
        return
    if arguments.other is None or not (arguments.other / "benchmarks" / "same.py").is_file():
        parser.error("name another checkout, one that has benchmarks/same.py")
    if not os.environ.get("HEADWISE_DATA"):
        parser.error("set HEADWISE_DATA to the folder that holds multi30k_de_en")
    ours, theirs = recorded_in(ROOT), recorded_in(arguments.other.resolve())
    lines = differences(ours, theirs)
    n_tensors = sum(len(recipe["tensors"]) for recipe in ours.values())
    print(
        "\n".join(lines)
        or f"the same: {n_tensors} initial tensors, {UPDATES} losses of each of {len(ours)} recipes"
    )
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()

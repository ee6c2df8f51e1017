"""A small masked language model, beside the same as Hugging Face's BertForMaskedLM.

    python -m benchmarks.masked_lm_peer [--quick] [--updates N] [--seeds N] [--threads N]
        [--json FILE]

BERT of 4 layers, width 128, 4 heads and 512 hidden units, with 6,000 sub-words of Tiny Shakespeare
and 16 windows of 128 tokens, dropout 0.1, in float32. Both get the same batches and validation
windows, AdamW in its fused form, and the same learning rates and clipping. Printed are the time of
an update (interleaved, median) and the masked loss, nats per masked token, after equal updates,
for each seed. Differences: Hugging Face's has one more map before its output layer, and its
embeddings are normalised; ours computes logits of masked tokens only.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from benchmarks.clock import medians
from benchmarks.command import arguments, keep
from benchmarks.updates import CPU, run_config
from headwise.config.instantiate import instantiate
from headwise.config.schema import Config
from headwise.data.batch import Batch
from headwise.data.loader import BatchLoader
from headwise.data.token_stream import COLUMN
from headwise.files import machine_cache_dir
from headwise.seed import seed_everything
from headwise.tasks.evaluation import measure_losses
from headwise.tasks.task import task_of
from headwise.train.distributed import Ranks
from headwise.train.memory import keep_freed_memory
from headwise.train.optim import build_optimizer, set_learning_rate
from headwise.train.step import build_step

ONE = Ranks(0, 1, CPU)
REPEATS, QUICK_REPEATS = 25, 2
BERT = (
    *("task=masked_lm", "data.window=128", "tokenizer=bpe", "attention=softmax", "norm=post"),
    *("positions=learned", "positions.max_positions=128", "activation=gelu", "optimizer=adamw"),
    *("model=tiny", "model.layers=4", "model.dropout=0.1", "model.attention_dropout=0.1"),
    *("model.activation_dropout=0", "model.lr=1e-3", "scheduler.warmup_updates=100"),
    *("trainer.max_tokens=2048", "trainer.precision=fp32", "trainer.clip_norm=1.0"),
)
DATA = ("data=tinyshakespeare", "tokenizer.vocab_size=6000")
QUICK_DATA = "data=builtin_text", "tokenizer.vocab_size=500", "data.n_train=1000", "data.n_valid=20"


class Peer(Protocol):
    """A model with its optimizer."""

    name: str

    @property
    def model(self) -> nn.Module:
        """The module."""
        ...

    def step(self, update: int, batch: Batch) -> object:
        """Perform an update."""
        ...

    def nats(self, batches: Sequence[Batch]) -> float:
        """Mean loss of the masked tokens."""
        ...


class Headwise:
    """Ours, trained by the step of `python train.py`."""

    name = "headwise"

    def __init__(self, config: Config, vocabulary: int) -> None:
        seed_everything(config.seed, "model")
        self.model = task_of(config).model(config, {COLUMN: vocabulary})
        self.loss = instantiate(config.loss, "loss")
        self._step = build_step(config, self.model, self.loss, ONE)

    def step(self, update: int, batch: Batch) -> object:
        """See `Peer`."""
        return self._step(update, [batch])

    def nats(self, batches: Sequence[Batch]) -> float:
        """See `Peer`."""
        _, nats, n = measure_losses(self.model, self.loss, batches, ONE).items.sum(0)
        return float(nats / n)


class Transformers:
    """BertForMaskedLM of Hugging Face transformers."""

    name = "transformers"

    def __init__(self, config: Config, vocabulary: int) -> None:
        from transformers import BertConfig, BertForMaskedLM

        model = config.model
        torch.manual_seed(config.seed)
        sizes = BertConfig(
            vocab_size=vocabulary,
            hidden_size=model.d_model,
            num_hidden_layers=model.layers,
            num_attention_heads=model.n_heads,
            intermediate_size=model.d_ff,
            max_position_embeddings=config.data.window,
            hidden_dropout_prob=model.dropout,
            attention_probs_dropout_prob=model.attention_dropout,
            type_vocab_size=1,
        )
        self.model: Any = BertForMaskedLM(sizes)
        self.optimizer = build_optimizer(config.optimizer, self.model)
        self.schedule, self.lr = instantiate(config.scheduler, "scheduler"), config.model.lr
        self.clip_norm = config.trainer.clip_norm

    def _loss(self, batch: Batch) -> torch.Tensor:
        column = batch.columns[COLUMN]
        labels_BN = torch.full_like(column.ids_BN, -100)
        labels_BN.view(-1)[batch.scored_R] = batch.targets_R
        mask_BN = column.is_real_BN.long()
        loss: torch.Tensor = self.model(
            input_ids=column.ids_BN, attention_mask=mask_BN, labels=labels_BN
        ).loss
        return loss

    def step(self, update: int, batch: Batch) -> object:
        """See `Peer`."""
        self.model.train()
        self._loss(batch).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        set_learning_rate(self.optimizer, self.schedule.learning_rate(update, self.lr))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return None

    @torch.no_grad()
    def nats(self, batches: Sequence[Batch]) -> float:
        """See `Peer`."""
        self.model.eval()
        sums = [(self._loss(batch).item() * batch.n_targets, batch.n_targets) for batch in batches]
        total, n = np.sum(sums, 0)
        return float(total / n)


def peers(config: Config, vocabulary: int) -> list[Peer]:
    """New models; those that cannot be imported are named and left out."""
    made: list[Peer] = [Headwise(config, vocabulary)]
    try:
        made.append(Transformers(config, vocabulary))
    except ImportError as error:
        print(f"  transformers is left out: {error}")
    return made


def measure(data: Sequence[str], n_updates: int, n_seeds: int, repeats: int) -> dict[str, Any]:
    """Times of an update, and losses after `n_updates` by model and seed."""
    keep_freed_memory()
    overrides = (*BERT, *data, f"trainer.max_updates={n_updates}")
    config = run_config(*overrides)
    task = task_of(config)
    prepared = task.prepare(task.open(config, machine_cache_dir()), config, False)
    vocabulary = prepared.sizes[COLUMN]
    batches = list(itertools.islice(BatchLoader(examples(task, config, prepared)), 4))
    calls: dict[str, Callable[[], object]] = {}
    parameters = {}
    for peer in peers(config, vocabulary):
        updates = enumerate(itertools.cycle(batches), 1)
        calls[peer.name] = partial(lambda step, updates: step(*next(updates)), peer.step, updates)
        parameters[peer.name] = sum(p.numel() for p in peer.model.parameters())
    taken = medians(calls, repeats)
    for name, seconds in taken.items():
        ratio = taken["headwise"] / seconds
        print(f"  {name:14} {1000 * seconds:8.1f} ms an update; ours / it {ratio:.2f}", flush=True)
    losses: dict[str, list[float]] = {name: [] for name in calls}
    for seed in range(1, n_seeds + 1):
        config = run_config(*overrides, f"seed={seed}")
        trained, loader = peers(config, vocabulary), BatchLoader(examples(task, config, prepared))
        for update, batch in zip(range(1, n_updates + 1), loader, strict=False):
            for peer in trained:
                peer.step(update, batch)
        valid = task.batches(prepared, config, config.data.valid)
        for peer in trained:
            losses[peer.name].append(peer.nats(valid))
            nats = losses[peer.name][-1]
            print(f"  seed {seed}, {n_updates} updates: {peer.name} {nats:.4f}", flush=True)
    about = {"vocabulary": vocabulary, "parameters": parameters, "repeats": repeats}
    return {**about, "seconds": taken, "updates": n_updates, "losses": losses}


def examples(task: Any, config: Config, prepared: Any) -> Any:
    """Training windows of a seed."""
    return task.examples(config, prepared, ONE, machine_cache_dir())


def main() -> None:
    """Time updates, then train."""
    args = arguments(
        __doc__,
        updates={"type": int, "default": 500, "help": "of a model"},
        seeds={"type": int, "default": 3},
    )
    logging.disable(logging.INFO)
    if args.quick:
        figures = measure(QUICK_DATA, 2, 1, QUICK_REPEATS)
    else:
        figures = measure(DATA, args.updates, args.seeds, REPEATS)
    keep(args.json, figures)


if __name__ == "__main__":
    main()

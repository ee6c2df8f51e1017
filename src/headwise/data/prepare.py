"""What every task needs to turn text into ids: a tokenizer that loses nothing, and its identity."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from headwise.config.schema import TokenizerConfig
from headwise.data.tokenizer import Tokenizer
from headwise.data.tokenizer_training import load_tokenizers, train_tokenizer

TRAINING_BYTES = 2**25  # of text on which a tokenizer is trained; SentencePiece needs ten times it


def tokenizer_identity(config: TokenizerConfig) -> dict[str, Any]:
    """What the tokens of a text depend on, besides the text."""
    loaded = load_tokenizers(config)
    # of the folder its content; dropout is used only to sample an epoch
    options = asdict(config) | {"folder": loaded and loaded.fingerprint(), "dropout": 0.0}
    return {"sentencepiece": importlib.metadata.version("sentencepiece"), "tokenizer": options}


def exact_tokenizer(config: TokenizerConfig, read: Callable[[], Iterator[bytes]]) -> Tokenizer:
    """The tokenizer that a config names, or one trained on the lines that `read` yields."""
    loaded = load_tokenizers(config)
    if loaded is not None:
        return loaded.source
    return train_tokenizer(training_lines(read, config), config, exact=True)


def training_lines(read: Callable[[], Iterator[bytes]], config: TokenizerConfig) -> Iterator[str]:
    """Training text of a tokenizer: all that `read` yields, or a sample that fits in memory."""
    sizes = np.zeros(2)
    for line in read():
        sizes += 1, len(line)
    share = np.min((config.max_training_sentences, TRAINING_BYTES) / np.maximum(sizes, 1))
    draw = np.random.default_rng(0)
    for line in read():
        if draw.random() < share:
            yield line.removesuffix(b"\n").decode(errors="ignore")

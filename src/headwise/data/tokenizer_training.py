"""Tokenizers: trained on the training split, or given."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import sentencepiece

from headwise.config.schema import TokenizerConfig
from headwise.data.store import BLOCK_ROWS, TextStore
from headwise.data.tokenizer import (
    BOS,
    BYTE_MODEL,
    EOS,
    N_SPECIALS,
    PAD,
    UNK,
    Tokenizer,
    TokenizerPair,
    one_space,
)
from headwise.errors import ConfigError, DataError, refuse, require

KINDS = ("bpe", "unigram", "char", "byte", "given")
LEAST_COVERAGE = 0.98  # that SentencePiece takes


def check_tokenizer_config(config: TokenizerConfig) -> None:
    """Refuse values that no corpus can make right; needs no data.

    Raises:
        ConfigError: naming the key, the value and what is allowed.
    """
    if config.kind not in KINDS:
        raise refuse("tokenizer.kind", config.kind, KINDS)
    if (config.kind == "given") != (config.folder is not None):
        raise ConfigError(
            "tokenizer=given and tokenizer.folder=RUN go together; got "
            f"tokenizer.kind={config.kind} and tokenizer.folder={config.folder}"
        )
    least = N_SPECIALS + 256 if config.kind == "byte" or config.byte_fallback else N_SPECIALS + 1
    require(
        config.vocab_size >= least,
        "tokenizer.vocab_size",
        f"at least {least} for tokenizer.kind={config.kind}",
        config.vocab_size,
    )
    require(
        LEAST_COVERAGE <= config.character_coverage <= 1,
        "tokenizer.character_coverage",
        f"in [{LEAST_COVERAGE}, 1]",
        config.character_coverage,
    )
    require(0 <= config.dropout < 1, "tokenizer.dropout", "in [0, 1)", config.dropout)
    require(
        config.dropout == 0 or config.kind == "bpe",
        "tokenizer.dropout",
        f"0 for tokenizer.kind={config.kind} (only bpe has merges to drop)",
        config.dropout,
    )
    for key in ("max_training_sentences", "max_sentence_pieces"):
        value = getattr(config, key)
        require(value >= 1, f"tokenizer.{key}", "at least 1", value)


def given_tokenizers(config: TokenizerConfig) -> TokenizerPair | None:
    """The tokenizers of `config.folder`; None where they are to be learned.

    Raises:
        ConfigError: there are none, or `config.joint` says that they are otherwise.
    """
    if config.folder is None:
        return None
    try:
        found = TokenizerPair.load(config.folder)
    except DataError as error:
        raise ConfigError(f"tokenizer.folder={config.folder}: {error}") from error
    allowed = f"{str(found.joint).lower()}, as the tokenizer in {config.folder} is"
    require(config.joint == found.joint, "tokenizer.joint", allowed, config.joint)
    return found


def vocabulary_limits(config: TokenizerConfig) -> dict[str, int]:
    """Most pieces of each side; of characters, whose number the text decides, an upper limit."""
    given = given_tokenizers(config)
    if given is not None:
        return given.sizes
    pieces = N_SPECIALS + 256 if config.kind == "byte" else config.vocab_size
    return {"source": pieces, "target": pieces}


def train_tokenizer(sentences: Iterator[str], config: TokenizerConfig) -> Tokenizer:
    """Learn one tokenizer from streamed sentences, on one thread so that it comes out the same.

    `bpe` and `unigram` have exactly `config.vocab_size` pieces, specials included. For `char`
    and `byte`, whose alphabet the text or the encoding gives, it is an upper limit.

    Raises:
        ConfigError: the text has too few pieces for `vocab_size`, or too many characters.
        DataError: there are no sentences.
    """
    check_tokenizer_config(config)
    if config.kind == "byte":
        return Tokenizer(BYTE_MODEL)
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(one_space(text) for text in sentences),
            model_writer=written,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity",
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            hard_vocab_limit=False,  # we compare ourselves, with a message that helps
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explain(error, config) from error
    tokenizer = Tokenizer(written.getvalue())
    if config.kind in ("bpe", "unigram") and tokenizer.vocab_size < config.vocab_size:
        raise ConfigError(
            f"tokenizer.vocab_size={config.vocab_size} cannot be reached: this text supports "
            f"at most {tokenizer.vocab_size} pieces of tokenizer.kind={config.kind}; "
            f"set tokenizer.vocab_size={tokenizer.vocab_size} or less, or train on more text"
        )
    return tokenizer


def train_tokenizer_pair(
    text: tuple[Path, Path], config: TokenizerConfig, seed: int
) -> TokenizerPair:
    """One tokenizer from both sides of a text, or one from each, as `config.joint` says.

    `text` names both sides, as `conversion` writes them. Of more sentences than
    `config.max_training_sentences` a uniform sample is taken; `seed` decides which.
    """
    limit = config.max_training_sentences
    stores = [TextStore(path) for path in text]
    if config.joint:
        both = train_tokenizer(sample_sentences(stores, limit, seed), config)
        return TokenizerPair(both, both, joint=True)
    sides = []
    for name, store in zip(("source", "target"), stores, strict=True):
        try:
            sides.append(train_tokenizer(sample_sentences([store], limit, seed), config))
        except ConfigError as error:
            raise ConfigError(f"{name} side (tokenizer.joint=false): {error}") from error
    return TokenizerPair(sides[0], sides[1], joint=False)


def sample_sentences(stores: list[TextStore], limit: int, seed: int) -> Iterator[str]:
    """All sentences of all stores in order, or a uniform sample of `limit` of them."""
    n_sentences = sum(len(store) for store in stores)
    chosen = np.arange(n_sentences)
    if n_sentences > limit:
        generator = np.random.default_rng(seed)
        chosen = np.sort(generator.choice(n_sentences, limit, replace=False, shuffle=False))
    first = 0
    for store in stores:
        rows = chosen[(chosen >= first) & (chosen < first + len(store))] - first
        for start in range(0, len(rows), BLOCK_ROWS):
            yield from store.read(rows[start : start + BLOCK_ROWS])
        first += len(store)


def _explain(error: RuntimeError, config: TokenizerConfig) -> ConfigError | DataError:
    """SentencePiece's error in terms of our options."""
    message = str(error)
    few = re.search(r"(\d+) vs (\d+)", message)
    if "smaller than required_chars" in message and few:
        return ConfigError(
            f"tokenizer.vocab_size={config.vocab_size} is too small: the text needs {few[2]} "
            f"pieces for its characters alone; set tokenizer.vocab_size above {few[2]}, or lower "
            f"tokenizer.character_coverage={config.character_coverage}"
        )
    if "sentences_.empty()" in message:
        return DataError("there is no training text to learn a tokenizer from")
    return ConfigError(f"SentencePiece could not train with these tokenizer options: {message}")

"""Training of tokenizers on the training split."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from headwise.config.schema import TokenizerConfig
from headwise.data.store import TextStore
from headwise.data.tokenizer import (
    BOS,
    BYTE_MODEL,
    EOS,
    PAD,
    UNK,
    Tokenizer,
    TokenizerPair,
    check_tokenizer_config,
    load_tokenizers,
    one_space,
)
from headwise.errors import ConfigError, DataError

EXACT: dict[str, Any] = {  # options of a model that spells every byte of a line
    "byte_fallback": True,
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
}
TRAINING_BYTES = 2**25  # of text that `exact_tokenizer` reads; SentencePiece needs ten times it
MAX_CHARACTERS = 2**14  # of a line; longer ones are cut to train a tokenizer
# SentencePiece skips lines with U+2585, and removes its marks; a cut leaves their characters
SKIPPED = re.compile("\u2585|(?<=<)(?=(?:/?s|unk|pad|0x[0-9A-F]{2})>)")
NO_LIMIT = 2**21  # more than there are characters

log = logging.getLogger(__name__)


def train_tokenizer(
    sentences: Iterator[str], config: TokenizerConfig, exact: bool = False
) -> Tokenizer:
    """Train one tokenizer on streamed sentences, on one thread so that the result is reproducible.

    `bpe` and `unigram` have exactly `config.vocab_size` tokens, specials included. For `char`
    and `byte` it is an upper limit. No line is left out; see `learnable`.

    Args:
        sentences: of the training text.
        config: its options.
        exact: preserve white space as it is, and encode unknown characters as bytes; for text
            whose bytes are counted.

    Raises:
        ConfigError: the text has too few tokens for `vocab_size`, or too many characters.
        DataError: there are no sentences.
    """
    check_tokenizer_config(config)
    if config.kind == "byte":
        return Tokenizer(BYTE_MODEL)
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=learnable(sentences if exact else map(one_space, sentences)),
            model_writer=written,
            model_type=config.kind,
            vocab_size=NO_LIMIT if config.kind == "char" else config.vocab_size,
            max_sentence_length=4 * MAX_CHARACTERS,  # bytes; longer lines would be left out
            character_coverage=config.character_coverage,
            **(EXACT if exact else {"byte_fallback": config.byte_fallback}),
            normalization_rule_name="identity",
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            hard_vocab_limit=False,  # checked below, with a clearer message
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explain(error, config) from error
    tokenizer = Tokenizer(written.getvalue())
    if config.kind == "char" and tokenizer.vocab_size > config.vocab_size:
        raise _too_small(tokenizer.vocab_size, config)
    if config.kind in ("bpe", "unigram") and tokenizer.vocab_size < config.vocab_size:
        raise ConfigError(
            f"tokenizer.vocab_size={config.vocab_size} cannot be reached: this text supports "
            f"at most {tokenizer.vocab_size} tokens of tokenizer.kind={config.kind}; "
            f"set tokenizer.vocab_size={tokenizer.vocab_size} or less, or train on more text"
        )
    return tokenizer


def learnable(lines: Iterable[str]) -> Iterator[str]:
    """The lines in parts that SentencePiece does not leave out when it learns.

    Those of more than `MAX_CHARACTERS` are cut, counted and logged.
    """
    n_cut = 0
    for line in lines:
        n_cut += len(line) > MAX_CHARACTERS
        for part in SKIPPED.split(line):
            for start in range(0, len(part), MAX_CHARACTERS):
                yield part[start : start + MAX_CHARACTERS]
    if n_cut:
        log.warning(
            "%d lines of more than %d characters are cut to train the tokenizer",
            *(n_cut, MAX_CHARACTERS),
        )


def train_tokenizer_pair(
    text: tuple[Path, Path], config: TokenizerConfig, seed: int
) -> TokenizerPair:
    """One tokenizer from both sides of a text, or one from each, depending on `config.joint`.

    `text` has the paths of both sides, in the layout of `conversion`. Of more than
    `config.max_training_sentences` sentences a uniform sample is used, drawn by `seed`.
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
    sentences = chain.from_iterable(stores)
    n_sentences = sum(map(len, stores))
    if n_sentences <= limit:
        return sentences
    generator = np.random.default_rng(seed)
    is_chosen = np.zeros(n_sentences, bool)
    is_chosen[generator.choice(n_sentences, limit, replace=False, shuffle=False)] = True
    return compress(sentences, is_chosen)


def exact_tokenizer(read: Callable[[], Iterator[bytes]], config: TokenizerConfig) -> TokenizerPair:
    """The tokenizer that a config names, or one trained on the lines that `read` yields."""
    loaded = load_tokenizers(config)
    if loaded is None:
        lines = sample_lines(read, config.max_training_sentences)
        tokenizer = train_tokenizer(lines, config, exact=True)
    else:
        tokenizer = loaded.source
    return TokenizerPair(tokenizer, tokenizer, joint=True)


def sample_lines(read: Callable[[], Iterator[bytes]], limit: int) -> Iterator[str]:
    """All lines that `read` yields, or a sample of about `limit`, or of `TRAINING_BYTES`."""
    lengths = np.fromiter(map(len, read()), np.int64)
    share = min(limit / max(len(lengths), 1), TRAINING_BYTES / max(int(lengths.sum()), 1))
    is_chosen = np.random.default_rng(0).random(len(lengths)) < share
    for line in compress(read(), is_chosen):
        yield line.removesuffix(b"\n").decode(errors="ignore")


def _explain(error: RuntimeError, config: TokenizerConfig) -> ConfigError | DataError:
    """An error of SentencePiece, in terms of headwise's options."""
    message = str(error)
    sizes = re.search(r"(\d+) vs (\d+)", message)
    if "smaller than required_chars" in message and sizes:
        return _too_small(int(sizes[2]), config)
    if "sentences_.empty()" in message:
        return DataError("there is no training text for the tokenizer")
    return ConfigError(f"SentencePiece could not train with these tokenizer options: {message}")


def _too_small(n_tokens: int, config: TokenizerConfig) -> ConfigError:
    return ConfigError(
        f"tokenizer.vocab_size={config.vocab_size} is too small: the text needs {n_tokens} tokens "
        f"for its characters and the special tokens; set tokenizer.vocab_size={n_tokens} or more, "
        f"or lower tokenizer.character_coverage={config.character_coverage}"
    )

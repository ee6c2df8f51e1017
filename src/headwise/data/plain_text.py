"""Text of one language as one memory-mapped stream of tokens, cached.

`data.dir`, or `$HEADWISE_DATA/<data.folder>`, has `train.txt`, `valid.txt` and test sets
(`test.txt`), each plain or `.gz`. The byte tokenizer encodes the bytes unchanged. Other tokenizers
encode line by line, with eos for the line feed.
"""

from __future__ import annotations

import functools
import importlib.metadata
import io
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headwise.config.schema import TextDataConfig, TokenizerConfig
from headwise.data.cache import make_once
from headwise.data.corpora.text import check_text, open_bytes
from headwise.data.digest import FileHashes, combined_digest
from headwise.data.store import id_dtype
from headwise.data.tokenizer import EOS, N_SPECIALS, Tokenizer, TokenizerPair
from headwise.data.tokenizer_training import (
    check_tokenizer_config,
    load_tokenizers,
    train_tokenizer,
)
from headwise.errors import DataError
from headwise.file_names import check_file_name

FORMAT = 1  # increase when the files change
MAX_LINE = 2**27  # bytes; only the byte tokenizer accepts longer ones, read in parts
COLUMN = "tokens"  # of the batches
TOKENIZER = "tokenizer.model"


@dataclass(frozen=True)
class TokenStream:
    """A split as tokens.

    Attributes:
        ids: (tokens,).
        n_bytes: (tokens,), whose sum is the size of the file; None: one byte each.
    """

    ids: npt.NDArray[np.integer[Any]]
    n_bytes: npt.NDArray[np.int32] | None

    @classmethod
    def open(cls, path: Path, tokenizer: Tokenizer) -> TokenStream:
        """Memory-map the tokens that `encode` wrote at `path`."""
        ids = np.memmap(path, id_dtype(tokenizer.vocab_size), mode="r")
        sizes = path.with_name(f"{path.name}.bytes")
        return cls(ids, np.memmap(sizes, np.int32, mode="r") if sizes.exists() else None)

    def first(self, n: int | None) -> TokenStream:
        """The first n tokens; None: all."""
        return TokenStream(self.ids[:n], None if self.n_bytes is None else self.n_bytes[:n])

    def bytes_of(self, first: int, end: int) -> int:
        """Number of bytes of the tokens [first, end), clipped to the end of the split."""
        if self.n_bytes is None:
            return min(end, len(self.ids)) - first
        return int(self.n_bytes[first:end].sum())


@dataclass(frozen=True)
class TextCorpus:
    """The files of a text, one a split."""

    config: TextDataConfig
    cache_dir: Path

    def path(self, split: str) -> Path:
        """The file of a split.

        Raises:
            DataError: it does not exist; the message names the folder.
        """
        check_file_name("data", split)
        root, folder = os.environ.get("HEADWISE_DATA"), self.config.dir
        if folder is None and root and self.config.folder:
            folder = str(Path(root) / self.config.folder)
        if folder is None:
            raise DataError(
                f"set data.dir=FOLDER, with {self.config.train}.txt and {self.config.valid}.txt"
            )
        for name in (f"{split}.txt", f"{split}.txt.gz"):
            if (Path(folder).expanduser() / name).is_file():
                return Path(folder).expanduser() / name
        raise DataError(f"{split}.txt or {split}.txt.gz not found in {folder}")

    def identity(self, split: str) -> str:
        """Hash of the file of a split."""
        return FileHashes(self.cache_dir)(self.path(split))

    @property
    def test_sets(self) -> list[str]:
        """Splits that are scored at the end of a run."""
        return self.config.test

    def hashes(self) -> list[str]:
        """Hashes of the training and the validation text."""
        return [self.identity(split) for split in (self.config.train, self.config.valid)]

    def lines(self, split: str) -> Iterator[bytes]:
        """Lines of a split as bytes, with line feeds."""
        with open_bytes(self.path(split)) as stream:
            while line := stream.readline(MAX_LINE):
                yield line


@dataclass(frozen=True)
class PreparedText:
    """A text ready to train on.

    Attributes:
        fingerprint: of the splits and the tokenizer.
        report: sizes, by split.
        folder: of the streams, one a split.
    """

    corpus: TextCorpus
    tokenizer: Tokenizer
    fingerprint: str
    report: dict[str, Any]
    folder: Path

    @property
    def sizes(self) -> dict[str, int]:
        """Size of the vocabulary."""
        return {COLUMN: self.tokenizer.vocab_size}

    @property
    def vocabulary(self) -> str:
        """Hash of the list of tokens."""
        return self.tokenizer.fingerprint()

    def save(self, folder: Path) -> None:
        """Write the tokenizer."""
        self.tokenizer.save(folder / TOKENIZER)

    def stream(self, split: str) -> TokenStream:
        """A split as tokens."""
        return TokenStream.open(self.folder / f"{split}.ids", self.tokenizer)


def prepare_text(corpus: TextCorpus, config: TokenizerConfig) -> PreparedText:
    """Encode all splits, or open them in the cache if files and options are unchanged.

    Raises:
        ConfigError: the options of the tokenizer are wrong or do not fit the text.
        DataError: a split is missing, empty, or not UTF-8 where the tokenizer needs it.
    """
    check_tokenizer_config(config)
    loaded = load_tokenizers(config)
    options = asdict(config) | {"folder": loaded and loaded.fingerprint()}
    splits = list(dict.fromkeys((corpus.config.train, corpus.config.valid, *corpus.config.test)))
    parts = {
        "format": FORMAT,
        "sentencepiece": importlib.metadata.version("sentencepiece"),
        "splits": {split: corpus.identity(split) for split in splits},
        "tokenizer": options,
    }
    fingerprint = combined_digest([json.dumps(parts, sort_keys=True)])
    folder = corpus.cache_dir / "encoded" / f"{corpus.config.name}-{fingerprint[:16]}"
    report = make_once(folder, functools.partial(_prepare, corpus, config, loaded, splits))
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    return PreparedText(corpus, tokenizer, fingerprint, report, folder)


def _prepare(
    corpus: TextCorpus,
    config: TokenizerConfig,
    loaded: TokenizerPair | None,
    splits: list[str],
    folder: Path,
) -> dict[str, Any]:
    """Fill `folder` and return the report."""
    if loaded is not None:
        tokenizer = loaded.source
    else:
        train = (
            _text(line, corpus, corpus.config.train) for line in corpus.lines(corpus.config.train)
        )
        tokenizer = train_tokenizer(train, config)
    tokenizer.save(folder / TOKENIZER)
    return {split: encode(corpus, split, tokenizer, folder / f"{split}.ids") for split in splits}


def _text(line: bytes, corpus: TextCorpus, split: str) -> str:
    try:
        text = line.decode()
        if len(line) == MAX_LINE:
            raise DataError(f"{corpus.path(split)}: a line of {MAX_LINE} bytes or more")
        check_text(text, str(corpus.path(split)))
        return text
    except UnicodeDecodeError as error:
        raise DataError(
            f"{corpus.path(split)} is not UTF-8; tokenizer=byte accepts any bytes"
        ) from error


def encode(corpus: TextCorpus, split: str, tokenizer: Tokenizer, path: Path) -> dict[str, int]:
    """Write the tokens of a split to `path`, and their sizes to `<path>.bytes` unless all are 1.

    Raises:
        DataError: the split is empty, or not UTF-8 where the tokenizer needs it.
    """
    dtype, n_tokens, n_bytes = id_dtype(tokenizer.vocab_size), 0, 0
    sizes = path.with_name(f"{path.name}.bytes")
    with open(path, "wb") as ids_file, open(sizes, "wb") as sizes_file:
        for line in corpus.lines(split):
            if tokenizer.is_byte:
                ids = np.frombuffer(line, np.uint8).astype(np.int64) + N_SPECIALS
            else:
                ids, of_tokens = _encoded(line, _text(line, corpus, split), tokenizer)
                sizes_file.write(of_tokens.tobytes())
            ids_file.write(ids.astype(dtype).tobytes())
            n_tokens, n_bytes = n_tokens + len(ids), n_bytes + len(line)
    if tokenizer.is_byte:
        sizes.unlink()
    if not n_tokens:
        raise DataError(f"{corpus.path(split)} is empty")
    return {"tokens": n_tokens, "bytes": n_bytes}


def text_ids(text: str, tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Tokens (N,) of a non-empty text, encoded as the files of `encode`."""
    if tokenizer.is_byte:
        return np.array(tokenizer.encode([text])[0], np.int64)
    lines = io.BytesIO(text.encode())
    return np.concatenate([_encoded(line, line.decode(), tokenizer)[0] for line in lines])


def ids_text(ids: npt.NDArray[np.integer[Any]], tokenizer: Tokenizer) -> str:
    """The text of tokens (N,), without incomplete characters at its ends."""
    lines = np.split(ids, np.flatnonzero(ids == EOS) + 1)
    return "\n".join(tokenizer.decode([line.tolist() for line in lines])).strip("\ufffd")


def _encoded(
    line: bytes, text: str, tokenizer: Tokenizer
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Ids of a line and the number of bytes of each; the last has the rest of the line."""
    (pieces,) = tokenizer.encode([text.rstrip("\n")])
    ids = [*pieces, EOS] if line.endswith(b"\n") or not pieces else pieces
    spelled = (tokenizer.id_to_piece(i).replace("\u2581", " ") for i in ids[:-1])
    sizes = [len(piece.encode()) for piece in spelled]
    left = len(line)
    for i, size in enumerate(sizes):
        sizes[i] = min(size, left)
        left -= sizes[i]
    return np.array(ids, np.int64), np.array([*sizes, left], np.int32)

"""Data of density modelling as one memory-mapped stream of tokens per split, cached.

A corpus yields bytes. The byte tokenizer encodes them unchanged. Other tokenizers encode text line
by line, with eos for the line feed.
"""

from __future__ import annotations

import functools
import importlib.metadata
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headwise.config.density_data import DensityDataConfig
from headwise.config.schema import TokenizerConfig
from headwise.data.cache import make_once
from headwise.data.corpora.text import check_text
from headwise.data.digest import combined_digest
from headwise.data.store import id_dtype
from headwise.data.tokenizer import EOS, N_SPECIALS, Tokenizer, TokenizerPair
from headwise.data.tokenizer_training import (
    check_tokenizer_config,
    load_tokenizers,
    train_tokenizer,
)
from headwise.errors import DataError

FORMAT = 1  # increase when the files change
MAX_CHUNK = 2**27  # bytes; longer lines are read in parts, which only the byte tokenizer accepts
COLUMN = "tokens"  # of the batches
TOKENIZER = "tokenizer.model"


class DensityCorpus(Protocol):
    """Files that are located but not encoded yet.

    Attributes:
        config: the data config.
        cache_dir: folder of encoded data, downloads and file hashes.
    """

    @property
    def config(self) -> DensityDataConfig: ...  # noqa: D102

    @property
    def cache_dir(self) -> Path: ...  # noqa: D102

    @property
    def test_sets(self) -> list[str]:
        """Splits that are scored at the end of a run."""
        ...

    def hashes(self) -> list[str]:
        """Hashes of the training and the validation data."""
        ...

    def identity(self, split: str) -> str:
        """Hash of the content of a split."""
        ...

    def path(self, split: str) -> Path:
        """The file or folder of a split, which error messages name."""
        ...

    def chunks(self, split: str) -> Iterator[bytes]:
        """A split as bytes: lines with line feeds, one image or one piece of music at a time."""
        ...


@dataclass(frozen=True)
class TokenStream:
    """A split as tokens.

    Attributes:
        ids: (tokens,).
        n_bytes: (tokens,), whose sum is the size of the file; None: one byte each.
        starts: (documents,), positions of their first tokens; None: one document.
    """

    ids: npt.NDArray[np.integer[Any]]
    n_bytes: npt.NDArray[np.int32] | None = None
    starts: npt.NDArray[np.int64] | None = None

    @classmethod
    def open(cls, path: Path, tokenizer: Tokenizer) -> TokenStream:
        """Memory-map the tokens that `encode` wrote at `path`."""
        ids = np.memmap(path, id_dtype(tokenizer.vocab_size), mode="r")
        sizes, starts = (path.with_name(f"{path.name}.{end}") for end in ("bytes", "starts"))
        return cls(
            ids,
            np.memmap(sizes, np.int32, mode="r") if sizes.exists() else None,
            np.memmap(starts, np.int64, mode="r") if starts.exists() else None,
        )

    def first(self, n: int | None) -> TokenStream:
        """The first n tokens; None: all."""
        n_bytes = None if self.n_bytes is None else self.n_bytes[:n]
        return TokenStream(self.ids[:n], n_bytes, self.starts)

    def before(self, positions: npt.NDArray[np.int64], start_id: int) -> npt.NDArray[np.int64]:
        """The token before each position of the stream; `start_id` at the start of a document."""
        starts = np.zeros(1, np.int64) if self.starts is None else self.starts
        next_start = np.minimum(np.searchsorted(starts, positions), len(starts) - 1)
        tokens = self.ids[np.maximum(positions - 1, 0)]
        return np.where(starts[next_start] == positions, start_id, tokens.astype(np.int64))

    def bytes_of(self, first: int, end: int) -> int:
        """Number of bytes of the tokens [first, end), clipped to the end of the split."""
        if self.n_bytes is None:
            return min(end, len(self.ids)) - first
        return int(self.n_bytes[first:end].sum())


@dataclass(frozen=True)
class PreparedTokens:
    """Encoded data, ready to train on.

    Attributes:
        fingerprint: of the splits and the tokenizer.
        report: sizes, by split.
        folder: of the streams, one per split.
    """

    corpus: DensityCorpus
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


def prepare_tokens(corpus: DensityCorpus, config: TokenizerConfig) -> PreparedTokens:
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
    return PreparedTokens(corpus, tokenizer, fingerprint, report, folder)


def _prepare(
    corpus: DensityCorpus,
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
            _text(line, corpus, corpus.config.train) for line in corpus.chunks(corpus.config.train)
        )
        tokenizer = train_tokenizer(train, config)
    tokenizer.save(folder / TOKENIZER)
    return {split: encode(corpus, split, tokenizer, folder / f"{split}.ids") for split in splits}


def _text(line: bytes, corpus: DensityCorpus, split: str) -> str:
    try:
        text = line.decode()
        if len(line) == MAX_CHUNK:
            raise DataError(f"{corpus.path(split)}: a line of {MAX_CHUNK} bytes or more")
        check_text(text, str(corpus.path(split)))
        return text
    except UnicodeDecodeError as error:
        raise DataError(
            f"{corpus.path(split)} is not UTF-8; tokenizer=byte accepts any bytes"
        ) from error


def encode(corpus: DensityCorpus, split: str, tokenizer: Tokenizer, path: Path) -> dict[str, int]:
    """Write the tokens of a split to `path`, and their sizes to `<path>.bytes` unless all are 1.

    If chunks are documents, their first positions are written to `<path>.starts`.

    Raises:
        DataError: the split is empty, or not UTF-8 where the tokenizer needs it.
    """
    dtype, n_tokens, n_bytes = id_dtype(tokenizer.vocab_size), 0, 0
    sizes, starts = path.with_name(f"{path.name}.bytes"), []
    with open(path, "wb") as ids_file, open(sizes, "wb") as sizes_file:
        for line in corpus.chunks(split):
            starts.append(n_tokens)
            if tokenizer.is_byte:
                ids = np.frombuffer(line, np.uint8).astype(np.int64) + N_SPECIALS
            else:
                ids, token_bytes = _encoded(line, _text(line, corpus, split), tokenizer)
                sizes_file.write(token_bytes.tobytes())
            ids_file.write(ids.astype(dtype).tobytes())
            n_tokens, n_bytes = n_tokens + len(ids), n_bytes + len(line)
    if tokenizer.is_byte:
        sizes.unlink()
    if corpus.config.documents:
        np.array(starts, np.int64).tofile(path.with_name(f"{path.name}.starts"))
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
    n_left = len(line)
    for i, size in enumerate(sizes):
        sizes[i] = min(size, n_left)
        n_left -= sizes[i]
    return np.array(ids, np.int64), np.array([*sizes, n_left], np.int32)

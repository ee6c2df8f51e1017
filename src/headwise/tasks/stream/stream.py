"""Data of density modelling as one memory-mapped stream of tokens per split, cached.

A corpus yields bytes, which are encoded without loss, see `headwise.data.lossless`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headwise.config.schema import TokenizerConfig
from headwise.data.file_corpus import FileCorpus
from headwise.data.lossless import lossless, n_lines
from headwise.data.store import id_dtype
from headwise.data.tokenizer import N_SPECIALS, Tokenizer, TokenizerPair
from headwise.data.tokenizer_training import exact_tokenizer
from headwise.data.workers import in_order, n_cores
from headwise.errors import DataError
from headwise.progress import progress_bar
from headwise.tasks.data import Prepared, named_splits, prepare

FORMAT = 3  # increase when the files change
MAX_CHUNK = 2**16  # bytes; longer lines of text are encoded in parts
BATCH_BYTES = 2**20  # encoded at once
POOL_BATCHES = 8  # below this, starting processes takes longer than they save

Lines = tuple[int, list[bytes]]  # number of the first, and chunks


@dataclass(frozen=True)
class TokenStream:
    """A split as tokens.

    Attributes:
        ids: (tokens,).
        n_bytes: (V,), bytes that each token of the vocabulary spells; None: one byte each.
        starts: (documents,), positions of their first tokens; None: one document.
        document_mask: whether documents in a window do not attend to each other.
    """

    ids: npt.NDArray[np.integer[Any]]
    n_bytes: npt.NDArray[np.int32] | None = None
    starts: npt.NDArray[np.int64] | None = None
    document_mask: bool = False

    @classmethod
    def open(cls, path: Path, tokenizer: Tokenizer, document_mask: bool = False) -> TokenStream:
        """Memory-map the tokens that `encode` wrote at `path`."""
        ids = np.memmap(path, id_dtype(tokenizer.vocab_size), mode="r")
        starts = path.with_name(f"{path.name}.starts")
        return cls(
            ids,
            None if tokenizer.is_byte else lossless(tokenizer).n_bytes,
            np.memmap(starts, np.int64, mode="r") if starts.exists() else None,
            document_mask,
        )

    def first(self, n: int | None) -> TokenStream:
        """The first n tokens; None: all."""
        return replace(self, ids=self.ids[:n])

    @property
    def document_starts(self) -> npt.NDArray[np.int64]:
        """Positions of the first tokens of documents."""
        return np.zeros(1, np.int64) if self.starts is None else self.starts

    def before(self, positions: npt.NDArray[np.int64], start_id: int) -> npt.NDArray[np.int64]:
        """The token before each position of the stream; `start_id` at the start of a document."""
        starts = self.document_starts
        next_start = np.minimum(np.searchsorted(starts, positions), len(starts) - 1)
        tokens = self.ids[np.maximum(positions - 1, 0)]
        return np.where(starts[next_start] == positions, start_id, tokens.astype(np.int64))

    def segments(self, positions_BN: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Document of each position, from 0 in each row; None: documents are not masked."""
        if not self.document_mask:
            return None
        numbers_BN = np.searchsorted(self.document_starts, positions_BN, side="right")
        return numbers_BN - numbers_BN[:, :1]

    def bytes_of(self, first: int, end: int) -> int:
        """Number of bytes of the tokens [first, end), clipped to the end of the split."""
        if self.n_bytes is None:
            return min(end, len(self.ids)) - first
        return int(self.n_bytes[self.ids[first:end]].sum(dtype=np.int64))


class PreparedTokens(Prepared[FileCorpus]):
    """Splits as streams of tokens; the report has their sizes, by split."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Of all values."""
        assert self.tokenizers is not None
        return self.tokenizers.source

    def stream(self, split: str) -> TokenStream:
        """A split as tokens, memory-mapped."""
        mask = self.corpus.config.document_mask
        return TokenStream.open(self.folder / f"{split}.ids", self.tokenizer, mask)

    def content(self, split: str) -> Iterator[bytes]:
        """The bytes that the tokens of a split spell: a text, or the values of images or music."""
        ids, spells = self.stream(split).ids, lossless(self.tokenizer)
        for start in range(0, len(ids), BATCH_BYTES):
            part = ids[start : start + BATCH_BYTES]
            is_byte = self.tokenizer.is_byte  # as an array, which is 50 times as fast
            values = (part - N_SPECIALS).astype(np.uint8).tobytes() if is_byte else None
            yield spells.decode(part.tolist()) if values is None else values


def prepare_tokens(
    corpus: FileCorpus,
    config: TokenizerConfig,
    progress: bool = False,
    splits: Sequence[str] = (),
    n_workers: int | None = None,
) -> PreparedTokens:
    """Encode splits, or open them in the cache if files and options are unchanged.

    Args:
        corpus: of the data.
        config: the tokenizer, trained on the training split unless it is loaded.
        progress: show a bar while encoding.
        splits: names; empty for training, validation and test sets.
        n_workers: processes that encode sub-words; None: one per core.

    Raises:
        ConfigError: the options of the tokenizer are wrong or do not fit the text.
        DataError: a split is missing or empty, or a tokenizer that was loaded does not spell it.
    """
    chosen = named_splits(corpus, splits)

    def encode_all(folder: Path, tokenizers: TokenizerPair | None) -> dict[str, Any]:
        assert tokenizers is not None
        options = tokenizers.source, folder, progress, n_workers
        return {split: encode(corpus, split, *options) for split in chosen}

    train = functools.partial(exact_tokenizer, lambda: corpus.chunks(corpus.config.train))
    return prepare(PreparedTokens, corpus, config, chosen, train, encode_all, {"format": FORMAT})


def encode(
    corpus: FileCorpus,
    split: str,
    tokenizer: Tokenizer,
    folder: Path,
    progress: bool = False,
    n_workers: int | None = None,
) -> dict[str, int]:
    """Write the tokens of a split to `<split>.ids`; return their number and that of the bytes.

    The first positions of documents are written to `<split>.ids.starts`.

    Raises:
        DataError: the split is empty, or the tokenizer does not spell it.
    """
    dtype = id_dtype(tokenizer.vocab_size)
    source, before, n_tokens, n_bytes = str(corpus.path(split)), b"", 0, 0
    batches = _batches(corpus.chunks(split))
    first = list(islice(batches, POOL_BATCHES))
    if tokenizer.is_byte or len(first) < POOL_BATCHES:
        n_workers = 1
    make = functools.partial(_batch_encoder, tokenizer, source)
    with (
        open(folder / f"{split}.ids", "wb") as file,
        open(folder / f"{split}.ids.starts", "wb") as starts,
        progress_bar(f"encoding {split}", progress, unit="B") as bar,
    ):
        encoded = in_order(make, chain(first, batches), n_workers or n_cores())
        for (_, chunks), ids in encoded:
            is_start = list(map(corpus.starts_document, [before, *chunks], chunks))
            firsts = np.cumsum([0, *map(len, chunks[:-1])])[is_start]  # in bytes
            if not tokenizer.is_byte:
                ends = np.cumsum(lossless(tokenizer).n_bytes[ids])
                firsts = np.searchsorted(ends, firsts, "right")
            starts.write((n_tokens + firsts).tobytes())
            before = chunks[-1]
            file.write(ids.astype(dtype).tobytes())
            n_read = sum(map(len, chunks))
            n_tokens, n_bytes = n_tokens + len(ids), n_bytes + n_read
            bar.update(n_read)
    if not n_tokens:
        raise DataError(f"{source} is empty: the split {split!r} has no values")
    return {"tokens": n_tokens, "bytes": n_bytes}


def _batch_encoder(tokenizer: Tokenizer, source: str) -> Callable[[Lines], npt.NDArray[np.int32]]:
    return lambda batch: lossless(tokenizer).encode(batch[1], source, batch[0])


def _batches(chunks: Iterator[bytes]) -> Iterator[Lines]:
    """Chunks with at least BATCH_BYTES together, except for the last, and their first line."""
    batch: list[bytes] = []
    line, n_bytes = 1, 0
    for chunk in chunks:
        batch.append(chunk)
        n_bytes += len(chunk)
        if n_bytes >= BATCH_BYTES:
            yield line, batch
            line, batch, n_bytes = line + n_lines(batch), [], 0
    if batch:
        yield line, batch


def starts_document(
    ids: Sequence[int], position: int, corpus: FileCorpus, tokenizer: Tokenizer
) -> bool:
    """Whether the token at a position of a text starts a document, as in `encode`.

    After the last token the next line is unknown: it does if a line of any other text would.
    """
    spells = lossless(tokenizer)
    if position and not spells.spellings[ids[position - 1]].endswith(b"\n"):
        return False
    before = spells.decode(ids[:position])
    line = before[before.rfind(b"\n", 0, -1) + 1 :]
    following = spells.decode(ids[position:]) or b"text"
    return corpus.starts_document(line, following.split(b"\n")[0] + b"\n")

"""Text to piece ids and back: SentencePiece models and plain UTF-8 bytes behind one face.

Every tokenizer numbers its pieces alike: pad 0, unk 1, bos 2, eos 3, then the real pieces. One
tokenizer is one file. White space of every kind counts as one space and is trimmed at the ends;
nothing else is normalised, so that hypotheses are spelt as the references are. Japanese needs no
segmenter: SentencePiece learns its pieces from the raw characters of whole sentences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import sentencepiece

from headwise.data.bpe_dropout import DropoutSegmenter
from headwise.data.store import id_dtype
from headwise.errors import ConfigError, DataError

PAD, UNK, BOS, EOS = 0, 1, 2, 3
N_SPECIALS = 4
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")

# A SentencePiece file is a protocol buffer and begins with a newline, so this cannot be one.
BYTE_MODEL = b"headwise byte tokenizer, version 1\n"


class ByteProcessor:
    """UTF-8 bytes as pieces, 4 + byte, with the few methods of a SentencePieceProcessor we use.

    The text is taken as it is, white space included, so that any string comes back unchanged.
    """

    def get_piece_size(self) -> int:
        """Specials and bytes."""
        return N_SPECIALS + 256

    def id_to_piece(self, piece: int) -> str:
        """As SentencePiece spells the pieces of its byte fallback."""
        return SPECIALS[piece] if piece < N_SPECIALS else f"<0x{piece - N_SPECIALS:02X}>"

    def encode(self, sentences: list[str], num_threads: int = 1) -> list[list[int]]:
        """One id a byte; there is nothing that threads could speed up."""
        return [[N_SPECIALS + byte for byte in text.encode()] for text in sentences]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Bytes that are not UTF-8, which an untrained model writes, become U+FFFD."""
        rows = (bytes(i - N_SPECIALS for i in row if i >= N_SPECIALS) for row in ids)
        return [row.decode(errors="replace") for row in rows]


def _open(model_bytes: bytes) -> sentencepiece.SentencePieceProcessor | ByteProcessor:
    if model_bytes == BYTE_MODEL:
        return ByteProcessor()
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
    except RuntimeError as error:
        raise DataError("not a tokenizer model: neither SentencePiece nor bytes") from error
    found = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    if found != (PAD, UNK, BOS, EOS):
        raise DataError(
            f"a tokenizer model with foreign special ids: pad, unk, bos, eos are {found}, "
            f"this framework needs {(PAD, UNK, BOS, EOS)}; train it with tokenizer.kind=..."
        )
    return processor


class Tokenizer:
    """Encodes and decodes sentences; built from the bytes of a saved model, which it keeps.

    Raises:
        DataError: the bytes are no tokenizer model, or one with other special ids.
    """

    def __init__(self, model_bytes: bytes) -> None:
        self.model_bytes = model_bytes
        self._processor = _open(model_bytes)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read what `save` wrote; a `DataError` names the file if it is not a tokenizer."""
        try:
            return cls(Path(path).read_bytes())
        except FileNotFoundError as error:
            raise DataError(f"there is no tokenizer at {path}") from error
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the model, one file."""
        Path(path).write_bytes(self.model_bytes)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes]]:
        return Tokenizer, (self.model_bytes,)

    @property
    def vocab_size(self) -> int:
        """Pieces, the four specials included."""
        return int(self._processor.get_piece_size())

    @property
    def is_byte(self) -> bool:
        """Whether the pieces are plain bytes."""
        return isinstance(self._processor, ByteProcessor)

    def fingerprint(self) -> str:
        """Hash of the piece list; the file itself also holds paths and thread counts."""
        pieces = "\0".join(self.id_to_piece(i) for i in range(self.vocab_size))
        return hashlib.sha256(pieces.encode()).hexdigest()

    def id_to_piece(self, piece: int) -> str:
        """The spelling of one id; a leading U+2581 stands for a space."""
        self._check_range([piece])
        return str(self._processor.id_to_piece(piece))

    def labels(self, ids: Sequence[int]) -> list[str]:
        """Names of ids on an axis: their spellings, and of printable bytes the characters."""
        if not self.is_byte:
            return list(map(self.id_to_piece, ids))
        letters = {N_SPECIALS + code: chr(code) for code in range(33, 127)}
        letters[N_SPECIALS + ord(" ")] = "\u2581"
        return [letters.get(piece) or self.id_to_piece(piece) for piece in ids]

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Ids of each sentence, without bos and eos."""
        texts = list(sentences) if self.is_byte else [one_space(text) for text in sentences]
        ids: list[list[int]] = self._processor.encode(texts, num_threads=1)
        return ids

    def encode_sampled(
        self, sentences: Sequence[str], dropout: float, seed: int | Sequence[int]
    ) -> list[list[int]]:
        """Ids under BPE-dropout; the same arguments give the same ids in every process.

        Raises:
            ConfigError: the pieces are plain bytes, which have no merges to drop.
        """
        texts = [one_space(text) for text in sentences]
        return self._segmenter.encode(texts, dropout, np.random.default_rng(seed))

    @cached_property
    def _segmenter(self) -> DropoutSegmenter:
        if isinstance(self._processor, ByteProcessor):
            raise ConfigError("tokenizer.dropout needs tokenizer.kind=bpe, got byte")
        return DropoutSegmenter(self._processor)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Plain text of each row; pad, bos and eos are skipped, unk becomes " ⁇ ".

        Raises:
            IndexError: an id is outside of [0, vocab_size).
        """
        rows = [[int(i) for i in row] for row in ids]
        for row in rows:
            self._check_range(row)
        texts: list[str] = self._processor.decode(rows)
        return texts

    def pieces(self, sentence: str) -> list[str]:
        """The segmentation of one sentence as it can be read."""
        return [self.id_to_piece(i) for i in self.encode([sentence])[0]]

    def _check_range(self, row: Sequence[int]) -> None:
        if row and not (min(row) >= 0 and max(row) < self.vocab_size):
            wrong = next(i for i in row if not 0 <= i < self.vocab_size)
            raise IndexError(f"id {wrong} is outside of a vocabulary of {self.vocab_size} pieces")


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of both sides; one and the same object when `joint`."""

    source: Tokenizer
    target: Tokenizer
    joint: bool

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.model`, or one file a side when they are separate."""
        for name, tokenizer in self._files():
            tokenizer.save(Path(folder) / name)

    @classmethod
    def load(cls, folder: str | Path) -> TokenizerPair:
        """Read what `save` wrote; a `DataError` says which file is missing or damaged."""
        folder = Path(folder)
        if (folder / "tokenizer.model").exists():
            tokenizer = Tokenizer.load(folder / "tokenizer.model")
            return cls(tokenizer, tokenizer, joint=True)
        sides = [folder / f"tokenizer.{side}.model" for side in ("source", "target")]
        if not any(path.exists() for path in sides):
            raise DataError(f"no tokenizer in {folder}: expected tokenizer.model")
        source, target = (Tokenizer.load(path) for path in sides)
        return cls(source, target, joint=False)

    @property
    def id_dtype(self) -> type[np.uint16] | type[np.int32]:
        """The type in which ids of both sides are kept."""
        return id_dtype(max(self.source.vocab_size, self.target.vocab_size))

    @property
    def sizes(self) -> dict[str, int]:
        """Pieces of each side."""
        return {"source": self.source.vocab_size, "target": self.target.vocab_size}

    def fingerprint(self) -> str:
        """Hash of both piece lists."""
        both = f"{self.joint} {self.source.fingerprint()} {self.target.fingerprint()}"
        return hashlib.sha256(both.encode()).hexdigest()

    def _files(self) -> list[tuple[str, Tokenizer]]:
        if self.joint:
            return [("tokenizer.model", self.source)]
        return [
            ("tokenizer.source.model", self.source),
            ("tokenizer.target.model", self.target),
        ]


def one_space(text: str) -> str:
    """`text` with every run of Unicode white space as one space, none at the ends."""
    return " ".join(text.split())

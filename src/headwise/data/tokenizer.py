"""Text to token ids and back: SentencePiece models and UTF-8 bytes with one interface.

Every tokenizer has the ids pad 0, unk 1, bos 2, eos 3, then the other tokens. A tokenizer is one
file. Runs of white space become one space and are stripped at the ends; nothing else is
normalised, so that hypotheses are spelled like the references. Japanese needs no segmenter:
SentencePiece learns its tokens from the raw characters of whole sentences.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from headwise.config.fields import check_bounds
from headwise.config.schema import TokenizerConfig
from headwise.data.bpe_dropout import DropoutSegmenter
from headwise.data.store import id_dtype
from headwise.errors import ConfigError, DataError, refuse, require
from headwise.files import replacing

PAD, UNK, BOS, EOS = 0, 1, 2, 3
MASK = UNK  # of masked language models: an id that lossless text never contains
N_SPECIALS = 4
NO_TEXT = (PAD, UNK, BOS)  # ids that a search never chooses
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
COLUMN = "tokens"  # of the batches of a task with one tokenizer
TOKENIZER = "tokenizer.model"  # its file in a run folder
SIDES = ("tokenizer.source.model", "tokenizer.target.model")  # those of a pair

# Cannot be a SentencePiece file: those are protocol buffers, which begin with a newline.
BYTE_MODEL = b"headwise byte tokenizer, version 1\n"


class ByteProcessor:
    """UTF-8 bytes as tokens, 4 + byte, with the used methods of a SentencePieceProcessor.

    Text is encoded unchanged, white space included, so that decoding returns the same string.
    """

    def get_piece_size(self) -> int:
        """Number of specials and bytes."""
        return N_SPECIALS + 256

    def id_to_piece(self, piece: int) -> str:
        """The spelling of a token, as in the byte fallback of SentencePiece."""
        return SPECIALS[piece] if piece < N_SPECIALS else f"<0x{piece - N_SPECIALS:02X}>"

    def encode(self, sentences: list[str], num_threads: int = 1) -> list[list[int]]:
        """One id per byte; `num_threads` is ignored."""
        return [[N_SPECIALS + byte for byte in text.encode()] for text in sentences]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Text of each row; bytes that are not UTF-8 become U+FFFD."""
        rows = (bytes(i - N_SPECIALS for i in row if i >= N_SPECIALS) for row in ids)
        return [row.decode(errors="replace") for row in rows]


def _open(model_bytes: bytes) -> sentencepiece.SentencePieceProcessor | ByteProcessor:
    if model_bytes == BYTE_MODEL:
        return ByteProcessor()
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
    except RuntimeError as error:
        raise DataError("not a tokenizer model: neither SentencePiece nor bytes") from error
    ids = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
    if ids != (PAD, UNK, BOS, EOS):
        raise DataError(
            f"special ids of a tokenizer model must be {(PAD, UNK, BOS, EOS)} (pad, unk, bos, "
            f"eos), got {ids}; train a tokenizer with tokenizer.kind=..."
        )
    return processor


class Tokenizer:
    """Encodes and decodes sentences; built from the bytes of a saved model.

    Raises:
        DataError: the bytes are not a tokenizer model, or its special ids differ.
    """

    def __init__(self, model_bytes: bytes) -> None:
        self.model_bytes = model_bytes
        self._processor = _open(model_bytes)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer written by `save`.

        Raises:
            DataError: the file is missing or not a tokenizer.
        """
        try:
            return cls(Path(path).read_bytes())
        except FileNotFoundError as error:
            raise DataError(f"there is no tokenizer at {path}") from error
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the model to one file."""
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(self.model_bytes)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes]]:
        return Tokenizer, (self.model_bytes,)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, the four specials included."""
        return int(self._processor.get_piece_size())

    @property
    def is_byte(self) -> bool:
        """Whether the tokens are plain bytes."""
        return isinstance(self._processor, ByteProcessor)

    @property
    def barred_ids(self) -> tuple[int, ...]:
        """Ids that are no text: pad, unk and bos; of bytes all specials."""
        return tuple(range(N_SPECIALS)) if self.is_byte else NO_TEXT

    def fingerprint(self) -> str:
        """Hash of the list of tokens; the file also contains paths and thread counts."""
        pieces = "\0".join(self.id_to_piece(i) for i in range(self.vocab_size))
        return hashlib.sha256(pieces.encode()).hexdigest()

    def id_to_piece(self, piece: int) -> str:
        """The spelling of one id; a leading U+2581 is a space."""
        return str(self._processor.id_to_piece(piece))

    def labels(self, ids: Sequence[int]) -> list[str]:
        """Axis labels of ids: their spellings; for printable bytes the characters."""
        if not self.is_byte:
            return list(map(self.id_to_piece, ids))
        letters = {N_SPECIALS + code: chr(code) for code in range(33, 127)}
        letters[N_SPECIALS + ord(" ")] = "\u2581"
        return [letters.get(piece) or self.id_to_piece(piece) for piece in ids]

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Ids of each sentence, without bos and eos."""
        return self.encode_unchanged(sentences if self.is_byte else list(map(one_space, sentences)))

    def encode_unchanged(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text with its white space, without bos and eos."""
        ids: list[list[int]] = self._processor.encode(list(texts), num_threads=1)
        return ids

    def encode_sampled(
        self, sentences: Sequence[str], dropout: float, seed: int | Sequence[int]
    ) -> list[list[int]]:
        """Ids under BPE-dropout; the same arguments give the same ids in every process.

        Raises:
            ConfigError: the tokens are plain bytes, which have no merges to drop.
        """
        texts = [one_space(text) for text in sentences]
        return self._segmenter.encode(texts, dropout, np.random.default_rng(seed))

    @cached_property
    def _segmenter(self) -> DropoutSegmenter:
        if isinstance(self._processor, ByteProcessor):
            raise ConfigError("tokenizer.dropout needs tokenizer.kind=bpe, got byte")
        return DropoutSegmenter(self._processor)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Plain text of each row; pad, bos and eos are skipped, unk becomes " ⁇ "."""
        texts: list[str] = self._processor.decode([[int(i) for i in row] for row in ids])
        return texts


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of both sides; the same object if `joint`."""

    source: Tokenizer
    target: Tokenizer
    joint: bool

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.model`, or one file per side if they are separate."""
        names = [TOKENIZER] if self.joint else SIDES
        for name, tokenizer in zip(names, (self.source, self.target), strict=False):
            tokenizer.save(Path(folder) / name)

    @classmethod
    def load(cls, folder: str | Path) -> TokenizerPair:
        """Read the files written by `save`; a `DataError` names the missing or damaged one."""
        folder = Path(folder)
        if (folder / TOKENIZER).exists():
            tokenizer = Tokenizer.load(folder / TOKENIZER)
            return cls(tokenizer, tokenizer, joint=True)
        sides = [folder / name for name in SIDES]
        if not any(path.exists() for path in sides):
            raise DataError(f"no tokenizer in {folder}: expected tokenizer.model")
        source, target = (Tokenizer.load(path) for path in sides)
        return cls(source, target, joint=False)

    @property
    def id_dtype(self) -> type[np.uint16] | type[np.int32]:
        """The dtype of stored ids of both sides."""
        return id_dtype(max(self.source.vocab_size, self.target.vocab_size))

    @property
    def sizes(self) -> dict[str, int]:
        """Vocabulary size of each side."""
        return {"source": self.source.vocab_size, "target": self.target.vocab_size}

    def content(self) -> str:
        """Hash of both models: the same tokens with other scores encode a text otherwise."""
        return hashlib.sha256(self.source.model_bytes + self.target.model_bytes).hexdigest()

    def fingerprint(self) -> str:
        """Hash of both lists of tokens."""
        both = f"{self.joint} {self.source.fingerprint()} {self.target.fingerprint()}"
        return hashlib.sha256(both.encode()).hexdigest()


def one_space(text: str) -> str:
    """Replace each run of Unicode white space by one space and strip the ends."""
    return " ".join(text.split())


# -- tokenizer=, before there is text ------------------------------------------------------------

KINDS = ("bpe", "unigram", "char", "byte", "given")


def check_tokenizer_config(config: TokenizerConfig) -> None:
    """Reject values that are invalid for every text; reads no data.

    Raises:
        ConfigError: names the key, the value and the allowed values.
    """
    check_bounds(config, "tokenizer.")
    if config.kind not in KINDS:
        raise refuse("tokenizer.kind", config.kind, KINDS)
    if (config.kind == "given") != (config.folder is not None):
        raise ConfigError(
            "tokenizer=given and tokenizer.folder=RUN must be set together, got "
            f"tokenizer.kind={config.kind} and tokenizer.folder={config.folder}"
        )
    minimum = N_SPECIALS + 256 if config.kind == "byte" or config.byte_fallback else N_SPECIALS + 1
    require(
        config.vocab_size >= minimum,
        "tokenizer.vocab_size",
        f"at minimum {minimum} for tokenizer.kind={config.kind}",
        config.vocab_size,
    )
    require(
        config.dropout == 0 or config.kind == "bpe",
        "tokenizer.dropout",
        f"0 for tokenizer.kind={config.kind} (only bpe has merges to drop)",
        config.dropout,
    )


def load_tokenizers(config: TokenizerConfig) -> TokenizerPair | None:
    """The tokenizers of `config.folder`; None if it is not set.

    Raises:
        ConfigError: they cannot be loaded, or `config.joint` differs from theirs.
    """
    if config.folder is None:
        return None
    try:
        tokenizers = TokenizerPair.load(config.folder)
    except DataError as error:
        raise ConfigError(f"tokenizer.folder={config.folder}: {error}") from error
    allowed = f"{str(tokenizers.joint).lower()}, as for the tokenizer in {config.folder}"
    require(config.joint == tokenizers.joint, "tokenizer.joint", allowed, config.joint)
    return tokenizers


def tokenizer_identity(config: TokenizerConfig) -> dict[str, Any]:
    """What the tokens of a text depend on, besides the text."""
    loaded = load_tokenizers(config)
    # of the folder its content; dropout is used only to sample an epoch
    options = asdict(config) | {"folder": loaded and loaded.content(), "dropout": 0.0}
    return {"sentencepiece": importlib.metadata.version("sentencepiece"), "tokenizer": options}


def vocabulary_limits(config: TokenizerConfig) -> dict[str, int]:
    """Vocabulary size of each side; for kind=char an upper limit, since it depends on the text."""
    tokenizers = load_tokenizers(config)
    if tokenizers is not None:
        return tokenizers.sizes
    n_tokens = N_SPECIALS + 256 if config.kind == "byte" else config.vocab_size
    return {"source": n_tokens, "target": n_tokens}

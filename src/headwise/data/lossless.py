"""Bytes to tokens and back without loss, for density modelling.

Bits per byte are those of a code only if the tokens spell every byte. A SentencePiece model
encodes the text of a line as it is; eos is the line feed. Bytes that are not UTF-8, and U+2581,
with which these models write a space, become byte tokens.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headwise.data.tokenizer import EOS, N_SPECIALS, UNK, Tokenizer
from headwise.errors import DataError

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
# in text decoded with surrogateescape; the group makes `split` return it
ONLY_BYTES = re.compile("([\u2581\udc80-\udcff]+)")


class LosslessTokenizer:
    """A tokenizer with the bytes that each token spells.

    Attributes:
        spellings: bytes of each id; empty for specials except eos.
        n_bytes: (V,), their lengths.
        byte_ids: byte -> id of its token, where there is one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.spellings = [_spelling(i, tokenizer) for i in range(tokenizer.vocab_size)]
        self.n_bytes = np.array(list(map(len, self.spellings)), np.int32)
        names = map(tokenizer.id_to_piece, range(tokenizer.vocab_size))
        matches = enumerate(map(BYTE_TOKEN.fullmatch, names))
        self.byte_ids = {int(match[1], 16): i for i, match in matches if match}

    def encode(
        self, lines: Sequence[bytes], source: str = "the text", first_line: int = 1
    ) -> npt.NDArray[np.int32]:
        """Return the ids of lines with their line feeds, or of parts of lines, concatenated.

        Args:
            lines: of a text; of other data any bytes, with the byte tokenizer.
            source: name of the text in messages.
            first_line: number of the first line in `source`.

        Raises:
            DataError: the tokens of a line do not spell it.
        """
        if self.tokenizer.is_byte:
            return np.frombuffer(b"".join(lines), np.uint8).astype(np.int32) + N_SPECIALS
        rows = self._rows([line.decode(errors="surrogateescape") for line in lines])
        for number, (line, row) in enumerate(zip(lines, rows, strict=True)):
            if self.decode(row) != line:
                line_number = first_line + n_lines(lines[:number])
                raise DataError(
                    f"{source}, line {line_number}: the tokenizer does not encode {line[:80]!r} "
                    "without loss; use tokenizer=byte, or train one with tokenizer=bpe"
                )
        return np.array([i for row in rows for i in row], np.int32)

    def decode(self, ids: Sequence[int]) -> bytes:
        """Return the bytes that tokens spell."""
        return b"".join(map(self.spellings.__getitem__, ids))

    def _rows(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line; a byte without a token becomes unk, which spells nothing."""
        split = [ONLY_BYTES.split(line.removesuffix("\n")) for line in lines]  # text, bytes, text …
        texts = [text for parts in split for text in parts[::2]]
        encoded = iter(self.tokenizer.encode_unchanged(texts))
        rows = []
        for line, parts in zip(lines, split, strict=True):
            row = next(encoded)
            for part in parts[1::2]:
                row += [self.byte_ids.get(b, UNK) for b in part.encode(errors="surrogateescape")]
                row += next(encoded)
            rows.append([*row, EOS] if line.endswith("\n") else row)
        return rows


@functools.lru_cache(maxsize=8)
def lossless(tokenizer: Tokenizer) -> LosslessTokenizer:
    """The lossless form of a tokenizer, made once, as that takes longer than its use."""
    return LosslessTokenizer(tokenizer)


def n_lines(parts: Sequence[bytes]) -> int:
    """Number of parts that end a line."""
    return sum(part.endswith(b"\n") for part in parts)


def _spelling(token: int, tokenizer: Tokenizer) -> bytes:
    """The bytes of a token."""
    if token < N_SPECIALS:
        return b"\n" if token == EOS and not tokenizer.is_byte else b""
    name = tokenizer.id_to_piece(token)
    match = BYTE_TOKEN.fullmatch(name)
    return bytes.fromhex(match[1]) if match else name.replace("\u2581", " ").encode()


def text_ids(text: str, tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """Tokens (N,) of a text, encoded as the files of `encode`."""
    return content_ids(text.encode(), tokenizer)


def content_ids(content: bytes, tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """Tokens (N,) of the bytes of text, images or music, encoded as the files of `encode`."""
    return lossless(tokenizer).encode(list(io.BytesIO(content)))


def ids_text(ids: npt.NDArray[np.integer[Any]], tokenizer: Tokenizer) -> str:
    """The text of tokens (N,), without incomplete characters at its ends."""
    text = lossless(tokenizer).decode(ids.tolist()).decode(errors="replace")
    return text.strip("\ufffd")

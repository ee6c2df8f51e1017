"""A text as a stream of tokens that covers every byte of the file."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.config.density_data import TextDataConfig
from headwise.config.schema import TokenizerConfig
from headwise.data.plain_text import TextCorpus
from headwise.data.token_stream import PreparedTokens, prepare_tokens
from headwise.data.tokenizer import EOS, N_SPECIALS
from headwise.errors import DataError

TEXT = "Der  Hund sieht\tdas Haus.\n\nDie Häuser 犬が好き\r\nund kein Ende"
SPLITS = ("train", "valid", "test")


def prepared(folder: Path, text: bytes, **options: Any) -> PreparedTokens:
    (folder / "text").mkdir(parents=True)
    for split in SPLITS:
        (folder / "text" / f"{split}.txt").write_bytes(text)
    config = TextDataConfig(name="mine", dir=str(folder / "text"), licence="own")
    corpus = TextCorpus(config, folder / "cache")
    return prepare_tokens(corpus, TokenizerConfig(**{"kind": "byte", **options}))


def test_byte_ids_equal_the_bytes(tmp_path: Path) -> None:
    text = bytes(range(256)) + TEXT.encode()
    text_data = prepared(tmp_path, text)
    stream = text_data.stream("valid")
    assert bytes((stream.ids - N_SPECIALS).astype(np.uint8)) == text
    assert stream.bytes_of(0, len(stream.ids)) == len(text) == text_data.report["valid"]["bytes"]


@pytest.mark.parametrize("options", [{"kind": "char"}, {"kind": "bpe", "vocab_size": 60}])
def test_bytes_of_tokens_add_up_to_the_file(tmp_path: Path, options: dict[str, Any]) -> None:
    text_data = prepared(tmp_path, (TEXT * 5).encode(), **options)
    stream = text_data.stream("test")
    assert (np.asarray(stream.n_bytes) >= 0).all()
    assert stream.bytes_of(0, len(stream.ids)) == len((TEXT * 5).encode())
    lines = (TEXT * 5).split("\n")
    assert (np.asarray(stream.ids) == EOS).sum() == len(lines) - 1  # the last has no end
    assert text_data.tokenizer.decode([stream.ids.tolist()])[0].startswith(
        "Der Hund sieht das Haus."
    )


def test_gzip_is_read_and_fingerprint_depends_on_content(tmp_path: Path) -> None:
    first = prepared(tmp_path / "a", TEXT.encode())
    folder = Path(str(first.corpus.config.dir))
    path = folder / "valid.txt"
    with gzip.open(folder / "valid.txt.gz", "wb") as stream:
        stream.write(path.read_bytes())
    path.unlink()
    packed = prepare_tokens(first.corpus, TokenizerConfig(kind="byte"))
    assert np.array_equal(packed.stream("valid").ids, first.stream("valid").ids)
    (folder / "train.txt").write_text("anders\n", encoding="utf-8")
    changed = prepare_tokens(first.corpus, TokenizerConfig(kind="byte"))
    assert changed.fingerprint != packed.fingerprint


def test_unreadable_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not UTF-8; tokenizer=byte accepts any bytes"):
        prepared(tmp_path / "a", b"\xff\xfe" * 10, kind="char")
    with pytest.raises(DataError, match="is empty"):
        prepared(tmp_path / "b", b"")
    config = TextDataConfig(name="mine", licence="own")
    with pytest.raises(DataError, match="=FOLDER"):
        TextCorpus(config, tmp_path).path("train")
    config.dir = str(tmp_path)
    with pytest.raises(DataError, match=r"train\.txt or train\.txt\.gz not found in"):
        TextCorpus(config, tmp_path).path("train")

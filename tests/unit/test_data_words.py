"""Encoding word by word gives the ids of whole sentences, where it is used."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
import sentencepiece

from headwise.config.schema import TokenizerConfig
from headwise.data.tokenizer import Tokenizer
from headwise.data.tokenizer_training import train_tokenizer
from headwise.tasks.translation import encoding


def drawn_text(n_sentences: int) -> list[str]:
    draw = random.Random(1)
    words = ["".join(draw.choices("abdeilnorstuÄß", k=draw.randint(1, 7))) for _ in range(400)]
    return [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(n_sentences)]


@pytest.mark.parametrize(
    ("changes", "by_word"),
    [
        ({}, True),
        ({"byte_fallback": True, "vocab_size": 500}, True),
        ({"character_coverage": 0.98}, True),
        ({"kind": "unigram", "vocab_size": 60}, False),
        ({"kind": "char"}, False),
        ({"kind": "byte", "vocab_size": 260}, False),
    ],
)
def test_encoding_by_word_equals_whole_sentences(
    changes: dict[str, Any], by_word: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = drawn_text(1200)
    config = TokenizerConfig(**{"vocab_size": 150, **changes})
    tokenizer = train_tokenizer(iter(text), config)
    assert encoding.merges_within_words(tokenizer) == by_word
    monkeypatch.setattr(
        encoding, "MAX_CACHED_WORDS", 250
    )  # the cache of words is cleared and filled again
    encoder = encoding.WordEncoder(tokenizer, np.uint16)
    odd = ["", "  ", " ab\u3000 \tcd ", "\u6f22\u5b57 ab\u6f22", "a\x00b", "\U0001f600"]
    marked = ["a\u2581 b", "\u2581", "a \u2581 b", "ab\u2581\u2581"]
    for start in range(0, len(text), 100):
        for sentences in (text[start : start + 100], odd, text[start : start + 3] + marked):
            flat, lengths = encoder.encode(sentences)
            expected = tokenizer.encode(sentences)
            assert lengths.tolist() == [len(ids) for ids in expected]
            assert flat.tolist() == [token_id for ids in expected for token_id in ids]


@pytest.mark.parametrize("choice", [{"split_by_whitespace": False}, {"add_dummy_prefix": False}])
def test_models_with_merges_across_words_use_whole_sentences(choice: dict[str, bool]) -> None:
    text = [f"{a} of the {b}" for a in "abcdefg" for b in "hijklmn"] * 3
    model = io.BytesIO()
    specials = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    options = {"model_type": "bpe", "vocab_size": 30, "minloglevel": 2, **specials, **choice}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        normalization_rule_name="identity",
        **options,
    )
    tokenizer = Tokenizer(model.getvalue())
    assert not encoding.merges_within_words(tokenizer)
    flat, _ = encoding.WordEncoder(tokenizer, np.uint16).encode(text[:5])
    assert flat.tolist() == [token_id for ids in tokenizer.encode(text[:5]) for token_id in ids]

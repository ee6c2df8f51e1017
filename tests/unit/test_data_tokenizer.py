"""Tokenizers: lossless, trained deterministically, and with checked settings."""

import io
import pickle
import random
import re

import numpy as np
import pytest
import sentencepiece

from headwise.config.schema import TokenizerConfig
from headwise.data.store import id_dtype
from headwise.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, TokenizerPair
from headwise.data.tokenizer_training import train_tokenizer
from headwise.errors import ConfigError, DataError

SYLLABLES = ["ba", "ne", "li", "so", "ru", "schä", "ing", "keit", "über", "t", "en"]
JAPANESE = [
    "私は学生です。", "京都の寺院は古い。", "彼は寺に行った。", "これは本です。", "古い本を読む。",
]  # fmt: skip


def german(n_sentences, seed=0):
    draw = random.Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(150)]
    return [" ".join(draw.choices(words, k=draw.randint(2, 12))) + "." for _ in range(n_sentences)]


TEXT = german(300) + JAPANESE * 3
SIZES = {"bpe": 200, "unigram": 120, "char": 1000, "byte": 260}


def config(kind, **options):
    return TokenizerConfig(**{"kind": kind, "vocab_size": SIZES[kind], **options})


@pytest.fixture(scope="module")
def trained():
    return {kind: train_tokenizer(iter(TEXT), config(kind)) for kind in SIZES}


@pytest.fixture(params=SIZES)
def kind(request):
    return str(request.param)


@pytest.fixture
def tokenizer(trained, kind):
    return trained[kind]


def test_decoding_restores_the_text_and_skips_specials(tokenizer):
    rows = tokenizer.encode(TEXT)
    assert tokenizer.decode([[BOS, *ids, EOS, PAD, PAD] for ids in rows]) == TEXT


def test_text_never_gives_special_ids(tokenizer):
    ids = tokenizer.encode(["<pad> <s> </s> <unk>", *TEXT])
    assert not {PAD, BOS, EOS} & {i for row in ids for i in row}


def test_pickle_restores_the_tokenizer(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.model_bytes == tokenizer.model_bytes
    assert again.encode(TEXT) == tokenizer.encode(TEXT)


def test_training_is_deterministic(tokenizer, kind):
    assert train_tokenizer(iter(TEXT), config(kind)).fingerprint() == tokenizer.fingerprint()


def test_byte_tokenizer_restores_any_string(trained):
    wild = ["", "  two  spaces ", "\t\n\r\0\u2028", "▁", "ﬁ𝄞🙂", "\ufeff\u3000私", "é e\u0301"]
    byte = trained["byte"]
    assert byte.decode(byte.encode(wild)) == wild
    assert byte.vocab_size == 260
    assert byte.decode([[4 + 0xE3, 4 + 0x41]]) == ["\ufffdA"]


def test_byte_fallback_spells_unknown_characters():
    plain = train_tokenizer(iter(TEXT), config("bpe"))
    spelling = train_tokenizer(iter(TEXT), config("bpe", vocab_size=500, byte_fallback=True))
    assert UNK in plain.encode(["ba 猫"])[0]
    assert spelling.decode(spelling.encode(["ba 猫🙂"])) == ["ba 猫🙂"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_unreachable_vocabulary_names_both_numbers(kind):
    with pytest.raises(ConfigError) as caught:
        train_tokenizer(iter(TEXT), config(kind, vocab_size=50_000))
    message = str(caught.value)
    assert "tokenizer.vocab_size=50000" in message
    supported = int(message.split("at most ")[1].split()[0])
    assert f"tokenizer.vocab_size={supported}" in message
    # The advised size works, and one more does not.
    reached = train_tokenizer(iter(TEXT), config(kind, vocab_size=supported))
    assert reached.vocab_size == supported
    with pytest.raises(ConfigError):
        train_tokenizer(iter(TEXT), config(kind, vocab_size=supported + 1))


def test_vocabulary_smaller_than_the_alphabet_is_explained():
    with pytest.raises(ConfigError, match=r"vocab_size=20 is too small.*character_coverage"):
        train_tokenizer(iter(TEXT), config("bpe", vocab_size=20))


SUBWORD = ["bpe", "unigram", "char"]
LEFT_OUT = {
    "long": "qxz " * 1500,
    "longer": "qxz" * 6000,  # without a space
    "block": "q\u2585xz",
    "marks": "q</s>xz<s> <unk> <pad> <0x41>",
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", SUBWORD)
@pytest.mark.parametrize("name", LEFT_OUT)
def test_no_line_is_left_out(name, kind, exact, caplog):
    """Its characters have tokens, and text that looks like a special token is text."""
    line, settings = LEFT_OUT[name], config(kind, vocab_size=400 if exact else SIZES[kind])
    tokenizer = train_tokenizer(iter([*TEXT, *[line] * 9]), settings, exact=exact)
    text = line.replace("\u2585", "").strip()
    spelt = [tokenizer.id_to_piece(i) for i in tokenizer.encode_unchanged([text])[0]]
    assert not [piece for piece in spelt if re.fullmatch("<(unk|0x..)>", piece)]
    assert tokenizer.decode(tokenizer.encode([text])) == [text]
    cut = [record.message for record in caplog.records if "are cut" in record.message]
    expected = ["9 lines of more than 16384 characters are cut to train the tokenizer"]
    assert cut == (expected if name == "longer" else [])


@pytest.mark.parametrize("line", [LEFT_OUT["longer"], "q\u2585xz"])
@pytest.mark.parametrize("kind", SUBWORD)
def test_text_of_such_lines_alone_trains_a_tokenizer(kind, line):
    tokenizer = train_tokenizer(iter([line]), config(kind, vocab_size=8))
    assert UNK not in tokenizer.encode(["qxz"])[0]


@pytest.mark.parametrize(("size", "exact"), [(40, True), (290, True), (20, False)])
def test_characters_above_the_vocabulary_are_refused(size, exact):
    message = r"tokenizer\.vocab_size=(\d+) or more, or lower tokenizer\.character_coverage=1"
    with pytest.raises(ConfigError, match=message) as caught:
        train_tokenizer(iter(TEXT), config("char", vocab_size=size), exact)
    needed = int(re.search(message, str(caught.value))[1])
    reached = train_tokenizer(iter(TEXT), config("char", vocab_size=needed), exact)
    assert reached.vocab_size == needed


def test_empty_text_is_refused():
    with pytest.raises(DataError):
        train_tokenizer(iter([]), config("bpe"))


@pytest.mark.parametrize("joint", [True, False])
def test_pair_saves_and_loads(trained, tmp_path, joint):
    source = trained["bpe"]
    pair = TokenizerPair(source, source if joint else trained["char"], joint)
    pair.save(tmp_path)
    again = TokenizerPair.load(tmp_path)
    assert again.joint == joint
    assert (again.source is again.target) == joint
    assert again.fingerprint() == pair.fingerprint()
    assert again.target.encode(TEXT) == pair.target.encode(TEXT)
    assert len(list(tmp_path.iterdir())) == (1 if joint else 2)


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(DataError, match="no tokenizer"):
        TokenizerPair.load(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"tokenizer\.model"):
        TokenizerPair.load(tmp_path)
    (tmp_path / "tokenizer.model").rename(tmp_path / "tokenizer.source.model")
    with pytest.raises(DataError, match=r"tokenizer\.source\.model"):
        TokenizerPair.load(tmp_path)


def test_models_with_other_special_ids_are_refused(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=model, vocab_size=100, minloglevel=2
    )
    with pytest.raises(DataError, match=r"special ids.*must be .*got \(-1, 0, 1, 2\)"):
        Tokenizer(model.getvalue())
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    with pytest.raises(DataError, match=r"tokenizer\.model: special ids"):
        TokenizerPair.load(tmp_path)


def test_ids_fit_the_vocabulary():
    assert [id_dtype(n) for n in (1, 2**16, 2**16 + 1)] == [np.uint16, np.uint16, np.int32]


def test_fingerprint_of_a_pair_depends_on_both_sides(trained):
    kinds = [trained["bpe"], trained["unigram"], trained["char"]]
    pairs = [TokenizerPair(source, target, False) for source in kinds for target in kinds]
    pairs += [TokenizerPair(tokenizer, tokenizer, True) for tokenizer in kinds]
    assert len({pair.fingerprint() for pair in pairs}) == len(pairs)


class TestBpeDropout:
    @pytest.mark.parametrize("fallback", [False, True])
    def test_without_dropout_equals_sentencepiece(self, fallback):
        settings = config("bpe", vocab_size=500, byte_fallback=fallback)
        tokenizer = train_tokenizer(iter(TEXT), settings)
        text = [*german(300, seed=1), *JAPANESE, " ", "猫猫 ba猫", "🙂", "</s> ba", *TEXT[:50], ""]
        assert tokenizer.encode_sampled(text, 0.0, 1) == tokenizer.encode(text)

    def test_without_merges_words_are_characters(self):
        letters = train_tokenizer(iter(["abc"] * 9), config("bpe", vocab_size=8))
        assert letters.encode_sampled(["abc", "c"], 0.5, 1) == letters.encode(["abc", "c"])

    @pytest.mark.parametrize("space", ["\u3000", "\t", " \u00a0\t "])
    def test_whitespace_is_one_space(self, trained, space):
        bpe, plain = trained["bpe"], ["ba ne", "li so ru"]
        spaced = [space + space.join(text.split()) + space for text in plain]
        assert bpe.encode_sampled(spaced, 0.0, 1) == bpe.encode(plain)
        assert bpe.encode_sampled(spaced, 0.5, 1) == bpe.encode_sampled(plain, 0.5, 1)

    def test_samples_decode_to_the_text_with_more_tokens(self, trained):
        bpe = trained["bpe"]
        plain, sampled = bpe.encode(TEXT), bpe.encode_sampled(TEXT, 0.1, 1)
        assert bpe.decode(sampled) == TEXT
        assert sum(map(len, plain)) < sum(map(len, sampled)) < 2 * sum(map(len, plain))

    def test_later_merges_are_dropped_with_the_same_probability(self):
        bpe = train_tokenizer(iter(["abc"] * 9), config("bpe", vocab_size=10))
        assert bpe.labels(bpe.encode(["abc"])[0]) == ["▁", "abc"]  # only by way of ab
        rows = bpe.encode_sampled(["abc"] * 4000, 0.5, 3)
        for n_pieces, share in ((2, 0.25), (3, 0.25), (4, 0.5)):
            measured_share = sum(len(row) == n_pieces for row in rows) / 4000
            assert measured_share == pytest.approx(share, abs=0.03)

    def test_seed_determines_the_samples(self, trained):
        bpe = trained["bpe"]
        first = bpe.encode_sampled(TEXT[:20], 0.3, [1, 2, 3])
        assert bpe.encode_sampled(TEXT[:20], 0.3, [1, 2, 3]) == first
        assert bpe.encode_sampled(TEXT[:20], 0.3, [1, 2, 4]) != first

"""Sentence pairs as text and as ids: cleaning, conversion, tokenizers, and BPE-dropout."""

import dataclasses
import os
import random
import shutil

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

from fake_corpora import corpus, options, pairs_of, prepare
from headwise.config.data import CleaningConfig
from headwise.config.schema import TokenizerConfig
from headwise.data.loader import DEPTH
from headwise.data.tokenizer import UNK, Tokenizer, TokenizerPair
from headwise.data.tokenizer_training import train_tokenizer, train_tokenizer_pair
from headwise.data.workers import run_in_process
from headwise.errors import ConfigError, DataError, HeadwiseError
from headwise.tasks.translation.cleaning import Cleaner, CleaningReport, Normaliser
from headwise.tasks.translation.corpus import ParallelText, write_pairs
from headwise.tasks.translation.encoding import EncodingJob, ShardEncoder, write_encoded
from headwise.tasks.translation.prepare import EpochSplits
from small_blocks import small_blocks, small_pools

__all__ = ["small_blocks", "small_pools"]  # fixtures
ODD = ["", "a\u2028b\u0085c\rd", "ends so\r", "\ufeffmark", " kept ", "寺院 🙂", "last"]


def cleaned(pairs, **rules):
    report = CleaningReport()
    return list(Cleaner(CleaningConfig(**rules), "en")(iter(pairs), report)), report


@pytest.mark.parametrize(
    ("rules", "accepted", "dropped", "rule"),
    [
        ({}, ("x", "y"), (" \u3000", "y"), "empty"),
        ({"max_words": 3}, ("a b c", "a"), ("a b c d", "a"), "max_words"),
        ({"max_words": 3}, ("a", "a b c"), ("a", "a b c d"), "max_words"),
        ({"max_source_characters": 3}, ("abc", "abcd"), ("abcd", "a"), "max_source_characters"),
        ({"max_target_characters": 3}, ("abcd", "abc"), ("a", "abcd"), "max_target_characters"),
        ({"max_ratio": 1.5}, ("a b c", "a b"), ("a b", "a b c d"), "max_ratio"),
        ({"max_ratio": 2.0}, ("a", "a b"), ("a b c", "a"), "max_ratio"),
        ({"max_ratio": 1.0}, ("a b", "c d"), ("a b", "c"), "max_ratio"),
        ({"max_target_moses_tokens": 3}, ("x", "Yes, no"), ("x", "Yes, no."), None),
    ],
)
def test_each_rule_at_its_limit(rules, accepted, dropped, rule):
    pairs, report = cleaned([accepted, dropped], **rules)
    assert pairs == [accepted]
    assert report.as_dict() == {
        "read": 2,
        "kept": 1,
        "dropped": {rule or "max_target_moses_tokens": 1},
        "truncated": False,
    }


def test_moses_bounds_agree_with_the_tokeniser():
    words = ["don't", "U.S.", "(寺院)", "...", "3,000.5", "naïve", "x_y", "A.B.", "\x01", "well-",
              '"no"', "e.g.", "it's,", "word", "他", "—", "a/b", "#1", "`s", "Mr."]  # fmt: skip
    generator = random.Random(1)
    for _ in range(600):
        sentence = " ".join(generator.choices(words, k=generator.randint(1, 14)))
        limit = generator.randint(1, 20)
        cleaner = Cleaner(CleaningConfig(max_target_moses_tokens=limit), "en")
        is_dropped = cleaner.dropped_by("x", sentence) is not None
        assert is_dropped == (cleaner.n_tokens(sentence) > limit), (limit, sentence)


def test_romanian_letters_change_on_the_romanian_side_only():
    cedilla, comma = "Şi ţara ŢĂRII aşa", "Și țara ȚĂRII așa"
    forward = Normaliser(["romanian_comma_below"], "ron_Latn", "eng_Latn")
    backward = Normaliser(["romanian_comma_below"], "en", "ro")
    assert (forward.source(cedilla), forward.target(cedilla)) == (comma, cedilla)
    assert (backward.source(cedilla), backward.target(cedilla)) == (cedilla, comma)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("n", [1, 5])
def test_lines_equal_sentences(tmp_path, n):
    """In one chunk and in several."""
    pairs = list(zip(ODD * n, reversed(ODD * n), strict=True))
    paths = tmp_path / "a.de", tmp_path / "a.en"
    assert write_pairs(iter(pairs), paths) == len(pairs)
    text = ParallelText(paths, {})
    assert list(text) == pairs
    assert len(text) == len(pairs)
    assert text.sides[0].read(np.array([1, 4, 6])) == [ODD[1], ODD[4], ODD[6]]
    assert text.sides[1].read(np.array([], np.int64)) == []
    assert paths[0].read_bytes() == "".join(f"{line}\n" for line in ODD * n).encode()


SENTENCES = ["banane rubin", "salbei banner", "linsen und salbei"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter(SENTENCES * 9), TokenizerConfig(vocab_size=30))


def job_of(folder, tokenizer, pairs, **options):
    """Shards of three pairs each."""
    text = folder / "text.de", folder / "text.en"
    write_pairs(iter(pairs), text)
    return EncodingJob(text, TokenizerPair(tokenizer, tokenizer, True), shard_pairs=3, **options)


def test_sides_and_shards_use_different_random_draws(tmp_path, tokenizer):
    job = job_of(tmp_path, tokenizer, [(text, text) for text in SENTENCES] * 4, dropout=0.4)
    samples = [ids for shard in range(4) for ids, _ in ShardEncoder(job).encode(shard).sides]
    assert {text for ids in samples for text in tokenizer.decode([ids])} == {" ".join(SENTENCES)}
    assert len({ids.tobytes() for ids in samples}) == 8


def test_unknown_tokens_are_counted_per_side(tmp_path, tokenizer):
    pairs = [("banane", "q"), ("rubin q", "q q q"), ("linsen", "salbei"), ("q", "banner")]
    job = job_of(tmp_path, tokenizer, pairs)
    counts = write_encoded(job, tmp_path / "ids", 1, progress=False)
    for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        ids = [token_id for row in tokenizer.encode(texts) for token_id in row]
        assert counts[f"{side}_pieces"] == len(ids)
        assert counts[f"{side}_mean_pieces"] == len(ids) / len(pairs)
        assert counts[f"{side}_unknown_share"] == ids.count(UNK) / len(ids) > 0
    assert counts["source_unknown_share"] != counts["target_unknown_share"]


def contents(folder):
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.name != "manifest.json"
    }


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("joint", [True, False])
def test_ids_decode_to_the_text_in_order(tmp_path, joint):
    text = corpus()
    prepared = prepare(text, tmp_path, options(joint=joint))
    assert (prepared.tokenizers.source is prepared.tokenizers.target) == joint
    for split, name in ((prepared.train, "train"), (prepared.valid, "valid")):
        sources = prepared.tokenizers.source.decode(list(split.source))
        targets = prepared.tokenizers.target.decode(list(split.target))
        assert list(zip(sources, targets, strict=True)) == text.origin.texts[name]
        assert split.source.flat.dtype == np.uint16
    report = prepared.report
    assert report["train"]["pairs"] == 600
    assert report["train"]["source_pieces"] == prepared.train.source.lengths.sum()
    assert report["cleaning"] == {"read": 600, "kept": 600, "dropped": {}, "truncated": False}


def test_tokenizer_is_trained_on_train_only(tmp_path):
    one = prepare(corpus(), tmp_path)
    other = prepare(corpus(valid=[("zzz zzz", "qqq")] * 50), tmp_path)
    assert one.tokenizers.fingerprint() == other.tokenizers.fingerprint()
    assert one.fingerprint != other.fingerprint
    assert other.report["valid"]["source_unknown_share"] > 0


@pytest.mark.parametrize(("coverage", "warned"), [(1.0, True), (0.99, False)])
def test_unknown_tokens_of_training_text_are_a_warning(tmp_path, caplog, coverage, warned):
    pairs = [*pairs_of(60, 1), ("q\u2585z", "un deux")] * 2
    char = options(vocab_size=400, kind="char", character_coverage=coverage)
    prepare(corpus(train=pairs), tmp_path, char)
    assert ("tokens of the source training text are unknown" in caplog.text) == warned


@pytest.mark.parametrize("joint", [True, False])
def test_given_tokenizer_is_used_from_any_folder(tmp_path, joint):
    origin = prepare(corpus(), tmp_path / "cache", options(joint=joint)).tokenizers
    (tmp_path / "run").mkdir()
    origin.save(tmp_path / "run")
    given_options = options(kind="given", joint=joint, folder=str(tmp_path / "run"))
    other = corpus(train=pairs_of(90, 5))
    prepared = prepare(other, tmp_path / "cache", given_options)
    assert prepared.tokenizers.fingerprint() == origin.fingerprint()
    trained = prepare(other, tmp_path / "cache", options(joint=joint))
    assert trained.tokenizers.fingerprint() != origin.fingerprint()
    (tmp_path / "run").rename(tmp_path / "moved")
    given_options.folder = str(tmp_path / "moved")
    assert prepare(other, tmp_path / "cache", given_options).fingerprint == prepared.fingerprint


def test_missing_or_unsuitable_given_tokenizer_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer\.folder=\S+nowhere: no tokenizer in"):
        prepare(corpus(), tmp_path, options(kind="given", folder=str(tmp_path / "nowhere")))
    prepare(corpus(), tmp_path).tokenizers.save(tmp_path)
    given_options = options(kind="given", folder=str(tmp_path))
    with pytest.raises(ConfigError, match=r"tokenizer\.joint must be true, as for the tokenizer"):
        prepare(corpus(), tmp_path, dataclasses.replace(given_options, joint=False))
    for incomplete in (options(kind="given"), options(folder=str(tmp_path))):
        with pytest.raises(ConfigError, match=r"tokenizer=given and tokenizer\.folder=RUN must be"):
            prepare(corpus(), tmp_path, incomplete)
    with pytest.raises(ConfigError, match="only bpe has merges"):
        prepare(corpus(), tmp_path, dataclasses.replace(given_options, dropout=0.1))


def test_long_pairs_are_dropped_from_train_only(tmp_path):
    long = ("a b " * 60, "A")
    text = corpus([*pairs_of(600, 1), long], [*pairs_of(40, 2), long])
    prepared = prepare(text, tmp_path, options(max_sentence_tokens=80))
    assert len(prepared.valid) == 41
    assert prepared.valid.source.lengths.max() > 80
    assert len(prepared.train) == 600
    assert prepared.report["train"]["dropped_too_long"] == 1
    # Both sides stay aligned after the drop.
    text = corpus([long, *pairs_of(600, 1)])
    assert (prepare(text, tmp_path).train.target[1] == prepared.train.target[0]).all()


@pytest.mark.usefixtures("small_pools")
def test_errors_of_workers_are_raised(tmp_path):
    with pytest.raises(ConfigError, match="at most"):
        prepare(corpus(), tmp_path, options(vocab_size=9000))
    assert list((tmp_path / "encoded").iterdir()) == []
    with pytest.raises(HeadwiseError, match=r"learning.*code 3.*max_training_sentences"):
        run_in_process("learning", os._exit, 3)
    assert run_in_process("adding", sum, [1, 2]) == 3


def test_empty_splits_and_impossible_limits_are_refused(tmp_path):
    small = options(vocab_size=12, joint=False)
    for text, config, message in (
        (corpus(train=[]), options(), "no training pair is left"),
        (corpus(valid=[]), options(), "'valid'"),
        (corpus(), options(max_sentence_tokens=1), "max_sentence_tokens=1"),
        (corpus([("abc def" * 3, "A")] * 20), small, "target side.*at most"),
    ):
        with pytest.raises((DataError, ConfigError), match=message):
            prepare(text, tmp_path, config)


def test_sample_of_a_large_corpus_is_seeded(tmp_path):
    config = options(max_training_sentences=200, vocab_size=80)
    text = dataclasses.replace(corpus(), cache_dir=tmp_path).train_text().paths
    first, again, other = (train_tokenizer_pair(text, config, seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


@pytest.mark.usefixtures("small_blocks")
class TestEpochSplits:
    @pytest.fixture
    def prepared(self, tmp_path):
        long = ("a b " * 60, "A")
        text = corpus([*pairs_of(300, 1), long, *pairs_of(300, 3)])
        return prepare(text, tmp_path, options(dropout=0.2, max_sentence_tokens=80))

    def test_epochs_differ_and_are_reproducible(self, prepared, tmp_path):
        def flat(scratch, epoch, seed=1, dropout=0.2):
            splits = EpochSplits(prepared, dropout, seed, tmp_path / scratch, 1, False)
            return splits(epoch).source.flat.tobytes()

        first = flat("a", 1)
        assert flat("b", 1) == first
        others = [flat("a", 2), flat("a", 1, seed=2), flat("b", 1, dropout=0.3)]
        assert len({first, *others}) == 4

    @pytest.mark.usefixtures("small_pools")
    def test_number_of_workers_does_not_change_an_epoch(self, prepared, tmp_path):
        for n in (1, 2):
            EpochSplits(prepared, 0.1, 5, tmp_path / str(n), n, progress=False)(1)
        one, two = (contents(next((tmp_path / n).glob("epoch*[!k]"))) for n in "12")
        assert one == two

    def test_rows_equal_the_plain_split(self, prepared, tmp_path):
        split, whole = EpochSplits(prepared, 0.2, 1, tmp_path / "s", 1, False)(3), prepared.train
        assert len(split) == len(whole) == 600
        for sampled, plain in ((split.source, whole.source), (split.target, whole.target)):
            decode = prepared.tokenizers.source.decode
            assert decode(list(sampled)) == decode(list(plain))
            assert sampled.lengths.sum() > plain.lengths.sum()

    def test_missing_text_is_converted_again(self, tmp_path):
        plain = prepare(corpus(), tmp_path)
        shutil.rmtree(tmp_path / "corpora")
        prepared = prepare(corpus(), tmp_path, options(dropout=0.2))
        assert prepared.folder == plain.folder
        assert len(EpochSplits(prepared, 0.2, 1, tmp_path / "s", 1, False)(1)) == 600

    def test_samples_stay_within_the_limit(self, tmp_path):
        config = options(dropout=0.5, max_sentence_tokens=20)
        prepared = prepare(corpus(), tmp_path, config)
        split = EpochSplits(prepared, 0.5, 1, tmp_path / "s", 1, False)(1)
        assert max(split.source.lengths.max(), split.target.lengths.max()) <= 20
        assert len(split) == len(prepared.train)

    def test_old_epochs_are_removed(self, prepared, tmp_path):
        splits = EpochSplits(prepared, 0.2, 1, tmp_path / "s", 1, False)
        of_another_process = tmp_path / "s" / "epoch_9-else.partial"
        of_another_process.mkdir(parents=True)
        last = DEPTH + 4  # batches of another rank may be up to DEPTH epochs behind
        first_ids = [splits(epoch).source.flat[:5].tolist() for epoch in range(1, last + 1)]
        of_another_process.rmdir()  # it still exists
        remaining_epochs = {
            int(path.name[6:].partition("-")[0]) for path in (tmp_path / "s").iterdir()
        }
        assert remaining_epochs == set(range(3, last + 1))
        assert splits(1).source.flat[:5].tolist() == first_ids[0]


def test_given_tokenizers_with_other_scores_of_the_same_tokens_are_others(tmp_path):
    origin = prepare(corpus(), tmp_path / "cache", options(kind="unigram")).tokenizers
    model = sentencepiece_model_pb2.ModelProto.FromString(origin.source.model_bytes)
    for piece in model.pieces:
        piece.score = -100.0 * (len(piece.piece) > 1)
    prepared = []
    for tokenizer in (origin.source, Tokenizer(model.SerializeToString())):
        tokenizer.save(tmp_path / "tokenizer.model")
        given = options(kind="given", folder=str(tmp_path))
        prepared.append(prepare(corpus(), tmp_path / "cache", given))
    assert prepared[0].vocabulary == prepared[1].vocabulary
    assert prepared[0].fingerprint != prepared[1].fingerprint
    assert prepared[0].report["train"] != prepared[1].report["train"]

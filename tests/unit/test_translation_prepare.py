"""Prepared corpora: created once, completely or not at all, and reproducible."""

import dataclasses
import multiprocessing
import os
import shutil
from importlib import metadata
from unittest.mock import Mock

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

from fake_corpora import corpus, options, pairs_of, prepare
from headwise.config.data import CleaningConfig, ImageDataConfig, MusicDataConfig
from headwise.config.schema import TokenizerConfig
from headwise.data.images import ImageCorpus
from headwise.data.prefetch import DEPTH
from headwise.data.tokenizer import Tokenizer
from headwise.data.tokenizer_training import train_tokenizer_pair
from headwise.data.workers import run_in_process
from headwise.errors import ConfigError, DataError, HeadwiseError
from headwise.tasks.stream.music import MusicCorpus, write_wav
from headwise.tasks.stream.stream import prepare_tokens
from headwise.tasks.translation import encoding
from headwise.tasks.translation.epochs import EpochSplits
from published_images import random_images, write_pictures


def contents(folder):
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.name != "manifest.json"
    }


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(encoding, "SHARD_PAIRS", 50)  # more shards than two workers get at once
    monkeypatch.setattr("headwise.tasks.translation.text.CHUNK_PAIRS", 130)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("joint", [True, False])
def test_ids_decode_to_the_text_in_order(tmp_path, joint):
    text = corpus()
    prepared = prepare(text, tmp_path, options(joint=joint))
    assert (prepared.tokenizers.source is prepared.tokenizers.target) == joint
    for split, name in ((prepared.train, "train"), (prepared.valid, "valid")):
        sources = prepared.tokenizers.source.decode(list(split.source))
        targets = prepared.tokenizers.target.decode(list(split.target))
        assert list(zip(sources, targets, strict=True)) == text.source.texts[name]
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


def test_second_call_reads_only_the_cache(tmp_path, monkeypatch):
    first = prepare(corpus(), tmp_path)
    monkeypatch.setattr(
        "headwise.tasks.translation.prepare.train_tokenizer_pair",
        lambda *_: pytest.fail("trained again"),
    )
    text = corpus()
    second = prepare(text, tmp_path)
    assert text.source.n_read == 0
    assert second.fingerprint == first.fingerprint
    assert second.report == first.report
    assert (second.train.target.flat == first.train.target.flat).all()
    assert isinstance(second.train.source.flat, np.memmap)
    with pytest.raises(pytest.fail.Exception):
        prepare(text, tmp_path, options(vocab_size=160))
    assert len(list((tmp_path / "encoded").iterdir())) == 1  # no partial folder, no lock


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


@pytest.mark.usefixtures("small_shards")
def test_number_of_workers_does_not_change_files(tmp_path, monkeypatch):
    config = options(dropout=0.1)
    results, epochs = [], []
    for n_workers in (1, 2):
        cache = tmp_path / str(n_workers)
        if n_workers == 2:
            monkeypatch.setattr(encoding, "POOL_PAIRS", 500)
            monkeypatch.setattr("headwise.tasks.translation.prepare.POOL_PAIRS", 500)
        prepared = prepare(corpus(), cache, config, n_workers)
        results.append(contents(prepared.folder))
        EpochSplits(prepared, 0.1, 5, cache / "scratch", n_workers, progress=False)(1)
        epochs.append(contents(next((cache / "scratch").iterdir())))
    assert results[0] == results[1]
    assert epochs[0] == epochs[1]
    assert {"train.source", "train.target.offsets", "train.rows.npy"} <= results[0].keys()


@pytest.mark.usefixtures("small_shards")
def test_errors_of_workers_are_raised(tmp_path, monkeypatch):
    monkeypatch.setattr("headwise.tasks.translation.prepare.POOL_PAIRS", 500)
    with pytest.raises(ConfigError, match="at most"):
        prepare(corpus(), tmp_path, options(vocab_size=9000))
    assert list((tmp_path / "encoded").iterdir()) == []
    with pytest.raises(HeadwiseError, match=r"learning.*code 3.*max_training_sentences"):
        run_in_process("learning", os._exit, 3)
    assert run_in_process("adding", sum, [1, 2]) == 3


@pytest.mark.parametrize("victim", ["train.source", "tokenizer.model", "manifest.json"])
def test_damaged_cache_is_rebuilt(tmp_path, victim):
    first = prepare(corpus(), tmp_path)
    before = contents(first.folder)
    path = first.folder / victim
    path.write_bytes(path.read_bytes()[:-3])
    assert contents(prepare(corpus(), tmp_path).folder) == before
    path.unlink()
    assert contents(prepare(corpus(), tmp_path).folder) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("line 3"), OSError(28, "full")])
@pytest.mark.parametrize("step", ["prepare.train_tokenizer_pair", "encoding.ShardEncoder.encode"])
def test_interruption_leaves_no_files(tmp_path, monkeypatch, step, error):
    with monkeypatch.context() as patch:
        patch.setattr(f"headwise.tasks.translation.{step}", Mock(side_effect=error))
        with pytest.raises(type(error)):
            prepare(corpus(), tmp_path)
    assert list((tmp_path / "encoded").iterdir()) == []
    assert len(prepare(corpus(), tmp_path).train) == 600


def test_partial_folders_are_ignored(tmp_path):
    folder = prepare(corpus(), tmp_path).folder
    before = contents(folder)
    partial = folder.with_name(folder.name + ".partial")
    folder.rename(partial)
    (partial / "manifest.json").unlink()
    (partial / "rubbish").write_text("x")
    assert contents(prepare(corpus(), tmp_path).folder) == before
    assert not partial.exists()


def test_empty_splits_and_impossible_limits_are_refused(tmp_path):
    with pytest.raises(DataError, match="no training pair is left"):
        prepare(corpus(train=[]), tmp_path)
    with pytest.raises(DataError, match="'valid'"):
        prepare(corpus(valid=[]), tmp_path)
    with pytest.raises(DataError, match="max_sentence_tokens=1"):
        prepare(corpus(), tmp_path, options(max_sentence_tokens=1))
    with pytest.raises(ConfigError, match=r"target side.*at most"):
        prepare(corpus([("abc def" * 3, "A")] * 20), tmp_path, options(vocab_size=12, joint=False))


def test_sample_of_a_large_corpus_is_seeded(tmp_path):
    config = options(max_training_sentences=200, vocab_size=80)
    text = dataclasses.replace(corpus(), cache_dir=tmp_path).train_text().paths
    first, again, other = (train_tokenizer_pair(text, config, seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


def _prepare_and_count(cache, counter, barrier):
    text = corpus()
    barrier.wait(timeout=60)
    prepare(text, cache)
    with open(counter, "a") as file:
        file.write(f"{text.source.n_read}\n")


def test_concurrent_processes_prepare_once(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    counter = tmp_path / "reads"
    arguments = (tmp_path / "cache", counter, barrier)
    processes = [context.Process(target=_prepare_and_count, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(counter.read_text().split()) == ["0", "0", "2"]


@pytest.mark.usefixtures("small_shards")
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


def moses(folder):
    text = corpus()
    text.config.cleaning = CleaningConfig(max_target_moses_tokens=40)
    prepared = prepare(text, folder)
    return f"{prepared.fingerprint} {prepared.corpus.train_text().paths[0]}"


def pictures(folder):
    if not (folder / "images").is_dir():
        splits = dict.fromkeys(("train", "valid"), random_images(1, 4, 6, 3))
        write_pictures(folder / "images", splits)
    data = ImageDataConfig("x", dir=f"{folder}/images", test=[], shape=[4, 6, 3], window=72)
    return prepare_tokens(ImageCorpus(data, folder), TokenizerConfig("byte")).fingerprint


def music(folder):
    for split in ("train", "valid"):
        (folder / "music" / split).mkdir(parents=True, exist_ok=True)
        write_wav(folder / "music" / split / "a.wav", np.zeros(100, np.float32), 12_000)
    corpus = MusicCorpus(MusicDataConfig("x", dir=f"{folder}/music", test=[]), folder)
    return prepare_tokens(corpus, TokenizerConfig("byte")).fingerprint


@pytest.mark.parametrize(
    ("convert", "package"),
    [(moses, "sacremoses"), (pictures, "pillow"), (music, "soxr"), (music, "soundfile")],
)
def test_data_of_another_version_of_a_converter_are_converted_again(
    convert, package, tmp_path, monkeypatch
):
    first, found = convert(tmp_path), metadata.distributions
    assert convert(tmp_path) == first
    other = lambda name: [Mock(version="9")] if name == package else found(name=name)  # noqa: E731
    monkeypatch.setattr(metadata, "distributions", other)
    assert not set(convert(tmp_path).split()) & set(first.split())


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

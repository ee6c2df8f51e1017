"""Validation scores compared with scores recomputed from the finished run."""

import math

import numpy as np
import pytest
import torch

import headwise
from command_line import train_small, write_corpus
from headwise.data.tokenizer import BOS, EOS, PAD
from headwise.decode.translator import Translator
from headwise.losses.loss import CrossEntropy
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.tasks import evaluate as scoring
from headwise.tasks.measure import measure_losses
from headwise.tasks.task import task_of
from headwise.tasks.translation.batches import collate, evaluation_batches
from headwise.tasks.translation.corpus import EncodedSplit
from headwise.tasks.translation.metrics import score_translations
from headwise.tasks.translation.outputs import write_lines
from headwise.track.jsonl import read_jsonl
from headwise.train.checkpoint import load_checkpoint
from headwise.train.distributed import Ranks
from training_steps import PAIRS, small_model

SMOOTHING = 0.1


class RankWithoutSum(Ranks):
    """A rank whose sums are not added to those of other ranks."""

    def sum(self, values):
        return values


def only(row):
    return EncodedSplit.from_lists(*([side[row].tolist()] for side in (PAIRS.source, PAIRS.target)))


def lines(folder, code):
    return (folder / "text" / f"valid.{code}").read_text(encoding="utf-8").splitlines()


def last_validation(run):
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if "valid/loss" in row]
    return rows[-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose validations translate two sentences; its text is in the folder `text` above."""
    search = ("trainer.monitor=chrf", "trainer.valid_sentences=2", "decode.beam=2")
    return train_small(tmp_path_factory.mktemp("run"), f"loss.label_smoothing={SMOOTHING}", *search)


@pytest.fixture
def searches(monkeypatch):
    """What every search for translations gets and gives: (translator, sources, hypotheses)."""
    done = []
    translate = Translator.translate

    def recorded(self, sources, **more):
        found = translate(self, sources, **more)
        done.append((self, list(sources), found))
        return found

    monkeypatch.setattr(Translator, "translate", recorded)
    return done


def test_losses_are_means_over_all_tokens(run):
    validation = last_validation(run)
    loaded = headwise.load(str(run), checkpoint="last", device="cpu")
    rows = []
    sides = (lines(run.parents[2], code) for code in ("de", "en"))
    for source, target in zip(*sides, strict=True):
        ids = loaded.tokenizers.target.encode([target])[0]
        source_ids = torch.tensor([[*loaded.tokenizers.source.encode([source])[0], EOS]])
        with torch.no_grad():
            logits = loaded.model(
                source_ids, torch.tensor([source_ids.shape[1]]), torch.tensor([[BOS, *ids]])
            )
        log_p = logits[0].double().log_softmax(-1)
        nll = -log_p.gather(1, torch.tensor([*ids, EOS])[:, None]).sum().item()
        loss = (1 - SMOOTHING) * nll - SMOOTHING * log_p.mean(-1).sum().item()
        rows.append((loss, nll, len(ids) + 1))
    loss, nll, n_tokens = map(sum, zip(*rows, strict=True))
    assert validation["valid/nll"] == pytest.approx(nll / n_tokens, rel=1e-5)
    assert validation["valid/loss"] == pytest.approx(loss / n_tokens, rel=1e-5)
    assert validation["valid/loss"] != pytest.approx(validation["valid/nll"], rel=1e-4)
    assert validation["valid/perplexity"] == pytest.approx(math.exp(nll / n_tokens), rel=1e-5)


def test_average_is_chosen_on_all_sentences(tmp_path, searches):
    """A part of the set chooses the best checkpoint, the whole set between it and the average."""
    averaged = ("trainer.average=1", "trainer.keep=1")
    train_small(tmp_path, "trainer.valid_sentences=2", *averaged)
    n_translated = [len(sources) for _, sources, _ in searches]
    n_lines = len(lines(tmp_path, "de"))
    assert n_lines > 2
    n_validations = n_translated.index(n_lines)
    assert n_translated[:n_validations] == [2] * n_validations
    assert n_translated[n_validations : n_validations + 2] == [n_lines] * 2  # average and best


def test_loss_items_are_in_row_order():
    """For any batches and any number of ranks."""
    model, loss = small_model(), CrossEntropy(SMOOTHING)
    ranks = Ranks(0, 1, torch.device("cpu"))
    separate = np.array([
        measure_losses(model, loss, [collate(only(row), np.array([0]))], ranks).items[0]
        for row in range(len(PAIRS))
    ])  # fmt: skip
    assert separate[:, 2].tolist() == (PAIRS.target.lengths + 1).tolist()
    batches = list(evaluation_batches(PAIRS, 10))
    assert len(batches) > 2
    together = measure_losses(model, loss, batches, ranks).items
    np.testing.assert_allclose(together, separate, rtol=1e-5)
    two_ranks = [RankWithoutSum(rank, 2, ranks.device) for rank in range(2)]
    sums_of_ranks = [measure_losses(model, loss, batches, rank).items for rank in two_ranks]
    np.testing.assert_array_equal(sum(sums_of_ranks), together)


def test_saved_sums_give_every_score(run):
    folder = RunFolder(run)
    assert sorted(path.name for path in folder.sums.iterdir()) == [
        f"{split}.{unit}.npz"
        for split in ("test_a", "test_b", "valid")
        for unit in ("loss", "translation")
    ]
    record = Record(run)
    results = record.results
    for split, scores in results.scores.items():
        metrics = task_of(record.config).metrics()
        assert {metric.name for metric in metrics} == set(scores)
        for metric in metrics:
            items = record.sums(split, metric.unit)
            assert len(items) == {"valid": 6, "test_a": 5, "test_b": 4}[split]
            assert metric.score(items) == scores[metric.name]["score"]
            assert metric.signature == scores[metric.name]["signature"]
    chrf = [row["valid/chrf"] for row in read_jsonl(folder.metrics) if "valid/chrf" in row]
    state = load_checkpoint(folder.last)["state"]
    assert state["best_score"] == max(chrf)
    assert results.scores["valid"]["loss"] != results.scores["test_a"]["loss"]


def test_head_statistics_use_first_short_sentences(tmp_path, monkeypatch):
    analysed = []

    def record_rows(model, batches, device):
        rows = [row for batch in batches for row in batch.columns["target"].ids_BN.tolist()]
        analysed.append(sorted([token for token in row if token != PAD] for row in rows))
        return {}

    text = write_corpus(tmp_path / "text")
    targets = ["dog sees house", "dog", "cat", "house", "tree", "car"]
    (text / "valid.de").write_text("Hund\nHund sieht Haus\nKatze\nHaus\nBaum\nAuto\n", "utf-8")
    (text / "valid.en").write_text("".join(f"{line}\n" for line in targets), "utf-8")
    monkeypatch.setattr(scoring, "head_statistics", record_rows)
    monkeypatch.setattr(scoring, "MAX_HEAD_TOKENS", 6)
    run = train_small(tmp_path, "tokenizer=char", "trainer.head_sentences=3")
    encode = headwise.load(str(run), device="cpu").tokenizers.target.encode
    assert analysed[0] == sorted([BOS, *ids] for ids in encode(["cat", "house", "tree"]))


@pytest.mark.parametrize(("loss", "beam"), [("cross_entropy", 1), ("sparsemax", 3)])
def test_validation_translates_with_the_map_of_the_loss(loss, beam, tmp_path, searches, capsys):
    overrides = (f"loss={loss}", "trainer.valid_sentences=2", f"trainer.valid_beam={beam}")
    run = train_small(tmp_path, *overrides, "decode.n_best=2", "trainer.progress=true")
    name = "greedy" if beam == 1 else f"beam {beam}"
    assert f"valid_bleu ({name}, first 2 sentences) " in capsys.readouterr().err
    results, config = Record(run).results, Record(run).config
    assert results is not None
    assert results.scores["valid"]["bleu"]["scope"] == f"beam {config.decode.beam}"
    metrics = task_of(config).quick().metrics()
    assert {m.scope for m in metrics if m.name in ("bleu", "loss")} == {name, ""}
    translator, sources, found = searches[0]
    assert sources == lines(tmp_path, "de")[:2]
    loaded = headwise.load(str(run), device="cpu").translator
    assert loaded.output.is_sparse == translator.output.is_sparse == (loss == "sparsemax")
    search = translator.config
    assert (search.beam, search.n_best) == (beam, 1)
    first = next(row for row in read_jsonl(run / "metrics.jsonl") if "valid/bleu" in row)
    hypotheses = [sentence.text for sentence in found]
    scores = score_translations(hypotheses, lines(tmp_path, "en")[:2], "en").values()
    for metric, value in scores.items():
        assert first[f"valid/{metric}"] == value


def test_line_breaks_in_translations_are_removed(tmp_path):
    path = tmp_path / "valid.txt"
    write_lines(path, ["a\nb", "", "c\u2028d\r"])
    assert path.read_text(encoding="utf-8") == "a b\n\nc d\n"

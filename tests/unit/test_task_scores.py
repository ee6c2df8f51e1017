"""BLEU and chrF of translations, scores of classes, and readings of sentences."""

import importlib.util
import json
import re
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
import sacremoses
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from head_counting import CPU, Dense, build, with_normaliser
from headwise.errors import DataError
from headwise.losses.loss import CrossEntropy
from headwise.metrics.significance import paired_bootstrap
from headwise.tasks.classification.metrics import class_metrics
from headwise.tasks.classification.task import class_statistics
from headwise.tasks.inspection import readings
from headwise.tasks.shown import Axes
from headwise.tasks.translation.metrics import moses_tokenised, score_translations
from headwise.tasks.translation.shown import NOTE, shown_sentences

LINES = ["The dog (a big one) doesn't see the cat.", "", "Three houses cost $1,000 each.", "x"]
REFERENCE_LINES = [
    "The dog (a big one) does not see the cat.",
    "No!",
    "Three well-known houses cost $1,000.50 each, don't they?",
    "",
]
HYPOTHESES = ["The cat's on the mat, isn't it?", 'He said: "Hello" to us.', "A dog runs."]
REFERENCES = ["The cat is on the mat, isn't it?", 'He said "Hello" to us.', "A little dog runs."]


def test_scores_and_signatures():
    scores = score_translations(HYPOTHESES, REFERENCES, "en").scores()
    assert list(scores) == ["bleu", "bleu_tokenised", "chrf", "chrf++"]
    version = f"version:{sacrebleu.__version__}"
    moses = f"tok:moses-en-sacremoses-{sacremoses.__version__}|"
    for name, parts in {
        "bleu": ("case:mixed", "tok:13a"),
        "bleu_tokenised": ("case:mixed", moses),
        "chrf": ("nc:6", "nw:0"),
        "chrf++": ("nc:6", "nw:2"),
    }.items():
        assert type(scores[name]["score"]) is float
        for part in (*parts, version, "nrefs:1"):
            assert part in scores[name]["signature"]
    assert len({round(score["score"], 3) for score in scores.values()}) == 4
    assert json.loads(json.dumps(scores)) == scores


@pytest.mark.parametrize("language", ["en", "de", "zh-CN"])
def test_sums_over_sentences_give_the_exact_corpus_scores(language):
    chinese = ["我爱北京天安门", "我爱天安门。"]
    texts = [(LINES, REFERENCE_LINES), (HYPOTHESES, REFERENCES), (chinese, chinese[::-1])]
    for lines, references in [*texts, (["a b c d e", "x"], ["a b y d e", "no"])]:  # smoothed
        evaluation = score_translations(lines, references, language)
        scorers = {
            "bleu": BLEU(tokenize="zh" if language == "zh-CN" else "13a"),
            "chrf": CHRF(),
            "chrf++": CHRF(word_order=2),
        }
        assert len(evaluation.items) == len(lines)
        for name, scorer in scorers.items():
            assert evaluation.values()[name] == scorer.corpus_score(lines, [references]).score
            assert evaluation.scores()[name]["signature"] == str(scorer.get_signature())
        if language != "zh-CN":
            tokens = [moses_tokenised(side, language) for side in (lines, references)]
            exact = BLEU(tokenize="none", force=True).corpus_score(tokens[0], [tokens[1]]).score
            assert evaluation.values()["bleu_tokenised"] == exact


def test_languages_without_spaces(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "MeCab" else find(name, *a)
    )
    scores = score_translations(["これは本です。"], ["これは私の本です。"], "ja").scores()
    assert "tok:char" in scores["bleu"]["signature"]
    assert list(scores) == ["bleu", "chrf", "chrf++"]
    for code in ("zh", "zh-CN", "zh_Hans", "ZH", "ZH-cn"):
        scores = score_translations(["这是一本书。"], ["这是我的书。"], code).scores()
        assert "tok:zh" in scores["bleu"]["signature"]
        assert "bleu_tokenised" not in scores


CHINESE = ["zho_Hans", "zho-Hant", "zho", "cmn", "chi", "cmn_Hans_CN", "ZHO_HANS", "zh-419"]
CHARACTERS = ["th", "tha_Thai", "khm_Khmr", "lao", "mya_Mymr", "bur", "bod", "dzo_Tibt"]
CHARACTERS += ["yue_Hant", "lzh", "wuu", "shn_Mymr", "nan-Hant-TW"]


@pytest.mark.parametrize(
    ("codes", "tokens", "moses"),
    [
        (CHINESE, "tok:zh", None),
        (["jpn_Jpan", "jpn", "ja-JP", "JA"], "tok:(ja-mecab|char)", None),
        (CHARACTERS, "tok:char", None),
        (["deu_Latn", "ger", "DEU", "de_AT"], "tok:13a", "de"),
        (["zho_Latn"], "tok:13a", "zh"),  # pinyin
    ],
)
def test_every_code_of_a_language_has_its_tokenisers(codes, tokens, moses):
    for code in codes:
        scores = score_translations(["我 bin-5, z.B."], ["我们 bin"], code).scores()
        assert re.search(tokens, scores["bleu"]["signature"]), code
        assert ("bleu_tokenised" in scores) == (moses is not None), code
        if moses:
            assert f"tok:moses-{moses}-" in scores["bleu_tokenised"]["signature"]


def test_characters_are_logged_once(caplog):
    caplog.set_level("INFO", "headwise")
    for _ in range(2):
        score_translations(["ສະບາຍດີ"], ["ສະບາຍ"], "lao_Laoo")
    message = "BLEU of language lao_Laoo is computed on characters (tok:char"
    assert caplog.text.count(message) == 1


@pytest.mark.parametrize("n", [0, 2, 4])
def test_unequal_numbers_of_lines_are_rejected(n):
    with pytest.raises(DataError, match=f"{n} hypotheses against 3 references"):
        score_translations(["a"] * n, REFERENCES, "en")


# Classes

N, C = 200, 7


def statistics(logits, targets):
    extra = class_statistics(CrossEntropy(), logits, targets).numpy()
    return np.column_stack((np.ones((len(extra), 3)), extra)).astype(np.float64)


def drawn(seed, n_classes=C, signal=2.0):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(n_classes, (N,), generator=generator)
    logits = torch.randn(N, n_classes, generator=generator)
    logits[torch.arange(N), targets] += signal
    return logits, targets


def scores(logits, targets):
    items = statistics(logits, targets)
    return {m.name: m.score(items) for m in class_metrics(logits.shape[1], "loss")}


def test_metrics_of_classes_follow_their_definitions():
    logits, targets = drawn(1)
    predicted, true = logits.argmax(1).numpy(), targets.numpy()
    measured = scores(logits, targets)
    assert measured["accuracy"] == pytest.approx(100 * (predicted == true).mean())
    first_five = np.argsort(-logits.numpy(), 1)[:, :5]
    assert measured["top5"] == pytest.approx(100 * (first_five == true[:, None]).any(1).mean())
    f1 = []
    for label in range(C):
        precision = (true[predicted == label] == label).mean()
        recall = (predicted[true == label] == label).mean()
        f1.append(2 * precision * recall / (precision + recall))
    assert measured["f1_macro"] == pytest.approx(100 * np.mean(f1))
    # the correlation of indicator vectors, summed over classes (Gorodkin 2004)
    x, y = np.eye(C)[predicted], np.eye(C)[true]
    x, y = x - x.mean(0), y - y.mean(0)
    correlation = (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum())
    assert measured["matthews"] == pytest.approx(100 * correlation)


def test_one_predicted_class_has_no_correlation_and_absent_classes_no_f1():
    targets = torch.tensor([0, 1, 0])
    logits = torch.tensor([[1.0, 0, 0]]).expand(3, 3)
    measured = scores(logits, targets)
    assert measured["matthews"] == 0
    assert measured["f1_macro"] == pytest.approx(100 * (0.8 + 0) / 2)
    assert "top5" not in measured


def test_bootstrap_compares_macro_f1():
    better, worse = (statistics(*drawn(1, signal=signal)) for signal in (4.0, 0.5))
    f1 = next(metric for metric in class_metrics(C, "loss") if metric.name == "f1_macro")
    found = paired_bootstrap([better], [worse], f1, 500)
    assert found.difference == pytest.approx(f1.score(better) - f1.score(worse))
    deviation = np.std(
        [f1.score(worse[np.random.default_rng(i).integers(N, size=N)]) for i in range(100)]
    )  # of one run
    assert 2 * deviation < found.high - found.low < 6 * deviation
    assert found.low < found.difference < found.high
    assert found.p_value < 0.01


# Readings


@dataclass
class Numbers:
    """Every word is a number, which is its id; labels of tokens begin with the side."""

    side: str

    def encode(self, sentences):
        return [[int(word) for word in sentence.split()] for sentence in sentences]

    def labels(self, ids):
        return [f"{self.side}{token}" for token in ids]


def test_decoder_reads_the_translation_of_the_run():
    translated = {"5 6 7": ("one", (8, 9), False), "4": ("two", (10,), True)}

    def translate(sources):
        best = [translated[source] for source in sources]
        return [
            SimpleNamespace(
                text=text,
                hypotheses=[
                    SimpleNamespace(ids=ids, finished=finished),
                    SimpleNamespace(ids=(11, 11, 11), finished=True),
                ],
            )
            for text, ids, finished in best
        ]

    run = SimpleNamespace(
        model=build(with_normaliser(Dense)),
        tokenizers=SimpleNamespace(source=Numbers("s"), target=Numbers("t")),
        translator=SimpleNamespace(translate=translate),
        normaliser=SimpleNamespace(source=str.strip),
        task=SimpleNamespace(shown=shown_sentences),
        device=CPU,
    )
    first, second = readings(run, [" 5 6 7", "4 "])
    source, read, written = ["s5", "s6", "s7", "s3"], ["t2", "t8", "t9"], ["t8", "t9", "…"]
    sites = {site.name: site for site in run.model.sites}
    assert {name: first.axes(site) for name, site in sites.items()} == {
        "encoder_self": Axes(source, source, "5 6 7", ""),
        "decoder_self": Axes(read, read, "one", NOTE),
        "cross": Axes(written, source, "5 6 7 → one", NOTE),
    }
    assert second.axes(sites["cross"]) == Axes(["t10", "t3"], ["s4", "s3"], "4 → two", NOTE)
    assert [first.outputs, second.outputs] == [{"translation": "one"}, {"translation": "two"}]
    shapes = {obs.site: tuple(obs.weights_BHQK.shape[2:]) for obs in first.observations}
    assert shapes == {"encoder_self": (4, 4), "decoder_self": (3, 3), "cross": (3, 4)}

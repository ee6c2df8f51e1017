"""BLEU and chrF."""

import importlib.util
import json
import re

import pytest
import sacrebleu
import sacremoses
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from headwise.errors import DataError
from headwise.tasks.translation.metrics import moses_tokenised, score_translations

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


def test_moses_tokenises_by_the_rules_of_the_language():
    by_hand = ["The cat 's on the mat , isn 't it ?", 'He said : " Hello " to us .', "A dog runs ."]
    assert moses_tokenised(HYPOTHESES, "en") == by_hand
    for code in ("fr", "fra_Latn"):
        assert moses_tokenised(["l'homme dort"], code) == ["l' homme dort"]
    assert moses_tokenised(["l'homme dort"], "en") == ["l 'homme dort"]


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

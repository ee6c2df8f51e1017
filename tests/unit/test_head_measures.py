"""Measures of a head by their definitions: weights by hand and the value that they give."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from headwise.analysis.density import Densities
from headwise.analysis.kinds import REGIONS, Places, Variations, kinds, region_shares
from headwise.analysis.positions import positions
from headwise.analysis.text.questions import has_word_list, interrogation, n_tokens, question_words
from headwise.analysis.text.rarity import rarest, rarity
from headwise.analysis.text.words import clusters, merging, surface
from weights_by_hand import Model, batch_of, measured, observation

NOISE = 1e-6 * torch.rand(5, 5, generator=torch.Generator().manual_seed(0))


@dataclass
class Case:
    """Weights of sentences, and the values of a measure.

    Attributes:
        argument: of the measure.
        weights: (Q, K) of each sentence; the last of its tokens is the end.
        expected: name -> mean over the queries; None: not measured.
        source: its numbers of tokens without the end, if they are not those of the queries.
    """

    measure: Callable
    argument: Any
    weights: list
    expected: dict
    site: str = "encoder_self"
    source: list | None = None
    is_distribution: bool = True

    def observed(self):
        lengths = [len(rows) for rows in self.weights]
        is_causal = self.site == "decoder_self"
        return observation(self.site, self.weights, lengths, is_causal, self.is_distribution)

    def batch(self):
        target = [len(rows) - 1 for rows in self.weights]
        return batch_of(self.source or target, target)


def one_hot(keys, n_keys):
    return [[float(key == k) for k in range(n_keys)] for key in keys]


SENTENCES = ["▁Was ▁ist ?", "▁da , ▁was .", "▁ja !"]
QUESTION_WORDS = [question_words(surface(text.split()), "de") for text in SENTENCES]
NEAR, AROUND = range(-1, 2), range(-2, 3)
CASES = {
    # three tokens and the end: the first has no predecessor and attends to itself, and at +1 the
    # last has only the end, which is no token
    "tokens without a token at the offset do not count": Case(
        positions, AROUND, [one_hot([0, 0, 1, 2], 4)],
        {"share-1": 1, "exists-1": 2 / 3, "share0": 1 / 3, "share1": 0, "exists1": 2 / 3,
         "exists2": 1 / 3},
    ),
    "weight on the end is at no offset": Case(
        positions, NEAR,
        [[[0.1, 0.2, 0.0, 0.7], [0.3, 0.1, 0.0, 0.6], [0.0, 0.9, 0.0, 0.1], [0.0, 0.0, 0.0, 1.0]]],
        {"share-1": 1 / 2, "weight-1": (0.3 + 0.9) / 2, "confidence": (0.2 + 0.3 + 0.9) / 3},
    ),
    "equal weights are at no offset": Case(
        positions, NEAR, [[[0.2] * 5] * 5],
        {"share-1": 0, "share0": 0, "share1": 0, "weight0": 0.2},
    ),
    "weights that differ by rounding are equal": Case(
        positions, NEAR, [0.2 + NOISE], {"share-1": 0, "share0": 0, "share1": 0}
    ),
    "queries with one visible key do not count": Case(
        positions, NEAR, [[[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.2, 0.3, 0.5]]],
        {"share0": 1 / 2, "share-1": 1 / 2, "confidence": (0.6 + 0.5) / 2, "share1": None},
        site="decoder_self", source=[1],
    ),
    "cross-attention has no offsets": Case(
        positions, NEAR, [[[0.3, 0.1, 0.6]] * 3], {"confidence": 0.3, "share0": None}, site="cross"
    ),
    "a target may be longer than the source": Case(
        positions, NEAR, [[[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6]]],
        {"confidence": (0.9 + 0.2 + 0.3 + 0.4) / 4}, site="cross", source=[1],
    ),
    "signed weights count by their magnitude": Case(
        positions, NEAR, [[[-3.0, 1.0, 0.0], [0.5, 0.5, 1.0], [0.0, 0.0, 0.0]]],
        {"weight0": (0.75 + 0.25) / 2}, is_distribution=False,
    ),
    # two of three tokens attend to the rarest, one of three; the third sentence is too short
    "sentences count if most tokens attend to the rarest": Case(
        rarity, {"source": [[0, 1, 0], [1, 0, 0], []]},
        [one_hot([1, 1, 0, 1], 4), one_hot([0, 1, 1, 0], 4), one_hot([0, 0, 0], 3)],
        {"rare_share": 1 / 2},
    ),
    "two of four are not most, nor are equal weights": Case(
        rarity, {"source": [[1, 0, 0, 0]] * 3},
        [one_hot([0, 0, 1, 1, 0], 5), one_hot([0, 0, 0, 1, 1], 5), [[0.2] * 5] * 5],
        {"rare_share": 1 / 3},
    ),
    # words of one, two and three tokens, and the end, which is no word
    "the score of a word is its highest weight on other tokens of it": Case(
        merging, {"source": [[0, 1, 1, 2, 2, 2]]},
        [[
            [0.7, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0],
            [0.2, 0.5, 0.3, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.6, 0.4, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.3, 0.2, 0.2, 0.3],
            [0.1, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.5, 0.4, 0.1, 0.0],
            [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        ]],
        {"merge_score": (0.7 + 0.6 + 0.9) / 3, "split_merge_score": (0.6 + 0.9) / 2,
         "cluster_mass": (0.7 + 0.8 + 1.0 + 0.7 + 0.9 + 1.0) / 6},
    ),
    "words of the decoder start after bos": Case(
        merging, {"source": None, "target": [[0, 0]]},
        [[[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.3, 0.5, 0.2]]],
        {"merge_score": 0.5, "cluster_mass": (0.6 + 0.7) / 2}, site="decoder_self", source=[1],
    ),
    "question words attend to the mark": Case(
        interrogation, {"source": QUESTION_WORDS},
        [[[0.1, 0.0, 0.8, 0.1]] * 4, [[0.0, 0.0, 0.4, 0.3, 0.3]] * 5, [[0.0, 1.0, 0.0]] * 3],
        {"question_weight": 0.8, "statement_weight": 0.3},
    ),
    **{
        f"{first} in weights is not measured": Case(
            positions, NEAR, [[[first, 1.5], [0.0, 1.0]]],
            dict.fromkeys(("confidence", "share0", "weight0", "share-1")),
            is_distribution=first == -0.5,
        )
        for first in (-0.5, math.nan, math.inf)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_means_by_hand(name):
    case = CASES[name]
    result = measured(case.measure, case.argument, case.batch(), case.observed())
    assert {key: result.get(key) for key in case.expected} == pytest.approx(case.expected)


def test_shares_and_peaks_of_signed_weights():
    obs = CASES["signed weights count by their magnitude"].observed()
    assert obs.shares_BHQK[0, 0].tolist() == [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0, 0]]
    assert obs.peaks_BHQ[0, 0].tolist() == [0, 2, -1]


# -- density --------------------------------------------------------------------------------------


WEIGHTS = [[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.2] * 5, [0.25] * 4 + [0], [0.0] * 5]
DENSITIES = [
    ("encoder_self", [WEIGHTS, [[0.5, 0.5], [1.0, 0.0]]], True,
     {0.0: 1, 0.2: 1, 0.4: 1, 0.5: 1, 0.8: 1, 1.0: 2}),
    # a weight below 0 uses its key too
    ("encoder_self", [[[-0.5, 0.0], [0.5, -0.5]]], False, {0.5: 1, 1.0: 1}),
    # the first position sees one key
    ("decoder_self", [[[1.0, 0.0]] * 2], True, {0.5: 1, 1.0: 1}),
    ("encoder_self", [[[-0.5, 1.5], [0.0, 1.0]]], True, {}),
    ("encoder_self", [[[math.nan, 1.5], [0.0, 1.0]]], False, {}),
]  # fmt: skip


@pytest.mark.parametrize(("site", "weights", "is_distribution", "expected"), DENSITIES)
def test_densities_count_every_query_once(site, weights, is_distribution, expected):
    obs = Case(positions, NEAR, weights, {}, site, None, is_distribution).observed()
    histogram = Densities()
    histogram.add(obs)
    rows = histogram.histograms()
    assert {row["low"]: row["n_queries"] for row in rows if row["n_queries"]} == expected
    edges = [n / 20 for n in range(21)] if expected else []
    assert [row["low"] for row in rows] == edges
    assert [row["high"] for row in rows] == [*edges[1:], *edges[-1:]]
    assert expected or (obs.peaks_BHQ == -1).all()


# -- words ----------------------------------------------------------------------------------------

SEGMENTED = {
    "▁Ein ▁Mann .": [0, 1, 2],
    "▁Baum w olle , ▁die": [0, 0, 0, 1, 2],
    "▁U - Bahn - Karte !": [0, 0, 0, 0, 0, 1],
    "▁geht ' s ?": [0, 0, 0, 1],
    "▁the ▁dogs ' ▁ball": [0, 1, 2, 3],
    "▁- ▁so ▁- la": [0, 1, 2, 3],
    "▁ Ł ódź ▁ist": [0, 0, 0, 1],
    "▁a <unk> b ▁<unk>": [0, 0, 0, 1],
    "▁3 . 5 % )": [0, 1, 2, 3, 4],
    "▁caf <0xC3> <0xA9> s ▁.": [0, 0, 0, 0, 1],
    "▁a b ▁": [0, 0, 1],
    "▁z.B. ▁so": [0, 1],
    "": [],
}


@pytest.mark.parametrize("tokens", SEGMENTED)
def test_clusters_separate_words_and_punctuation(tokens):
    assert clusters(surface(tokens.split())) == SEGMENTED[tokens]


def test_text_is_joined_from_tokens_and_bytes():
    joined = surface(["▁caf", "<0xC3>", "<0xA9>", "▁au", "<0xE2>"])
    assert joined.text == " café au\udce2"
    assert joined.spans == [(0, 4), (4, 5), (4, 5), (5, 8), (8, 9)]
    assert joined.tokens_of(4, 5) == [1, 2]
    byte_text = surface([f"<0x{byte:02X}>" for byte in "é a".encode()])
    assert (byte_text.text, clusters(byte_text)) == ("é a", [0, 0, 1, 1])


def test_rarest_token_is_by_count_then_by_id():
    text = [[5, 6, 7], [5, 6, 6, 9], [5, 7], [8, 5, 9, 8]]
    assert rarest(text) == [[0, 0, 1], [0, 0, 0, 1], [], [0, 0, 1, 0]]


QUESTIONS = {
    ("de", "▁Was ▁siehst ▁du ?"): (["▁Was"], "?", True),
    ("de", "▁Ich ▁weiß , ▁wel ches ▁Haus ."): (["▁wel", "ches"], ".", False),
    ("de", "▁Wer ▁kommt ▁? \" )"): (["▁Wer"], "▁?", True),
    ("de", "▁Der ▁Warum ."): (["▁Warum"], ".", False),
    ("de", "▁Das ▁etwas ?"): None,
    ("en", "▁Who ' s ▁there ?"): (["▁Who"], "?", True),
    ("en", "▁the ▁man ▁who ▁sings"): (["▁who"], "▁sings", False),
    ("en", "▁show ▁it ?"): None,
    ("ro", "▁De ▁ce ▁c ând ?"): (["▁ce", "▁c", "ând"], "?", True),
    ("ro", "▁C\u00e2\u0163i ▁vin ."): (["▁C\u00e2\u0163i"], ".", False),  # with a cedilla
    ("ja", "▁これは 何 です か ？"): (["何", "か"], "？", True),
    ("ja", "▁どこ から ?"): (["▁どこ"], "?", True),
    ("ja", "▁誰 も いない 。"): (["▁誰"], "。", False),
    ("ja", "▁あいつ から 。"): None,
    ("ja", "▁それほどの ぶどう 。"): None,
    ("ja", "▁何 です か 。"): None,  # a question without a question mark
}  # fmt: skip


@pytest.mark.parametrize("region", ["", "-XX"])
@pytest.mark.parametrize(("language", "text"), QUESTIONS)
def test_question_words_and_final_mark(language, text, region):
    tokens = text.split()
    question = question_words(surface(tokens), language + region)
    words = question and [tokens[i] for i in question.tokens]
    shown = question and (words, tokens[question.mark], question.is_question)
    assert shown == QUESTIONS[language, text]


def test_languages_with_a_list_of_question_words():
    codes = ("de", "en_XX", "ro-RO", "ja", "deu_Latn", "ENG", "rum", "jpn_Jpan")
    assert all(map(has_word_list, codes))
    assert not has_word_list("sw")
    assert n_tokens(QUESTION_WORDS) == {"question": 1, "statement": 1}


# -- kinds ----------------------------------------------------------------------------------------

SITE = "decoder_self"
SHAPE = 8, 8, 3
N = 8 * 8 * 3
IMAGE = Places(N, row=24, channels=3, n_start=1, image=N)
TEXT = Places(N, n_start=1)
STRIDED = Places(N, row=32, n_start=1)


def weights_to(keys_of):
    """Equal weights (N, N) of query q to the values `keys_of(q)`, or to itself."""
    rows = torch.zeros(N, N)
    for query in range(N):
        keys = [v + 1 for v in keys_of(query) if -1 <= v < query] or [query]
        rows[query, keys] = 1 / len(keys)
    return rows


PIXELS = [np.unravel_index(value, SHAPE)[:2] for value in range(N)]
REGION = {  # rows and columns between a query and an earlier value -> whether it is in the region
    "local": lambda rows, columns: rows <= 1 and columns <= 1,
    "row": lambda rows, columns: rows == 0 and columns > 1,
    "column": lambda rows, columns: rows > 1 and columns <= 1,
    "global": lambda rows, columns: rows > 0 and columns > 1,
}


def shares_of(keys_of, places):
    obs = observation(SITE, [weights_to(keys_of)], [N], causal=True)
    return measured(region_shares, places, batch_of([1], [N - 1]), obs)


@pytest.mark.parametrize("name", REGION)
def test_heads_of_a_region_of_an_image_have_its_kind(name):
    def keys_of(query):
        steps = {v: np.subtract(PIXELS[query], PIXELS[v]) for v in range(query)}
        return [v for v, (rows, columns) in steps.items() if REGION[name](rows, abs(columns))]

    shares = shares_of(keys_of, IMAGE)
    assert shares.keys() <= set(REGIONS)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[name] > 0.9 or name == "row"  # the first pixels of a row have only neighbours
    assert kinds(shares) == [name]


def test_values_of_another_image_are_global():
    queries = torch.arange(N, 2 * N)
    regions = replace(IMAGE, window=2 * N).regions(queries, 2 * N)
    start, other = REGIONS.index("start"), REGIONS.index("global")
    assert (regions[:, [0, N]] == start).all()
    assert (regions[:, 1:N] == other).all()
    assert torch.equal(regions[:, N:], IMAGE.regions(queries - N, N))


@pytest.mark.parametrize(
    ("keys_of", "in_text", "in_rows"),
    [
        (lambda q: range(q - 8, q), ["local"], ["local"]),
        (lambda q: range(q - 32, q - 8), ["global"], ["row"]),
        (lambda q: range(q - 32, -1, -32), ["global"], ["column"]),
        (lambda q: range(q - 33, -1, -32), ["global"], ["column"]),  # key positions of `strided`
        (lambda q: range(q - 50, q - 40), ["global"], ["global"]),
        (lambda _: [-1], [], []),
    ],
)
def test_kinds_in_sequences(keys_of, in_text, in_rows):
    assert kinds(shares_of(keys_of, STRIDED)) == in_rows
    in_one_row = shares_of(keys_of, TEXT)
    assert kinds(in_one_row) == in_text
    assert "row" not in in_one_row


def variation_of(weights, block=N):
    """Variation of inputs with weights (n, N, N), in blocks of queries; None: not measured."""
    variations = Variations(N)
    whole = observation(SITE, weights, [N] * len(weights), causal=True)
    for first in range(0, N, block):
        rows = slice(first, first + block)
        parts = {"queries_BQ": whole.queries_BQ[:, rows], "first": first}
        for name in ("weights_BHQK", "allowed_BHQK"):
            parts[name] = getattr(whole, name)[:, :, rows]
        variations.add(replace(whole, **parts))
    table = variations.table(Model())
    return table[SITE][0][0] if table else None


def drawn_weights(n, power=1):
    generator = torch.Generator().manual_seed(0)
    weights = (torch.rand(n, N, N, generator=generator) ** power).tril()
    return weights / weights.sum(-1, keepdim=True)


def test_variation_compares_inputs_with_their_mean():
    assert variation_of(drawn_weights(1)) is None
    assert variation_of(drawn_weights(1).expand(5, N, N)) == pytest.approx(0, abs=1e-6)
    offsets = [weights_to(lambda q, o=o: [q - o]) for o in range(1, 6)]
    assert variation_of(offsets) == pytest.approx(1, abs=0.01)
    different = drawn_weights(5, 4)
    p = different[:, [(i + 1) * N // 16 - 1 for i in range(16)]].double()
    expected = 1 - p.mean(0).square().sum(-1) / p.square().sum(-1).mean(0)
    assert variation_of(different) == pytest.approx(float(expected.mean() * 5 / 4))
    assert variation_of(different, block=50) == pytest.approx(variation_of(different))
    assert kinds({"variation": variation_of(different)}) == ["data_dependent"]

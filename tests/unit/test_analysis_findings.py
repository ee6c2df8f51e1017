"""Trajectories and correlations of α, roles, and the findings in words."""

from __future__ import annotations

import math
import random
from itertools import permutations
from typing import Any

import pytest

from findings_told import COUNTS, head, told
from headwise.analysis.correlations import by_chance, correlation_rows, spearman
from headwise.analysis.roles import Thresholds, roles
from headwise.analysis.trajectories import came_back, sarle, trajectory_rows
from headwise.analysis.wording import percent, plural, quoted

# -- roles ----------------------------------------------------------------------------------------

ROLES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"offset": -1, "offset_share": 0.9}, ["previous"]),
    ({"offset": -1, "offset_share": 0.89}, []),
    ({"offset": 3, "offset_share": 0.95}, ["offset+3"]),
    ({"offset": -4, "offset_share": 0.95}, ["offset-4"]),
    ({"merge_score": 0.85, "split_merge_score": 0.5}, ["merging"]),
    ({"merge_score": 0.85, "split_merge_score": 0.2}, []),
    ({"merge_score": 0.8, "split_merge_score": 0.4}, ["merging"]),
    ({"merge_score": 0.75, "split_merge_score": 0.9}, []),
    ({"question_weight": 0.9, "statement_weight": 0.1}, ["interrogation"]),
    ({"question_weight": 0.8, "statement_weight": 0.4}, ["interrogation"]),
    ({"question_weight": 0.9, "statement_weight": 0.65}, []),
    ({"question_weight": 0.9, "statement_weight": None}, []),
    ({"rare_share": 0.5}, ["rare"]),
    ({"rare_share": 0.49}, []),
    ({"offset_share": None, "offset": None, "merge_score": None, "rare_share": None}, []),
]


@pytest.mark.parametrize(("values", "wanted"), ROLES)
def test_roles_by_their_thresholds(values: dict[str, Any], wanted: list[str]) -> None:
    assert roles(head(**values), COUNTS, Thresholds()) == wanted


def test_roles_need_something_to_be_seen_on() -> None:
    merging = head(merge_score=0.9, split_merge_score=0.9)
    asking = head(question_weight=0.9, statement_weight=0.0)
    few = {**COUNTS, "source_split_words": 9, "statement_word_tokens": 9}
    assert roles(merging, few, Thresholds()) == roles(asking, few, Thresholds()) == []
    assert roles({**merging, "site": "decoder_self"}, few, Thresholds()) == ["merging"]
    enough = {**few, "source_split_words": 10, "statement_word_tokens": 10}
    assert roles(merging, enough, Thresholds()) == ["merging"]
    assert roles(asking, enough, Thresholds()) == ["interrogation"]
    assert roles(head(offset=1, offset_share=0.7), COUNTS, Thresholds(0.6)) == ["next"]


# -- α --------------------------------------------------------------------------------------------


def test_spearman_goes_by_order_and_shares_ranks_of_ties() -> None:
    assert spearman([1, 2, 3, 4], [1, 8, 27, 64]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    assert spearman([0, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


@pytest.mark.parametrize("n_heads", [2, 4, 6])
def test_chance_is_the_spread_of_all_orders(n_heads: int) -> None:
    found = [spearman(range(n_heads), order) for order in permutations(range(n_heads))]
    variance = sum(value**2 for value in found if value is not None) / math.factorial(n_heads)
    assert by_chance(n_heads) == pytest.approx(1.96 * math.sqrt(variance))


def test_correlations_are_of_the_heads_that_have_both() -> None:
    heads = [head(n, alpha=1 + n / 10, density=1 / n, confidence=None) for n in range(1, 6)]
    heads += [head(n, "cross", alpha=1.5, density=n / 9) for n in range(1, 6)]
    heads += [head(n, "decoder_self", alpha=1 + n / 9, density=n / 9) for n in range(1, 4)]
    rows = correlation_rows(heads)
    found = {(row["site"], row["statistic"]): row for row in rows}
    assert found["encoder_self", "density"]["spearman"] == pytest.approx(-1)
    assert found["encoder_self", "density"]["n_heads"] == 5
    assert set(found) == {("encoder_self", "density")}, "the others do not differ, or are few"


def records(lines: dict[int, list[float]]) -> list[dict[str, Any]]:
    updates = range(0, 50 * len(next(iter(lines.values()))), 50)
    return [
        {"update": update, "alpha": {"encoder_self": [[line[i] for line in lines.values()]]}}
        for i, update in enumerate(updates)
    ] + [{"update": 999, "density": {}}]


def test_trajectories_tell_who_fell_first_and_who_came_back() -> None:
    lines = {
        2: [1.5, 1.495, 1.4, 1.3, 1.9],  # falls, then rises above where it began
        3: [1.5, 1.52, 1.3, 1.2, 1.2],  # rises first
        5: [1.5, 1.5, 1.495, 1.5, 1.5],  # hardly moves
    }
    rows = trajectory_rows(records(lines), {"encoder_self": [[2, 3, 5]]})
    assert [row["head"] for row in rows] == [2, 3, 5]
    assert [row["fell_first"] for row in rows] == [1, 0, None]
    assert [came_back(row) for row in rows] == [True, False, False]
    assert [came_back({"lowest": 1.2, "last": last}) for last in (1.24, 1.26)] == [False, True]
    assert (rows[0]["lowest"], rows[0]["lowest_update"], rows[0]["last_update"]) == (1.3, 150, 200)
    assert (rows[1]["lowest"], rows[1]["lowest_update"]) == (1.2, 150), "the first of equals"
    assert trajectory_rows(records(lines), {"encoder_self": [[1, 2]]}) == []
    text = told([head(n, alpha=1.5) for n in (2, 3, 5)], trajectories=rows)
    assert "From update 0 to 200: 1 of 3 α fell first, 1 rose first (1 hardly moved)" in text
    assert "encoder layer 1 head 2 from 1.30 at update 150 to 1.90" in text


def test_two_ends_have_a_higher_coefficient_than_one_hill() -> None:
    chosen = random.Random(1)
    hill = [chosen.gauss(1.5, 0.1) for _ in range(200)]
    ends = [1.1 + chosen.gauss(0, 0.02) + 0.8 * (n % 2) for n in range(200)]
    assert (sarle(hill) or 0) < 0.45
    assert (sarle(ends) or 0) > 0.9
    assert sarle([1.0, 2.0, 1.0]) is None
    assert sarle([1.5] * 9) is None
    # by hand for 0, 0, 0, 1: skewness 2, excess kurtosis 4, both corrected
    assert sarle([0, 0, 0, 1]) == pytest.approx(5 / (4 + 13.5))


# -- words ----------------------------------------------------------------------------------------


def test_heads_with_a_role_are_named_with_what_they_do() -> None:
    heads = [
        head(1, alpha=1.91, roles="previous", previous_weight=0.88, previous_share=0.95),
        head(2, alpha=1.18, roles="previous", previous_weight=0.6, previous_share=0.91),
        head(3, alpha=1.6, roles="merging", merge_score=0.88, split_merge_score=0.7),
        head(4, alpha=1.05, roles="interrogation", question_weight=0.97, statement_weight=0.03),
        head(5, alpha=1.3, roles="rare", rare_share=0.66),
        head(6, alpha=1.3, roles="offset+2", offset=2, offset_share=0.93, offset_weight=0.8),
    ]
    text = told(heads)
    for line in (
        "- encoder layer 1 head 1, α 1.91: previous",
        "- **-1, the token before**: 2 heads with a median of 74 %: encoder layer 1 head 1, "
        "α 1.91, puts 88 % there; encoder layer 1 head 2, α 1.18, puts 60 % there.",
        "- **+1, the token behind**: no head for 90 % of tokens; nearest is encoder layer 1 head 1",
        "- **+2**: encoder layer 1 head 6, α 1.30, puts 80 % there.",
        "1 head: layer 1 head 3, α 1.60, scores 88 % (70 % at words of several pieces",
        "1 head: encoder layer 1 head 4, α 1.05, which puts 97 % on the question mark from "
        "question words, and 3 % on the last token from the same words elsewhere.",
        "encoder layer 1 head 5, α 1.30, in 66 % of sentences",
    ):
        assert line in text, text


def test_where_nothing_is_found_the_nearest_is_told() -> None:
    heads = [head(1), head(2, previous_share=0.52, previous_weight=0.47, merge_score=0.5)]
    text = told(heads)
    assert "No head has one of the roles below" in text
    assert "No head has an α of its own." in text
    assert (
        "no head for 90 % of tokens; nearest is encoder layer 1 head 2, with 52 % and a mean "
        "weight of 47 %." in text
    )
    assert "No head scores 80 % by holding words together. Highest: merge score 50 %" in text
    assert "No head puts 80 % on the question mark there" in text
    assert "What α goes with" not in text
    assert "Importance" not in text


def test_what_was_not_measured_is_said_and_not_made_up() -> None:
    bare = {"site": "cross", "layer": 1, "head": 1, "roles": ""}
    few = {"source_tokens": 9, "target_tokens": 8}
    text = told([bare], few)
    assert "No head forms weights" in text
    assert "there is no list of question words" in text
    assert "the source is written without spaces" in text
    assert "none can be seen to look at a distance" in text
    text = told([head(1)], {**COUNTS, "question_word_tokens": 0, "statement_word_tokens": 16})
    assert "no piece of question words in questions and 16 pieces" in text
    assert "too few to tell" in text


def test_dense_heads_diversity_and_sentences() -> None:
    dense = [head(n, density=1.0) for n in (1, 2)]
    layers = [
        {"site": "encoder_self", "layer": n, "diversity_heads": 0.1 * n, "diversity_keys": 0.05 * n}
        for n in (1, 2)
    ]
    layers.append({**layers[0], "site": "cross", "diversity_heads": 0.9})
    text = told(dense, layers=layers)
    assert "Every head is dense everywhere" in text
    assert "(`diversity_base=heads`)" in text
    assert "0.10, 0.20; highest in layer 2 of 2.\n- **cross-attention**: 0.90." in text
    other = told(dense, layers=layers, about={"diversity_base": "keys"})
    assert "0.05, 0.10" in other
    odd = {
        "site": "encoder_self", "layer": 1, "head": 2, "sentence": 7, "n_keys": 9, "density": 0.9,
        "expected": 0.2, "deviations": 5.0, "head_mean": 0.2, "text": "So etwas.",
    }  # fmt: skip
    text = told([head(1), head(2, alpha=1.33)], sentences=[odd])
    assert "Encoder layer 1 head 2, α 1.33, mean density 0.20: 0.90 in sentence 7, 0.20" in text


def test_a_pruning_curve_is_told_up_to_where_it_drops() -> None:
    curve = [
        {"sites": "encoder_self;decoder_self;cross", "n_removed": n, "fraction": n / 4,
         "bleu": bleu, "loss": 1.0}
        for n, bleu in enumerate([30.0, 29.0, 20.0, 29.9, 0.1])
    ]  # fmt: skip
    heads = [head(n, importance_normalised=n / 9) for n in (1, 2, 3, 4)]
    cross = [{**row, "sites": "cross", "bleu": 29.5} for row in curve]
    text = told(heads, pruning=[*curve, *cross])
    assert "| cross-attention | 29.5 | 29.5 |" in text
    assert "25 % of all heads can go" in text
    assert "| all heads | 30.0 | 29.0 | 20.0 | 29.9 | 0.1 |" in text
    assert "Most: encoder layer 1 head 4 (0.44) and encoder layer 1 head 3 (0.33)." in text


def test_heads_that_can_go_are_counted_and_not_asked_for() -> None:
    # of 4 heads, a step of 0.1 is no head and one of 0.3 is one
    curve = [
        {"sites": "cross", "n_removed": n, "fraction": step, "bleu": bleu, "loss": 1.0}
        for n, step, bleu in ((0, 0.0, 30.0), (0, 0.1, 30.0), (1, 0.3, 29.5), (4, 1.0, 0.0))
    ]
    assert "25 % of all heads can go" in told([head(1)], pruning=curve)
    curve[2]["bleu"] = 20.0
    assert "0 % of all heads can go" in told([head(1)], pruning=curve)


def test_a_layer_without_a_value_keeps_its_place() -> None:
    layers = [
        {"site": "encoder_self", "layer": n, "diversity_heads": value, "diversity_keys": value}
        for n, value in ((1, 0.3), (2, None), (3, 0.4), (4, None))
    ]
    heads = [head(1, layer=1, density=0.6), head(1, layer=3, density=0.9)]
    text = told(heads, layers=layers)
    assert "0.30, –, 0.40, –; highest in layer 3 of 4." in text
    assert "Layer by layer 0.60, –, 0.90." in text


def test_shares_never_look_like_more_than_they_are() -> None:
    assert [percent(share) for share in (0, 0.001, 0.006, 0.5, 0.994, 0.999, 1)] == [
        "0 %", "under 1 %", "1 %", "50 %", "99 %", "over 99 %", "100 %",
    ]  # fmt: skip
    assert [plural(n, "head") for n in (0, 1, 1200)] == ["no head", "1 head", "1,200 heads"]


def test_quoted_sentences_are_no_markup() -> None:
    assert quoted("a *b* [c] <d>_") == r"a \*b\* \[c\] \<d>\_"
    assert quoted("x" * 500) == "x" * 120 + "…"


def test_what_weights_are_and_what_was_left_out_is_said_where_it_holds() -> None:
    said = {
        "not_distributions": (3, "3 of these heads give weights that are no distribution"),
        "effective_weights": (True, "those that would have the same effect"),
        "too_long": (2, "2 longer sentences left out."),
    }
    plain = told([head(1)])
    for name, (value, sentence) in said.items():
        assert sentence in told([head(1)], about={name: value})
        assert sentence not in plain


def test_no_sentence_at_all_is_not_nearly_one() -> None:
    text = told([head(1, rare_share=0.0)])
    assert "No head looks from most tokens at the rarest of any sentence" in text

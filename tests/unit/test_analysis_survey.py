"""The analysis finds the heads that were given a role by hand, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest
import torch

from headwise.analysis.collect import head_statistics
from headwise.analysis.pruning import pruned_state
from headwise.analysis.survey import Survey, survey
from headwise.model.transformer import Transformer
from planted_heads import DECODER_ROLES, ROLES, SINGLES, batches, planted, sentences, side

CPU = torch.device("cpu")
NAMELESS = ("uniform", "end")
WANTED = {
    **{("encoder_self", 1, n): [] if role in NAMELESS else [role] for n, role in ROLES.items()},
    **{("decoder_self", 1, n): [DECODER_ROLES.get(n, "uniform")] for n in ROLES},
    **{("cross", 1, n): [] for n in ROLES},
}
WANTED = {key: [r for r in found if r not in NAMELESS] for key, found in WANTED.items()}


def look(model: Transformer, max_tokens: int = 300, language: str = "de") -> Survey:
    text = sentences()
    both = side(text, language)
    return survey(model, batches(text, max_tokens), CPU, {"source": both, "target": both})


def named(found: Survey) -> dict[tuple[str, int, int], list[str]]:
    return {
        (row["site"], row["layer"], row["head"]): [r for r in row["roles"].split(";") if r]
        for row in found.tables["heads"]
    }


def row_of(found: Survey, site: str, head: int) -> Mapping[str, Any]:
    (row,) = [r for r in found.tables["heads"] if (r["site"], r["head"]) == (site, head)]
    return row


@pytest.mark.parametrize(
    "options",
    ["attention=softmax", "attention=alpha_entmax", "attention=softmax model.register_tokens=3"],
)
def test_every_planted_head_is_found_and_no_other(make: Any, options: str) -> None:
    found = look(planted(make, *options.split()))
    assert named(found) == WANTED
    assert all(row["high"] <= 1 for row in found.tables["density"])


def test_pruned_models_keep_the_numbers_of_their_heads(make: Any) -> None:
    whole = planted(make, "attention=entmax15")
    heads = {"encoder_self": [[1, 4, 5]], "decoder_self": [[3]], "cross": [[]]}
    smaller = planted(make, "attention=entmax15", heads=heads)
    smaller.load_state_dict(pruned_state(whole, smaller))
    found = look(smaller)
    kept = [(site, 1, number) for site, ((*numbers,),) in heads.items() for number in numbers]
    assert named(found) == {key: WANTED[key] for key in kept}
    assert {(r["site"], r["head"]) for r in found.tables["density"]} == {(s, n) for s, _, n in kept}
    one, other = (row_of(f, "encoder_self", 4) for f in (look(whole), found))
    assert one["question_weight"] == pytest.approx(other["question_weight"], abs=1e-5)


@pytest.mark.parametrize("attention", ["alpha_entmax", "tanh"])
def test_batches_and_padding_change_nothing(make: Any, attention: str) -> None:
    model = planted(make, f"attention={attention}")
    one, other = look(model, 1), look(model, 10_000)
    assert len(one.tables["heads"]) == len(other.tables["heads"]) == 27
    for alone, together in zip(one.tables["heads"], other.tables["heads"], strict=True):
        assert alone.keys() == together.keys()
        for name, value in alone.items():
            assert together[name] == pytest.approx(value, abs=1e-4), name
    assert one.tables["density"] == other.tables["density"]
    assert one.counts == other.counts
    for rows in ("layers", "offsets"):
        for alone, together in zip(one.tables[rows], other.tables[rows], strict=True):
            assert together == pytest.approx(alone, abs=1e-4)


def test_what_the_planted_heads_measure(make: Any) -> None:
    """Weights are all but 1 where features meet, so the statistics are known."""
    found = look(planted(make, "attention=entmax15"))
    whole = 1 - found.counts["source_split_words"] / found.counts["source_words"]
    merges = {"merge_score": 1, "split_merge_score": 1, "cluster_mass": 1}
    wanted: dict[int, dict[str, float]] = {
        1: {"previous_share": 1, "previous_weight": 1, "offset": -1},
        3: merges,
        4: {"question_weight": 1},
        5: {"rare_share": 1},
        6: {"density": 1, "previous_share": 0, "rare_share": 0, "offset_share": 0, "offset": 0},
        7: {"split_merge_score": 0, "merge_score": whole},
        8: {"offset": 2},
        9: {"confidence": 0, "offset_share": 0, "offset": 0},  # all on the end, which is no token
    }
    for head, values in wanted.items():
        row = row_of(found, "encoder_self", head)
        assert {name: row[name] for name in values} == pytest.approx(values, abs=1e-3), head
    # the first token has nothing before it and spreads over what there is
    assert 0.8 < row_of(found, "encoder_self", 1)["confidence"] < 1
    assert row_of(found, "encoder_self", 4)["statement_weight"] < 0.2
    for row in found.tables["offsets"]:
        if (row["site"], row["head"]) == ("encoder_self", 6):
            assert row["max_share"] == 0 < row["mean_weight"]
    for row in found.tables["heads"]:
        if row["site"] == "decoder_self":
            assert row["next_share"] is None
            assert "question_weight" not in row


def test_an_offset_that_few_tokens_have_names_no_head(make: Any) -> None:
    """In sentences of six pieces only the first has anything at +5."""
    model = planted(make, "attention=entmax15")
    text = [["▁was", *chosen, "?"] for chosen in permutations(SINGLES, 4)][:40]
    both = side(text)
    found = survey(model, batches(text), CPU, {"source": both, "target": both})
    far = {
        row["head"]: row["max_share"]
        for row in found.tables["offsets"]
        if (row["site"], row["offset"]) == ("encoder_self", 5)
    }
    assert far[4] == 1
    asking = row_of(found, "encoder_self", 4)
    assert asking["offset"] != 5
    assert asking["roles"] == ""


def test_languages_decide_what_can_be_measured(make: Any) -> None:
    model = planted(make, "attention=softmax")
    japanese = look(model, language="ja")
    assert all(
        "merge_score" not in row and "cluster_mass" not in row for row in japanese.tables["heads"]
    )
    assert "source_words" not in japanese.counts
    assert japanese.counts["question_word_tokens"] == 0
    swahili = look(model, language="sw")
    assert "question_word_tokens" not in swahili.counts
    assert all("question_weight" not in row for row in swahili.tables["heads"])
    assert named(swahili)["encoder_self", 1, 3] == ["merging"]


def test_each_layer_has_its_own_diversity(make: Any) -> None:
    model = planted(make, "attention=softmax", "model.encoder_layers=2")
    text = sentences(6)
    found = survey(model, batches(text), CPU, {"source": side(text), "target": side(text)})
    wanted = head_statistics(model, batches(text), CPU)["diversity"]
    told = {(row["site"], row["layer"]): row["diversity_heads"] for row in found.tables["layers"]}
    assert told == {
        (site, layer): pytest.approx(value)
        for site, layers in wanted.items()
        for layer, (value,) in enumerate(layers, start=1)
    }
    assert told["encoder_self", 1] != pytest.approx(told["encoder_self", 2])

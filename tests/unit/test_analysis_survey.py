"""The analysis assigns roles to the planted heads and to no others."""

from functools import partial
from itertools import permutations

import pytest
import torch

from headwise.analysis.collect import head_statistics
from headwise.analysis.observe import for_each_block
from headwise.analysis.pruning import pruned_state
from headwise.analysis.survey import survey
from planted_heads import DECODER_ROLES, ROLES, SINGLES, batches, column_text, planted, sentences

CPU = torch.device("cpu")
WITHOUT_ROLE = ("uniform", "end")
EXPECTED = {
    **{("encoder_self", 1, n): [] if role in WITHOUT_ROLE else [role] for n, role in ROLES.items()},
    **{("decoder_self", 1, n): [DECODER_ROLES.get(n, "uniform")] for n in ROLES},
    **{("cross", 1, n): [] for n in ROLES},
}
EXPECTED = {key: [r for r in roles if r not in WITHOUT_ROLE] for key, roles in EXPECTED.items()}


def survey_of(model, max_tokens=300, language="de"):
    text = sentences()
    both = column_text(text, language)
    return survey(
        model,
        partial(for_each_block, model, batches(text, max_tokens), CPU),
        {"source": both, "target": both},
    )


def roles_of(result):
    return {
        (row["site"], row["layer"], row["head"]): [r for r in row["roles"].split(";") if r]
        for row in result.tables["heads"]
    }


def row_of(result, site, head):
    (row,) = [r for r in result.tables["heads"] if (r["site"], r["head"]) == (site, head)]
    return row


@pytest.mark.parametrize(
    "options",
    ["attention=softmax", "attention=alpha_entmax", "attention=softmax model.cls_tokens=3"],
)
def test_only_planted_heads_get_roles(make, options):
    result = survey_of(planted(make, *options.split()))
    assert roles_of(result) == EXPECTED
    assert all(row["high"] <= 1 for row in result.tables["density"])


def test_pruned_models_keep_the_numbers_of_their_heads(make):
    whole = planted(make, "attention=entmax15")
    heads = {"encoder_self": [[1, 4, 5]], "decoder_self": [[3]], "cross": [[]]}
    smaller = planted(make, "attention=entmax15", heads=heads)
    smaller.load_state_dict(pruned_state(whole, smaller))
    result = survey_of(smaller)
    remaining = [(site, 1, number) for site, ((*numbers,),) in heads.items() for number in numbers]
    assert roles_of(result) == {key: EXPECTED[key] for key in remaining}
    assert {(r["site"], r["head"]) for r in result.tables["density"]} == {
        (s, n) for s, _, n in remaining
    }
    one, other = (row_of(source, "encoder_self", 4) for source in (survey_of(whole), result))
    assert one["question_weight"] == pytest.approx(other["question_weight"], abs=1e-5)


@pytest.mark.parametrize("attention", ["alpha_entmax", "tanh"])
def test_batches_and_padding_change_nothing(make, attention):
    model = planted(make, f"attention={attention}")
    one, other = survey_of(model, 1), survey_of(model, 10_000)
    assert len(one.tables["heads"]) == len(other.tables["heads"]) == 27
    for alone, together in zip(one.tables["heads"], other.tables["heads"], strict=True):
        assert alone.keys() == together.keys()
        for name, value in alone.items():
            assert together[name] == pytest.approx(value, abs=1e-4), name
    assert one.tables["density"] == other.tables["density"]
    assert one.counts == other.counts
    for alone, together in zip(one.tables["layers"], other.tables["layers"], strict=True):
        assert together == pytest.approx(alone, abs=1e-4)


def test_statistics_of_planted_heads(make):
    """Weights are all but 1 where features meet, so the statistics are known."""
    result = survey_of(planted(make, "attention=entmax15"))
    whole = 1 - result.counts["source_split_words"] / result.counts["source_words"]
    merges = {"merge_score": 1, "split_merge_score": 1, "cluster_mass": 1}
    expected = {
        1: {"previous_share": 1, "previous_weight": 1, "offset": -1},
        3: merges,
        4: {"question_weight": 1},
        5: {"rare_share": 1},
        6: {"density": 1, "previous_share": 0, "rare_share": 0, "offset_share": 0, "offset": 0},
        7: {"split_merge_score": 0, "merge_score": whole},
        8: {"offset": 2},
        9: {"confidence": 0, "offset_share": 0, "offset": 0},  # all weight on the end
    }
    for head, values in expected.items():
        row = row_of(result, "encoder_self", head)
        assert {name: row[name] for name in values} == pytest.approx(values, abs=1e-3), head
    # the first token has no predecessor and spreads its weight
    assert 0.8 < row_of(result, "encoder_self", 1)["confidence"] < 1
    assert row_of(result, "encoder_self", 4)["statement_weight"] < 0.2
    for row in result.tables["heads"]:
        if row["site"] == "decoder_self":
            assert row["next_share"] is None
            assert "question_weight" not in row


def test_offset_of_few_tokens_gives_no_role(make):
    """In sentences of six tokens only the first has a token at +5."""
    model = planted(make, "attention=entmax15")
    text = [["▁was", *chosen, "?"] for chosen in permutations(SINGLES, 4)][:40]
    both = column_text(text)
    result = survey(
        model, partial(for_each_block, model, batches(text), CPU), {"source": both, "target": both}
    )
    interrogating = row_of(result, "encoder_self", 4)
    assert interrogating["offset"] != 5
    assert interrogating["roles"] == ""


def test_languages_determine_the_statistics(make):
    model = planted(make, "attention=softmax")
    japanese = survey_of(model, language="ja")
    assert all(
        "merge_score" not in row and "cluster_mass" not in row for row in japanese.tables["heads"]
    )
    assert "source_words" not in japanese.counts
    assert japanese.counts["question_word_tokens"] == 0
    swahili = survey_of(model, language="sw")
    assert "question_word_tokens" not in swahili.counts
    assert all("question_weight" not in row for row in swahili.tables["heads"])
    assert roles_of(swahili)["encoder_self", 1, 3] == ["merging"]


def test_diversity_is_measured_per_layer(make):
    model = planted(make, "attention=softmax", "model.encoder_layers=2")
    text = sentences(6)
    result = survey(
        model,
        partial(for_each_block, model, batches(text), CPU),
        {"source": column_text(text), "target": column_text(text)},
    )
    expected = head_statistics(model, batches(text), CPU)["diversity"]
    diversity = {
        (row["site"], row["layer"]): row["diversity_heads"] for row in result.tables["layers"]
    }
    assert diversity == {
        (site, layer): pytest.approx(value)
        for site, layers in expected.items()
        for layer, (value,) in enumerate(layers, start=1)
    }
    assert diversity["encoder_self", 1] != pytest.approx(diversity["encoder_self", 2])

"""All measures of the heads of a model together: planted heads are found, and no others."""

from functools import partial
from itertools import permutations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from golden_files import assert_golden_record
from head_counting import SENTENCES, Thresholded, build, collate, with_normaliser
from headwise.analysis import observe
from headwise.analysis.observe import for_each_block, observations
from headwise.analysis.pruning import pruned_state
from headwise.analysis.survey import ColumnText, survey
from headwise.analysis.tables import LAYERS
from headwise.config.register import typed
from headwise.data.batch import Batch, Column
from headwise.data.tokenizer import COLUMN
from headwise.errors import DataError
from headwise.tasks.task import task_of
from planted_heads import DECODER_ROLES, ROLES, SINGLES, batches, column_text, planted, sentences

CPU = torch.device("cpu")
WITHOUT_ROLE = ("uniform", "end")
EXPECTED = {
    **{("encoder_self", 1, n): role for n, role in ROLES.items()},
    **{("decoder_self", 1, n): DECODER_ROLES.get(n, "uniform") for n in ROLES},
    **{("cross", 1, n): "uniform" for n in ROLES},
}
EXPECTED = {place: "" if role in WITHOUT_ROLE else role for place, role in EXPECTED.items()}


def survey_of(model, max_tokens=300, language="de", text=None):
    text = text or sentences()
    blocks = partial(for_each_block, model, batches(text, max_tokens), CPU)
    return survey(model, blocks, dict.fromkeys(("source", "target"), column_text(text, language)))


def roles_of(result):
    return {
        (row["site"], row["layer"], row["head"]): row["roles"] for row in result.tables["heads"]
    }


def row_of(result, site, head):
    (row,) = [r for r in result.tables["heads"] if (r["site"], r["head"]) == (site, head)]
    return row


def assert_close(result, expected, tolerance):
    """Assert equal tables and counts."""
    assert result.counts == expected.counts
    for name, rows in expected.tables.items():
        for one, other in zip(rows, result.tables[name], strict=True):
            assert one.keys() == other.keys()
            for column, value in one.items():
                close = value if isinstance(value, str) else pytest.approx(value, abs=tolerance)
                assert other[column] == close, (name, column)


# -- planted heads --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["attention=softmax", "attention=softmax model.cls_tokens=3"])
def test_only_planted_heads_get_roles(make, options):
    result = survey_of(planted(make, *options.split()))
    assert roles_of(result) == EXPECTED
    assert all(row["high"] <= 1 for row in result.tables["density"])


def test_tables_of_planted_heads(make):
    model = planted(make, "attention=alpha_entmax", "model.encoder_layers=2").double()
    result = survey_of(model)
    assert {place: role for place, role in roles_of(result).items() if place[1] == 1} == EXPECTED
    tables = {name: [row for row in rows if row.get("n_queries", 1)]
              for name, rows in result.tables.items()}  # fmt: skip
    assert_golden_record("planted_heads", {**tables, "counts": [result.counts]})


def test_statistics_of_planted_heads(make):
    """Weights are all but 1 where features meet, so the statistics are known."""
    result = survey_of(planted(make, "attention=entmax15"))
    whole = 1 - result.counts["source_split_words"] / result.counts["source_words"]
    for head, values in {
        1: {"previous_share": 1, "previous_weight": 1, "offset": -1},
        3: {"merge_score": 1, "split_merge_score": 1, "cluster_mass": 1},
        4: {"question_weight": 1},
        5: {"rare_share": 1},
        6: {"density": 1, "previous_share": 0, "rare_share": 0, "offset_share": 0, "offset": 0},
        7: {"split_merge_score": 0, "merge_score": whole},
        8: {"offset": 2},
        9: {"confidence": 0, "offset_share": 0, "offset": 0},  # all weight on the end
    }.items():
        row = row_of(result, "encoder_self", head)
        assert {name: row[name] for name in values} == pytest.approx(values, abs=1e-3), head


def test_pruned_models_keep_the_numbers_of_their_heads(make):
    whole = planted(make, "attention=entmax15")
    heads = {"encoder_self": [[1, 4, 5]], "decoder_self": [[3]], "cross": [[]]}
    smaller = planted(make, "attention=entmax15", heads=heads)
    smaller.load_state_dict(pruned_state(whole, smaller))
    result = survey_of(smaller)
    left = [(site, 1, number) for site, ((*numbers,),) in heads.items() for number in numbers]
    assert roles_of(result) == {key: EXPECTED[key] for key in left}
    of_density = {(r["site"], r["layer"], r["head"]) for r in result.tables["density"]}
    assert of_density == set(left)
    one, other = (row_of(source, "encoder_self", 4) for source in (survey_of(whole), result))
    assert one["question_weight"] == pytest.approx(other["question_weight"], abs=1e-5)


def test_offset_of_few_tokens_gives_no_role(make):
    """In sentences of six tokens only the first has a token at +5."""
    text = [["▁was", *chosen, "?"] for chosen in permutations(SINGLES, 4)][:40]
    result = survey_of(planted(make, "attention=entmax15"), text=text)
    interrogating = row_of(result, "encoder_self", 4)
    assert interrogating["offset"] != 5
    assert interrogating["roles"] == ""


@pytest.mark.parametrize(
    ("language", "missing", "n_question_words"),
    [("ja", {"merge_score", "cluster_mass"}, 0), ("sw", {"question_weight"}, None)],
)
def test_languages_determine_the_statistics(make, language, missing, n_question_words):
    result = survey_of(planted(make, "attention=softmax"), language=language)
    assert all(not missing & row.keys() for row in result.tables["heads"])
    assert ("source_words" in result.counts) == (language == "sw")
    assert result.counts.get("question_word_tokens") == n_question_words
    merging = roles_of(result)["encoder_self", 1, 3]
    assert merging == ("merging" if language == "sw" else "")


ROWS = [
    {"site": "cross", "layer": 1, "diversity_heads": 1 / 3, "diversity_keys": 1e-9},
    {"site": "cross", "layer": 2, "diversity_heads": 0.0, "diversity_keys": None},
]


def test_tables_are_read_exactly_as_written(tmp_path):
    text = LAYERS.text(ROWS)
    assert LAYERS.parse(text, tmp_path) == ROWS
    with pytest.raises(KeyError, match="no columns"):
        LAYERS.text([{**ROWS[0], "density": 0.5}])
    with pytest.raises(DataError, match="another version"):
        LAYERS.parse(text.replace("diversity_keys", "diversity"), tmp_path)


# -- batches and blocks ---------------------------------------------------------------------------


@pytest.fixture
def use_blocks(monkeypatch):
    """Compute every attention in blocks of a number of queries."""

    def use(size):
        for name, value in (("MAX_QUERIES", 0), ("MAX_WEIGHTS", 1), ("MIN_QUERIES", size)):
            monkeypatch.setattr(observe, name, value)

    return use


@pytest.mark.parametrize("attention", ["alpha_entmax", "tanh"])
def test_batches_and_padding_change_nothing(make, attention):
    model = planted(make, f"attention={attention}")
    assert_close(survey_of(model, 1), survey_of(model, 10_000), 1e-4)


@pytest.mark.parametrize("n_cls", [0, 3])
def test_blocks_of_queries_change_nothing(make, use_blocks, n_cls):
    options = "attention=alpha_entmax", "scaling=length", f"model.cls_tokens={n_cls}"
    model = planted(make, *options)
    whole = survey_of(model)
    use_blocks(2)
    n_calls = []
    for_each_block(model, batches(sentences())[:1], CPU, lambda *_: n_calls.append(None))
    assert len(n_calls) > 3 * 2  # several blocks for each of three sites
    assert_close(survey_of(model), whole, 1e-5)


def test_observations_of_some_queries_are_rows_of_all(use_blocks):
    model, batch = build(with_normaliser(Thresholded), cls_tokens=1), collate(SENTENCES)
    ((_, whole),) = observations(model, [batch], CPU)
    use_blocks(2)
    ((_, rows),) = observations(model, [batch], CPU, [0, 3])
    for every, some in zip(whole, rows, strict=True):
        assert (some.site, some.layer) == (every.site, every.layer)
        chosen = [q for q in (0, 3) if q < every.weights_BHQK.shape[2]]
        torch.testing.assert_close(some.weights_BHQK, every.weights_BHQK[:, :, chosen])
        assert (some.queries_BQ == every.queries_BQ[:, chosen]).all()


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements of any tensor that an operation returns."""

    n_elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                n_elements = value.untyped_storage().nbytes() // value.element_size()
                self.n_elements = max(self.n_elements, n_elements)
        return result


@pytest.mark.slow
def test_long_windows_never_have_all_weights(make):
    n = 4096
    options = "model.layers=1", "model.d_model=16", "model.d_ff=16", "data.dir=x"
    config = typed(
        make(["data=text", f"data.window={n}", "model=tiny", "attention=softmax", *options])
    )
    model = task_of(config).model({COLUMN: 260})
    ids = torch.randint(4, 260, (1, n), generator=torch.Generator().manual_seed(0))
    empty = torch.zeros(0, dtype=torch.long)
    batch = Batch({COLUMN: Column(ids, torch.tensor([n]))}, empty, empty, [0], 0)
    text = ColumnText("en", ids.tolist(), lambda i: f"<0x{i - 4:02X}>")
    with LargestTensor() as largest:
        result = survey(model, partial(for_each_block, model, [batch], CPU), {COLUMN: text}, 1)
    assert all(row["density"] == 1 for row in result.tables["heads"])
    assert sum(row["n_queries"] for row in result.tables["density"]) == config.model.n_heads * n
    assert n < largest.n_elements < n * n

"""Blocks of queries: the statistics of whole sequences, without all weights in memory at once."""

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from head_counting import HEADS, SENTENCES, Thresholded, build, collate, with_normaliser
from headwise.analysis import observe
from headwise.analysis.observe import for_each_block, observations
from headwise.analysis.survey import ColumnText, survey
from headwise.config.register import typed
from headwise.data.batch import Batch, Column
from headwise.data.tokenizer import COLUMN
from headwise.tasks.task import task_of
from planted_heads import batches, column_text, planted, sentences

CPU = torch.device("cpu")


def use_blocks(monkeypatch, size):
    """Compute every attention in blocks of this number of queries."""
    for name, value in (("MAX_QUERIES", 0), ("MAX_WEIGHTS", 1), ("MIN_QUERIES", size)):
        monkeypatch.setattr(observe, name, value)


@pytest.mark.parametrize("n_cls", [0, 3])
def test_tables_are_those_of_whole_sequences(make, monkeypatch, n_cls):
    options = "attention=alpha_entmax", "scaling=length", f"model.cls_tokens={n_cls}"
    model, text = planted(make, *options), sentences()[:60]
    texts = dict.fromkeys(("source", "target"), column_text(text, "de"))
    whole = survey(model, partial(for_each_block, model, batches(text, 300), CPU), texts)
    use_blocks(monkeypatch, 2)
    n_calls = []
    for_each_block(model, batches(text, 300)[:1], CPU, lambda *_: n_calls.append(None))
    assert len(n_calls) > 3 * 2  # several blocks for each of three sites
    in_blocks = survey(model, partial(for_each_block, model, batches(text, 300), CPU), texts)
    assert in_blocks.counts == whole.counts
    for name, rows in whole.tables.items():
        assert len(rows) == len(in_blocks.tables[name])
        for one, other in zip(rows, in_blocks.tables[name], strict=True):
            for column, value in one.items():
                expected = value if isinstance(value, str) else pytest.approx(value, abs=1e-5)
                assert other[column] == expected, (name, column)


def test_observations_of_some_queries_are_rows_of_all(monkeypatch):
    model, batch = build(with_normaliser(Thresholded), cls_tokens=1), collate(SENTENCES)
    ((_, whole),) = observations(model, [batch], CPU)
    use_blocks(monkeypatch, 2)
    ((_, rows),) = observations(model, [batch], CPU, [0, 3])
    for all_queries, some in zip(whole, rows, strict=True):
        assert (some.site, some.layer) == (all_queries.site, all_queries.layer)
        chosen = [q for q in (0, 3) if q < all_queries.weights_BHQK.shape[2]]
        expected = all_queries.weights_BHQK[:, :, chosen, : some.weights_BHQK.shape[3]]
        torch.testing.assert_close(some.weights_BHQK, expected)
        assert (some.queries_BQ == all_queries.queries_BQ[:, chosen]).all()
        assert some.weights_BHQK.shape[1] == HEADS


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

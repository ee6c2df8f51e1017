"""Contract of packed documents: every document gets the states that it gets alone in a row.

It holds for every attention with segments, and for positions and patterns that depend on
distances only. Axes: B rows, N positions, V vocabulary.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

from command_line import composer
from headwise.config.register import group_choices, typed
from headwise.data.batch import Batch, Column
from headwise.errors import ConfigError
from headwise.losses.loss import CrossEntropy
from headwise.model.build import build_single
from headwise.model.places import site_alone
from headwise.tasks.measure import measure_losses
from headwise.tasks.stream.stream import TokenStream
from headwise.tasks.stream.windows import EvaluationWindows
from headwise.train.distributed import Ranks

V, START = 13, 2
ATTENTIONS = [name for name in group_choices("attention") if name != "linformer"]
SITES = {"causal": "decoder_self", "self": "encoder_self"}
SMALL = (
    *("model.encoder_layers=1", "model.decoder_layers=1", "model.d_model=16", "model.n_heads=2"),
    *("model.d_ff=32", "model.dropout=0", "model.attention_dropout=0"),
    *("model.activation_dropout=0", "positions=none"),
)
STRIDED = ("pattern=strided", "pattern.stride=4")
FIXED = ("pattern=fixed", "pattern.stride=4")
SPARSE = "pattern.block_sparse_from=1"
ONE_CELL = (SPARSE, "pattern.summary_cells=1")
Documents = tuple[list[int], list[int]]  # lengths in two rows
ODD = [3, 1, 17, 33], [20, 1, 12]
WHOLE_BLOCKS = [4, 16, 8, 24], [32, 16]
CASES = {
    **{name: ((f"attention={name}",), ODD) for name in ATTENTIONS},
    "small chunks": (("attention=linear", "attention.chunk_size=8"), ODD),
    "rotary": (("attention=softmax", "positions=rotary"), ODD),
    "alibi": (("positions=alibi",), ODD),
    "alibi, softmax": (("attention=softmax", "positions=alibi"), ODD),
    "length": (("scaling=length",), ODD),
    "strided": (STRIDED, ODD),
    "strided, sparse": ((*STRIDED, SPARSE, "positions=alibi"), ODD),
    "strided, formed": (("attention=tanh", *STRIDED, SPARSE, "positions=alibi"), ODD),
    "fixed": (FIXED, WHOLE_BLOCKS),
    "fixed, sparse": ((*FIXED, *ONE_CELL, "attention=softmax"), WHOLE_BLOCKS),
    "fixed, own cells": ((*FIXED, *ONE_CELL, "pattern.own_cells=true"), WHOLE_BLOCKS),
}
TYPES = {torch.float64: 1e-12, torch.float32: 2e-5}  # float32: by the fused kernels


@pytest.fixture(scope="module")
def make():
    with composer() as compose:
        yield lambda *overrides: typed(compose([*SMALL, *overrides]))


def build(make, kind, *overrides):
    config = make(*overrides)
    torch.manual_seed(0)
    return build_single(config, V, site_alone(config.model, SITES[kind], "tokens")).eval()


def packed(documents):
    """Rows of documents, the second padded."""
    lengths_B = torch.tensor([sum(row) for row in documents])
    shape = 2, int(lengths_B.max())
    ids_BN = torch.randint(V, shape, generator=torch.Generator().manual_seed(1))
    numbers = [np.repeat(np.arange(len(row)), row) for row in documents]
    segments_BN = np.stack([np.pad(row, (0, shape[1] - len(row)), "edge") for row in numbers])
    return Column(ids_BN, lengths_B, segments_BN=torch.from_numpy(segments_BN))


def states_of(model, column):
    batch = Batch({"tokens": column}, torch.empty(0), torch.empty(0), [], 0)
    states_BND = model.states(**model.inputs(batch))
    return states_BND


def gradients_of(model):
    """Gradients by name, except those that are rounding errors, and set to none."""
    named = [(name, p.grad) for name, p in model.named_parameters() if "key.bias" not in name]
    model.zero_grad()
    return {name: grad for name, grad in named if grad is not None}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("causal", torch.float32), ("self", torch.float64)],
    ids=str,
)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("kernels_for_short_rows")
def test_documents_have_the_states_and_gradients_of_documents_alone(make, case, kind, dtype):
    overrides, documents = CASES[case]
    model, column = build(make, kind, *overrides).to(dtype), packed(documents)
    states_BND = states_of(model, column)
    weights_BND = torch.randn(states_BND.shape, generator=torch.Generator().manual_seed(2))
    weights_BND = (weights_BND * column.is_real_BN[..., None]).to(dtype)
    states_BND.backward(weights_BND)
    gradients, limit = gradients_of(model), TYPES[dtype]
    for row, lengths in enumerate(documents):
        for first, end in pairwise(np.cumsum([0, *lengths]).tolist()):
            part = slice(row, row + 1), slice(first, end)
            alone = states_of(model, Column(column.ids_BN[part], torch.tensor([end - first])))
            assert (states_BND[part] - alone).abs().max() < limit
            alone.backward(weights_BND[part])
    for name, expected in gradients_of(model).items():
        assert (gradients[name] - expected).abs().max() < 10 * limit * max(1, expected.abs().max())


@pytest.mark.parametrize("min_context", [0, 5])
@pytest.mark.parametrize("name", ["alpha_entmax", "linear"])
def test_loss_of_packed_windows_is_that_of_documents(make, name, min_context):
    """Documents are short: overlapping windows hold all of the document of a scored token."""
    model, loss = build(make, "causal", f"attention={name}").double(), CrossEntropy()
    starts = np.array([0, 3, 4, 11, 14, 16])
    ids = np.random.default_rng(1).integers(4, V, 23).astype(np.uint16)
    window = 16 if min_context else 23

    def nats(stream):
        windows = EvaluationWindows(stream, START, window, 64, min_context)
        items = measure_losses(model, loss, windows, Ranks(0, 1, torch.device("cpu"))).items
        assert items[:, 2].sum() == len(stream.ids)
        return float(items[:, 1].sum())

    masked = nats(TokenStream(ids, starts=starts, document_mask=True))
    alone = [nats(TokenStream(part)) for part in np.split(ids, starts[1:])]
    assert masked == pytest.approx(sum(alone), rel=1e-12)
    assert masked != pytest.approx(nats(TokenStream(ids, starts=starts)), rel=1e-6)


def test_linformer_is_refused(make):
    model = build(make, "self", "attention=linformer")
    with pytest.raises(ConfigError, match=r"document_mask=true.*use attention=linear"):
        states_of(model, packed(ODD))

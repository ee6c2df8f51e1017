"""Masks, tables, and pruned models that equal the masked ones."""

import pytest
import torch
from torch import nn

from headwise.analysis.pruning import (
    check_pruned,
    common_heads,
    flat_heads,
    is_gated,
    masked,
    n_heads,
    one_left,
    one_removed,
    open_heads,
    present_heads,
    pruned_state,
    pruning_curve,
    pruning_order,
    without,
)
from headwise.attention.attention import NoHeads, ScoreAttention
from headwise.attention.normaliser import Normaliser
from headwise.attention.recorder import recorded_weights
from headwise.config.schema import SITES, ModelConfig
from headwise.errors import RunError
from headwise.model.build import build_model
from headwise.model.family import n_parameters
from headwise.model.transformer import Transformer
from pruned_models import (
    KEPT,
    D,
    H,
    V,
    batches,
    close_gates,
    config_of,
    logits,
    model_of,
    smaller_of,
    zeroed,
)

VARIANTS = [
    *((f"attention={name}",) for name in ("softmax", "alpha_entmax", "linear", "linformer")),
    ("attention=alpha_entmax", "attention.share=layer"),
    ("attention=alpha_entmax", "attention.depends_on=query"),
    ("attention=mixed", "attention.normalisers=[alpha_entmax,softmax]"),
    ("attention=linformer", "attention.sharing=none"),
    ("attention=softmax", "scaling=length"),
    ("attention=softmax", "scaling=length", "scaling.learned=query"),
    ("attention=softmax", "pattern=strided", "pattern.combine=heads", "pattern.stride=2"),
    ("attention=softmax", "model.cls_tokens=2"),
    ("attention=softmax", "norm=post", "model.share_embeddings=none"),
]
DECODED = [
    *((f"attention={name}",) for name in ("alpha_entmax", "linear", "linformer", "mixed")),
    ("attention=softmax", "scaling=length", "scaling.learned=query"),
    ("attention=softmax", "pattern=strided", "pattern.combine=heads", "pattern.stride=2"),
]


# -- masks and tables -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS, ids=" ".join)
def test_pruned_model_equals_the_masked_one(make, variant):
    model = model_of(make, *variant)
    expected = logits(zeroed(model, KEPT))
    assert not torch.allclose(expected, logits(model), atol=1e-3)
    with masked(model, KEPT):
        torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-12)
    smaller = smaller_of(make, model, *variant, heads=KEPT)
    torch.testing.assert_close(logits(smaller), expected, rtol=0, atol=1e-12)
    check_pruned(model, KEPT, smaller)
    assert present_heads(smaller) == KEPT
    # four projections of 4 entries a head and an axis of D, biases of 3 of them, whatever else
    n_removed = 3 * 2 * H - sum(n_heads(KEPT).values())
    assert n_parameters(model) - n_parameters(smaller) >= n_removed * (4 * 4 * D + 3 * 4)


@pytest.mark.parametrize("variant", DECODED, ids=" ".join)
def test_pruned_model_decodes_with_a_cache(make, variant):
    heads = {**KEPT, "decoder_self": [[], [4]], "cross": [[1, 3, 4], []]}
    model = smaller_of(make, model_of(make, *variant), *variant, heads=heads)
    (batch,) = batches()
    with torch.no_grad():
        source_BS, lengths_B, target_BT = model.inputs(batch).values()
        memory = model.encode(source_BS, lengths_B)
        whole = model.decode(target_BT, memory)
        cache = model.make_cache()
        first = model.decode(target_BT[:, :1], memory, cache)
        rows = torch.tensor([2, 0])
        cache.reorder(rows)
        cache.reorder_memory(rows)
        memory = memory.index_select(rows)
        rest = [model.decode(target_BT[rows, i : i + 1], memory, cache) for i in (1, 2)]
    torch.testing.assert_close(first, whole[:, :1], rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.cat(rest, 1), whole[rows, 1:3], rtol=0, atol=1e-10)


def test_pruning_twice_keeps_the_head_numbers_of_the_first_model(make):
    variant = ("attention=alpha_entmax", "scaling=length")
    model = model_of(make, *variant)
    once = smaller_of(make, model, *variant, heads=KEPT)
    fewer = {"encoder_self": [[3], []], "decoder_self": [[2, 4], []], "cross": [[4], [2]]}
    twice = smaller_of(make, once, *variant, heads=fewer)
    expected = logits(zeroed(model, fewer))
    torch.testing.assert_close(logits(twice), expected, rtol=0, atol=1e-12)
    with masked(once, fewer):
        torch.testing.assert_close(logits(once), expected, rtol=0, atol=1e-12)
    assert isinstance(twice.decoder.layers[1].self_attention, NoHeads)


def test_model_without_heads_at_a_site_trains(make):
    heads = {"encoder_self": [[], []], "decoder_self": [[], []]}
    model = build_model(config_of(make, "attention=softmax", heads=heads), V, V, True)
    (batch,) = batches()
    with recorded_weights(model) as weights:
        logits_BTV = model(**model.inputs(batch))
    logits_BTV.logsumexp(-1).sum().backward()
    biases = [p for name, p in model.named_parameters() if "attention.bias" in name]
    assert len(biases) == 4
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in biases)
    assert set(weights) == {"cross"}


def test_masks_are_removed_after_an_error(make):
    model = model_of(make, "attention=softmax", "gates=hard_concrete")
    gates = [attention.gate for _, _, attention in model.attentions()]
    before = logits(model)
    with pytest.raises(KeyError), masked(model, KEPT):
        raise KeyError
    after = [attention.gate for _, _, attention in model.attentions()]
    assert all(one is other for one, other in zip(gates, after, strict=True))
    assert torch.equal(logits(model), before)


def test_closed_gates_are_pruned_and_gates_removed(make):
    gated = ("attention=softmax", "gates=hard_concrete", "gates.log_a=5")
    model = model_of(make, *gated)
    close_gates(model, "encoder_self", 2, [False] * H)
    close_gates(model, "cross", 1, [True, False, True, False])
    heads = open_heads(model)
    assert heads["encoder_self"] == [[1, 2, 3, 4], []]
    assert heads["cross"] == [[1, 3], [1, 2, 3, 4]]
    smaller = smaller_of(make, model, "attention=softmax", heads=heads)
    torch.testing.assert_close(logits(smaller), logits(model), rtol=0, atol=1e-12)
    assert is_gated(model)
    assert not is_gated(smaller)


def test_heads_are_removed_in_order_of_importance(make):
    heads = {"encoder_self": [[1, 3], []], "decoder_self": [[2]], "cross": [[1, 4]]}
    values = {"encoder_self": [[0.5, 0.1], []], "decoder_self": [[0.3]], "cross": [[0.1, 0.0]]}
    order = pruning_order(values, heads, SITES)
    assert order == [
        ("cross", 1, 4), ("encoder_self", 1, 3), ("cross", 1, 1),  # of equals, the encoder's first
        ("decoder_self", 1, 2), ("encoder_self", 1, 1),
    ]  # fmt: skip
    assert {site for site, _, _ in pruning_order(values, heads, ["cross"])} == {"cross"}
    fewer = {"encoder_self": [[1], []], "decoder_self": [[2]], "cross": [[]]}
    assert without(heads, order[:3]) == fewer
    assert common_heads(heads, {"cross": [[4]]}) == {**heads, "cross": [[4]]}


WORTH = {("cross", 2, 3): 50.0, ("decoder_self", 1, 2): -5.0}


def test_pruning_tables(make):
    """What is measured is the sum of the worth of the open heads, of other heads 1."""
    model, calls = model_of(make, "attention=softmax"), []

    def measure():
        worth = [
            factor * WORTH.get((site, layer, number), 1.0)
            for site, layer, attention in model.attentions()
            for number, factor in enumerate(attention.gate.factors.flatten().tolist(), start=1)
        ]
        calls.append(sum(worth))
        return {"worth": sum(worth)}

    everything = 3 * 2 * H - 2 + 50.0 - 5.0
    order = flat_heads(present_heads(model), ["cross", "decoder_self"])
    rows = pruning_curve(model, order, measure, n_steps=4)
    assert [row["removed"] for row in rows] == [0, 0.25, 0.5, 0.75, 1]
    assert [row["decoder_self"] for row in rows] == [8, 4, 0, 0, 0]
    assert [row["cross"] for row in rows] == [8, 8, 8, 4, 0]
    assert [row["encoder_self"] for row in rows] == [8] * 5
    assert [row["worth"] for row in rows] == [67, 67 + 2, 69 - 4, 65 - 4, 61 - 53]

    few = flat_heads(present_heads(model), ["cross"])[:2]
    n_measured = len(calls)
    rows = pruning_curve(model, few, measure, n_steps=10)
    assert [row["cross"] for row in rows] == [8, 8, 8, 7, 7, 7, 7, 7, 6, 6, 6]
    assert [row["removed"] for row in rows] == [step / 10 for step in range(11)]
    assert len(calls) - n_measured == 3, "equal models are measured once"

    rows = one_removed(model, ["decoder_self"], measure)
    assert len(rows) == 2 * H
    values = {(row["layer"], row["head"]): row["worth"] for row in rows}
    assert values[1, 2] == everything + 5
    assert values[2, 2] == everything - 1

    rows = one_left(model, SITES, measure, lambda values: (values["worth"],))
    best = {(row["site"], row["layer"]): row["head"] for row in rows}
    assert len(best) == 6
    assert best["cross", 2] == 3
    assert best["decoder_self", 1] == 1


# -- what cannot be pruned ------------------------------------------------------------------------


class Undeclared(Normaliser):
    """Has a weight per head missing in `head_axes`."""

    def __init__(self, place):
        super().__init__(place)
        self.sharpness = nn.Parameter(torch.ones(place.n_heads))

    def forward(self, scores_BHQK, context):
        allowed = context.dense_mask(scores_BHQK)
        scores_BHQK = scores_BHQK * self.sharpness[:, None, None]
        if allowed is not None:
            scores_BHQK = scores_BHQK.masked_fill(~allowed, -1e9)
        return scores_BHQK.softmax(-1)


class ByPosition(Undeclared):
    """Declares its weights, but treats heads by position and not by their number."""

    head_axes = {"sharpness": 0}  # noqa: RUF012

    def forward(self, scores_BHQK, context):
        factors = torch.arange(1.0, scores_BHQK.shape[1] + 1, dtype=scores_BHQK.dtype)
        return super().forward(scores_BHQK * factors[:, None, None], context)


def of_normaliser(kind, heads=None):
    config = ModelConfig("test", 2, 2, D, H, 16, heads=heads)

    def make_attention(place):
        return ScoreAttention(place, kind(place), None, 0.0) if place.n_heads else NoHeads(place)

    return Transformer(config, V, V, True, make_attention, 1).double().eval()


def test_undeclared_head_parameters_are_refused():
    model, smaller = of_normaliser(Undeclared), of_normaliser(Undeclared, KEPT)
    message = r"encoder_self in layer 1 .* Undeclared\.head_axes .*sharpness"
    with pytest.raises(RunError, match=message):
        pruned_state(model, smaller)


def test_pruned_model_different_from_the_masked_one_is_refused():
    model, smaller = of_normaliser(ByPosition), of_normaliser(ByPosition, KEPT)
    smaller.load_state_dict(pruned_state(model, smaller))
    with pytest.raises(RunError, match="cannot be pruned"):
        check_pruned(model, KEPT, smaller)

"""Rotary positions, ALiBi and embeddings of positions against their formulas.

Axes: B batch, H heads, N positions, E head width.
"""

import copy
import itertools
import math

import pytest
import torch

import oracle
from headwise.attention.alibi import ALiBi, slopes
from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.positions import (
    DataDimensions,
    NoPositions,
    Sinusoids,
    sinusoids,
)
from headwise.attention.rotary import Rotary
from headwise.config.register import composed, group_node, typed
from headwise.errors import ConfigError
from headwise.model.build import parts_of
from headwise.ops import dispatch
from headwise.ops.attention import operator
from kernel_marks import needs_kernels
from weights_recorded import with_weights

B, H, N, E = 2, 3, 11, 8
D = H * E
BASE = 100.0
SCHEMES = [Rotary(BASE), ALiBi(), ALiBi([1, 3])]


def attention_at(positions, site="encoder_self", attention="softmax", place=None, **settings):
    torch.manual_seed(3)
    choices = {"attention": {**group_node("attention", attention), **settings}}
    attention_module = AttentionFactory(choices, positions=positions)(place or Place(site, 1, H, E))
    for parameter in attention_module.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return attention_module.eval()


def states(n=N, seed=0):
    return torch.randn(B, n, D, generator=torch.Generator().manual_seed(seed))


def rotated(states_BHNE, positions_N):
    """Halves of a head as complex numbers, turned by angles of the positions."""
    first, second = states_BHNE.chunk(2, dim=-1)
    angles = positions_N[:, None] * BASE ** (-torch.arange(0, E, 2, dtype=torch.float64) / E)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


@torch.no_grad()
def reference(attention, positions, states_BND, n_prefix, causal):
    """Softmax attention in float64."""
    layer, states = copy.deepcopy(attention).double(), states_BND.double()
    query, key, value = (
        layer.split(part(states)) for part in (layer.query, layer.key, layer.value)
    )
    bias, n = 0.0, states.shape[1]
    if isinstance(positions, Rotary):
        query, key = (
            rotated(part, (torch.arange(n) - n_prefix).clamp(min=0)) for part in (query, key)
        )
    else:
        numbers, slopes_H = positions.heads or [1, 2, 3], torch.zeros(H)
        slopes_H[torch.tensor(numbers) - 1] = torch.tensor(slopes(len(numbers)))
        bias = oracle.distance_bias(slopes_H, n, n, n_prefix)
    mask = oracle.visible(n, n, is_causal=causal)
    context_BHNE = oracle.attention(query, key, value, 1, mask, bias=bias)
    return layer.output(context_BHNE.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("positions", SCHEMES, ids=["rotary", "alibi", "alibi-some"])
@pytest.mark.parametrize(
    ("site", "n_prefix"), [("encoder_self", 0), ("encoder_self", 3), ("decoder_self", 0)]
)
def test_contexts_follow_the_formulas(positions, site, n_prefix):
    attention, x = attention_at(positions, site), states()
    causal = site == "decoder_self"
    context = attention(x, x, x, Mask(causal=causal, n_prefix=n_prefix))
    expected = reference(attention, positions, x, n_prefix, causal)
    torch.testing.assert_close(context.double(), expected, rtol=1e-5, atol=1e-5)


def test_cross_attention_has_no_positions():
    assert attention_at(ALiBi(), "cross").positions is None


def test_linformer_rotates_keys_before_mixing():
    windows_of_one = {"projection": "mean", "k": 32, "max_length": 32}
    attention, x = attention_at(SCHEMES[0], attention="linformer", **windows_of_one), states()
    context = attention(x, x, x, Mask(n_prefix=2))
    expected = reference(attention, SCHEMES[0], x, 2, causal=False)
    torch.testing.assert_close(context.double(), expected, rtol=1e-5, atol=1e-5)


MASKS = {
    "encoder": Mask(n_prefix=3),
    "padded": Mask(torch.tensor([N, 7]), n_prefix=3),
    "decoder": Mask(causal=True),
}


@needs_kernels
@pytest.mark.usefixtures("kernels_for_short_rows")
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(
    "name", ["softmax", "entmax15", "sparsemax", "alpha_entmax", "alpha_entmax of queries"]
)
def test_fused_alibi_equals_formed(name, mask, monkeypatch):
    """Forward and backward are equal; torch gets one bias for all sentences."""
    choice, _, of = name.partition(" of ")
    settings = {"depends_on": "query"} if of else {}
    site = "decoder_self" if mask.causal else "encoder_self"
    attention, biases, formed = attention_at(ALiBi(), site, choice, **settings), [], []
    real = operator.scaled_dot_product_attention

    def spied(*arguments, attn_mask, **options):
        biases.append(attn_mask.shape)
        return real(*arguments, attn_mask=attn_mask, **options)

    def context_and_gradients(call):
        x = states().requires_grad_()
        attention.zero_grad()
        context = call(x, x, x, mask)
        context.square().sum().backward()
        return [context.detach(), x.grad, *(p.grad for p in attention.parameters())]

    monkeypatch.setattr(operator, "scaled_dot_product_attention", spied)
    attention.normaliser.register_forward_pre_hook(lambda *inputs: formed.append(inputs))
    actual = context_and_gradients(attention)
    assert not formed
    is_torch = name == "softmax" and mask.key_lengths_B is None
    assert biases == ([(1, H, N, N)] if is_torch else [])
    expected = context_and_gradients(lambda *inputs: with_weights(attention, *inputs)[0])
    assert formed
    largest = max(float(tensor.abs().max()) for tensor in expected[1:])
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual[1:], expected[1:], rtol=0, atol=1e-5 * largest)


def test_alpha_of_a_query_uses_unrotated_queries():
    x, alphas = states(), []
    for positions in (Rotary(BASE), NoPositions()):
        module = attention_at(positions, attention="alpha_entmax", depends_on="query")
        contexts = []
        handle = module.normaliser.register_forward_pre_hook(
            lambda _, args, contexts=contexts: contexts.append(args[1])
        )
        module.recorders = (lambda attention, weights: None,)
        module(x, x, x, Mask())
        handle.remove()
        alphas.append(module.normaliser.query_stats(contexts[0])["alpha"])
    assert torch.equal(*alphas)


def test_slopes_of_a_model_in_half_precision_are_float32():
    x = states(dispatch.MIN_KEYS).bfloat16()
    attention = attention_at(ALiBi(), attention="entmax15").bfloat16()
    assert attention(x, x, x, Mask()).dtype is torch.bfloat16


def slopes_of(attention):
    return attention.positions.distances(0).slopes_H.tolist()


def test_pruned_heads_keep_their_slopes():
    assert slopes(8) == [2.0**-i for i in range(1, 9)]
    assert slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]  # the authors' code
    whole = attention_at(ALiBi())
    pruned = attention_at(ALiBi(), place=Place("encoder_self", 1, 2, E, D, (1, 3)))
    assert slopes_of(pruned) == [slopes_of(whole)[0], slopes_of(whole)[2]]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("harmonic", [1, 0.5, 0]),
        ("geometric", [2**-4, 2**-8, 0]),
        ([0.3, 2.0], [0.3, 2.0, 0]),
    ],
)
def test_half_of_the_heads_have_slopes(given, expected):
    attention = attention_at(ALiBi("half", given))
    assert slopes_of(attention) == pytest.approx(expected)
    assert attention.positions.positioned(3) == [slope > 0 for slope in expected]


# -- added to embeddings ------------------------------------------------------------------


@pytest.mark.parametrize("width", [8, 7, 1])
def test_sinusoids_match_the_paper(width):
    signal = sinusoids(60, width)
    assert signal.shape == (60, width)
    for position, column in itertools.product((0, 1, 2, 59), range(width)):
        angle = position / 10000 ** (2 * (column // 2) / width)
        expected = math.cos(angle) if column % 2 else math.sin(angle)
        assert signal[position, column].item() == pytest.approx(expected, abs=1e-5)


def test_sinusoids_extend():
    short = Sinusoids(16, n_positions=4)
    torch.testing.assert_close(short(3, 70), sinusoids(73, 16)[3:])


def test_positions_of_images_sum_row_column_and_channel():
    vectors = DataDimensions([2, 3, 4]).embedding(5)
    tables = [vectors.get_submodule(name).weight for name in ("row", "column", "channel")]
    pictures = [(r, c, k) for r in range(2) for c in range(3) for k in range(4)]
    expected = torch.stack([sum(t[i] for t, i in zip(tables, at, strict=True)) for at in pictures])
    torch.testing.assert_close(vectors(0, 24), expected)
    next_image = [21, 22, 23, 0, 1, 2]
    torch.testing.assert_close(vectors(21, 6), expected[next_image])
    with pytest.raises(ConfigError, match="shape must be rows, columns and channels"):
        DataDimensions([4, 4])


def test_attention_positions_use_the_stride_of_the_pattern():
    chosen = composed("positions=attention_dims", "pattern=strided", "pattern.stride=32")
    assert (chosen.positions.width, chosen.positions.max_positions) == (32, 1024)
    text = typed(composed("positions=data_dims"))
    with pytest.raises(ConfigError, match=r"positions\.shape must be .*; use attention_dims else"):
        parts_of(text)

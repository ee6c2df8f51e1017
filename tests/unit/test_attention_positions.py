"""Rotary positions and ALiBi compared with float64 loops over one sentence.

Axes: B batch, H heads, N positions, E head width.
"""

import cmath
import math

import pytest
import torch

from headwise.attention.alibi import ALiBi, slopes
from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.positions import NoPositions
from headwise.attention.rotary import Rotary
from headwise.config.folders import group_node
from headwise.ops import dispatch
from headwise.ops.attention import operator
from kernel_marks import needs_kernels
from weights_recorded import with_weights

B, H, N, E = 2, 3, 11, 8
D = H * E
BASE = 100.0
SCHEMES = [Rotary(BASE), ALiBi(), ALiBi([1, 3])]


def node(attention, **settings):
    return {**group_node("attention", attention), **settings}


def attention_at(
    positions, site="encoder_self", attention="softmax", pattern=None, place=None, **settings
):
    torch.manual_seed(3)
    choices = {"attention": node(attention, **settings)}
    if pattern is not None:
        choices["pattern"] = pattern
    attention_module = AttentionFactory(choices, positions=positions)(place or Place(site, 1, H, E))
    for parameter in attention_module.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return attention_module.eval()


def states(n=N, seed=0):
    return torch.randn(B, n, D, generator=torch.Generator().manual_seed(seed))


def position_of(i, n_prefix):
    return i - n_prefix if i >= n_prefix else None


def score(positions, q, k, head, at):
    """The score of one pair: rotation as a product of complex numbers, or a linear bias."""
    i, j = at
    product = float(q @ k)
    if isinstance(positions, Rotary):
        product = 0.0
        for e in range(E // 2):
            angle = ((i or 0) - (j or 0)) * BASE ** (-2 * e / E)
            point, other = complex(q[e], q[e + E // 2]), complex(k[e], k[e + E // 2])
            product += (point * cmath.exp(1j * angle) * other.conjugate()).real
    total = product / math.sqrt(E)
    if isinstance(positions, ALiBi) and i is not None and j is not None:
        numbers = positions.heads or list(range(1, H + 1))
        if head + 1 in numbers:
            total -= slopes(len(numbers))[numbers.index(head + 1)] * abs(i - j)
    return total


@torch.no_grad()
def reference(attention, positions, states_ND, n_prefix, causal):
    """Softmax attention of one sentence in float64."""
    states = states_ND.double()
    query, key, value = (
        (states @ part.weight.double().T + part.bias.double()).view(-1, H, E)
        for part in (attention.query, attention.key, attention.value)
    )
    context = torch.zeros_like(query)
    for head in range(H):
        for i in range(len(states)):
            keys = range(i + 1) if causal else range(len(states))
            scores = [
                score(
                    positions, query[i, head], key[j, head], head,
                    (position_of(i, n_prefix), position_of(j, n_prefix)),
                )
                for j in keys
            ]  # fmt: skip
            weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
            context[i, head] = sum(w * value[j, head] for w, j in zip(weights, keys, strict=True))
    return context.flatten(1) @ attention.output.weight.double().T + attention.output.bias.double()


@pytest.mark.parametrize("positions", SCHEMES, ids=["rotary", "alibi", "alibi-some"])
@pytest.mark.parametrize(
    ("site", "n_prefix"), [("encoder_self", 0), ("encoder_self", 3), ("decoder_self", 0)]
)
def test_contexts_follow_the_formulas(positions, site, n_prefix):
    attention, x = attention_at(positions, site), states()
    causal = site == "decoder_self"
    context = attention(x, x, x, Mask(causal=causal, n_prefix=n_prefix))
    expected = torch.stack([reference(attention, positions, row, n_prefix, causal) for row in x])
    torch.testing.assert_close(context.double(), expected, rtol=1e-5, atol=1e-5)


def test_cross_attention_has_no_positions():
    assert attention_at(ALiBi(), "cross").positions is None


def test_linformer_rotates_keys_before_mixing():
    windows_of_one = {"projection": "mean", "k": 32, "max_length": 32}
    attention, x = attention_at(SCHEMES[0], attention="linformer", **windows_of_one), states()
    context = attention(x, x, x, Mask(n_prefix=2))
    expected = torch.stack([reference(attention, SCHEMES[0], row, 2, causal=False) for row in x])
    torch.testing.assert_close(context.double(), expected, rtol=1e-5, atol=1e-5)


def context_and_gradients(attention, x, mask, is_formed):
    """Return the context and the gradients of the states and of every parameter."""
    x = x.clone().requires_grad_()
    attention.zero_grad()
    context = with_weights(attention, x, x, x, mask)[0] if is_formed else attention(x, x, x, mask)
    context.square().sum().backward()
    return [context.detach(), x.grad, *(parameter.grad for parameter in attention.parameters())]


MASKS = {
    "encoder": Mask(n_prefix=3),
    "padded": Mask(torch.tensor([N, 7]), n_prefix=3),
    "decoder": Mask(causal=True),
}


@needs_kernels
@pytest.mark.parametrize("mask", list(MASKS.values()), ids=list(MASKS))
@pytest.mark.parametrize(
    "attention", ["softmax", "entmax15", "sparsemax", "alpha_entmax", "alpha_entmax of queries"]
)
def test_fused_alibi_equals_formed(attention, mask, monkeypatch):
    """Forward and backward are equal; torch gets one bias for all sentences."""
    monkeypatch.setattr(dispatch, "MIN_KEYS", 1)
    name, _, of = attention.partition(" of ")
    settings = {"depends_on": "query"} if of else {}
    site = "decoder_self" if mask.causal else "encoder_self"
    module, biases, formed = attention_at(ALiBi(), site, name, **settings), [], []
    real = operator.scaled_dot_product_attention

    def spied(*arguments, attn_mask, **options):
        biases.append(attn_mask.shape)
        return real(*arguments, attn_mask=attn_mask, **options)

    monkeypatch.setattr(operator, "scaled_dot_product_attention", spied)
    handle = module.normaliser.register_forward_pre_hook(
        lambda *arguments: formed.append(arguments)
    )
    actual = context_and_gradients(module, states(), mask, is_formed=False)
    assert not formed
    is_torch = name == "softmax" and mask.key_lengths_B is None
    assert biases == ([(1, H, N, N)] if is_torch else [])
    handle.remove()
    expected = context_and_gradients(module, states(), mask, is_formed=True)
    sizes = [float(tensor.abs().max()) for tensor in expected]
    for actual_tensor, expected_tensor, size in zip(
        actual, expected, [sizes[0], *[max(sizes[1:])] * 99], strict=False
    ):
        assert (actual_tensor - expected_tensor).abs().max() <= 1e-5 * size


@pytest.mark.parametrize("combine", ["merged", "heads"])
@pytest.mark.parametrize("pattern", ["strided", "fixed"])
@pytest.mark.parametrize("positions", SCHEMES[:2], ids=["rotary", "alibi"])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_equal_dense(causal, positions, pattern, combine):
    x, lengths = states(), None if causal else torch.tensor([N, 7])
    contexts = []
    for start in (1, 1000):
        chosen = group_node("pattern", pattern)
        chosen |= {"stride": 3, "combine": combine, "block_sparse_from": start}
        if pattern == "fixed":
            chosen["summary_cells"] = 1
        site = "decoder_self" if causal else "encoder_self"
        attention = attention_at(positions, site, "entmax15", chosen)
        contexts.append(attention(x, x, x, Mask(lengths, causal)))
    is_real = slice(None) if causal else slice(0, 7)
    torch.testing.assert_close(
        contexts[0][:, is_real], contexts[1][:, is_real], rtol=1e-5, atol=1e-5
    )


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
    assert attention.positions.positioned(3).tolist() == [slope > 0 for slope in expected]

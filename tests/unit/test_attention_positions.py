"""Rotary positions and ALiBi beside float64 written out for one sentence, pair by pair.

Letters: B batch, H heads, N positions, E head width.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.attention import fused
from headwise.attention.alibi import ALiBi, slopes
from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.positions import NoPositions, Positions
from headwise.attention.protocol import Attention
from headwise.attention.rotary import Rotary
from headwise.config.folders import group_node
from headwise.errors import ConfigError
from headwise.kernels import choice
from kernel_marks import needs_kernels
from weights_recorded import with_weights

B, H, N, E = 2, 3, 11, 8
D = H * E
BASE = 100.0
SCHEMES: list[Positions] = [Rotary(BASE), ALiBi(), ALiBi([1, 3])]


def node(attention: str, **settings: Any) -> dict[str, Any]:
    return {**group_node("attention", attention), **settings}


def attention_at(
    positions: Positions,
    site: str = "encoder_self",
    attention: str = "softmax",
    pattern: dict[str, Any] | None = None,
    place: Place | None = None,
    **settings: Any,
) -> Attention:
    torch.manual_seed(3)
    choices = {"attention": node(attention, **settings)}
    if pattern is not None:
        choices["pattern"] = pattern
    made = AttentionFactory(choices, positions=positions)(place or Place(site, 1, H, E))
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return made.eval()


def states(n: int = N, seed: int = 0) -> Tensor:
    return torch.randn(B, n, D, generator=torch.Generator().manual_seed(seed))


def position_of(i: int, n_prefix: int) -> int | None:
    return i - n_prefix if i >= n_prefix else None


def score(positions: Positions, q: Tensor, k: Tensor, head: int, at: Any) -> float:
    """The score of one pair: rotation as a product of complex numbers, or a linear bias."""
    i, j = at
    product = float(q @ k)
    if isinstance(positions, Rotary):
        product = 0.0
        for e in range(E // 2):
            angle = ((i or 0) - (j or 0)) * BASE ** (-2 * e / E)
            point, other = complex(q[e], q[e + E // 2]), complex(k[e], k[e + E // 2])
            product += (point * cmath.exp(1j * angle) * other.conjugate()).real
    found = product / math.sqrt(E)
    if isinstance(positions, ALiBi) and i is not None and j is not None:
        numbers = positions.heads or list(range(1, H + 1))
        if head + 1 in numbers:
            found -= slopes(len(numbers))[numbers.index(head + 1)] * abs(i - j)
    return found


@torch.no_grad()
def reference(
    made: Attention, positions: Positions, states_ND: Tensor, n_prefix: int, causal: bool
) -> Tensor:
    """Softmax attention of one sentence in float64."""
    read = states_ND.double()
    query, key, value = (
        (read @ part.weight.double().T + part.bias.double()).view(-1, H, E)
        for part in (made.query, made.key, made.value)
    )
    context = torch.zeros_like(query)
    for head in range(H):
        for i in range(len(read)):
            keys = range(i + 1) if causal else range(len(read))
            scores = [
                score(
                    positions, query[i, head], key[j, head], head,
                    (position_of(i, n_prefix), position_of(j, n_prefix)),
                )
                for j in keys
            ]  # fmt: skip
            weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
            context[i, head] = sum(w * value[j, head] for w, j in zip(weights, keys, strict=True))
    return context.flatten(1) @ made.output.weight.double().T + made.output.bias.double()


@pytest.mark.parametrize("positions", SCHEMES, ids=["rotary", "alibi", "alibi-some"])
@pytest.mark.parametrize(
    ("site", "n_prefix"), [("encoder_self", 0), ("encoder_self", 3), ("decoder_self", 0)]
)
def test_contexts_are_those_of_the_formulas(positions: Positions, site: str, n_prefix: int) -> None:
    made, x = attention_at(positions, site), states()
    causal = site == "decoder_self"
    found = made(x, x, x, Mask(causal=causal, n_prefix=n_prefix))
    wanted = torch.stack([reference(made, positions, row, n_prefix, causal) for row in x])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_linformer_rotates_keys_before_they_are_mixed() -> None:
    windows_of_one = {"projection": "mean", "k": 32, "max_length": 32}
    made, x = attention_at(SCHEMES[0], attention="linformer", **windows_of_one), states()
    found = made(x, x, x, Mask(n_prefix=2))
    wanted = torch.stack([reference(made, SCHEMES[0], row, 2, causal=False) for row in x])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def outcome(made: Attention, x: Tensor, mask: Mask, is_formed: bool) -> list[Tensor]:
    """Context and gradients of the states and of every parameter."""
    x = x.clone().requires_grad_()
    made.zero_grad()
    found = with_weights(made, x, x, x, mask)[0] if is_formed else made(x, x, x, mask)
    found.square().sum().backward()
    return [found.detach(), x.grad, *(one.grad for one in made.parameters())]


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
def test_alibi_is_fused(attention: str, mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused and formed are one, forward and backward; what torch is given is for all sentences."""
    monkeypatch.setattr(choice, "KEYS_WORTH_IT", 1)
    name, _, of = attention.partition(" of ")
    settings = {"depends_on": "query"} if of else {}
    site = "decoder_self" if mask.causal else "encoder_self"
    made, biases, formed = attention_at(ALiBi(), site, name, **settings), [], []
    real = fused.scaled_dot_product_attention

    def spied(*given: Any, attn_mask: Tensor, dropout_p: float) -> Tensor:
        biases.append(attn_mask.shape)
        return real(*given, attn_mask=attn_mask, dropout_p=dropout_p)

    monkeypatch.setattr(fused, "scaled_dot_product_attention", spied)
    handle = made.normaliser.register_forward_pre_hook(lambda *given: formed.append(given))
    ours = outcome(made, states(), mask, is_formed=False)
    assert not formed
    is_torch = name == "softmax" and mask.key_lengths_B is None
    assert biases == ([(1, H, N, N)] if is_torch else [])
    handle.remove()
    exact = outcome(made, states(), mask, is_formed=True)
    sizes = [float(one.abs().max()) for one in exact]
    for mine, other, size in zip(ours, exact, [sizes[0], *[max(sizes[1:])] * 99], strict=False):
        assert (mine - other).abs().max() <= 1e-5 * size


@pytest.mark.parametrize("combine", ["merged", "heads"])
@pytest.mark.parametrize("pattern", ["strided", "fixed"])
@pytest.mark.parametrize("positions", SCHEMES[:2], ids=["rotary", "alibi"])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_equal_dense(causal: bool, positions: Positions, pattern: str, combine: str) -> None:
    x, lengths = states(), None if causal else torch.tensor([N, 7])
    found = []
    for start in (1, 1000):
        chosen = group_node("pattern", pattern)
        chosen |= {"stride": 3, "combine": combine, "block_sparse_from": start}
        if pattern == "fixed":
            chosen["summary_cells"] = 1
        site = "decoder_self" if causal else "encoder_self"
        made = attention_at(positions, site, "entmax15", chosen)
        found.append(made(x, x, x, Mask(lengths, causal)))
    real = slice(None) if causal else slice(0, 7)
    torch.testing.assert_close(found[0][:, real], found[1][:, real], rtol=1e-5, atol=1e-5)


def test_an_alpha_of_each_query_reads_the_query_before_it_is_rotated() -> None:
    x, alphas = states(), []
    for positions in (Rotary(BASE), NoPositions()):
        made = attention_at(positions, attention="alpha_entmax", depends_on="query")
        contexts: list[Any] = []
        handle = made.normaliser.register_forward_pre_hook(
            lambda module, args, kept=contexts: kept.append(args[1])
        )
        made.recorders = (lambda attention, weights: None,)
        made(x, x, x, Mask())
        handle.remove()
        alphas.append(made.normaliser.query_stats(contexts[0])["alpha"])
    assert torch.equal(*alphas)


def slopes_of(made: Attention) -> list[float]:
    return made.positions.distances(0).slopes_H.tolist()


def test_pruned_heads_keep_their_slopes() -> None:
    assert slopes(8) == [2.0**-i for i in range(1, 9)]
    assert slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]  # the authors' code
    whole = attention_at(ALiBi())
    left = attention_at(ALiBi(), place=Place("encoder_self", 1, 2, E, D, (1, 3)))
    assert slopes_of(left) == [slopes_of(whole)[0], slopes_of(whole)[2]]


@pytest.mark.parametrize(
    ("positions", "attention", "settings", "refusal"),
    [
        (Rotary(), "linear", {}, "LinearAttention at encoder_self does not support Rotary"),
        (ALiBi(), "linear", {}, "ALiBi"),
        (ALiBi(), "linformer", {}, "Linformer at encoder_self does not support ALiBi"),
        (Rotary(), "linformer", {"before_split": True}, "Linformer"),
        (ALiBi([1, 4]), "softmax", {}, "positions.heads must be at most 3, got 4"),
    ],
)
def test_what_cannot_go_together_is_refused(
    positions: Positions, attention: str, settings: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(ConfigError, match=refusal):
        attention_at(positions, attention=attention, **settings)
    made = attention_at(positions, "cross", "softmax")
    assert made.positions is None


def test_heads_of_odd_width_cannot_be_rotated() -> None:
    with pytest.raises(ConfigError, match="width is even"):
        attention_at(Rotary(), place=Place("encoder_self", 1, 2, 7))
    for wrong in ([], [2, 1], [0, 1]):
        with pytest.raises(ConfigError, match="heads must be null or increasing"):
            ALiBi(wrong)
    with pytest.raises(ConfigError, match="base must be above 1"):
        Rotary(1.0)

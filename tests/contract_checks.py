"""Setup and checks shared by the contracts of variants, patterns and scalings.

Axes: B batch, H heads, Q queries, K keys, N positions, D width, E head width.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.config.schema import ModelConfig
from headwise.model.transformer import Transformer

B, H, E, Q, K = 3, 4, 8, 5, 7
D = H * E
MODEL = ModelConfig("contract", 2, 2, D, H, 2 * D, dropout=0.0, activation_dropout=0.0)
VOCABULARY = 11
STEPS = ((0, 1), (1, 2), (2, 3), (3, 6))  # single positions, and several at once
SHORT = torch.tensor([Q, 4, 2])


def states(length: int, seed: int, scale: float = 1.0) -> Tensor:
    """Random states (B, N, D)."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(B, length, D, generator=generator)


def ids(length: int, seed: int) -> Tensor:
    """Random token ids (B, N)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCABULARY, (B, length), generator=generator)


def inputs_of(site: str) -> tuple[Tensor, Tensor, Mask]:
    """States of queries and keys at a site, and the mask."""
    query = states(Q, 1)
    if site == "cross":
        return query, states(K, 2), Mask(key_lengths_B=torch.tensor([K, 4, 1]))
    if site == "decoder_self":
        return query, query, Mask(causal=True)
    return query, query, Mask(key_lengths_B=torch.tensor([Q, 3, 1]))


def model_of(factory: AttentionFactory) -> Transformer:
    """A small model without dropout."""
    return Transformer(MODEL, VOCABULARY, VOCABULARY, True, factory, seed=3)


def assert_cached_decoding_equals_uncached(
    model: Transformer, lengths_B: Tensor = SHORT, steps: Iterable[tuple[int, int]] = STEPS
) -> None:
    """Compare decoding whole targets with decoding them in `steps` (start, end)."""
    model.eval()
    steps = list(steps)
    target = ids(steps[-1][1], 2)
    memory = model.encode(ids(int(lengths_B.max()), 1), lengths_B)
    whole = model.decode(target, memory)
    cache = model.make_cache()
    parts = [model.decode(target[:, start:end], memory, cache) for start, end in steps]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


def assert_every_parameter_gets_a_finite_gradient(
    model: Transformer, dtype: torch.dtype, lengths_B: Tensor = SHORT, n_target: int = 6
) -> None:
    """Run one backward pass of a model in training mode."""
    model.train()
    with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
        output = model(ids(int(lengths_B.max()), 1), lengths_B, ids(n_target, 2))
        targets = ids(n_target, 3).flatten()
        loss = torch.nn.functional.cross_entropy(output.flatten(0, 1).float(), targets)
    assert torch.isfinite(loss)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} got no gradient"
        assert torch.isfinite(parameter.grad).all(), f"{name} got a gradient that is not finite"
        if not name.endswith("key.bias"):  # it adds a constant to all scores of a row
            assert parameter.grad.abs().max() > 0, f"{name} got a gradient of zero"


def assert_state_saves_and_loads(model: Transformer, other: Transformer) -> None:
    """Load the state of one model into another with different weights."""
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.load_state_dict(model.state_dict())
    arguments = (ids(Q, 1), SHORT, ids(6, 2))
    assert torch.equal(other.eval()(*arguments), model.eval()(*arguments))

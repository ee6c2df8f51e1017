"""The small problem that each kernel computes in its verification, and the expected results.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width, N rows, V classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.ops.attention import cpu as cpu_attention
from headwise.ops.attention import cpu_few, cpu_sparse, triton_launch
from headwise.ops.attention.distances import Distances, slopes_of
from headwise.ops.attention.layout import BlockLayout, Columns, Gathered, Neighbours
from headwise.ops.attention.rule import EVERY_QUERY, NO_WINDOW, Rule
from headwise.ops.draws import Draws
from headwise.ops.dropout import cpu as cpu_dropout
from headwise.ops.family import ALPHAS, Power, beta_of
from headwise.ops.losses import cpu as cpu_losses
from headwise.ops.losses import triton as triton_losses
from headwise.ops.maps import cpu as cpu_maps
from headwise.ops.maps import triton as triton_maps
from headwise.ops.visible import Visible

RATE = 0.25  # of dropout
SMOOTHING = 0.1
LONG = 300  # keys per row, too many for Triton's resident kernel
SEVERAL_BLOCKS = 150  # positions


class Case(NamedTuple):
    """A kernel and the settings that are verified together.

    Attributes:
        kernel: its name, a key of `CHECKS`.
        device: device type.
        dtype: of the inputs.
        power: the map.
        width: of queries and keys of a head, for attention.
        value_width: of values of a head.
        dropout: whether there is dropout, for attention.
    """

    kernel: str
    device: str
    dtype: torch.dtype
    power: Power = Power.EXP
    width: int = 0
    value_width: int = 0
    dropout: bool = False

    def __str__(self) -> str:
        more = f", head width {self.width}, {self.value_width}" if self.width else ""
        more += ", dropout" if self.dropout else ""
        return f"{self.kernel} ({str(self.dtype).removeprefix('torch.')}, {self.power.name}{more})"


@dataclass(frozen=True)
class Reference:
    """The mathematics in float64.

    Attributes:
        weights: (scores (B, H, Q, K), α or None, mask or None, power) -> weights.
        backward: (weights, gradient, α or None, power, with_alpha) -> gradients of the scores and
            of α, (B, H, Q, 1) or empty.
    """

    weights: Callable[[Tensor, Tensor | None, Tensor | None, int], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor | None, int, bool], tuple[Tensor, Tensor]]


# (name, computed, expected) of each result of a kernel
Pairs = Iterator[tuple[str, Tensor, Tensor]]


def _sampler(case: Case) -> Callable[..., Tensor]:
    """Return a function that draws random numbers in the case's dtype, on its device."""
    generator = torch.Generator().manual_seed(1)

    def sample(*shape: int, scale: float = 1.0) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float32) * scale
        return values.to(case.device, case.dtype)

    return sample


def _alphas(case: Case) -> Tensor | None:
    """Return α of two heads (1, 2, 1, 1), on the case's device.

    Gradients have a factor p^(2 - α): for α near 2, bfloat16 rounding at the edge of the support
    would exceed the tolerance.
    """
    if case.power is not Power.ANY:
        return None
    return torch.tensor([1.05, 1.25], dtype=torch.float32, device=case.device).view(1, 2, 1, 1)


def _exact(values: Tensor) -> Tensor:
    return values.to("cpu", torch.float64)


def _maps(case: Case, reference: Reference) -> Pairs:
    sample, alpha = _sampler(case), _alphas(case)
    scores, grad = sample(1, 2, 4, 37, scale=2.0), sample(1, 2, 4, 37)
    mask = torch.arange(37, device=case.device) < torch.tensor([37, 0, 9, 1])[:, None].to(
        case.device
    )
    beta, with_alpha = beta_of(alpha), alpha is not None
    mask = mask[None, None]
    if case.kernel.startswith("C++"):
        weights = cpu_maps.forward(scores, beta, case.power, Visible(mask))
        gradients = cpu_maps.backward(weights, grad, beta, case.power, with_alpha)
    else:
        weights = triton_maps.forward(scores, beta, case.power, mask)
        gradients = triton_maps.backward(weights, grad, beta, case.power, with_alpha)
    exact_alpha = None if alpha is None else _exact(alpha)
    yield "weights", weights, reference.weights(_exact(scores), exact_alpha, mask.cpu(), case.power)
    # from the rounded weights, as gradients jump at the border of the support
    tensors = (_exact(weights), _exact(grad), exact_alpha)
    expected = reference.backward(*tensors, case.power, with_alpha)
    yield "gradients", gradients[0], expected[0]
    if with_alpha:
        yield "gradients of α", gradients[1], expected[1]


class _Attention:
    """A small attention problem, computed by the kernel of a case and in float64."""

    def __init__(self, case: Case, reference: Reference, distances: Distances | None) -> None:
        self.distances = distances
        slopes, self.n_prefix = slopes_of(distances)
        self.slopes = None if slopes is None else slopes.to(case.device)
        self.case, self.reference, self.alpha = case, reference, _alphas(case)
        sample, width = _sampler(case), case.width
        n_queries, n_keys = (3, 20) if "few" in case.kernel else (7, 20)
        if "sparse" in case.kernel:
            n_queries = n_keys = 13 if case.kernel.startswith("C++") else SEVERAL_BLOCKS
        if "streaming" in case.kernel:
            n_keys = LONG
        self.query = sample(2, 2, n_queries, width, scale=2.0)
        self.grad = sample(2, 2, n_queries, case.value_width)
        self.key, self.value = sample(2, 2, n_keys, width), sample(2, 2, n_keys, case.value_width)
        self.n_visible = n_keys // 2 if "streaming" in case.kernel else n_keys
        self.lengths = torch.tensor([self.n_visible, self.n_visible - 5], device=case.device)
        self.offset, self.scale = self.n_visible - n_queries, width**-0.5
        self.rate = RATE if case.dropout else 0.0
        self.is_cpp = case.kernel.startswith("C++")

    def forward(self, value: Tensor) -> tuple[Tensor, ...]:
        """Return the context and the tensors saved for backward."""
        heads = (self.query, self.key, value)
        if "few" in self.case.kernel:
            settings = (int(self.case.power), True, self.offset, self.scale, self.n_prefix)
            others: tuple[Any, ...] = (self.alpha, None, self.lengths, self.slopes, *settings)
            context = cpu_few.attend(*heads, *others)
            return (context.transpose(1, 2),)
        run = cpu_attention.forward if self.is_cpp else triton_launch.launch_forward
        return run(*heads, *self._tensors(), *self._settings())

    def backward(self, saved: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the gradients of query, key, value and α."""
        run: Any = cpu_attention.backward if self.is_cpp else triton_launch.launch_backward
        tensors = (self.grad, self.query, self.key, self.value, *self._tensors(), *saved)
        gradients: tuple[Tensor, ...] = run(*tensors, *self._settings(), self.alpha is not None)
        return gradients

    def _settings(self) -> tuple[Any, ...]:
        return int(self.case.power), True, self.offset, self.rate, self.scale, self.n_prefix

    def _tensors(self) -> tuple[Any, ...]:
        """Return α, mask and lengths, seed or random words, slopes, and for Triton the pattern."""
        if self.is_cpp:
            seed = torch.tensor(5, dtype=torch.int64) if self.rate else None
            return self.alpha, None, self.lengths, seed, self.slopes
        alphas = [ALPHAS.get(self.case.power, 0.0)] * 2
        alpha_H = torch.tensor(alphas) if self.alpha is None else self.alpha.flatten()
        words = None
        if self.rate:
            generator = torch.Generator().manual_seed(2)
            shape = (2, *self.query.shape[:3])
            words = torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int64)
            words = words.to(self.case.device, torch.int32)
        return alpha_H.to(self.case.device), self.lengths, words, self.slopes, *self._pattern()

    def _pattern(self) -> Sequence[Tensor | None]:
        return (None,) * 3

    def dropped(self) -> Tensor:
        """Return the weights (B, H, Q, K) after dropout: contexts of identity values."""
        n_keys, width = self.value.shape[2:]
        parts = []
        for first in range(0, self.n_visible, width):
            value = torch.zeros_like(self.value)
            value[:, :, first : first + width].diagonal(dim1=2, dim2=3).fill_(1)
            parts.append(_exact(self.forward(value)[0]))
        visible = torch.cat(parts, -1)[..., : self.n_visible]
        return nn.functional.pad(visible, (0, n_keys - self.n_visible))

    def _mask(self, n_queries: int, n_keys: int) -> Tensor:
        """Return which pairs are allowed, bool (B, 1, Q, K)."""
        keys = torch.arange(n_keys)
        last = torch.arange(n_queries)[:, None] + self.offset
        return (keys < self.lengths.cpu()[:, None, None, None]) & (keys <= last)

    def pairs(self) -> Pairs:
        power, alpha = self.case.power, None if self.alpha is None else _exact(self.alpha)
        query, key, value, grad = map(_exact, (self.query, self.key, self.value, self.grad))
        mask = self._mask(query.shape[2], key.shape[2])
        scores = query @ key.mT * self.scale
        if self.distances is not None:
            scores = self.distances.biased(scores, self.offset)
        p = self.reference.weights(scores, alpha, mask, power)
        factor = torch.ones_like(p)
        if self.rate:
            dropped = self.dropped()
            factor = (dropped > p).to(p.dtype) / (1 - self.rate)
            yield "dropped weights", dropped, p * factor
            ratio = factor[p > 0.01].mean()  # of kept weights to the expected number
            yield "shares of dropped weights", ratio.round(), torch.ones_like(ratio)
        context, *saved = self.forward(self.value)
        yield "contexts", context, (p * factor) @ value
        if "few" in self.case.kernel:
            return
        gradients = self.backward(tuple(saved))
        grad_weights = (grad @ value.mT) * factor
        with_alpha = alpha is not None
        grad_scores, grad_alpha = self.reference.backward(p, grad_weights, alpha, power, with_alpha)
        yield "gradients of queries", gradients[0], self.scale * grad_scores @ key
        yield "gradients of keys", gradients[1], self.scale * grad_scores.mT @ query
        yield "gradients of values", gradients[2], (p * factor).mT @ grad
        if with_alpha:
            yield "gradients of α", gradients[3].flatten(), grad_alpha.sum((0, 2, 3))


class _SparseAttention(_Attention):
    """The same for the slots of a layout."""

    def forward(self, value: Tensor) -> tuple[Tensor, ...]:
        heads = (self.query, self.key, value, self.alpha)
        return cpu_sparse.forward(*heads, *self._arguments())

    def backward(self, kept: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        tensors = (self.grad, self.query, self.key, self.value, self.alpha, kept[0])
        return cpu_sparse.backward(*tensors, *self._arguments(), self.alpha is not None)

    def _arguments(self) -> tuple[cpu_sparse.Settings, int]:
        settings = (_layout(self.lengths), self.case.power, self.rate, self.scale, self.distances)
        return cpu_sparse.Settings(*settings), 5

    def _mask(self, n_queries: int, n_keys: int) -> Tensor:
        layout = _layout(self.lengths)
        slots = layout.key_positions(n_keys).long()
        is_allowed = torch.zeros(2, 1, n_queries, n_keys, dtype=torch.int64)
        return is_allowed.scatter_add_(3, slots, layout.allowed_BHNK.long()) > 0


class _TritonSparseAttention(_Attention):
    """The same for a rule."""

    def _pattern(self) -> Sequence[Tensor | None]:
        n_positions, width = self.query.shape[2:]
        sizes = (n_positions, width, self.query.element_size())
        _, block = triton_launch.blocks(*sizes, has_pattern=True)
        return _rule(self.query.device).tiles(True, self.lengths, block)

    def _mask(self, n_queries: int, n_keys: int) -> Tensor:
        positions, rule = torch.arange(n_keys), _rule(torch.device("cpu"))
        is_near = (positions[:, None] - positions).abs() <= rule.windows_H[:, None, None]
        labels = rule.key_labels_BHN[:, :, None]
        is_far = (labels == rule.labels_HN[:, :, None]) | (labels == EVERY_QUERY)
        return super()._mask(n_queries, n_keys) & (is_near | is_far)


def _rule(device: torch.device) -> Rule:
    """Return a rule for matrices of 16 columns.

    The first head has a window and the query's column, the second the query's row and all of the
    last column.
    """
    positions = torch.arange(SEVERAL_BLOCKS, device=device)
    rows, columns = positions // 16, positions % 16
    is_last = columns == 15
    labels_HN = torch.stack([columns, rows])
    key_labels_HN = torch.stack([columns, rows.masked_fill(is_last, EVERY_QUERY)])
    orders = (labels_HN, torch.stack([columns, (~is_last).long()]))
    windows_H = torch.tensor([5, NO_WINDOW], dtype=torch.int32, device=device)
    sorted_HN = [order_HN.argsort(dim=1, stable=True) for order_HN in orders]
    return Rule(windows_H, labels_HN, key_labels_HN[None], *sorted_HN)


def _layout(lengths_B: Tensor) -> BlockLayout:
    """Return a causal layout of 13 positions in blocks of 4, with all kinds of parts.

    Allowed are the query's block and the one before, and of earlier blocks the query's column and
    the last position.
    """

    def masks(blocks_M: Tensor, n_blocks: int, lengths_B: Tensor) -> list[Tensor]:
        within_L1, of_keys = torch.arange(4)[:, None], torch.arange(n_blocks)
        around = torch.arange(8) - 4
        positions = (around + 4 * blocks_M[:, None, None], 4 * of_keys + within_L1, 4 * of_keys + 3)
        is_earlier = of_keys < blocks_M[:, None, None] - 1
        allowed = (around <= within_L1, is_earlier, is_earlier & (within_L1 < 3))
        lengths = lengths_B.view(-1, 1, 1, 1, 1)
        return [
            some & (keys >= 0) & (keys < lengths)
            for keys, some in zip(positions, allowed, strict=True)
        ]

    cells = Gathered(torch.tensor([[[3, 7, 11, 12]]]), 1)
    parts = (Neighbours(4, 1, 0), Columns(4), cells)
    return BlockLayout(4, 13, True, lengths_B, parts, masks, lambda: _rule(lengths_B.device))


_SPARSE = {
    "C++ sparse attention": _SparseAttention,
    "Triton sparse attention": _TritonSparseAttention,
}


def _attention(case: Case, reference: Reference) -> Pairs:
    """Yield results without and with a bias."""
    problem: type[_Attention] = _SPARSE.get(case.kernel, _Attention)
    for distances in (None, Distances(torch.tensor([0.25, 0.0]), 2)):
        yield from problem(case, reference, distances).pairs()


def _losses(case: Case, reference: Reference) -> Pairs:
    alpha = ALPHAS.get(case.power, 1.3)
    rows = cpu_losses if case.kernel.startswith("C++") else triton_losses
    scores = _sampler(case)(4, 53, scale=3.0)
    exact = _exact(scores)
    target = torch.tensor([0, 5, 52, 17])
    alphas = torch.full((1, 1, 1, 1), alpha, dtype=torch.float64)
    p = reference.weights(exact[None, None], alphas, None, Power.ANY)[0, 0]
    entropy = -torch.special.xlogy(p, p) if alpha == 1 else (p - p**alpha) / (alpha * (alpha - 1))
    shifted = exact - exact.amax(1, keepdim=True)
    value, support, total, threshold = rows.read(scores, alpha, True)
    yield "losses", value, (p * shifted + entropy).sum(1)
    yield "sizes of supports", support, (p > 1e-30).sum(1)
    assert total is not None
    yield "sums of scores", total, exact.sum(1)
    out, eps_v = torch.empty_like(scores), SMOOTHING / 53
    scale = torch.ones(4, dtype=torch.float32, device=case.device)
    tensors = (scores, threshold, out, scale, target.to(case.device))
    rows.write_gradient(*tensors, alpha, SMOOTHING, eps_v)
    gold = nn.functional.one_hot(target, 53)
    yield "gradients", out, p - (1 - SMOOTHING) * gold - eps_v


def _dropout(case: Case, _: Reference | None) -> Pairs:
    sample, draws = _sampler(case), Draws(5, RATE)
    values, added = sample(1003), sample(1003)
    dropped = cpu_dropout.drop(values, draws)
    factor = (dropped != 0).to(torch.float64) / (1 - RATE)
    yield "entries", dropped, values.double() * factor
    yield "share", factor.mean().round(decimals=1), torch.ones(())
    yield "sums", cpu_dropout.drop_and_add(values, added, draws), added + values * factor
    relu = cpu_dropout.drop_relu(values, draws)
    yield "positive entries", relu, values.clamp_min(0) * factor
    slope = cpu_dropout.drop_relu_backward(added, relu, draws)
    yield "gradients", slope, added * factor * (values > 0)


CHECKS: dict[str, Callable[[Case, Any], Pairs]] = {
    "C++ maps": _maps,
    "C++ attention": _attention,
    "C++ attention of few queries": _attention,
    "C++ sparse attention": _attention,
    "C++ losses": _losses,
    "C++ dropout": _dropout,
    "Triton maps": _maps,
    "Triton attention": _attention,
    "Triton attention, streaming": _attention,
    "Triton sparse attention": _attention,
    "Triton losses": _losses,
}

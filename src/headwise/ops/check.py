"""The check of a built library: each of its kernels once, beside the reference in float64.

`dispatch` calls it before the first use of a library, also while a graph is traced. It runs in a
thread of its own, so that the caller's autograd, autocast, transforms and modes do not affect it,
with generators of its own. A success is remembered in the user's cache folder, under a hash of all
of `ops/`, of the build, of the device, of the precision of matrix products and of other settings
that choose their code.

Sizes cover the branches of the kernels: rows of one vector and of several groups of vectors, rows
that fit into registers and that do not, rows without a key, masks of stride 0, α per query.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width, N rows, V classes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import logging
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, arange

from headwise.files import machine_cache_dir
from headwise.ops.attention import cpu as cpu_attention
from headwise.ops.attention import cpu_few, cpu_sparse
from headwise.ops.attention.distances import Distances
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.attention.pattern_rule import BLOCK, COLUMN, NO_WINDOW, Rule
from headwise.ops.attention.triton import triton_entmax_attention
from headwise.ops.cpp import build
from headwise.ops.cpp.call import DTYPES
from headwise.ops.draws import Draws
from headwise.ops.dropout import cpu as cpu_dropout
from headwise.ops.family import ALPHAS, Power, beta_of
from headwise.ops.library import CPP, Library
from headwise.ops.linear import FewRows
from headwise.ops.losses import cpu as cpu_losses
from headwise.ops.losses import reference as exact_losses
from headwise.ops.losses import triton as triton_losses
from headwise.ops.maps import cpu as cpu_maps
from headwise.ops.maps import reference as exact_maps
from headwise.ops.maps import triton as triton_maps
from headwise.ops.visible import Visible

# Largest error by dtype: norm of the difference, relative to the norm of the reference. Gradients
# of scores jump where a rounded score leaves the support: there `JUMPS` times as much is allowed.
LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
JUMPS, JUMPING = 6, ("gradients of scores", "gradients of queries", "gradients of keys")
N_QUERIES, RATE, SMOOTHING = 21, 0.25, 0.1
# Environment variables that choose the code of Triton's kernels or of torch's matrix products.
SETTINGS = re.compile(r"(ATEN|DISABLE|DNNL|LLVM|MKL|ONEDNN|PTXAS|TRITON)_(?!.*DIR$)")

Pairs = Iterator[tuple[str, Tensor, Tensor]]  # name, computed, expected
Heads = tuple[Tensor, Tensor, Tensor]  # query, key, value
log = logging.getLogger(__name__)


def failure(library: Library) -> str | None:
    """Return how the results of a library differ from the reference, or None if they do not.

    Only a success is remembered: the next process checks again what failed.
    """
    passed = machine_cache_dir() / "checked" / _digest(library)
    if passed.exists():
        return None
    with ThreadPoolExecutor(1) as thread:
        try:
            wrong = thread.submit(_differences, library).result()
        except Exception as error:  # noqa: BLE001 - the reference is used
            first = next(iter(str(error).splitlines()), "")
            return f"the check raised {type(error).__name__}: {first}"
    if wrong:
        more = [f"and {len(wrong) - 3} other results"] if len(wrong) > 3 else []
        return "; ".join(wrong[:3] + more)
    try:
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()
    except OSError as error:
        log.info("cannot remember the check of the kernels: %s", error)
    return None


def _digest(library: Library) -> str:
    facts = build.build_digest() if library.kernel == CPP else _triton_facts(library.device)
    settings = sorted(item for item in os.environ.items() if SETTINGS.match(item[0]))
    # not str of the library, which leaves the precision out
    content = f"{library!r}{facts}{settings}{torch.backends.mkldnn.enabled}{_sources()}"
    return hashlib.sha256(content.encode()).hexdigest()[:20]


def _triton_facts(device: torch.device) -> str:
    facts = f"{importlib.metadata.version('triton')} {torch.__version__}"
    if device.type != "cuda":
        return f"{facts} interpreter"
    driver = Path("/proc/driver/nvidia/version")
    facts += driver.read_text(encoding="utf-8") if driver.is_file() else ""
    return f"{facts} {torch.cuda.get_device_properties(device)}"


@functools.cache
def _sources() -> str:
    """Return a hash of `ops/`, whose Python files prepare the arguments of the kernels."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _differences(library: Library) -> list[str]:
    """Return the results of a library that differ, with their errors."""
    cases, parts = [(library.dtype, library.power)], [_attention]
    if library.kernel == CPP:
        cases = list(product(DTYPES, Power))
        parts = [_maps, _attention, _few, _sparse, _losses, _dropout, _linear]
    elif library.has_pattern:
        parts = [_sparse]
    elif library.width == 0:  # torch computes softmax on a GPU
        parts = [_losses] if library.power is Power.EXP else [_maps, _losses]
    wrong = []
    for (dtype, power), part in product(cases, parts):
        small = _Small(library._replace(dtype=dtype, power=power))
        for name, computed, expected in part(small):
            error = float((_up(computed) - _up(expected)).norm())
            error /= max(float(_up(expected).norm()), 1e-6)
            if not error <= small.limit * (JUMPS if name in JUMPING else 1):  # NaN too
                wrong.append(f"{name} ({small.dtype}, {power.name}) differ by {error:.2g}")
    return wrong


class _Small:
    """What the small problems of one dtype and map have in common."""

    def __init__(self, library: Library) -> None:
        self.is_cpp, self.device = library.kernel == CPP, library.device
        self.power, self.dtype = library.power, str(library.dtype).removeprefix("torch.")
        self.width = library.width or 16
        self.alpha: Tensor | None = None
        if self.power is Power.ANY:
            # the first is below 1 + SERIES_BETA of ops/triton/threshold.py
            alphas = torch.tensor([1.02, 1.25], dtype=torch.float32, device=self.device)
            self.alpha = alphas.view(1, 2, 1, 1)
        slopes_H = torch.tensor([0.25, 0.0], dtype=torch.float32, device=self.device)
        self.distances = Distances(slopes_H, n_prefix=2)
        self.exact_distances = Distances(_up(slopes_H), n_prefix=2)
        generator = torch.Generator().manual_seed(1)

        def new(*shape: int) -> Tensor:
            values = torch.randn(shape, generator=generator, dtype=torch.float32)
            return values.to(self.device, library.dtype)

        self.new = new
        self.limit = LIMITS[library.dtype]
        if library.precision != "highest":  # matrix products of TF32 or bfloat16
            self.limit = max(self.limit, LIMITS[torch.bfloat16])

    def exact_alpha(self, alpha: Tensor | None) -> Tensor | float:
        return ALPHAS[self.power] if alpha is None else _up(alpha)


def _up(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float64)


def _mask(visible: Visible, n_queries: int, n: int, device: torch.device) -> Tensor:
    """Return which of `n` keys the queries see, bool (B or 1, 1, Q, K), on a CPU."""
    mask = visible.dense(n_queries, n, device)
    assert mask is not None
    return mask.expand(-1, -1, n_queries, n).cpu()


def _maps(small: _Small) -> Pairs:
    kernels: Any = cpu_maps if small.is_cpp else triton_maps
    for n in (37, 300) if small.is_cpp else (37, 300, 2100):
        scores, grad = small.new(1, 2, 5, n) * 2, small.new(1, 2, 5, n)
        lengths_51 = torch.tensor([n, 0, 9, 1, n - 2])[:, None]
        alpha = small.alpha
        if alpha is not None:  # one per query
            alpha = alpha + 0.01 * arange(5, dtype=torch.float32, device=small.device)[:, None]
        beta, exact_alpha = beta_of(alpha), small.exact_alpha(alpha)
        for mask in (arange(n) < lengths_51, lengths_51 > 0):  # the second has stride 0
            mask_11QK = mask[None, None].to(small.device)
            visible = Visible(mask=mask_11QK) if small.is_cpp else mask_11QK
            p = kernels.forward(scores, beta, small.power, visible)
            yield "weights", p, exact_maps.weights(_up(scores), exact_alpha, mask)
            computed = kernels.backward(p, grad, beta, small.power, alpha is not None)
            exact = exact_maps.gradients(_up(p), _up(grad), exact_alpha, alpha is not None)
            yield "gradients of scores", computed[0], exact[0]
            if exact[1] is not None:
                yield "gradients of α", computed[1], exact[1]


def _attention(small: _Small) -> Pairs:
    # in blocks of 64 of 275 keys, a causal query and a length see all of a block but its last key
    sizes = ((40, 0.0), (150, RATE)) if small.is_cpp else product((40, 275), (0.0, RATE))
    for n, rate in sizes:
        offset, lengths = n - N_QUERIES, torch.tensor([n, n - N_QUERIES + 1])
        causal = small.is_cpp or (n == 40) == (rate > 0)
        queries, keys = arange(offset, n)[:, None], arange(n)
        visible = Visible(lengths.to(small.device), causal, query_offset=offset)
        mask = _mask(visible, N_QUERIES, n, small.device)
        if small.is_cpp and not rate:  # a dense mask, and a query without a key
            mask = mask & (keys % 5 != 3) & (queries != n - 9)
            visible = Visible(query_offset=offset, mask=mask)
        yield from _compare(small, visible, mask, rate)
    for n in (70,) if small.is_cpp else (70, 275):
        keys, starts = arange(n, device=small.device), arange(2, device=small.device)[:, None]
        is_seen_B11K = (((keys + 4 * starts) % 9 != 0) | (keys > 70))[:, None, None]
        documents = keys[None] // (n * 4 // 7)  # the longer ones fill blocks
        visible = Visible(causal=True, segments_BN=documents, mask=is_seen_B11K)
        visible = visible.with_mask(n, n, small.device) if small.is_cpp else visible
        mask = _mask(visible, n, n, small.device)
        yield from _compare(small, visible, mask, 0.0, n_key_heads=1)


def _attend(small: _Small, heads: Heads, rate: float, keys: Visible | BlockLayout) -> Tensor:
    """Attend with the same draws in every call."""
    alpha, settings = small.alpha, (rate, small.width**-0.5, small.distances)
    drawn = torch.Generator(small.device).manual_seed(3)
    if small.is_cpp and isinstance(keys, BlockLayout):
        chosen = cpu_sparse.Settings(keys, small.power, *settings)
        return cpu_sparse.sparse_attention(*heads, alpha, chosen, drawn)
    if small.is_cpp and isinstance(keys, Visible):
        power = small.power
        return cpu_attention.attention(*heads, alpha, power, keys, *settings, generator=drawn)
    layout, visible = (None, keys) if isinstance(keys, Visible) else (keys, Visible())
    alpha_H = ALPHAS[small.power] if alpha is None else alpha.flatten()
    causal = (keys.key_lengths_B, keys.causal, visible.query_offset)
    masks = visible.key_mask_BK, visible.segments_BN
    return triton_entmax_attention(*heads, alpha_H, *causal, *settings, layout, drawn, *masks)


def _compare(
    small: _Small, keys: Visible | BlockLayout, mask: Tensor, rate: float, n_key_heads: int = 2
) -> Pairs:
    """Yield context and gradients of attention to these keys beside the reference.

    Args:
        keys: which keys.
        mask: the same, bool (B, H or 1, Q, K), True = may attend.
        rate: of dropout.
        n_key_heads: 2, or 1 that both heads of queries share.
    """
    n_queries, n = mask.shape[2:]
    sizes = (2, n_queries), (n_key_heads, n), (n_key_heads, n)
    query, key, value = leaves = [small.new(2, *size, small.width) for size in sizes]
    if small.alpha is not None:
        leaves = [*leaves, small.alpha]
    for leaf in leaves:
        leaf.requires_grad_()
    grad = small.new(2, 2, n_queries, small.width)

    def run(values: Tensor) -> Tensor:
        return _attend(small, (query, key, values), rate, keys)

    q, k, v = map(_up, (query, key, value))
    alpha, scale = small.exact_alpha(small.alpha), small.width**-0.5
    z = _scores(q, k, scale, small)
    p = exact_maps.weights(z, alpha, mask)
    kept = torch.ones_like(p)
    if rate:  # contexts of unit values are the weights after dropout
        units = torch.eye(n, device=small.device).to(grad.dtype).expand(2, 2, n, n)
        starts = range(0, n, small.width)
        parts = [run(units[..., i : i + small.width].contiguous()) for i in starts]
        dropped = _up(torch.cat(parts, -1))
        kept = (dropped > p).double() / (1 - rate)
        yield "weights after dropout", dropped, p * kept
        yield "shares of kept weights", kept[p > 1e-3].mean().round(), torch.ones(())
        if small.power is Power.EXP and n_queries < n:  # no weight is 0
            visible = kept[..., : n - n_queries]  # to all queries
            alike = (visible[..., 1:, :] == visible[..., :1, :]).all(-1)
            yield "rows that drop alike", alike.any(), torch.zeros(())
    context = run(value)
    gradients = torch.autograd.grad(context, leaves, grad)
    yield "contexts", context, (p * kept) @ v
    exact = _gradients(_up(grad), q, k, v, p, kept, alpha, scale)
    names = ("queries", "keys", "values", "α")[: len(exact)]
    for name, computed, expected in zip(names, gradients, exact, strict=True):
        yield f"gradients of {name}", computed, expected.sum_to_size(computed.shape)


def _scores(query_BHQE: Tensor, key_BHKE: Tensor, scale: float, small: _Small) -> Tensor:
    """Return exact scores (B, H, Q, K) of the last queries."""
    first = key_BHKE.shape[2] - query_BHQE.shape[2]
    return small.exact_distances.biased(query_BHQE @ key_BHKE.mT * scale, first)


def _gradients(
    grad_BHQE: Tensor, query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor,
    p_BHQK: Tensor, kept: Tensor | float, alpha: Tensor | float, scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of query, key, value and, if it is a tensor, of α per query.

    Args:
        grad_BHQE: gradient of the context.
        query_BHQE, key_BHKE, value_BHKE, alpha, scale: of the call.
        p_BHQK: the weights.
        kept: dropout, 0 or 1 / (1 - rate), broadcastable to the weights.
    """
    grad_p_BHQK = grad_BHQE @ value_BHKE.mT * kept
    with_alpha = isinstance(alpha, Tensor)
    grad_z_BHQK, grad_alpha = exact_maps.gradients(p_BHQK, grad_p_BHQK, alpha, with_alpha)
    of_query, of_key = grad_z_BHQK @ key_BHKE * scale, grad_z_BHQK.mT @ query_BHQE * scale
    of_value = (p_BHQK * kept).mT @ grad_BHQE
    return of_query, of_key, of_value, *(() if grad_alpha is None else (grad_alpha,))


def _sparse(small: _Small) -> Pairs:
    """A window and the query's column in one head, the block and all last cells in the other."""
    n, lengths, positions = 150, torch.tensor([150, 133], device=small.device), arange(150)
    every_BHN = torch.stack([positions < 0, positions % 16 == 15])[None].to(small.device)
    for window, rate in ((70, 0.0), (5, RATE)):  # without and with keys of later queries
        rule = Rule(16, (window, NO_WINDOW), (COLUMN, BLOCK), every_BHN, n_every=1)
        layout = BlockLayout(rule, n, rate == 0.0, lengths)
        mask = replace(rule, every_BHN=every_BHN.cpu()).dense(positions, n)
        mask = mask & _mask(Visible(lengths, layout.causal), n, n, small.device)
        yield from _compare(small, layout, mask, rate)


def _few(small: _Small) -> Pairs:
    n, lengths = 40, torch.tensor([40, 33])
    q, k, v = (small.new(2, 2, size, width) for size, width in ((3, 16), (n, 16), (n, 72)))
    visible, scale = Visible(lengths, True, query_offset=n - 3), small.width**-0.5
    settings = (small.power, visible, scale, small.distances)
    with torch.no_grad():
        context = cpu_few.attention_of_few(q, k, v, small.alpha, *settings)
    mask = _mask(visible, 3, n, small.device)
    alpha = small.exact_alpha(small.alpha)
    z = _scores(_up(q), _up(k), scale, small)
    p = exact_maps.weights(z, alpha, mask)
    yield "contexts of few queries", context, p @ _up(v)


def _losses(small: _Small) -> Pairs:
    kernels: Any = cpu_losses if small.is_cpp else triton_losses
    alpha = ALPHAS.get(small.power, 1.3)
    for n_classes in (353,) if small.is_cpp else (353, 5000):
        scores = small.new(5, n_classes) * 3
        target = torch.tensor([0, 5, n_classes - 1, 32, 7])
        scale = torch.ones(5, dtype=torch.float32)
        if small.power is not Power.EXP:
            scores[4] = -torch.inf  # has a gradient, but no loss
        results = kernels.read(scores, alpha, True)
        exact = exact_losses.read(_up(scores), alpha, True)
        names = ("values of losses", "sizes of supports", "sums of scores")
        for name, computed, expected in zip(names, results, exact, strict=False):
            assert expected is not None
            yield name, computed[:4], expected[:4]
        settings = (alpha, SMOOTHING, SMOOTHING / n_classes)
        out, gradient = torch.empty_like(scores), _up(scores)
        rows = (scale.to(small.device), target.to(small.device))
        kernels.write_gradient(scores, results[3], out, *rows, *settings)
        exact_losses.write_gradient(
            _up(scores), exact[3], gradient, scale.double(), target, *settings
        )
        yield "gradients of losses", out, gradient


def _dropout(small: _Small) -> Pairs:
    values = small.new(9003)
    dropped = cpu_dropout.drop(values, Draws(5, RATE))
    kept = (dropped != 0).double() / (1 - RATE)
    yield "entries after dropout", dropped, _up(values) * kept
    yield "shares of kept entries", kept.mean().round(decimals=1), torch.ones(())
    alike = kept[:4096] == kept[4096:8192]
    yield "chunks that drop alike", alike.all(), torch.zeros(())


def _linear(small: _Small) -> Pairs:
    """Rows, inputs and outputs that fill no whole number of vectors."""
    weight, bias, values = small.new(37, 45), small.new(37).float(), small.new(7, 45).float()
    exact = _up(values) @ _up(weight).T + _up(bias)
    yield "linear maps of few rows", FewRows(weight, bias)(values), exact

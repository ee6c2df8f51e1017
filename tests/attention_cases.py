"""Implementations of attention, a row each, and the calls on which all are tested.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width, F width of values.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch

import oracle
from headwise.attention.fixed import Fixed
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.strided import Strided
from headwise.ops.attention import reference
from headwise.ops.attention.cpu import attention
from headwise.ops.attention.cpu_few import attention_of_few
from headwise.ops.attention.cpu_sparse import Settings, sparse_attention
from headwise.ops.attention.distances import Distances
from headwise.ops.attention.triton import triton_entmax_attention
from headwise.ops.family import ALPHAS, Power
from headwise.ops.visible import Visible
from kernel_marks import needs_kernels
from triton_marks import DEVICE, needs_triton

SCALE = 0.3
PATTERNS = {
    "strided": (Strided, {}),
    "fixed": (Fixed, {"summary_cells": 2}),
    "fixed own cells": (Fixed, {"summary_cells": 1, "own_cells": True}),
}
COMBINATIONS = [  # of heads: how, of which parts, in which layer
    ("merged", None, 1),
    ("interleaved", None, 1),
    ("interleaved", None, 2),
    ("heads", None, 1),
    ("heads", ("merged", "interleaved"), 2),
]


def make_pattern(name, combine="merged", heads=None, layer=1, stride=4, n_heads=3):
    """Make a pattern that is block-sparse at every length."""
    kind, settings = PATTERNS[name]
    parts = {"combine": combine, "heads": heads and list(heads)}
    place = Place("encoder_self", layer, n_heads, 8)
    pattern = kind(place, stride, block_sparse_from=1, **parts, **settings)
    pattern.max_share = math.inf
    return pattern


@dataclass(frozen=True)
class Case:
    """A call; its tensors are drawn by `inputs`."""

    shape: tuple[int, ...]  # B, H, Q, K
    power: Power = Power.EXP
    lengths: tuple[int, ...] | None = None
    causal: bool = False
    offset: int = 0
    width: int = 16
    value_width: int | None = None  # None: as the queries
    key_heads: int | None = None  # of keys and values; None: as the queries
    n_prefix: int | None = None  # None: no bias by distance
    alpha: tuple[float, ...] | None = None  # of the heads; None: from 1 to 2
    alpha_per_query: bool = False
    is_random: bool = False  # a mask of pairs
    is_masked: bool = False  # a mask of keys
    documents: int | None = None  # their length
    sparse: tuple[Any, ...] | None = None  # arguments of `make_pattern`
    dtype: torch.dtype = torch.float32
    deviation: float = 1.0  # of the queries
    device: str = "cpu"

    @property
    def needs(self):
        """What an implementation must have for this call."""
        needs = {
            "many queries": self.shape[2] > 5,
            "pairs": self.is_random,
            "shifted bias": self.n_prefix is not None
            and self.offset != self.shape[3] - self.shape[2],
            "α per query": self.alpha_per_query and self.power is Power.ANY,
            "sparse pattern": self.sparse is not None,
            "mask of keys": self.is_masked,
            "documents": self.documents is not None,
            "grouped keys": self.key_heads is not None,
        }
        return {name for name, is_needed in needs.items() if is_needed}

    def inputs(self):
        """Query, key, value and gradient of the context, in layouts of a model, and α or None.

        Queries are part of a projection, keys and values of longer caches.
        """
        n_batch, n_heads, n_queries, n_keys = self.shape
        generator = torch.Generator().manual_seed(sum(self.shape))

        def rows(width, deviation=1.0):
            drawn = torch.randn(n_batch, n_queries, n_heads, width, generator=generator)
            return (drawn * deviation).to(self.device, self.dtype).transpose(1, 2)

        def cache(width):
            key_heads = self.key_heads or n_heads
            whole = torch.full((n_batch + 1, key_heads, n_keys + 3, width), torch.nan)
            whole = whole.to(self.device, self.dtype)
            part = whole[:n_batch, :, :n_keys]
            return part.copy_(torch.randn(part.shape, generator=generator))

        value_width = self.value_width or self.width
        tensors = [rows(self.width, self.deviation), cache(self.width), cache(value_width)]
        alpha = None
        if self.power is Power.ANY:
            n = n_heads * (n_queries if self.alpha_per_query else 1)
            values = torch.tensor(self.alpha) if self.alpha else torch.linspace(1, 2, n)
            alpha = values.view(1, n_heads, -1, 1).to(self.device)
        return [*tensors, rows(value_width), alpha]

    @property
    def lengths_B(self):
        return None if self.lengths is None else torch.as_tensor(self.lengths, device=self.device)

    @property
    def pairs(self):
        """Mask of pairs of query and key, or None."""
        if not self.is_random:
            return None
        generator = torch.Generator().manual_seed(7)
        return torch.rand(1, 1, *self.shape[2:], generator=generator) > 0.2

    @property
    def keys_BK(self):
        """Mask of keys or None: padding on the left, then holes, in the last of three no key."""
        if not self.is_masked:
            return None
        n_batch, _, _, n_keys = self.shape
        keys_BK = (torch.arange(n_keys) % 7 != 3).repeat(n_batch, 1)
        keys_BK[0] = torch.arange(n_keys) >= n_keys // 3
        keys_BK[2:3] = False
        return keys_BK.to(self.device)

    @property
    def segments_BN(self):
        """Document of each position, or None; in each sentence the first is shorter."""
        if self.documents is None:
            return None
        starts_B1 = 3 + torch.arange(self.shape[0])[:, None]
        segments_BN = (torch.arange(self.shape[2]) + starts_B1) // self.documents
        return segments_BN.to(self.device)

    @property
    def restriction(self):
        """The visible keys as kernels take them."""
        return Visible(self.lengths_B, self.causal, query_offset=self.offset, mask=self.pairs)

    @property
    def distances(self):
        """A bias, whose last head has none."""
        if self.n_prefix is None:
            return None
        slopes = torch.linspace(0.7, 0, self.shape[1], device=self.device)
        return Distances(slopes.requires_grad_(), self.n_prefix)

    @property
    def mask(self):
        """The restriction by a sparse pattern."""
        pattern = make_pattern(*self.sparse, n_heads=self.shape[1])
        return Mask(self.lengths_B, self.causal, pattern, segments_BN=self.segments_BN)

    @property
    def layout(self):
        n = self.shape[2]
        return self.mask.layout(n, n, torch.device(self.device)) if self.sparse else None

    def visible(self):
        """Visible keys (B or 1, H or 1, Q, K)."""
        pattern, (*_, n_queries, n_keys) = self.pairs, self.shape
        if self.sparse:
            pattern = self.mask.dense(n_queries, n_keys, torch.device(self.device)).cpu()
        mask = oracle.visible(n_queries, n_keys, self.lengths, self.causal, self.offset, pattern)
        if self.is_masked:
            mask = mask & self.keys_BK.cpu()[:, None, None]
        if self.documents is not None:
            segments_BN = self.segments_BN.cpu()
            mask = mask & (segments_BN[:, None, :, None] == segments_BN[:, None, None])
        return mask

    def attend_exactly(self, query, key, value, alpha=None, factor=1.0):
        """Context in float64."""
        alpha, bias, mask = ALPHAS.get(self.power, alpha), 0.0, self.visible()
        if self.n_prefix is not None:
            slopes = self.distances.slopes_H.detach().cpu()
            bias = oracle.distance_bias(slopes, *self.shape[2:], self.n_prefix, self.offset)
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        return oracle.attention(query, key, value, alpha, mask, SCALE, bias, factor)

    @functools.cache  # noqa: B019 (cases are few and live as long as the tests)
    def expected(self):
        """Results in float64 for `inputs`."""
        return self.exact(self.inputs())

    def exact(self, tensors, factor=1.0):
        """Context and gradients of `tensors`, as `inputs` returns them, in float64."""
        query, key, value, grad, alpha = (None if x is None else x.cpu() for x in tensors)
        leaves = [query, key, value] + ([] if alpha is None else [alpha])

        def attend(*leaves):
            return self.attend_exactly(*leaves, factor=factor)

        return oracle.with_gradients(attend, leaves, grad)


def by_reference(case, query, key, value, alpha, rate):
    scores = reference.scores(query, key, SCALE, case.distances, case.offset)
    weights = reference.weights(scores, case.power, alpha, case.visible())
    return reference.context(weights, value, rate)


def by_cpp(case, query, key, value, alpha, rate):
    visible = case.restriction
    return attention(query, key, value, alpha, case.power, visible, rate, SCALE, case.distances)


def by_few(case, query, key, value, alpha, rate):
    visible = case.restriction
    return attention_of_few(query, key, value, alpha, case.power, visible, SCALE, case.distances)


def by_sparse(case, query, key, value, alpha, rate):
    settings = Settings(case.layout, case.power, rate, SCALE, case.distances)
    return sparse_attention(query, key, value, alpha, settings)


def by_triton(case, query, key, value, alpha, rate):
    alpha_H = ALPHAS[case.power] if alpha is None else alpha.flatten()
    return triton_entmax_attention(
        query, key, value, alpha_H, case.lengths_B, case.causal, case.offset, rate, SCALE,
        case.distances, case.layout, keys_BK=case.keys_BK,
        segments_BN=None if case.sparse else case.segments_BN,
    )  # fmt: skip


@dataclass(frozen=True)
class Implementation:
    """A way to compute attention.

    Attributes:
        call: (case, query, key, value, alpha, rate) -> context.
        has: of `Case.needs`, and "dropout", "gradients", "padding is not read", and of the
            reference "formed weights".
        limits: of errors in float32, relative to the largest value: of the context and of the
            gradient of values; of the other gradients.
        halves: dtypes of half precision, and such a limit in each.
        settings: names in headwise and values under which several code paths run.
        is_slow: in Triton's interpreter each call costs a second; it gets fewer calls.
    """

    name: str
    call: Callable[..., Any]
    has: frozenset[str]
    limits: tuple[float, float] = (3e-6, 1e-5)
    halves: tuple[tuple[torch.dtype, float], ...] = ((torch.bfloat16, 0.02),)
    settings: tuple[tuple[str, int], ...] = ()
    marks: tuple[Any, ...] = (needs_kernels,)
    is_slow: bool = False

    @property
    def device(self):
        return DEVICE if self.is_slow else "cpu"

    def results(self, case, tensors, rate=0.0, seed=3):
        """Context and gradients of `tensors`, as `Case.inputs` returns them."""
        *heads, grad, alpha = tensors
        leaves = [x.detach().requires_grad_() for x in (*heads, alpha) if x is not None]
        torch.manual_seed(seed)
        if "gradients" not in self.has:
            with torch.no_grad():
                return [self.call(case, *heads, alpha, rate)]
        context = self.call(case, *leaves[:3], leaves[3] if alpha is not None else None, rate)
        return [context.detach(), *torch.autograd.grad(context, leaves, grad)]


WHOLE = frozenset({"many queries", "gradients", "dropout", "shifted bias"})
CPP = WHOLE | {"pairs", "α per query", "grouped keys"}
FEW = CPP - WHOLE | {"shifted bias", "padding is not read"}
FUSED = WHOLE | {"padding is not read", "mask of keys", "documents", "grouped keys"}
REFERENCE = CPP - {"dropout", "grouped keys"} | {"formed weights", "mask of keys", "documents"}
SPARSE = WHOLE | {"sparse pattern", "documents"}
HALVES = ((torch.bfloat16, 1.5e-2), (torch.float16, 2e-3))
MODULES = "headwise.ops.attention"
CPP_CHUNK, SPARSE_CHUNK = f"{MODULES}.cpu.CHUNK_SCORES", f"{MODULES}.cpu_sparse.CHUNK_SCORES"
TILES = f"{MODULES}.triton_tiles"


def triton(name, has, limits, **settings):
    settings = tuple((f"{TILES}.{key}", value) for key, value in settings.items())
    marks = tuple(needs_triton)
    return Implementation(name, by_triton, has, limits, HALVES, settings, marks, is_slow=True)


IMPLEMENTATIONS = [
    Implementation("reference", by_reference, REFERENCE, halves=(), marks=()),
    Implementation("C++", by_cpp, CPP),
    Implementation("C++ in chunks", by_cpp, CPP, settings=((CPP_CHUNK, 700),)),
    Implementation("C++ of few queries", by_few, FEW, halves=((torch.bfloat16, 4e-3),)),
    Implementation(  # of 40 positions, two of three sentences at a time
        "C++ block-sparse", by_sparse, SPARSE | {"α per query"}, settings=((SPARSE_CHUNK, 7000),)
    ),
    Implementation(
        "C++ block-sparse by heads", by_sparse, SPARSE | {"α per query"},
        settings=((SPARSE_CHUNK, 1200),),
    ),
    Implementation(
        "C++ block-sparse by blocks", by_sparse, SPARSE | {"α per query"},
        settings=((SPARSE_CHUNK, 100),),
    ),
    triton("Triton resident", FUSED, (2e-6, 3e-5), RESIDENT_KEYS=512),
    triton("Triton streaming", FUSED, (2e-6, 3e-5), RESIDENT_BYTES=0),
    triton("Triton block-sparse", SPARSE | {"grouped keys"}, (3e-5, 3e-5), BLOCK=16),
]  # fmt: skip

CASES = {
    "encoder": Case((3, 2, 20, 20), lengths=(0, 10, 20)),
    "decoder": Case((2, 3, 33, 33), lengths=(33, 5), causal=True, width=24),
    "cross": Case((3, 2, 19, 40), lengths=(0, 20, 40), value_width=24),
    "more queries than keys": Case((1, 2, 40, 19)),
    # all of a block of 64 keys but its last one is visible
    "block without its last key": Case((1, 2, 5, 70), lengths=(63,)),
    "block without the last key of a query": Case((1, 2, 8, 70), causal=True, offset=62),
    "cached": Case((2, 2, 5, 17), lengths=(17, 8), causal=True, offset=12),
    "one query": Case((12, 2, 1, 35), lengths=tuple(range(12)), width=64),
    "one key": Case((3, 2, 1, 1), lengths=(0, 1, 1)),
    "wide": Case((2, 3, 4, 150), lengths=(150, 40), causal=True, offset=146, width=100),
    "long": Case((1, 2, 70, 300), lengths=(297,)),
    "masked keys": Case((3, 2, 19, 21), causal=True, is_masked=True),
    "masked long rows": Case((2, 2, 30, 200), lengths=(200, 150), offset=170, is_masked=True),
    "documents": Case((2, 2, 33, 33), lengths=(33, 20), documents=9),
    "causal long documents": Case((1, 2, 140, 140), causal=True, documents=60),
    "grouped": Case((2, 6, 5, 70), lengths=(70, 30), key_heads=2, value_width=24),
}
N_PREFIX = {"decoder": 0, "cached": 14, "wide": 148, "masked long rows": 190}  # of others: 3


def dense_cases():
    """Calls by name: each plain, and with all that is optional."""
    for number, (name, case) in enumerate(CASES.items()):
        for shift, power in enumerate(Power):
            plain = replace(case, power=power)
            yield f"{name}, {power.name}", plain, shift == number % 4
            prefix = N_PREFIX.get(name, 3)
            biased = replace(plain, n_prefix=prefix)
            yield f"{name}, {power.name}, bias", biased, shift == (number + 2) % 4
            full = replace(biased, is_random=True, alpha_per_query=True)
            yield f"{name}, {power.name}, bias, pairs, α per query", full, True


def sparse_cases():
    """Calls with sparse patterns, with and without padding, causality and bias."""
    patterns = product(PATTERNS, COMBINATIONS, (3, 16, 29, 40))
    for number, (name, combination, n) in enumerate(patterns):
        for padded in (False, True):
            causal = (number + padded) % 2 == 0
            stride = 4 if n < 40 else 8 if number % 5 else 11
            case = Case(
                (3, 3, n, n), list(Power)[(number + padded) % 4],
                (n, max(1, n - 5), 1) if padded else None, causal, width=8,
                n_prefix=2 if (number + causal) % 3 else None,
                sparse=(name, *combination, stride),
                alpha_per_query=number % 2 == 0 and n == 16,
            )  # fmt: skip
            words = [name, combination[0], f"layer {combination[2]}", str(n)]
            words += ["padded"] * padded + ["causal"] * causal
            is_representative = n == 40 and padded == (number % 8 < 4)
            yield " ".join(words), case, is_representative
            if n == 40 and not padded:
                documents = replace(case, documents=15, lengths=(40, 33, 20))
                yield " ".join([*words, "documents"]), documents, number % 16 == 3
                grouped = replace(documents, key_heads=1)
                yield " ".join([*words, "documents grouped"]), grouped, number == 11


def calls():
    """Parameters: each implementation with the calls that it supports."""
    every, chosen = [*dense_cases(), *sparse_cases()], []
    for one in IMPLEMENTATIONS:
        for name, case, is_representative in every:
            is_chosen = is_representative or not one.is_slow
            is_sparse = "sparse pattern" in one.has
            if is_chosen and case.needs <= one.has and (case.sparse is not None) == is_sparse:
                case = replace(case, device=one.device)
                chosen.append(pytest.param(one, case, marks=one.marks, id=f"{one.name}: {name}"))
    return chosen


def implementations(*needed, without=(), with_slow=True):
    """Parameters: the implementations that have what is needed."""
    chosen = [one for one in IMPLEMENTATIONS if {*needed} <= one.has and not {*without} & one.has]
    return pytest.mark.parametrize(
        "implementation",
        [pytest.param(one, marks=one.marks, id=one.name) for one in chosen],
        indirect=True,
    )


def case_for(implementation, shape, sparse=("fixed", "heads", None, 1, 8), **changes):
    """Return a call for an implementation, with a sparse pattern if that is what it is for."""
    case = Case(shape, device=implementation.device, **changes)
    if "sparse pattern" in implementation.has:
        n_batch, _, _, n = shape
        case = replace(case, shape=(n_batch, 3, n, n), sparse=sparse, offset=0)
    if "many queries" not in implementation.has:
        case = replace(case, shape=(*shape[:2], 3, shape[3]))
    return case


def equal(one, other):
    return all(map(torch.equal, one, other))

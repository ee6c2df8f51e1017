"""Linear attention (Katharopoulos et al. 2020): feature maps and sums instead of a softmax.

Axes: B batch, H heads, Q and K numbers of queries and keys, N a length, D model width,
E head width, F = E + 1.

Values have a 1 appended as last entry, so that one matmul gives numerator and denominator of a
context, and one (E, F) matrix holds both running sums of the paper: S in its first E columns, z in
the last.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headwise.attention.attention import MultiHeadAttention
from headwise.attention.cache import AttentionCache
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.errors import require
from headwise.ops.visible import same_document
from headwise.precision import full_precision, without_autocast

DENOMINATOR_EPSILON = 1e-6


class LinearAttention(MultiHeadAttention):
    """Weights φ(q_i)·φ(k_j) / (Σ_j φ(q_i)·φ(k_j) + 1e-6) with φ(x) = elu(x) + 1.

    The weights are not formed: a context is φ(q_i) times sums over the keys, so that time grows
    with K, not with Q * K (Katharopoulos et al. 2020, section 3.2; 3.3 for causal attention).
    Scores are not divided by sqrt(E), and there is no attention dropout. Every weight is positive;
    rows sum to one except for the 1e-6.

    Sums are computed in float32 even under autocast, causal ones in chunks, see `causal_product`.
    A cache holds S and z, whose size does not depend on the number of positions. It does not hold
    the keys, so weights can be recorded only without a cache.

    Args:
        place: site, layer and sizes.
        chunk_size: positions per causal chunk; affects time and memory, not the result.
    """

    def __init__(self, place: Place, chunk_size: int = 64) -> None:
        super().__init__(place)
        require(chunk_size >= 1, "chunk_size", "at least 1", chunk_size)
        self.chunk_size = chunk_size

    def forward(
        self,
        query_BQD: Tensor,
        key_BKD: Tensor,
        value_BKD: Tensor,
        mask: Mask,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        """See `Attention.forward`.

        Raises:
            ValueError: a recorder with a cache, or a causal mask whose last query is not at the
                last key.
        """
        assert cache is None or isinstance(cache, LinearCache)
        if self.recorders and cache is not None:
            raise ValueError(
                "linear attention cannot record weights with a cache, which holds sums over the "
                "keys, not the keys; use no cache"
            )
        query_BQI = self.query(query_BQD)
        if cache is not None and cache.static and cache.sums_BHEF is not None:
            with without_autocast(query_BQD.device):
                sums_BHQF = self._features(query_BQI) @ cache.sums_BHEF
            return self._context(sums_BHQF, query_BQI.dtype)
        key_BKI, value_BKI = self.key(key_BKD), self.value(value_BKD)
        n_cached = cache.length if cache is not None else 0
        is_padding_BHKE = _is_padding(mask, n_cached, key_BKI)
        with without_autocast(query_BQD.device):
            query_BHQE = self._features(query_BQI)
            key_BHKE = self._features(key_BKI, is_padding_BHKE)
            value_BHKF = self._with_ones(value_BKI, is_padding_BHKE)
            sums_BHQF = self._attend(query_BHQE, key_BHKE, value_BHKF, mask, cache)
            if self.recorders:
                self.record(_weights(query_BHQE, key_BHKE, mask))
        return self._context(sums_BHQF, query_BQI.dtype)

    def make_cache(self, static: bool) -> LinearCache:
        return LinearCache(static)

    def _features(self, states_BNI: Tensor, is_padding_BHNE: Tensor | None = None) -> Tensor:
        """Return φ of projected states (B, H, N, E), exactly 0 at padding."""
        states_BHNE = full_precision(self.split(states_BNI)).contiguous()
        if is_padding_BHNE is not None:  # φ(-inf) = 0; a factor of 0 would propagate NaN
            states_BHNE = states_BHNE.masked_fill(is_padding_BHNE, -torch.inf)
        return positive_elu(states_BHNE)

    def _with_ones(self, value_BKI: Tensor, is_padding_BHKE: Tensor | None) -> Tensor:
        """Return the values with a 1 appended, (B, H, K, F)."""
        value_BHKE = full_precision(self.split(value_BKI))
        if is_padding_BHKE is not None:
            value_BHKE = value_BHKE.masked_fill(is_padding_BHKE, 0.0)
        return functional.pad(value_BHKE, (0, 1), value=1.0)

    def _attend(
        self,
        query_BHQE: Tensor,
        key_BHKE: Tensor,
        value_BHKF: Tensor,
        mask: Mask,
        cache: LinearCache | None,
    ) -> Tensor:
        """Return numerators and, in the last column, denominators: (B, H, Q, F)."""
        n_queries, n_keys = query_BHQE.shape[2], key_BHKE.shape[2]
        n_cached = cache.length if cache is not None else 0
        n_before = n_keys - n_queries  # new keys before the first query, if causal
        if mask.causal and mask.query_offset != n_cached + n_before:
            raise ValueError(
                f"causal linear attention needs a key for each position up to the last query: "
                f"got {n_queries} queries from position {mask.query_offset} and "
                f"{n_cached} cached and {n_keys} new keys"
            )
        if mask.segments_BN is not None:
            return self._attend_in_documents(query_BHQE, key_BHKE, value_BHKF, mask)
        if not mask.causal or n_queries == 1:  # every query attends to every key
            sums_BHEF = key_BHKE.mT @ value_BHKF
            if cache is not None:
                sums_BHEF = cache.update(sums_BHEF, n_keys)
            return query_BHQE @ sums_BHEF
        key_BHQE, value_BHQF = key_BHKE[:, :, n_before:], value_BHKF[:, :, n_before:]
        sums_BHQF = causal_product(query_BHQE, key_BHQE, value_BHQF, self.chunk_size)
        if n_before > 0:
            before_BHEF = key_BHKE[:, :, :n_before].mT @ value_BHKF[:, :, :n_before]
            sums_BHQF = sums_BHQF + query_BHQE @ before_BHEF
        if cache is not None:
            if cache.sums_BHEF is not None:
                sums_BHQF = sums_BHQF + query_BHQE @ cache.sums_BHEF
            cache.update(key_BHKE.mT @ value_BHKF, n_keys)
        return sums_BHQF

    def _attend_in_documents(
        self, query_BHQE: Tensor, key_BHKE: Tensor, value_BHKF: Tensor, mask: Mask
    ) -> Tensor:
        """See `_attend`; without a cache."""
        first, n_queries, n_keys = mask.query_offset, query_BHQE.shape[2], key_BHKE.shape[2]
        assert mask.segments_BN is not None
        segments_BK = mask.segments_BN[:, :n_keys]
        query_BHKE = functional.pad(query_BHQE, (0, 0, first, n_keys - first - n_queries))
        states = query_BHKE, key_BHKE, value_BHKF, self.chunk_size
        if mask.causal:
            sums_BHKF = causal_product(*states, segments_BN=segments_BK)
        else:
            sums_BHKF = _documents_product(*states, segments_BK)
        return sums_BHKF[:, :, first : first + n_queries]

    def _context(self, sums_BHQF: Tensor, dtype: torch.dtype) -> Tensor:
        """Divide numerators by denominators and join the heads: (B, Q, D)."""
        numerator_BHQE, denominator_BHQ1 = sums_BHQF[..., :-1], sums_BHQF[..., -1:]
        context_BHQE = numerator_BHQE / (denominator_BHQ1 + DENOMINATOR_EPSILON)
        return self.join(context_BHQE.to(dtype))


class LinearCache:
    """Sums over all keys so far (B, H, E, F), of constant size."""

    def __init__(self, static: bool) -> None:
        self.static = static
        self.length = 0  # positions summed
        self.sums_BHEF: Tensor | None = None  # S, and z as the last column

    @property
    def is_complete(self) -> bool:
        """Whether this is a filled static cache."""
        return self.static and self.sums_BHEF is not None

    def update(self, sums_BHEF: Tensor, n_positions: int) -> Tensor:
        """Add the sums over new positions and return the sums over all."""
        if self.sums_BHEF is not None:
            sums_BHEF = self.sums_BHEF + sums_BHEF
        self.sums_BHEF = sums_BHEF
        self.length += n_positions
        return sums_BHEF

    def reorder(self, rows_B: Tensor) -> None:
        """Select batch rows."""
        if self.sums_BHEF is not None:
            self.sums_BHEF = self.sums_BHEF.index_select(0, rows_B)


def positive_elu(states: Tensor) -> Tensor:
    """Return φ(x) = elu(x) + 1, which is exp(x) below 0 and x + 1 above (paper, section 3.2.1).

    Computed by this formula, φ stays positive where elu(x) + 1 rounds to 0 (x < -17 in float32).
    The derivative is min(φ, 1), so only φ is saved, which the matmuls save anyway.
    """
    features: Tensor = _PositiveElu.apply(states)  # type: ignore[no-untyped-call]
    return features


def causal_product(
    a_BHNE: Tensor,
    b_BHNE: Tensor,
    v_BHNF: Tensor,
    chunk_size: int,
    reverse: bool = False,
    segments_BN: Tensor | None = None,
) -> Tensor:
    """Return Σ_{j ≤ i} (a_i · b_j) v_j for every i, (B, H, N, F), in time linear in N.

    Positions are processed in chunks: a triangle of scores within a chunk, the running sum of
    b_j v_jᵀ for earlier chunks. Each of the three gradients is such a product too (Katharopoulos
    et al. 2020, section 3.3.1), so only a, b and v are saved; autograd through the chunks would
    save all scores and running sums.

    Args:
        a_BHNE, b_BHNE, v_BHNF: float32 or float64.
        chunk_size: positions per chunk.
        reverse: sum over j ≥ i instead.
        segments_BN: document of each position, see `Mask`: the sum is over j of the document of i.
    """
    product: Tensor = _CausalProduct.apply(  # type: ignore[no-untyped-call]
        a_BHNE, b_BHNE, v_BHNF, chunk_size, reverse, segments_BN
    )
    return product


def _documents_product(
    a_BHNE: Tensor, b_BHNE: Tensor, v_BHNF: Tensor, chunk_size: int, segments_BN: Tensor
) -> Tensor:
    """Return Σ_j (a_i · b_j) v_j over all positions j of the document of i, (B, H, N, F)."""
    arguments = a_BHNE, b_BHNE, v_BHNF, chunk_size
    before_BHNF, after_BHNF = (
        causal_product(*arguments, way, segments_BN) for way in (False, True)
    )
    twice_BHNF = (a_BHNE * b_BHNE).sum(-1, keepdim=True) * v_BHNF  # i itself is in both sums
    return before_BHNF + after_BHNF - twice_BHNF


class _PositiveElu(torch.autograd.Function):
    """See `positive_elu`."""

    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        """Return φ of every entry."""
        features = states.clamp(max=0.0).exp_().add_(states.relu())
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the gradient of the states."""
        (features,) = ctx.saved_tensors
        grad_states: Tensor = grad * features.clamp(max=1.0)
        return grad_states


class _CausalProduct(torch.autograd.Function):
    """See `causal_product`."""

    @staticmethod
    def forward(
        ctx: Any,
        a_BHNE: Tensor,
        b_BHNE: Tensor,
        v_BHNF: Tensor,
        chunk_size: int,
        reverse: bool,
        segments_BN: Tensor | None,
    ) -> Tensor:
        """Return the products (B, H, N, F)."""
        ctx.save_for_backward(a_BHNE, b_BHNE, v_BHNF)
        ctx.settings = chunk_size, reverse, segments_BN
        product_BHNF = torch.empty_like(v_BHNF, memory_format=torch.contiguous_format)
        # counted: a range over positions would fix their number in a compiled graph
        chunks = range(-(-v_BHNF.shape[2] // chunk_size))
        sums_BHEF: Tensor | None = None
        edge_B1 = previous_B1 = torch.empty(0)
        for chunk in reversed(chunks) if reverse else chunks:
            start = chunk * chunk_size
            a_BHCE, b_BHCE, v_BHCF, product_BHCF = (
                states[:, :, start : start + chunk_size]
                for states in (a_BHNE, b_BHNE, v_BHNF, product_BHNF)
            )
            scores_BHCC = a_BHCE @ b_BHCE.mT
            scores_BHCC = scores_BHCC.triu_() if reverse else scores_BHCC.tril_()
            if segments_BN is not None:
                segments_BC = segments_BN[:, start : start + chunk_size]
                scores_BHCC *= same_document(segments_BC, segments_BC)
                edge_B1 = segments_BC[:, :1] if reverse else segments_BC[:, -1:]
                b_BHCE = b_BHCE * same_document(segments_BC, edge_B1)
                if sums_BHEF is not None:  # of the document at the previous edge
                    a_BHCE = a_BHCE * same_document(segments_BC, previous_B1)
            product_BHCF.copy_(scores_BHCC @ v_BHCF)
            if sums_BHEF is not None:
                product_BHCF += a_BHCE @ sums_BHEF
                if segments_BN is not None:
                    sums_BHEF *= same_document(edge_B1, previous_B1)
            previous_B1 = edge_B1
            new_BHEF = b_BHCE.mT @ v_BHCF
            sums_BHEF = new_BHEF if sums_BHEF is None else sums_BHEF.add_(new_BHEF)
        return product_BHNF

    @staticmethod
    def backward(
        ctx: Any, grad_BHNF: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        """Return the gradients of a, b and v; supports double backward."""
        a_BHNE, b_BHNE, v_BHNF = ctx.saved_tensors
        chunk_size, reverse, segments_BN = ctx.settings
        product = partial(causal_product, chunk_size=chunk_size, segments_BN=segments_BN)
        grad_a = grad_b = grad_v = None
        with without_autocast(grad_BHNF.device):
            if ctx.needs_input_grad[0]:
                grad_a = product(grad_BHNF, v_BHNF, b_BHNE, reverse=reverse)
            if ctx.needs_input_grad[1]:
                grad_b = product(v_BHNF, grad_BHNF, a_BHNE, reverse=not reverse)
            if ctx.needs_input_grad[2]:
                grad_v = product(b_BHNE, a_BHNE, grad_BHNF, reverse=not reverse)
        return grad_a, grad_b, grad_v, None, None, None


def _weights(query_BHQE: Tensor, key_BHKE: Tensor, mask: Mask) -> Tensor:
    """Return the weights (B, H, Q, K) that are equivalent to the sums."""
    scores_BHQK = query_BHQE @ key_BHKE.mT
    allowed = mask.dense(scores_BHQK.shape[2], scores_BHQK.shape[3], scores_BHQK.device)
    if allowed is not None:
        scores_BHQK = scores_BHQK.masked_fill(~allowed, 0.0)
    return scores_BHQK / (scores_BHQK.sum(-1, keepdim=True) + DENOMINATOR_EPSILON)


def _is_padding(mask: Mask, n_cached: int, key_BKI: Tensor) -> Tensor | None:
    """Return which keys, at positions from `n_cached` on, are padding: (B, 1, K, 1)."""
    if mask.key_lengths_B is None:
        return None
    positions_K = torch.arange(key_BKI.shape[1], device=key_BKI.device) + n_cached
    return (positions_K >= mask.key_lengths_B[:, None])[:, None, :, None]

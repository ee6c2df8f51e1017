"""What every attention variant is made of.

Letters: B batch, H heads, Q and K numbers of queries and keys, D model width, E head width.
Layers and heads count from 1 in names, options and logs.

A variant is a `Normaliser` (scores to weights), a `Pattern` (which keys a query may see), a
`Scaling` (a factor on the scores), or a whole `Attention` of its own without a weight matrix.
`headwise.attention.scores.ScoreAttention` composes the first three.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headwise.attention.block_sparse import BlockLayout
from headwise.attention.cache import AttentionCache


@dataclass(frozen=True)
class Place:
    """Where in the model an attention stands, and its sizes.

    Attributes:
        site: encoder_self, decoder_self or cross.
        layer: from 1.
        n_heads: heads that are there.
        head_dim: width E of each.
        width: D of the model where heads were pruned; else it is n_heads * head_dim.
        numbers: which of the unpruned model's heads these are, from 1; None: all of them. What is
            chosen per head goes by these numbers.
    """

    site: str
    layer: int
    n_heads: int
    head_dim: int
    width: int | None = None
    numbers: tuple[int, ...] | None = None

    @property
    def d_model(self) -> int:
        """Width D of the model."""
        return self.n_heads * self.head_dim if self.width is None else self.width

    @property
    def head_numbers(self) -> tuple[int, ...]:
        """Numbers of the heads, from 1, as the unpruned model counts them."""
        return tuple(range(1, self.n_heads + 1)) if self.numbers is None else self.numbers


class Pattern:
    """Which keys a query may see, beside padding and causality (Child et al. 2019).

    Only self-attention can be restricted: at site cross queries and keys stand on different axes,
    and in a search the queries of a source are those of several hypotheses.

    Attributes:
        restricts: whether it forbids anything at its place; if not, it is left out there. False
            at site cross, or the pattern is refused there.
    """

    unsupported_sites: ClassVar[Mapping[str, str]] = {}  # site -> reason
    restricts: bool = True

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def key(self) -> Hashable:
        """Patterns with equal keys allow the same, so that layers can share one mask."""
        return self

    def allowed(
        self, query_positions_Q: Tensor, n_keys: int, causal: bool, key_lengths_B: Tensor | None
    ) -> Tensor | None:
        """Bool tensor broadcastable to (B, H, Q, K), True = may attend; None: no restriction.

        Padding and causality need not be repeated: what they forbid stays forbidden.
        """
        raise NotImplementedError

    def layout(
        self, n_positions: int, causal: bool, key_lengths_B: Tensor | None, device: torch.device
    ) -> BlockLayout | None:
        """How self-attention over all positions is computed without the pairs that are not allowed.

        None (the default) where that does not pay or is not known: then the whole (N, N) is
        formed and masked. What a layout allows is what `allowed`, padding and causality do.
        """
        return None


class Scaling(nn.Module):
    """A factor on the scores of each head and query, before whatever normaliser follows.

    A subclass takes `place` as first argument and its own choices as keywords.
    """

    unsupported_sites: ClassVar[Mapping[str, str]] = {}  # site -> reason
    scales: ClassVar[bool] = True
    head_axes: Mapping[str, int] = {}  # parameter -> its axis of one entry a head

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def forward(self, query_BQD: Tensor, n_visible_BQ: Tensor) -> Tensor:
        """Factor (B or 1, H, Q, 1), float32.

        Args:
            query_BQD: what the layer reads for its queries.
            n_visible_BQ: keys that padding and causality leave to each query, (B or 1, Q).
        """
        raise NotImplementedError

    def stats(self) -> dict[str, Tensor]:
        """Values to log: name -> (H,), NaN at heads that have no such value."""
        return {}


@dataclass(frozen=True)
class Mask:
    """Which keys may be attended to, as a small structured value.

    Fused and block-sparse paths read the fields; only who needs it makes the dense form.

    Attributes:
        key_lengths_B: number of real keys of each row (padding stands on the right), or None.
        causal: a query sees keys up to its own position only.
        pattern: a further restriction, or None.
        query_offset: position of the first query (the length of the cached prefix).
        given_BHQK: the dense form where scores do not stand in the order of their keys, as in a
            `BlockLayout` of self-attention; K then counts places of the layout.
    """

    key_lengths_B: Tensor | None = None
    causal: bool = False
    pattern: Pattern | None = None
    query_offset: int = 0
    given_BHQK: Tensor | None = field(default=None, repr=False, compare=False)
    _dense: dict[tuple[int, int], Tensor | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    _layouts: dict[int, BlockLayout | None] = field(default_factory=dict, repr=False, compare=False)
    _restricted: dict[Hashable, Mask] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_plain_causal(self) -> bool:
        """Causal from the first position on, and restricted by nothing else."""
        parts = (self.key_lengths_B, self.pattern, self.given_BHQK)
        alone = all(part is None for part in parts)
        return self.causal and alone and self.query_offset == 0

    def restricted(self, pattern: Pattern) -> Mask:
        """This mask with `pattern`; one for all patterns of a stack that have the same key."""
        if pattern.key not in self._restricted:
            self._restricted[pattern.key] = Mask(
                self.key_lengths_B, self.causal, pattern, self.query_offset
            )
        return self._restricted[pattern.key]

    def layout(self, n_queries: int, n_keys: int, device: torch.device) -> BlockLayout | None:
        """The block-sparse computation of the pattern, or None where there is none.

        Only where every position is a query and a key: not in a step of cached decoding. Kept
        after the first call, as `dense` is.
        """
        if self.pattern is None or n_queries != n_keys:
            return None
        if n_keys not in self._layouts:
            self._layouts[n_keys] = self.pattern.layout(
                n_keys, self.causal, self.key_lengths_B, device
            )
        return self._layouts[n_keys]

    def laid_out(self, layout: BlockLayout) -> Mask:
        """The mask of scores that stand as `layout` puts them."""
        return Mask(self.key_lengths_B, self.causal, given_BHQK=layout.allowed_BHNK)

    def dense(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Bool (B or 1, H or 1, Q or 1, K), True = may attend; None when all is allowed.

        Kept after the first call: all layers of a stack ask for the same one.
        """
        if self.given_BHQK is not None:
            return self.given_BHQK
        size = (n_queries, n_keys)
        if size not in self._dense:
            self._dense[size] = self._make_dense(n_queries, n_keys, device)
        return self._dense[size]

    def n_visible(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Number of keys (B or 1, Q) that padding and causality leave to each query."""
        if self.given_BHQK is not None:
            n_keys = n_queries  # n_keys counts places of a layout of self-attention
        visible_BQ = torch.full((1, n_queries), n_keys, device=device)
        if self.causal:
            visible_BQ = torch.arange(n_queries, device=device)[None] + self.query_offset + 1
        if self.key_lengths_B is not None:
            visible_BQ = torch.minimum(visible_BQ, self.key_lengths_B[:, None])
        return visible_BQ

    def _make_dense(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        keys_K = torch.arange(n_keys, device=device)
        queries_Q = torch.arange(n_queries, device=device) + self.query_offset
        parts: list[Tensor] = []
        if self.key_lengths_B is not None:
            parts.append((keys_K < self.key_lengths_B[:, None])[:, None, None, :])
        if self.causal and n_keys > self.query_offset + 1:
            parts.append((keys_K <= queries_Q[:, None])[None, None])
        if self.pattern is not None:
            allowed = self.pattern.allowed(queries_Q, n_keys, self.causal, self.key_lengths_B)
            if allowed is not None:
                parts.append(allowed[(None,) * (4 - allowed.dim())])
        if not parts:
            return None
        allowed_BHQK = parts[0]
        for part in parts[1:]:
            allowed_BHQK = allowed_BHQK & part
        return allowed_BHQK


@dataclass(frozen=True)
class ScoreContext:
    """What a normaliser may look at beside the scores."""

    mask: Mask
    queries_BHQE: Tensor

    def dense_mask(self, scores_BHQK: Tensor) -> Tensor | None:
        """The mask in dense form for these scores, or None when every key is allowed."""
        n_queries, n_keys = scores_BHQK.shape[-2:]
        return self.mask.dense(n_queries, n_keys, scores_BHQK.device)


class Normaliser(nn.Module):
    """Turns the scores of one site of one layer into weights.

    A subclass takes `place` as first argument and its own choices as keywords.
    """

    unsupported_sites: ClassVar[Mapping[str, str]] = {}  # site -> reason
    is_distribution: ClassVar[bool] = True  # rows are non-negative and sum to one
    is_fused: ClassVar[bool] = False  # has `attend`
    head_axes: Mapping[str, int] = {}  # parameter -> its axis of one entry a head
    shared_part: ClassVar[str] = ""  # see `share_key`

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    @classmethod
    def share_key(cls, place: Place, settings: Mapping[str, Any]) -> str | None:
        """Places with an equal key share one module; None (the default): no sharing.

        What is shared is the attribute that `shared_part` names, or all of the module.
        """
        return None

    @classmethod
    def completed(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings with the content of what they name instead of names.

        A run folder keeps these: a yaml that changes later must not change what the run was.
        """
        return dict(settings)

    def distribution_heads(self) -> tuple[bool, ...]:
        """Whether the rows of each head are non-negative and sum to one."""
        return (self.is_distribution,) * self.place.n_heads

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K); keys that are not allowed get exactly 0."""
        raise NotImplementedError

    def attend(
        self,
        query_BHQE: Tensor,
        key_BHKE: Tensor,
        value_BHKE: Tensor,
        context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:
        """Context (B, H, Q, E) without forming the weights; asked only where `is_fused`.

        The scores are those of the queries given here, times E^-0.5. None where no kernel is at
        hand, or none that gains anything: then the weights are formed after all.
        """
        raise NotImplementedError

    def query_stats(self, context: ScoreContext) -> dict[str, Tensor]:
        """Values to log as a mean over queries: name -> (B, H, Q), NaN as in `stats`."""
        return {}

    def stats(self) -> dict[str, Tensor]:
        """Values to log: name -> (H,), NaN at heads that have no such value."""
        return {}


class Attention(nn.Module):
    """The protocol of one attention site of one layer.

    Whole kernels follow it through `headwise.attention.heads.MultiHeadAttention`.

    Attributes:
        recorders: callbacks for the weights (see `headwise.attention.recorder`). With at least
            one, `forward` forms the weights, unless `forms_weights` is "no", and calls `record`.
    """

    place: Place
    unsupported_sites: ClassVar[Mapping[str, str]] = {}  # site -> reason
    dropout: float = 0.0  # rate on its weights, where it has any; the factory sets it
    forms_weights: str = "exact"  # exact, effective (see the class) or no
    recorders: tuple[Recorder, ...] = ()
    head_axes: Mapping[str, int] = {}  # parameter -> its axis of one entry a head
    shared_part: ClassVar[str] = ""  # see `share_key`

    @classmethod
    def share_key(cls, place: Place, settings: Mapping[str, Any]) -> str | None:
        """As in `Normaliser.share_key`."""
        return None

    @property
    def max_keys(self) -> int | None:
        """Most keys it can take, or None for no limit."""
        return None

    def distribution_heads(self) -> tuple[bool, ...]:
        """Whether the weights of each head are non-negative and sum to one."""
        return (True,) * self.place.n_heads

    def forward(
        self,
        query_BQD: Tensor,
        key_BKD: Tensor,
        value_BKD: Tensor,
        mask: Mask,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        """Context (B, Q, D).

        Args:
            query_BQD: the queries' side.
            key_BKD, value_BKD: the keys' side. With a growing cache these are the new positions
                only; a filled static cache (cross-attention) answers instead of them.
            mask: which keys may be seen.
            cache: keys and values of earlier steps, extended in place.
        """
        raise NotImplementedError

    def record(self, weights_BHQK: Tensor) -> None:
        """Pass the weights of every head to the recorders."""
        for recorder in self.recorders:
            recorder(self, weights_BHQK)

    def make_cache(self, static: bool) -> AttentionCache:
        """An empty cache: growing (self-attention) or static (cross-attention)."""
        raise NotImplementedError

    def stats(self) -> dict[str, Tensor]:
        """One value a head, name -> (H,); NaN at heads without such a value."""
        return {}


Recorder = Callable[[Attention, Tensor], None]  # called with weights (B, H, Q, K)


def full_precision(values: Tensor) -> Tensor:
    """In float32 at the least: what attention does beside its matrix products, it does so."""
    return values.to(torch.promote_types(values.dtype, torch.float32))

"""The interface of all attentions.

Axes: B batch, H heads, Q and K numbers of queries and keys, D model width.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from headwise.attention.cache import AttentionCache
from headwise.attention.mask import Mask
from headwise.attention.place import Variant


class Attention(Variant):
    """The attention at one site of one layer.

    Attentions without scores subclass `headwise.attention.heads.MultiHeadAttention`.

    Attributes:
        dropout: rate on the weights, if any; set by the factory.
        rotates: whether it supports rotary positions.
        without_documents: message why it cannot separate documents of a row; empty: it can.
        forms_weights: "exact", "effective" (see the class) or "no".
        recorders: callbacks for the weights (see `headwise.attention.recorder`). With at least
            one, `forward` forms the weights, unless `forms_weights` is "no", and calls `record`.
    """

    dropout: float = 0.0
    rotates: bool = False
    without_documents: str = ""
    forms_weights: str = "exact"
    recorders: tuple[Recorder, ...] = ()

    @property
    def max_keys(self) -> int | None:
        """Maximum number of keys, or None for no limit."""
        return None

    def distribution_heads(self) -> tuple[bool, ...]:
        """Return for each head whether its weights are non-negative and sum to one."""
        return (True,) * self.place.n_heads

    def forward(
        self,
        query_BQD: Tensor,
        key_BKD: Tensor,
        value_BKD: Tensor,
        mask: Mask,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        """Return the context (B, Q, D).

        Args:
            query_BQD: input of the queries.
            key_BKD: input of the keys. With a growing cache: only the new positions; ignored with
                a filled static cache (cross-attention).
            value_BKD: input of the values, as `key_BKD`.
            mask: which keys may be attended to.
            cache: keys and values of earlier steps, extended in place.
        """
        raise NotImplementedError

    def record(self, weights_BHQK: Tensor) -> None:
        """Pass the weights of every head to the recorders."""
        for recorder in self.recorders:
            recorder(self, weights_BHQK)

    def make_cache(self, static: bool) -> AttentionCache:
        """Return an empty cache: growing (self-attention) or static (cross-attention)."""
        raise NotImplementedError


Recorder = Callable[[Attention, Tensor], None]  # called with weights (B, H, Q, K)

"""What every attention is to the model, whether it forms scores or not.

Letters: B batch, H heads, Q and K numbers of queries and keys, D model width.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from headwise.attention.cache import AttentionCache
from headwise.attention.mask import Mask
from headwise.attention.place import Variant


class Attention(Variant):
    """The protocol of one attention site of one layer.

    Whole kernels follow it through `headwise.attention.heads.MultiHeadAttention`.

    Attributes:
        recorders: callbacks for the weights (see `headwise.attention.recorder`). With at least
            one, `forward` forms the weights, unless `forms_weights` is "no", and calls `record`.
    """

    dropout: float = 0.0  # rate on its weights, where it has any; the factory sets it
    rotates: bool = False  # whether it rotates queries and keys by positions it is given
    forms_weights: str = "exact"  # exact, effective (see the class) or no
    recorders: tuple[Recorder, ...] = ()

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


Recorder = Callable[[Attention, Tensor], None]  # called with weights (B, H, Q, K)

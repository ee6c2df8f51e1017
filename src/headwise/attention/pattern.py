"""The part that restricts which keys a query may see.

Letters: B batch, H heads, Q and K numbers of queries and keys, N positions.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from headwise.attention.block_sparse import BlockLayout
from headwise.attention.place import Variant


class Pattern(Variant):
    """Which keys a query may see, beside padding and causality (Child et al. 2019).

    Only self-attention can be restricted: at site cross queries and keys stand on different axes,
    and in a search several queries may belong to one row of keys.

    Attributes:
        restricts: whether it forbids anything at its place; if not, it is left out there. False
            at site cross, or the pattern is refused there.
    """

    restricts: bool = True

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

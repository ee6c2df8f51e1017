"""tanh attention (YUBERT note): what is unlike a query counts against it."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention.rows import Elementwise


class Tanh(Elementwise):
    """tanh of the scaled scores, without normalisation over keys.

    Softmax wipes out large negative similarities; here they keep their influence, with their
    sign. The note names vanishing gradients as the weakness: a saturated score learns no more.

    Args:
        place: site, layer and sizes.
        rows: "sqrt" (the default) divides by the root of the number of keys the query may see:
            weights of random sign then add up to the same size at any length, and one key's
            weight still does not depend on the others' scores. "l2" makes rows of norm 1, which
            also lifts a row in which every score is small to full size. "none" is the note.
    """

    l2_acts_on = "weights"  # tanh of rows of norm 1 would hardly differ from the scores

    def activate(self, scores_BHQK: Tensor, typical: Tensor) -> Tensor:
        """Weights in (-1, 1)."""
        return torch.tanh(scores_BHQK)

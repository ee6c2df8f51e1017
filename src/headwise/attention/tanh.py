"""tanh attention (YUBERT note): dissimilar keys get negative weights."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention.elementwise import Elementwise


class Tanh(Elementwise):
    """tanh of the scaled scores, without normalisation over keys.

    Softmax discards large negative similarities; here they keep size and sign. A weakness,
    according to the note: gradients vanish at saturated scores.

    Args:
        place: site, layer and sizes.
        rows: "sqrt" divides by the square root of the number of keys of the query: sums of
            weights of random sign then do not grow with the length, and each weight depends only
            on its own score. "l2" makes rows of norm 1, even if all scores are small. "none" is
            as in the note.
    """

    l2_acts_on = "weights"  # tanh of rows of norm 1 would hardly differ from the scores

    def activate(self, scores_BHQK: Tensor, typical_size: Tensor) -> Tensor:
        """Return weights in (-1, 1)."""
        return torch.tanh(scores_BHQK)

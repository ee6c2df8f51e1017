"""The output layer, from states to logits."""

from __future__ import annotations

from torch import Tensor

from headwise.losses.loss import Loss, LossSum
from headwise.ops.linear import Linear


class Output(Linear):
    """Logits over a vocabulary, or over other classes.

    Args:
        width: of states.
        n_classes: entries of the vocabulary.
        bias: whether each class has one.
    """

    def __init__(self, width: int, n_classes: int, bias: bool = False) -> None:
        super().__init__(width, n_classes, bias=bias)

    def loss(self, states_RD: Tensor, targets_R: Tensor, loss: Loss) -> LossSum:
        """Return sums of loss and measure of states; logits are computed in chunks."""
        return loss.from_states(states_RD, self.weight, targets_R)

    def rows(self, states_RD: Tensor, targets_R: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """Return loss and measure of each state, (R,) each, for evaluation."""
        return loss.rows_from_states(states_RD, self.weight, targets_R)

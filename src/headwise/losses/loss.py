"""Training losses: sums over tokens, which accumulate over the batches of an update."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.entmax.losses import entmax_loss_and_support, log_entmax
from headwise.errors import require
from headwise.losses.output_map import OutputMap
from headwise.losses.projected import RowSums, chunk_rows, projected_loss
from headwise.metrics.metric import Floats, Metric
from headwise.ops.linear import linear
from headwise.ops.losses import operator as loss_operators

UNIT = "per target token"


@dataclass(frozen=True)
class LossSum:
    """Sums over the real target tokens of a batch.

    Attributes:
        loss: minimised, differentiable.
        measure: the quantity named by `Loss.measure`, detached.
    """

    loss: Tensor
    measure: Tensor


class Loss(nn.Module):
    """Base class of losses over classes. Subclasses define `rows` and `log_probs`.

    Attributes:
        measure: nll (in nats), or support (classes with p > 0).
    """

    measure: ClassVar[str] = "nll"

    def rows(self, logits_RV: Tensor, targets_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return differentiable loss and measure of every target: (R,) each, at least float32.

        Args:
            logits_RV: of any dtype.
            targets_R: classes, int64; none is ignored, not even 0.
        """
        raise NotImplementedError

    def forward(self, logits: Tensor, targets: Tensor) -> LossSum:
        """Return the sums over targets (...) of logits (..., V)."""
        loss_R, measure_R = self.rows(logits.flatten(0, -2), targets.flatten())
        return LossSum(loss_R.sum(), measure_R.detach().sum())

    def from_states(self, states_RD: Tensor, weight_VD: Tensor, targets_R: Tensor) -> LossSum:
        """Return the sums for the logits `states @ weight.T`, computed in chunks to save memory.

        Under autocast, matmuls run in its dtype, as in a linear layer.
        """
        return LossSum(*projected_loss(states_RD, weight_VD, targets_R, self.row_sums))

    def rows_from_states(
        self, states_RD: Tensor, weight_VD: Tensor, targets_R: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return `rows` of the logits `states @ weight.T`, computed in chunks; for evaluation."""
        n_rows = chunk_rows(len(weight_VD), states_RD.device)
        chunks = zip(torch.split(states_RD, n_rows), torch.split(targets_R, n_rows), strict=True)
        pairs = [self.rows(linear(states, weight_VD), targets) for states, targets in chunks]
        return torch.cat([loss for loss, _ in pairs]), torch.cat([measure for _, measure in pairs])

    def row_sums(self, logits_RV: Tensor, target_R: Tensor, with_gradient: bool) -> RowSums:
        """Return the sums and, with `with_gradient`, the gradient; may overwrite the logits.

        By default autograd differentiates `rows`; override it for a gradient in closed form.
        """
        if not with_gradient:
            sums = self(logits_RV, target_R)
            return RowSums(sums.loss, sums.measure, None)
        with torch.enable_grad():
            logits_RV = logits_RV.detach().requires_grad_()
            sums = self(logits_RV, target_R)
            (grad_RV,) = torch.autograd.grad(sums.loss, logits_RV)
        return RowSums(sums.loss.detach(), sums.measure, grad_RV)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities of a model trained with this loss.

        Args:
            logits: (..., V).

        Returns:
            (..., V), float32 (float64 for float64 logits), -inf for a class with p = 0.
        """
        raise NotImplementedError

    @property
    def output_map(self) -> OutputMap:
        """`log_probs` in the form that decoding uses."""
        return OutputMap(self.log_probs, is_sparse=self.measure == "support")

    @property
    def metrics(self) -> list[Metric]:
        """Means per target, and perplexity for nll, over items (loss, measure, targets)."""
        kinds = [("loss", 0, _mean), (self.measure, 1, _mean)]
        if self.measure == "nll":
            kinds.append(("perplexity", 1, lambda sums: math.exp(min(_mean(sums), 700.0))))
        return [
            Metric(name, "lower", from_sums, (column, 2), UNIT, "loss", f"{name} {UNIT}")
            for name, column, from_sums in kinds
        ]


def _mean(sums: Floats) -> float:
    return float(sums[0] / sums[1])


class EntmaxLoss(Loss):
    """Entmax loss over the vocabulary (Peters et al. 2019): most classes get probability 0.

    With ε = `label_smoothing`, ε (z_y - mean z) is added, the mean over all classes: the gradient
    is p - e_y + ε (e_y - 1/V). This pulls every class into the support, so ε should be small.

    Args:
        alpha: of the map from logits to probabilities, in [1, 2]; 1 is cross-entropy.
        label_smoothing: ε, in [0, 1).
    """

    measure = "support"

    def __init__(self, alpha: float = 1.5, label_smoothing: float = 0.0) -> None:
        super().__init__()
        require(1 <= alpha <= 2, "alpha", "in [1, 2]", alpha)
        require(0 <= label_smoothing < 1, "label_smoothing", "in [0, 1)", label_smoothing)
        self.alpha = alpha
        self.label_smoothing = label_smoothing

    def rows(self, logits_RV: Tensor, targets_R: Tensor) -> tuple[Tensor, Tensor]:
        return entmax_loss_and_support(logits_RV, targets_R, self.alpha, self.label_smoothing)

    def row_sums(self, logits_RV: Tensor, target_R: Tensor, with_gradient: bool) -> RowSums:
        options = (self.alpha, self.label_smoothing, with_gradient)
        nll, loss, support = loss_operators.sums_(logits_RV, target_R, *options)
        measure = nll if self.measure == "nll" else support
        return RowSums(loss, measure, logits_RV if with_gradient else None)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log α-entmax: -inf off the support; log-softmax for α = 1."""
        return log_entmax(logits, self.alpha)


class CrossEntropy(EntmaxLoss):
    """Cross-entropy with uniform label smoothing (Szegedy et al. 2016; Vaswani et al. 2017).

    It is the entmax loss with α = 1. With ε = `label_smoothing`, the target distribution is
    (1-ε)·one-hot + ε/V.
    """

    measure = "nll"

    def __init__(self, label_smoothing: float = 0.1) -> None:
        super().__init__(1.0, label_smoothing)

    def rows(self, logits_RV: Tensor, targets_R: Tensor) -> tuple[Tensor, Tensor]:
        logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
        per_target = functools.partial(cross_entropy, target=targets_R, reduction="none")
        loss_R = per_target(logits_RV, label_smoothing=self.label_smoothing)
        return loss_R, per_target(logits_RV.detach())


class Entmax15Loss(EntmaxLoss):
    """Entmax loss with α = 1.5."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__(1.5, label_smoothing)


class SparsemaxLoss(EntmaxLoss):
    """Sparsemax loss (Martins and Astudillo 2016): entmax loss with α = 2."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__(2.0, label_smoothing)

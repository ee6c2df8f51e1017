"""Training losses: sums over tokens, so that any number of batches adds up to one update."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.entmax.function import REFERENCE
from headwise.entmax.losses import entmax_loss_and_support, log_entmax, log_softmax
from headwise.errors import require
from headwise.kernels import choice, loss_operators
from headwise.kernels.linear import linear
from headwise.losses.output_map import OutputMap
from headwise.losses.vocabulary_loss import RowSums, chunk_rows, projected_loss
from headwise.metrics.metric import Floats, Metric
from headwise.precision import each_place_written_once

UNIT = "per target token"
LOG2_E = 1 / math.log(2.0)


@dataclass(frozen=True)
class LossSum:
    """Sums over the real target tokens of a batch."""

    loss: Tensor  # what is minimised, differentiable
    measure: Tensor  # what `Loss.measure` names, detached


class Loss(nn.Module):
    """A loss of every target; no class is left out. One of your own defines `rows`, `log_probs`."""

    measure: ClassVar[str] = "nll"  # nll (in nats), or support (words with a probability)

    def rows(self, logits_RV: Tensor, targets_R: Tensor) -> tuple[Tensor, Tensor]:
        """Loss, which is differentiated, and measure of every target: (R,) each, at least float32.

        Args:
            logits_RV: of any type.
            targets_R: classes, int64; every number counts, 0 too.
        """
        raise NotImplementedError

    def forward(self, logits: Tensor, targets: Tensor) -> LossSum:
        """The sums over targets (...) of logits (..., V)."""
        loss_R, measure_R = self.rows(logits.flatten(0, -2), targets.flatten())
        return LossSum(loss_R.sum(), measure_R.detach().sum())

    def of_states(self, states_RD: Tensor, weight_VD: Tensor, targets_R: Tensor) -> LossSum:
        """The sums for the logits `states @ weight.T`, without all of these in memory at once.

        Under autocast the products are in its type, as those of a linear layer are.
        """
        return LossSum(*projected_loss(states_RD, weight_VD, targets_R, self.of_rows))

    def rows_of_states(
        self, states_RD: Tensor, weight_VD: Tensor, targets_R: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`rows` of the same logits, by as many of them at a time; for evaluation."""
        n_rows = chunk_rows(len(weight_VD), states_RD.device)
        chunks = zip(torch.split(states_RD, n_rows), torch.split(targets_R, n_rows), strict=True)
        found = [self.rows(linear(states, weight_VD), targets) for states, targets in chunks]
        return torch.cat([loss for loss, _ in found]), torch.cat([measure for _, measure in found])

    def of_rows(self, logits_RV: Tensor, target_R: Tensor, with_gradient: bool) -> RowSums:
        """The sums of rows and, if asked for, their gradient in the logits, which it may overwrite.

        This one differentiates `rows`; a loss that knows its gradient makes it here.
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
        """Log probabilities of the words that the loss trains, to be used wherever it was.

        Args:
            logits: (..., V).

        Returns:
            The same shape in float32 (float64 for such logits), -inf where a word has none.
        """
        raise NotImplementedError

    @property
    def output_map(self) -> OutputMap:
        """The same as a search takes it."""
        return OutputMap(self.log_probs, is_sparse=self.measure == "support")

    @property
    def metrics(self) -> list[Metric]:
        """Means a target, and the perplexity of an nll, of items (loss, measure, targets)."""
        kinds = [("loss", 0, _mean), (self.measure, 1, _mean)]
        if self.measure == "nll":
            kinds.append(("perplexity", 1, lambda sums: math.exp(min(_mean(sums), 700.0))))
        return [
            Metric(name, "lower", of_sums, (column, 2), UNIT, "loss", f"{name} {UNIT}")
            for name, column, of_sums in kinds
        ]


def _mean(sums: Floats) -> float:
    return float(sums[0] / sums[1])


class CrossEntropy(Loss):
    """Cross-entropy with uniform label smoothing (Szegedy et al. 2016; Vaswani et al. 2017).

    With ε = `label_smoothing`, the target distribution is (1-ε)·one-hot + ε/V.
    """

    def __init__(self, label_smoothing: float = 0.1) -> None:
        super().__init__()
        require(0 <= label_smoothing < 1, "label_smoothing", "in [0, 1)", label_smoothing)
        self.label_smoothing = label_smoothing

    def rows(self, logits_RV: Tensor, targets_R: Tensor) -> tuple[Tensor, Tensor]:
        """See `Loss.rows`."""
        logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
        of_each = functools.partial(cross_entropy, target=targets_R, reduction="none")
        loss_R = of_each(logits_RV, label_smoothing=self.label_smoothing)
        return loss_R, of_each(logits_RV.detach())

    def of_rows(self, logits_RV: Tensor, target_R: Tensor, with_gradient: bool) -> RowSums:
        """See `Loss.of_rows`."""
        if choice.losses(logits_RV, 1.0, REFERENCE).kernel == choice.TORCH:
            return smoothed_cross_entropy(logits_RV, target_R, self.label_smoothing, with_gradient)
        loss, nll = loss_operators.cross_entropy_(
            logits_RV, target_R, self.label_smoothing, with_gradient
        )
        return RowSums(loss, nll, logits_RV if with_gradient else None)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Those of softmax."""
        return log_softmax(logits)


class EntmaxLoss(Loss):
    """Entmax loss over the vocabulary (Peters et al. 2019): most words get probability 0.

    With ε = `label_smoothing`, ε (z_y - mean z) is added, the mean over all words, as
    in the later work of that group: the gradient is p - e_y + ε (e_y - 1/V). That pulls every
    word into the support, so that little of it goes a long way.

    Args:
        alpha: of the map from logits to probabilities, in [1, 2]; 1 is cross-entropy, smoothed as
            above.
        label_smoothing: ε.
    """

    measure = "support"

    def __init__(self, alpha: float = 1.5, label_smoothing: float = 0.0) -> None:
        super().__init__()
        require(1 <= alpha <= 2, "alpha", "in [1, 2]", alpha)
        require(0 <= label_smoothing < 1, "label_smoothing", "in [0, 1)", label_smoothing)
        self.alpha = alpha
        self.label_smoothing = label_smoothing

    def rows(self, logits_RV: Tensor, targets_R: Tensor) -> tuple[Tensor, Tensor]:
        """See `Loss.rows`."""
        return entmax_loss_and_support(logits_RV, targets_R, self.alpha, self.label_smoothing)

    def of_rows(self, logits_RV: Tensor, target_R: Tensor, with_gradient: bool) -> RowSums:
        """See `Loss.of_rows`."""
        if choice.losses(logits_RV, self.alpha, REFERENCE).kernel == choice.TORCH:
            return super().of_rows(logits_RV, target_R, with_gradient)
        loss, support = loss_operators.entmax_loss_(
            logits_RV, target_R, self.alpha, self.label_smoothing, with_gradient
        )
        return RowSums(loss, support, logits_RV if with_gradient else None)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Those of α-entmax: -inf off the support."""
        return log_entmax(logits, self.alpha)


class Entmax15Loss(EntmaxLoss):
    """The entmax loss of α = 1.5."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__(1.5, label_smoothing)


class SparsemaxLoss(EntmaxLoss):
    """The sparsemax loss (Martins and Astudillo 2016), the entmax loss of α = 2."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__(2.0, label_smoothing)


def smoothed_cross_entropy(
    logits_NV: Tensor, target_N: Tensor, smoothing: float, with_gradient: bool
) -> RowSums:
    """Sums of N rows of V logits, and dL/dz = p - (1-ε)·one-hot - ε/V.

    -log p_k = log(sum exp z) - z_k, so neither log-probabilities nor targets are ever spread out
    over the vocabulary. The exponentials are powers of 2, which a CPU takes in a quarter of the
    time, and their memory becomes the gradient's.
    """
    wide = torch.promote_types(logits_NV.dtype, torch.float32)
    shifted_NV = logits_NV.to(wide) - logits_NV.amax(dim=-1, keepdim=True).to(wide)
    gold_N = shifted_NV.gather(-1, target_N[:, None]).squeeze(-1)
    mean_N = shifted_NV.mean(dim=-1)
    exponentials_NV = shifted_NV.mul_(LOG2_E).exp2_()
    total_N = exponentials_NV.sum(dim=-1)
    log_total_N = total_N.log()
    nll = (log_total_N - gold_N).sum()
    loss = (1 - smoothing) * nll + smoothing * (log_total_N - mean_N).sum()
    if not with_gradient:
        return RowSums(loss, nll, None)
    grad_NV = exponentials_NV.mul_(total_N.reciprocal()[:, None])
    if smoothing:
        grad_NV -= smoothing / logits_NV.shape[-1]
    with each_place_written_once():
        less_N1 = grad_NV.new_full((len(grad_NV), 1), smoothing - 1)
        grad_NV.scatter_add_(-1, target_N[:, None], less_N1)
    return RowSums(loss, nll, grad_NV)

"""Training losses: sums over tokens, so that any number of batches adds up to one update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headwise.data.tokenizer import PAD
from headwise.decode.output_map import OutputMap, log_softmax
from headwise.entmax.losses import entmax_loss_and_support, log_entmax
from headwise.errors import require


@dataclass(frozen=True)
class LossSum:
    """Sums over the real target tokens of a batch."""

    loss: Tensor  # what is minimised, differentiable
    measure: Tensor  # what `Loss.measure` names, detached


class Loss(nn.Module):
    """(logits (B, T, V), targets (B, T)) -> sums over the targets that are not padding."""

    measure: ClassVar[str] = "nll"  # nll (in nats), or support (words with a probability)

    def forward(self, logits_BTV: Tensor, target_BT: Tensor) -> LossSum:
        """The sums of a batch."""
        raise NotImplementedError

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


class CrossEntropy(Loss):
    """Cross-entropy with uniform label smoothing (Szegedy et al. 2016; Vaswani et al. 2017).

    With ε = `label_smoothing`, the target distribution is (1-ε)·one-hot + ε/V.
    """

    def __init__(self, label_smoothing: float = 0.1) -> None:
        super().__init__()
        require(0 <= label_smoothing < 1, "label_smoothing", "in [0, 1)", label_smoothing)
        self.label_smoothing = label_smoothing

    def forward(self, logits_BTV: Tensor, target_BT: Tensor) -> LossSum:
        """Sum of the losses of all target tokens that are not padding."""
        loss, nll = _SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            logits_BTV.flatten(0, -2), target_BT.flatten(), self.label_smoothing
        )
        return LossSum(loss, nll)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Those of softmax."""
        return log_softmax(logits)


class EntmaxLoss(Loss):
    """Entmax loss over the vocabulary (Peters et al. 2019): most words get probability 0.

    With ε = `label_smoothing`, ε (z_y - mean z) is added, the mean over all words but padding, as
    in the later work of that group: the gradient is p - e_y + ε (e_y - 1/V). That pulls every
    word into the support, so that little of it goes a long way.

    Args:
        alpha: of the map from logits to probabilities, in [1, 2]; 1 is cross-entropy.
        label_smoothing: ε.
    """

    measure = "support"

    def __init__(self, alpha: float = 1.5, label_smoothing: float = 0.0) -> None:
        super().__init__()
        require(1 <= alpha <= 2, "alpha", "in [1, 2]", alpha)
        require(0 <= label_smoothing < 1, "label_smoothing", "in [0, 1)", label_smoothing)
        self.alpha = alpha
        self.label_smoothing = label_smoothing

    def forward(self, logits_BTV: Tensor, target_BT: Tensor) -> LossSum:
        """Sums of losses and support sizes of all target tokens that are not padding."""
        loss_BT, support_BT = entmax_loss_and_support(
            logits_BTV, target_BT, self.alpha, self.label_smoothing, ignore_index=PAD
        )
        return LossSum(loss_BT.sum(), support_BT.sum())

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


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Over N rows of V logits, with what the backward pass needs kept from the forward one.

    -log p_k = log(sum exp z) - z_k, so neither log-probabilities nor targets are ever spread out
    over the vocabulary: beside the logits the exponentials are kept, and the gradient is made.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, target_N: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(logits_NV.dtype, torch.float32)
        real_N = (target_N != PAD).to(wide)
        highest_N1 = logits_NV.amax(dim=-1, keepdim=True).to(wide)
        shifted_NV = logits_NV.to(wide) - highest_N1
        gold_N = shifted_NV.gather(-1, target_N[:, None]).squeeze(-1)
        mean_N = shifted_NV.mean(dim=-1)
        exponentials_NV = shifted_NV.exp_()
        total_N = exponentials_NV.sum(dim=-1)
        log_total_N = total_N.log()
        nll = ((log_total_N - gold_N) * real_N).sum()
        loss = (1 - smoothing) * nll + smoothing * ((log_total_N - mean_N) * real_N).sum()
        ctx.save_for_backward(exponentials_NV, total_N, real_N, target_N)
        ctx.smoothing, ctx.dtype = smoothing, logits_NV.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        """dL/dz = p - (1-ε)·one-hot - ε/V."""
        exponentials_NV, total_N, real_N, target_N = ctx.saved_tensors
        scale_N = real_N * grad_loss
        n_classes = exponentials_NV.shape[-1]
        grad_NV = exponentials_NV * (scale_N / total_N)[:, None]
        if ctx.smoothing:
            grad_NV -= (scale_N * (ctx.smoothing / n_classes))[:, None]
        gold_N1 = (scale_N * (ctx.smoothing - 1))[:, None]
        grad_NV.scatter_add_(-1, target_N[:, None], gold_N1)
        return grad_NV.to(ctx.dtype), None, None

"""The maps and losses as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from headwise.entmax import losses, maps

MEAN = "elementwise_mean"
REDUCTIONS = (MEAN, "mean", "sum", "none")


class _Options(nn.Module):
    """A module with the options of a function as attributes; a Parameter among them is learned."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._names = tuple(options)
        for name, value in options.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value, persistent=False)
            else:
                setattr(self, name, value)

    def extra_repr(self) -> str:
        """Return the options, for printing a module."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self._names)

    def _call(self, *tensors: Tensor, **given: Tensor | None) -> Tensor:
        options = {name: getattr(self, name) for name in self._names}
        return type(self).function(*tensors, **options, **given)


class _Map(_Options):
    def forward(self, X: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Return the weights of scores of any shape."""
        return self._call(X, mask=mask)


class _Exact(_Map):
    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__(dim=dim, k=k)


class Sparsemax(_Exact):
    """`headwise.entmax.sparsemax`."""

    function = staticmethod(maps.sparsemax)


class Entmax15(_Exact):
    """`headwise.entmax.entmax15`."""

    function = staticmethod(maps.entmax15)


class SparsemaxBisect(_Map):
    """`headwise.entmax.sparsemax_bisect`."""

    function = staticmethod(maps.sparsemax_bisect)

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__(dim=dim, n_iter=n_iter)


class EntmaxBisect(_Map):
    """`headwise.entmax.entmax_bisect`. An `nn.Parameter` as alpha is learned with the module."""

    function = staticmethod(maps.entmax_bisect)

    def __init__(self, alpha: Tensor | float = 1.5, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(alpha=alpha, dim=dim, n_iter=n_iter)


class NormmaxBisect(_Map):
    """`headwise.entmax.normmax_bisect`. An `nn.Parameter` as alpha is learned with the module."""

    function = staticmethod(maps.normmax_bisect)

    def __init__(self, alpha: Tensor | float = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(alpha=alpha, dim=dim, n_iter=n_iter)


class BudgetBisect(_Map):
    """`headwise.entmax.budget_bisect`. An `nn.Parameter` as budget is learned with the module."""

    function = staticmethod(maps.budget_bisect)

    def __init__(self, budget: Tensor | float = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(budget=budget, dim=dim, n_iter=n_iter)


class _Loss(_Options):
    """Losses of targets, those equal to `ignore_index` without loss and gradient.

    Reductions: "elementwise_mean" or "mean" over targets that are not ignored (0 without such
    targets), "sum", "none".
    """

    def __init__(self, ignore_index: int, reduction: str, **options: Any) -> None:
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
        super().__init__(**options)
        self.ignore_index, self.reduction = ignore_index, reduction

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores (..., V) and targets (...): (...), or () if reduced."""
        is_ignored = target == self.ignore_index
        rows = self._call(X, target.masked_fill(is_ignored, 0)).masked_fill(is_ignored, 0.0)
        if self.reduction == "none":
            return rows
        total = rows.sum()
        return total if self.reduction == "sum" else total / (~is_ignored).sum().clamp_min(1)


class SparsemaxLoss(_Loss):
    """`headwise.entmax.sparsemax_loss`, reduced."""

    function = staticmethod(losses.sparsemax_loss)

    def __init__(
        self, k: int | None = None, ignore_index: int = -100, reduction: str = MEAN
    ) -> None:
        super().__init__(ignore_index, reduction, k=k)


class SparsemaxBisectLoss(_Loss):
    """`headwise.entmax.sparsemax_bisect_loss`, reduced."""

    function = staticmethod(losses.sparsemax_bisect_loss)

    def __init__(self, n_iter: int = 50, ignore_index: int = -100, reduction: str = MEAN) -> None:
        super().__init__(ignore_index, reduction, n_iter=n_iter)


class Entmax15Loss(_Loss):
    """`headwise.entmax.entmax15_loss`, reduced."""

    function = staticmethod(losses.entmax15_loss)

    def __init__(
        self, k: int | None = 100, ignore_index: int = -100, reduction: str = MEAN
    ) -> None:
        super().__init__(ignore_index, reduction, k=k)


class EntmaxBisectLoss(_Loss):
    """`headwise.entmax.entmax_bisect_loss`, reduced."""

    function = staticmethod(losses.entmax_bisect_loss)

    def __init__(
        self, alpha: Tensor | float = 1.5, n_iter: int = 50, ignore_index: int = -100,
        reduction: str = MEAN,
    ) -> None:  # fmt: skip
        super().__init__(ignore_index, reduction, alpha=alpha, n_iter=n_iter)


class NormmaxBisectLoss(_Loss):
    """`headwise.entmax.normmax_bisect_loss`, reduced."""

    function = staticmethod(losses.normmax_bisect_loss)

    def __init__(
        self, alpha: Tensor | float = 2, n_iter: int = 50, ignore_index: int = -100,
        reduction: str = MEAN,
    ) -> None:  # fmt: skip
        super().__init__(ignore_index, reduction, alpha=alpha, n_iter=n_iter)

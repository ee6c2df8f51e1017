"""The family of maps: softmax, α-entmax and sparsemax by their α."""

from __future__ import annotations

from enum import IntEnum

from torch import Tensor

ALPHA_SLACK = 1e-6  # 1.01 + 0.99 · 1 in float32 may round to just above 2
BETA_MIN = 1e-7  # equals α = 1 to within 3e-7 in p; every formula is finite


class Power(IntEnum):
    """How x is raised to 1/β; numbered as in cpp/rows.h."""

    EXP = 0  # softmax, β = 0
    ANY = 1  # by logarithm and exponential, β in [0, 1] per row
    SQUARE = 2  # α = 1.5
    LINEAR = 3  # α = 2


ALPHAS = {Power.EXP: 1.0, Power.SQUARE: 1.5, Power.LINEAR: 2.0}
POWERS = {alpha: power for power, alpha in ALPHAS.items()}  # α -> specialised kernel


def check_alpha(alpha: Tensor | None) -> None:
    """Check the range of α on CPU, where reading values is cheap.

    Raises:
        ValueError: α is outside [1, 2], on CPU.
    """
    if alpha is None or alpha.device.type != "cpu" or not alpha.numel():
        return
    low, high = map(float, alpha.detach().aminmax())
    # NaN passes: it leads to a NaN loss, which the trainer reports
    if low < 1 - ALPHA_SLACK or high > 2 + ALPHA_SLACK:
        raise ValueError(f"alpha must be in [1, 2], got values from {low} to {high}")


def beta_of(alpha: Tensor | None) -> Tensor | None:
    """Return α - 1, clamped to where every formula is finite."""
    return None if alpha is None else (alpha - 1.0).clamp_(BETA_MIN, 1.0)

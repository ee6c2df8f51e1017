"""The parts of a model other than attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headwise.attention.positions import Positions, Sinusoidal
from headwise.model.blocks import Activation, PreNorm, ReLU, Residual
from headwise.model.init import Glorot, Init

GLOROT, SINUSOIDAL = Glorot(), Sinusoidal()


@dataclass(frozen=True)
class Parts:
    """The choices in the config groups of the same names.

    Attributes:
        norm: (d_model, dropout) -> residual connection of a sublayer.
        activation: () -> activation of a feed-forward block.
        init: initialises the weights.
        positions: the scheme; attentions apply it with `Positions.at`.
    """

    norm: Callable[..., Residual] = PreNorm
    activation: Callable[[], Activation] = ReLU
    init: Init = GLOROT
    positions: Positions = SINUSOIDAL


DEFAULT = Parts()

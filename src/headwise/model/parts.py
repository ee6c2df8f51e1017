"""What the blocks of a model are made of beside attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headwise.attention.positions import Positions, Sinusoidal
from headwise.model.activations import Activation, ReLU
from headwise.model.blocks import PreNorm, Residual
from headwise.model.init import Glorot, Init

GLOROT, SINUSOIDAL = Glorot(), Sinusoidal()


@dataclass(frozen=True)
class Parts:
    """The choices of the config groups of these names.

    Attributes:
        norm: makes the residual of a sublayer, of `d_model` and `dropout`.
        activation: makes that of a feed-forward block.
        init: how weights start.
        positions: the scheme; what it does at a place, the maker of attentions knows.
    """

    norm: Callable[..., Residual] = PreNorm
    activation: Callable[[], Activation] = ReLU
    init: Init = GLOROT
    positions: Positions = SINUSOIDAL


DEFAULT = Parts()

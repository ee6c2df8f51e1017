"""Places of attention in a model, and the base class of variants there.

Layers and heads count from 1 in names, options and logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from headwise.config.schema import SITE_KINDS, SITE_SIDES


@dataclass(frozen=True)
class Site:
    """Where a model attends, layer by layer.

    Attributes:
        name: a key of `headwise.config.schema.SITE_KINDS`.
        n_layers: number of layers that have it.
        queries, keys: columns of a batch that give the positions of queries and keys.
    """

    name: str
    n_layers: int
    queries: str
    keys: str

    @property
    def side(self) -> str:
        """The stack of the site: encoder or decoder."""
        return SITE_SIDES[self.name]

    @property
    def causal(self) -> bool:
        """Whether a query attends only to keys up to its own position."""
        return SITE_KINDS[self.name] == "causal"


@dataclass(frozen=True)
class Place:
    """Site and layer of an attention, and its sizes.

    Attributes:
        site: a key of `headwise.config.schema.SITE_KINDS`.
        layer: number of the layer, from 1.
        n_heads: number of heads, without pruned ones.
        head_dim: width of each head, of its values and contexts.
        width: D of the model if heads were pruned; None: n_heads * head_dim.
        numbers: numbers of these heads in the unpruned model, from 1; None: all of them. Settings
            per head use these numbers.
        qk_dim: width E of the queries and keys of each head; None: head_dim.
    """

    site: str
    layer: int
    n_heads: int
    head_dim: int
    width: int | None = None
    numbers: tuple[int, ...] | None = None
    qk_dim: int | None = None

    @property
    def kind(self) -> str:
        """Kind of attention: self, causal (causal self-attention) or cross."""
        return SITE_KINDS[self.site]

    @property
    def d_model(self) -> int:
        """Width D of the model."""
        return self.n_heads * self.head_dim if self.width is None else self.width

    @property
    def key_dim(self) -> int:
        """Width E of the queries and keys of each head."""
        return self.head_dim if self.qk_dim is None else self.qk_dim

    @property
    def head_numbers(self) -> tuple[int, ...]:
        """Numbers of the heads in the unpruned model, from 1."""
        return tuple(range(1, self.n_heads + 1)) if self.numbers is None else self.numbers


class Variant(nn.Module):
    """Base class of normalisers, patterns, scalings and whole attentions.

    A subclass takes `place` as first argument and its settings as keywords.

    Attributes:
        unsupported: kind of attention (`Place.kind`) -> reason why it is not supported.
        head_axes: parameter -> the axis that has one entry per head.
        shared_part: attribute that places with an equal `share_key` share; empty: all weights.
    """

    unsupported: ClassVar[Mapping[str, str]] = {}
    head_axes: Mapping[str, int] = {}
    shared_part: ClassVar[str] = ""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    @classmethod
    def share_key(cls, place: Place, settings: Mapping[str, Any]) -> str | None:
        """Return a key: places with equal keys share weights (`shared_part`); None: no sharing."""
        return None

    @classmethod
    def completed(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with names of other yamls replaced by their content.

        A run folder stores these, so that later changes of a yaml do not change the run.
        """
        return dict(settings)

    def stats(self) -> dict[str, Tensor]:
        """Return values to log: name -> (H,), NaN at heads without such a value."""
        return {}

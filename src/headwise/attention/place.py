"""Places of attention, and what stands at one by the choice of a config group.

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
        n_layers: layers that have it.
        queries, keys: columns of a batch whose positions ask and are asked.
    """

    name: str
    n_layers: int
    queries: str
    keys: str

    @property
    def side(self) -> str:
        """The stack that it is in: encoder or decoder."""
        return SITE_SIDES[self.name]

    @property
    def causal(self) -> bool:
        """Whether a query sees keys up to its own position only."""
        return SITE_KINDS[self.name] == "causal"


@dataclass(frozen=True)
class Place:
    """Where in the model an attention stands, and its sizes.

    Attributes:
        site: its name, a key of `headwise.config.schema.SITE_KINDS`.
        layer: from 1.
        n_heads: heads that are there.
        head_dim: width E of each.
        width: D of the model where heads were pruned; else it is n_heads * head_dim.
        numbers: which of the unpruned model's heads these are, from 1; None: all of them. What is
            chosen per head goes by these numbers.
    """

    site: str
    layer: int
    n_heads: int
    head_dim: int
    width: int | None = None
    numbers: tuple[int, ...] | None = None

    @property
    def kind(self) -> str:
        """What is attended to: self, causal (self-attention backwards alone) or cross."""
        return SITE_KINDS[self.site]

    @property
    def d_model(self) -> int:
        """Width D of the model."""
        return self.n_heads * self.head_dim if self.width is None else self.width

    @property
    def head_numbers(self) -> tuple[int, ...]:
        """Numbers of the heads, from 1, as the unpruned model counts them."""
        return tuple(range(1, self.n_heads + 1)) if self.numbers is None else self.numbers


class Variant(nn.Module):
    """What a config group names: a normaliser, a pattern, a scaling or a whole attention.

    A subclass takes `place` as first argument and its own choices as keywords.

    Attributes:
        unsupported: kind of attention (`Place.kind`) -> reason why it cannot stand there.
        head_axes: parameter -> its axis of one entry a head.
        shared_part: name of the attribute that places with an equal `share_key` share; all of the
            module if empty.
    """

    unsupported: ClassVar[Mapping[str, str]] = {}
    head_axes: Mapping[str, int] = {}
    shared_part: ClassVar[str] = ""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    @classmethod
    def share_key(cls, place: Place, settings: Mapping[str, Any]) -> str | None:
        """Places with an equal key share one module, or its `shared_part`; None: no sharing."""
        return None

    @classmethod
    def completed(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings with the content of what they name instead of names.

        A run folder keeps these: a yaml that changes later must not change what the run was.
        """
        return dict(settings)

    def stats(self) -> dict[str, Tensor]:
        """Values to log: name -> (H,), NaN at heads that have no such value."""
        return {}

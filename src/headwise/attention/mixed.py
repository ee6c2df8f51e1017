"""Mixed normalisers: heads of one place differ in how scores become weights (YUBERT note).

Letters: B batch, H heads, Q queries, K keys, E head width.

The note means it as a constraint against redundant heads: what weighs contexts differently shall
come to see different contexts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.attention.activations import ACTIVATIONS, Activation
from headwise.attention.parts import Normaliser, ScoreContext
from headwise.attention.place import Place
from headwise.attention.rows import ROWS
from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import instantiate, target_class
from headwise.errors import ConfigError, refuse, require

NOTE = ("softmax", "selu", "elu", "leaky_relu", "swish", "ymish")


class Mixed(Normaliser):
    """Splits the scores along the head axis over several normalisers and joins their weights.

    A name that stands at several heads makes one module with that many heads. The `place` of
    such a module has these heads alone, under their numbers in the unpruned model; its parameters
    follow its own `head_axes`.

    Args:
        place: site, layer and sizes.
        normalisers: names, of `headwise.attention.activations` or of yamls of the attention
            group. Head number n takes the n-th; they begin again where they end, and those
            beyond the number of heads stay unused. The rows of at least one head must be
            distributions.
        rows: size of the rows of the plain activations, as in `headwise.attention.rows`.
        choices: name of a normaliser with a yaml -> what differs from there, such as
            {ymish: {dead_zone: true}}; or, with a `_target_`, all of it.
    """

    is_distribution = False  # not those of every head; see `distribution_heads`
    _order_H: Tensor  # the heads, member by member
    _inverse_H: Tensor

    def __init__(
        self,
        place: Place,
        normalisers: tuple[str, ...] = NOTE,
        rows: str = "sqrt",
        choices: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(place)
        if rows not in ROWS:
            raise refuse("rows", rows, ROWS)
        require(len(normalisers) > 0, "normalisers", "a list of names", normalisers)
        nodes = _checked_nodes(normalisers, _chosen(choices), place)
        heads_of: dict[str, list[int]] = {}
        for head, number in enumerate(place.head_numbers):
            heads_of.setdefault(_name_at(normalisers, number), []).append(head)
        self.members = nn.ModuleDict()
        for name, heads in heads_of.items():
            part = _part_of(place, heads)
            if name in nodes:
                member = instantiate(nodes[name], f"choices.{name}", place=part)
            else:
                member = Activation(part, name, rows)
            self.members[name] = member
        for name in nodes.keys() - heads_of.keys():  # unused, but wrong choices are refused
            instantiate(nodes[name], f"choices.{name}", place=_part_of(place, [0]))
        self._n_heads_each = [len(heads) for heads in heads_of.values()]
        self._order = [head for heads in heads_of.values() for head in heads]
        self._is_in_order = self._order == sorted(self._order)
        order_H = torch.tensor(self._order)
        self.register_buffer("_order_H", order_H, persistent=False)
        self.register_buffer("_inverse_H", order_H.argsort(), persistent=False)

    @classmethod
    def completed(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """With all choices of all members that have a yaml."""
        chosen = _chosen(settings.get("choices"))
        names = [n for n in settings.get("normalisers", NOTE) if n not in ACTIVATIONS]
        return {**settings, "choices": {name: _node_of(name, chosen) for name in names}}

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K), of any sign at heads whose normaliser gives no distribution."""
        allowed = context.dense_mask(scores_BHQK)
        masks: Sequence[Tensor | None] = [allowed] * len(self.members)
        if allowed is not None and allowed.shape[1] > 1:
            masks = self._split(allowed)
        queries = self._split(context.queries_BHQE)
        seen = [
            ScoreContext(context.mask, of_heads, allowed_BHQK=mask)
            for of_heads, mask in zip(queries, masks, strict=True)
        ]
        parts = zip(self._each(), self._split(scores_BHQK), seen, strict=True)
        return self._join([member(scores, of_heads) for member, scores, of_heads in parts], 1)

    def distribution_heads(self) -> tuple[bool, ...]:
        """As the members say."""
        flags = [flag for member in self._each() for flag in member.distribution_heads()]
        return tuple(flag for _, flag in sorted(zip(self._order, flags, strict=True)))

    def stats(self) -> dict[str, Tensor]:
        """What any member reports, (H,); NaN at heads that have no such value."""
        return self._with_absent([member.stats() for member in self._each()], 0)

    def query_stats(self, context: ScoreContext) -> dict[str, Tensor]:
        """What any member reports, (B, H, Q); NaN at heads that have no such value."""
        seen = [ScoreContext(context.mask, part) for part in self._split(context.queries_BHQE)]
        parts = zip(self._each(), seen, strict=True)
        return self._with_absent([member.query_stats(of_heads) for member, of_heads in parts], 1)

    def _each(self) -> list[Normaliser]:
        return cast(list[Normaliser], list(self.members.values()))

    def _split(self, of_heads: Tensor) -> tuple[Tensor, ...]:
        """The heads (axis 1) of each member."""
        if not self._is_in_order:
            of_heads = of_heads.index_select(1, self._order_H)
        return torch.split(of_heads, self._n_heads_each, dim=1)

    def _join(self, parts: Sequence[Tensor], head_axis: int) -> Tensor:
        """What the members made, head by head in the order of the place."""
        joined = torch.cat(tuple(parts), head_axis)
        return joined if self._is_in_order else joined.index_select(head_axis, self._inverse_H)

    def _with_absent(self, found: list[dict[str, Tensor]], head_axis: int) -> dict[str, Tensor]:
        """Values of all heads by name, from those that each member reports of its own."""
        known = {name: values for stats in found for name, values in stats.items()}
        joined = {}
        for name, like in known.items():
            parts = []
            for stats, n_heads in zip(found, self._n_heads_each, strict=True):
                shape = list(like.shape)
                shape[head_axis] = n_heads
                parts.append(stats.get(name, like.new_full(shape, math.nan)))
            joined[name] = self._join(parts, head_axis)
        return joined


def _name_at(normalisers: Sequence[str], number: int) -> str:
    return normalisers[(number - 1) % len(normalisers)]


def _part_of(place: Place, heads: list[int]) -> Place:
    """The same place with these heads (from 0) alone."""
    numbers = tuple(place.head_numbers[head] for head in heads)
    return dataclasses.replace(place, n_heads=len(heads), width=place.d_model, numbers=numbers)


def _chosen(choices: Any) -> Mapping[str, Any]:
    require(
        choices is None or isinstance(choices, Mapping), "choices", "null or a mapping", choices
    )
    return choices or {}


def _node_of(name: str, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The config node of a name: its yaml with what was chosen, or what was chosen alone."""
    chosen = choices.get(name) or {}
    require(isinstance(chosen, Mapping), f"choices.{name}", "a mapping", chosen)
    node = chosen if "_target_" in chosen else {**group_node("attention", name), **chosen}
    return {key: value for key, value in node.items() if key != "instead"}


def _checked_nodes(
    normalisers: Sequence[str], chosen: Mapping[str, Any], place: Place
) -> dict[str, Mapping[str, Any]]:
    """Config nodes of the names that have a yaml.

    Raises:
        ConfigError: names that cannot be used here, or none whose rows are distributions.
    """
    choices = group_choices("attention")
    for name in chosen:
        if name not in normalisers or name in ACTIVATIONS:
            with_choices = [other for other in normalisers if other not in ACTIVATIONS]
            raise refuse("choices", name, with_choices)
    nodes: dict[str, Mapping[str, Any]] = {}
    distributions = set()
    for name in dict.fromkeys(normalisers):
        if name in ACTIVATIONS:
            continue
        if name not in choices and "_target_" not in (chosen.get(name) or {}):
            raise refuse("normalisers", name, _able(choices))
        node = _node_of(name, chosen)
        target = _member_class(node, name)
        if target is None:
            raise ConfigError(
                f"normalisers can hold what turns a head's scores into weights, unlike {name}; "
                f"choose from {', '.join(_able(choices))}"
            )
        reason = target.unsupported.get(place.kind)
        if reason is not None:
            raise ConfigError(f"normalisers cannot hold {name} at {place.site}: {reason}")
        if target.share_key(place, node) is not None:
            raise ConfigError(f"normalisers cannot hold {name}: its yaml shares it between places")
        if target.is_distribution:
            distributions.add(name)
        nodes[name] = node
    n_unpruned = place.d_model // place.head_dim
    names = [_name_at(normalisers, number) for number in range(1, n_unpruned + 1)]
    require(
        not distributions.isdisjoint(names),
        "normalisers",
        f"a list that gives one of {n_unpruned} heads a distribution, such as softmax",
        names,
    )
    return nodes


def _member_class(node: Any, name: str) -> type[Normaliser] | None:
    """The class of a yaml of the attention group, or None where no head can be given it."""
    target = target_class(node, f"normalisers.{name}")
    return target if issubclass(target, Normaliser) and not issubclass(target, Mixed) else None


def _able(choices: Sequence[str]) -> list[str]:
    """Names that can stand in the list."""
    with_yaml = [name for name in choices if _member_class(group_node("attention", name), name)]
    return [*ACTIVATIONS, *with_yaml]

"""Mixed normalisers: different normalisers in the heads of one place (YUBERT note).

Axes: B batch, H heads, Q queries, K keys, E head width.

The note proposes this to make heads less redundant: heads with different normalisers should learn
to attend to different contexts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.attention.activations import ACTIVATIONS, Activation
from headwise.attention.elementwise import ROWS
from headwise.attention.normaliser import Normaliser, ScoreContext
from headwise.attention.place import Place
from headwise.config.instantiate import instantiate, target_class
from headwise.config.register import group_choices, group_node
from headwise.errors import ConfigError, refuse, require

NOTE_NAMES = ("softmax", "selu", "elu", "leaky_relu", "swish", "ymish")


class Mixed(Normaliser):
    """Splits the scores along the head axis over several normalisers and joins their weights.

    A name used by several heads is one module with that many heads. The `place` of such a module
    has these heads only, with their numbers in the unpruned model; its parameters follow its own
    `head_axes`.

    Args:
        place: site, layer and sizes.
        normalisers: names in `headwise.attention.activations`, or yamls of the attention
            group. Head number n uses the n-th; a shorter list is repeated, and names beyond the
            number of heads are unused. The rows of at least one head must be distributions.
        rows: rescaling of the rows of activations; see `headwise.attention.elementwise`.
        choices: name of a normaliser with a yaml -> settings that override it, e.g.
            {ymish: {dead_zone: true}}; or, with a `_target_`, a complete node.
    """

    is_distribution = False  # differs by head; see `distribution_heads`
    _order_H: Tensor  # the heads, grouped by member
    _inverse_H: Tensor

    def __init__(
        self,
        place: Place,
        normalisers: tuple[str, ...] = NOTE_NAMES,
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
            part = _member_place(place, heads)
            if name in nodes:
                member = instantiate(nodes[name], f"choices.{name}", place=part)
            else:
                member = Activation(part, name, rows)
            self.members[name] = member
        for name in nodes.keys() - heads_of.keys():  # unused, but built to validate the choices
            instantiate(nodes[name], f"choices.{name}", place=_member_place(place, [0]))
        self._n_heads_each = [len(heads) for heads in heads_of.values()]
        self._order = [head for heads in heads_of.values() for head in heads]
        self._is_in_order = self._order == sorted(self._order)
        order_H = torch.tensor(self._order)
        self.register_buffer("_order_H", order_H, persistent=False)
        self.register_buffer("_inverse_H", order_H.argsort(), persistent=False)

    @classmethod
    def completed(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with all choices of all members that have a yaml."""
        chosen = _chosen(settings.get("choices"))
        names = [n for n in settings.get("normalisers", NOTE_NAMES) if n not in ACTIVATIONS]
        return {**settings, "choices": {name: _node_of(name, chosen) for name in names}}

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Return weights (B, H, Q, K), of any sign where the normaliser is no distribution."""
        allowed = context.dense_mask(scores_BHQK)
        masks: Sequence[Tensor | None] = [allowed] * len(self.members)
        if allowed is not None and allowed.shape[1] > 1:
            masks = self._split(allowed)
        queries = self._split(context.queries_BHQE)
        contexts = [
            ScoreContext(context.mask, part_BHQE, allowed_BHQK=mask)
            for part_BHQE, mask in zip(queries, masks, strict=True)
        ]
        parts = zip(self._members(), self._split(scores_BHQK), contexts, strict=True)
        return self._join([member(scores, part) for member, scores, part in parts], 1)

    def distribution_heads(self) -> tuple[bool, ...]:
        """Return the flags of the members, in the order of the heads."""
        flags = [flag for member in self._members() for flag in member.distribution_heads()]
        return tuple(flag for _, flag in sorted(zip(self._order, flags, strict=True)))

    def stats(self) -> dict[str, Tensor]:
        """Return the values of all members (H,), NaN at heads without such a value."""
        return self._fill_absent([member.stats() for member in self._members()], 0)

    def query_stats(self, context: ScoreContext) -> dict[str, Tensor]:
        """Return the values of all members (B, H, Q), NaN at heads without such a value."""
        contexts = [ScoreContext(context.mask, part) for part in self._split(context.queries_BHQE)]
        parts = zip(self._members(), contexts, strict=True)
        return self._fill_absent([member.query_stats(part) for member, part in parts], 1)

    def _members(self) -> list[Normaliser]:
        return cast(list[Normaliser], list(self.members.values()))

    def _split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Split axis 1 into the heads of each member."""
        if not self._is_in_order:
            values = values.index_select(1, self._order_H)
        return torch.split(values, self._n_heads_each, dim=1)

    def _join(self, parts: Sequence[Tensor], head_axis: int) -> Tensor:
        """Concatenate the results of the members, in the order of the heads."""
        joined = torch.cat(tuple(parts), head_axis)
        return joined if self._is_in_order else joined.index_select(head_axis, self._inverse_H)

    def _fill_absent(self, by_member: list[dict[str, Tensor]], head_axis: int) -> dict[str, Tensor]:
        """Return the values of all heads by name; NaN where a member has none."""
        examples = {name: values for stats in by_member for name, values in stats.items()}
        joined = {}
        for name, like in examples.items():
            parts = []
            for stats, n_heads in zip(by_member, self._n_heads_each, strict=True):
                shape = list(like.shape)
                shape[head_axis] = n_heads
                parts.append(stats.get(name, like.new_full(shape, math.nan)))
            joined[name] = self._join(parts, head_axis)
        return joined


def _name_at(normalisers: Sequence[str], number: int) -> str:
    return normalisers[(number - 1) % len(normalisers)]


def _member_place(place: Place, heads: list[int]) -> Place:
    """Return the place restricted to these heads (from 0)."""
    numbers = tuple(place.head_numbers[head] for head in heads)
    return dataclasses.replace(place, n_heads=len(heads), width=place.d_model, numbers=numbers)


def _chosen(choices: Any) -> Mapping[str, Any]:
    require(
        choices is None or isinstance(choices, Mapping), "choices", "null or a mapping", choices
    )
    return choices or {}


def _node_of(name: str, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config node of a name: its yaml with overrides, or a complete node."""
    chosen = choices.get(name) or {}
    require(isinstance(chosen, Mapping), f"choices.{name}", "a mapping", chosen)
    node = chosen if "_target_" in chosen else {**group_node("attention", name), **chosen}
    return {key: value for key, value in node.items() if key != "instead"}


def _checked_nodes(
    normalisers: Sequence[str], chosen: Mapping[str, Any], place: Place
) -> dict[str, Mapping[str, Any]]:
    """Return the config nodes of the names that have a yaml.

    Raises:
        ConfigError: a name is not supported here, or no rows are distributions.
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
            raise refuse("normalisers", name, _supported_names(choices))
        node = _node_of(name, chosen)
        target = _member_class(node, name)
        if target is None:
            raise ConfigError(
                f"normalisers must turn a head's scores into weights, which {name} does not; "
                f"choose from {', '.join(_supported_names(choices))}"
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
        f"a list in which one of {n_unpruned} heads has a distribution, such as softmax",
        names,
    )
    return nodes


def _member_class(node: Any, name: str) -> type[Normaliser] | None:
    """Return the class of an attention yaml, or None if it is not a supported normaliser."""
    target = target_class(node, f"normalisers.{name}")
    return target if issubclass(target, Normaliser) and not issubclass(target, Mixed) else None


def _supported_names(choices: Sequence[str]) -> list[str]:
    """Return the names that `normalisers` supports."""
    with_yaml = [name for name in choices if _member_class(group_node("attention", name), name)]
    return [*ACTIVATIONS, *with_yaml]

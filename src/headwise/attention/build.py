"""From config nodes to attention modules: one place for all variants, which it knows by none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from headwise.attention.base import Attention, Normaliser, Pattern, Place, ScoreAttention
from headwise.config_dir import group_choices, group_node
from headwise.errors import ConfigError
from headwise.instantiate import as_container, instantiate, target_class
from headwise.schema import SITES


class AttentionFactory:
    """Makes the attention of each place from the choices of the config.

    Args:
        attention, pattern: the common choice, nodes with `_target_`.
        sites, pattern_sites: the choice of one site, or None to follow the common one.
        dropout: rate on the attention weights.

    Raises:
        ConfigError: a variant that cannot be used at its site; allowed ones are named.
    """

    def __init__(
        self,
        attention: Any,
        pattern: Any,
        sites: Mapping[str, Any] | None = None,
        pattern_sites: Mapping[str, Any] | None = None,
        dropout: float = 0.0,
    ) -> None:
        self.dropout = dropout
        self._attention = self._per_site("attention", attention, "sites", sites)
        self._pattern = self._per_site("pattern", pattern, "pattern_sites", pattern_sites)
        self._shared: dict[tuple[str, str], nn.Module] = {}
        for site in SITES:
            self._refuse_unsupported("attention", *self._attention[site], site)
            self._refuse_unsupported("pattern", *self._pattern[site], site)

    @staticmethod
    def _per_site(
        group: str, common: Any, sites_key: str, sites: Mapping[str, Any] | None
    ) -> dict[str, tuple[str, Any]]:
        chosen = {}
        for site in SITES:
            own = sites.get(site) if sites is not None else None
            node = (group, common) if own is None else (f"{sites_key}.{site}", own)
            chosen[site] = (node[0], as_container(node[1]))
        return chosen

    @staticmethod
    def _refuse_unsupported(group: str, key: str, node: Any, site: str) -> None:
        reason = unsupported_sites(node, key).get(site)
        if reason is None:
            return
        able = [
            name
            for name in group_choices(group)
            if site not in unsupported_sites(group_node(group, name), group)
        ]
        sites_key = "sites" if group == "attention" else "pattern_sites"
        raise ConfigError(
            f"{node['_target_']} cannot be used at {site}: {reason}. "
            f"Choose another there: {group}@{sites_key}.{site}={'|'.join(able)}"
        )

    def __call__(self, place: Place) -> Attention:
        """The attention module of one place; two places share nothing unless declared."""
        key, node = self._attention[place.site]
        module = self._instantiate(key, node, place)
        pattern_key, pattern_node = self._pattern[place.site]
        pattern = instantiate(pattern_node, pattern_key, place=place)
        if not isinstance(pattern, Pattern):
            name = type(pattern).__name__
            raise ConfigError(f"{pattern_key}._target_ must be a Pattern, got {name}")
        if isinstance(module, Attention):
            if pattern.restricts:
                raise ConfigError(
                    f"{node['_target_']} forms no scores that {pattern_node['_target_']} could "
                    f"restrict at {place.site}; use pattern@pattern_sites.{place.site}=none"
                )
            return module
        if not isinstance(module, Normaliser):
            raise ConfigError(
                f"{key}._target_ must be a Normaliser or an Attention, got {type(module).__name__}"
            )
        return ScoreAttention(place, module, pattern, self.dropout)

    def _instantiate(self, key: str, node: Any, place: Place) -> nn.Module:
        target = target_class(node, key)
        share_key = None
        if issubclass(target, Normaliser):
            share_key = target.share_key(place, node)
        if share_key is None:
            module: nn.Module = instantiate(node, key, place=place)
            return module
        slot = (node["_target_"], share_key)
        if slot not in self._shared:
            self._shared[slot] = instantiate(node, key, place=place)
        return self._shared[slot]


def unsupported_sites(node: Any, key: str) -> Mapping[str, str]:
    """Site -> reason, of the class that a node names."""
    limits: Mapping[str, str] = getattr(target_class(node, key), "unsupported_sites", {})
    return limits

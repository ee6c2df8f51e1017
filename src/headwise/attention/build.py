"""Build attention modules from config nodes, for all variants."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from headwise.attention.attention import Attention, NoHeads, ScoreAttention
from headwise.attention.mask import Mask
from headwise.attention.normaliser import Normaliser, Scaling, ScoreContext
from headwise.attention.pattern import Pattern
from headwise.attention.place import Place, Variant
from headwise.attention.positions import NoPositions, Positions
from headwise.config.instantiate import as_container, instantiate, target_class
from headwise.config.register import group_choices, group_node
from headwise.config.schema import SITE_GROUPS, SITE_KINDS
from headwise.errors import ConfigError, refuse, require
from headwise.seed import seeded


class AttentionFactory:
    """Builds the attention of each place from the choices of the config.

    Args:
        choices: group (attention, pattern, scaling) -> the common choice, a node with `_target_`.
            A missing group is `none`.
        sites: group -> site -> the choice of that site, or None for the common one.
        dropout: dropout rate of the attention weights.
        positions: the position scheme of the model; None: no positions.
        present: names of the sites that the model has; default: all.
        seed: seed of the initial weights that variants draw (α, projections of Linformer),
            which depend only on seed, site, layer and group, not on the order of building.

    Raises:
        ConfigError: a variant is not supported at its site, or a choice is for a site that the
            model does not have; the message lists the allowed ones.
    """

    def __init__(
        self,
        choices: Mapping[str, Any],
        sites: Mapping[str, Mapping[str, Any]] | None = None,
        dropout: float = 0.0,
        seed: int = 1,
        positions: Positions | None = None,
        present: Collection[str] = SITE_KINDS,
    ) -> None:
        self.dropout = dropout
        self.seed = seed
        self.positions = positions if positions is not None else NoPositions()
        self._chosen: dict[str, dict[str, tuple[str, Any]]] = {}
        self._shared: dict[tuple[str, str], Variant] = {}
        for group, sites_key in SITE_GROUPS.items():
            common = choices[group] if group in choices else group_node(group, "none")
            chosen = (sites or {}).get(group, {})
            for site in (site for site in chosen if chosen[site] is not None):
                if site not in present:
                    raise refuse(f"the site of {group}@{sites_key}", site, present)
            self._chosen[group] = {
                site: _choice_at(site, group, as_container(common))
                if chosen.get(site) is None
                else (f"{sites_key}.{site}", _without_instead(as_container(chosen[site])))
                for site in present
            }
            for site in present:
                self._check_supported(group, site)

    def _check_supported(self, group: str, site: str) -> None:
        key, node = self._chosen[group][site]
        reason = unsupported_sites(node, key).get(site)
        if reason is None:
            return
        supporting = [
            name
            for name in group_choices(group)
            if site not in unsupported_sites(group_node(group, name), group)
        ]
        raise ConfigError(
            f"{node['_target_']} cannot be used at {site}: {reason}. "
            f"Choose another there: {group}@{SITE_GROUPS[group]}.{site}={'|'.join(supporting)}"
        )

    def __call__(self, place: Place) -> Attention:
        """Return the attention module of one place; places share no weights unless declared."""
        if not place.n_heads:
            return NoHeads(place)
        module: Normaliser | Attention = self._make("attention", place, Normaliser, Attention)
        pattern = self._make("pattern", place, Pattern)
        if place.kind == "cross" and pattern.restricts:
            raise ConfigError(
                f"{type(pattern).__name__} restricts attention at {place.site}, where queries "
                "have no position among the keys: set its `restricts` to place.kind != 'cross', or "
                f"choose pattern@pattern_sites.{place.site}=none"
            )
        scaling = self._make("scaling", place, Scaling)
        positions = self.positions.at(place)
        if isinstance(module, Normaliser):
            return ScoreAttention(place, module, pattern, self.dropout, scaling, positions)
        for group, part, is_none in (
            ("pattern", pattern, not pattern.restricts),
            ("scaling", scaling, not scaling.scales),
        ):
            if not is_none:
                raise ConfigError(
                    f"{type(module).__name__} at {place.site} computes no scores, which "
                    f"{type(part).__name__} needs; use {group}=none, or at this site only "
                    f"{group}@{SITE_GROUPS[group]}.{place.site}=none"
                )
        if positions is not None:
            if not module.rotates or positions.distances(0) is not None:
                raise ConfigError(
                    f"{type(module).__name__} at {place.site} does not support "
                    f"{type(self.positions).__name__}, which acts on queries, keys or scores; use "
                    "positions=sinusoidal, learned, grid or none, or another attention there: "
                    f"attention@sites.{place.site}="
                )
            module.positions = positions
        module.dropout = self.dropout
        return module

    def _make(self, group: str, place: Place, *kinds: type[Variant]) -> Any:
        """Return the variant of a group at a place, with parts shared with earlier places."""
        key, node = self._chosen[group][place.site]
        target = target_class(node, key)
        if not issubclass(target, kinds):
            allowed = " or an ".join(kind.__name__ for kind in kinds)
            raise ConfigError(f"{key}._target_ must be a {allowed}, got {target.__name__}")
        with seeded(self.seed, place.site, place.layer, group):
            module: Variant = instantiate(node, key, place=place)
        share_key = target.share_key(place, node)
        if share_key is not None:
            first = self._shared.setdefault((node["_target_"], share_key), module)
            if first is not module:
                _share(first, module, target.shared_part)
        return module


def _share(first: Variant, module: Variant, part: str) -> None:
    """Share the weights of `first` with `module`: the attribute `part`, or all if empty.

    The place of `module` is unchanged: its pruned heads can differ.
    """
    names = [part]
    if not part:
        names = [name for name, _ in first.named_parameters(recurse=False)]
        names += [name for name, _ in first.named_children()]
    parameters = dict(first.named_parameters())
    for name, parameter in module.named_parameters():
        is_shared = any(name == shared or name.startswith(f"{shared}.") for shared in names)
        if is_shared and parameter.shape != parameters[name].shape:
            raise ConfigError(
                f"model.heads: {type(module).__name__} shares {name} between layers, with one "
                "entry per head, so they must keep the same heads"
            )
    for name in names:
        setattr(module, name, getattr(first, name))


def _choice_at(site: str, group: str, common: Any) -> tuple[str, Any]:
    """Return key and node of a site that uses the common choice.

    With `instead`, a yaml names the replacement at sites that its variant does not support. It
    applies to `group=`; choosing an unsupported variant for one site is an error.
    """
    instead = common.get("instead", {}) if isinstance(common, Mapping) else {}
    require(isinstance(instead, Mapping), f"{group}.instead", "site: choice", instead)
    for key in instead:
        if key not in SITE_KINDS:
            raise refuse(f"{group}.instead", key, SITE_KINDS)
    if site not in instead:
        return group, _without_instead(common)
    key = f"{group}.instead.{site}"
    node = instead[site]
    if isinstance(node, str) and node not in group_choices(group):
        raise refuse(key, node, group_choices(group))
    return key, _without_instead(group_node(group, node) if isinstance(node, str) else node)


def completed(group: str, node: Any) -> Any:
    """Return a choice without references: see `Variant.completed`; applies to `instead` too."""
    target = target_class(node, group)
    settings = dict(as_container(node))
    if issubclass(target, Variant):
        settings = target.completed(settings)
    if isinstance(settings.get("instead"), Mapping):
        settings["instead"] = {
            site: completed(group, group_node(group, node) if isinstance(node, str) else node)
            for site, node in settings["instead"].items()
        }
    return settings


def _without_instead(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    return {key: value for key, value in node.items() if key != "instead"}


def unsupported_sites(node: Any, key: str) -> Mapping[str, str]:
    """Return site -> reason for the class of a node."""
    reasons: Mapping[str, str] = getattr(target_class(node, key), "unsupported", {})
    return {site: reasons[kind] for site, kind in SITE_KINDS.items() if kind in reasons}


def check_weights(normaliser: Normaliser) -> None:
    """Compute weights of a few scores, some masked, some negative in the whole row.

    Raises:
        ConfigError: wrong shape, weights of masked keys that are not 0, non-finite weights.
    """
    generator = torch.Generator().manual_seed(0)
    n_heads, head_dim = normaliser.place.n_heads, normaliser.place.key_dim
    scores_BHQK = torch.randn(2, n_heads, 4, 6, generator=generator)
    scores_BHQK[:, :, 0] = -scores_BHQK[:, :, 0].abs()
    queries_BHQE = torch.randn(2, n_heads, 4, head_dim, generator=generator)
    mask = Mask(torch.tensor([6, 3]))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        weights_BHQK = normaliser(scores_BHQK, ScoreContext(mask, queries_BHQE))
    name = type(normaliser).__name__
    if weights_BHQK.shape != scores_BHQK.shape:
        raise ConfigError(
            f"{name}.forward must return weights of the shape of the scores "
            f"{tuple(scores_BHQK.shape)}, got {tuple(weights_BHQK.shape)}"
        )
    if not bool(weights_BHQK.isfinite().all()):
        raise ConfigError(
            f"{name}.forward returned non-finite weights (NaN or inf) for finite scores; rows may "
            "be negative in all keys that are not masked"
        )
    if bool(weights_BHQK[1, :, :, 3:].any()):
        raise ConfigError(
            f"{name}.forward returned weights of masked keys that are not 0; multiply by "
            "context.dense_mask(scores)"
        )

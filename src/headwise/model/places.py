"""Where attention happens in a model of given sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headwise.attention.place import Place, Site
from headwise.config.schema import SITES, ModelConfig
from headwise.errors import refuse, require


def translation_sites(config: ModelConfig) -> tuple[Site, Site, Site]:
    """Encoder self-attention, decoder self-attention, and from decoder to encoder."""
    n_decoder = config.decoder_layers
    return (
        Site("encoder_self", config.encoder_layers, "source", "source"),
        Site("decoder_self", n_decoder, "target", "target"),
        Site("cross", n_decoder, "target", "source"),
    )


def n_layers(config: ModelConfig, site: str) -> int:
    """Layers that have attention at a site."""
    return {site.name: site.n_layers for site in translation_sites(config)}[site]


def place_of(config: ModelConfig, site: str, layer: int) -> Place:
    """The place of one site of one layer (from 1), with the heads that pruning left there."""
    head_dim = config.d_model // config.n_heads
    if not config.heads or site not in config.heads:
        return Place(site, layer, config.n_heads, head_dim)
    kept = tuple(config.heads[site][layer - 1])
    return Place(site, layer, len(kept), head_dim, config.d_model, kept)


def places(config: ModelConfig) -> Iterator[Place]:
    """Every place, site by site."""
    for site in SITES:
        for layer in range(1, n_layers(config, site) + 1):
            yield place_of(config, site, layer)


def typed_heads(kept: Mapping[str, Any]) -> str:
    """The override of a command line that gives a model these heads alone."""
    sites = ",".join(f"{site}:{layers}" for site, layers in kept.items())
    return f"model.heads={{{sites}}}".replace(" ", "")


def check_heads(config: ModelConfig, key: str = "model.heads") -> None:
    """Refuse lists of kept heads that do not describe this model, by `key`.

    A site that is left out keeps all its heads.

    Raises:
        ConfigError: no such lists, an unknown site, another number of layers, or numbers that
            are not rising within 1 .. n_heads.
    """
    heads: Any = config.heads  # what a user typed
    if heads is None:
        return
    require(isinstance(heads, Mapping), key, "site: lists of heads by layer", heads)
    for site, layers in heads.items():
        if site not in SITES:
            raise refuse(key, site, SITES)
        wanted = n_layers(config, site)
        fits = isinstance(layers, list) and len(layers) == wanted
        require(fits, f"{key}.{site}", f"a list of {wanted} layers", layers)
        for numbers in layers:
            allowed = f"rising numbers of heads from 1 to {config.n_heads} in every layer"
            require(_are_rising(numbers, config.n_heads), f"{key}.{site}", allowed, numbers)


def _are_rising(numbers: Any, highest: int) -> bool:
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        return False
    return numbers == sorted(set(numbers)) and all(1 <= number <= highest for number in numbers)

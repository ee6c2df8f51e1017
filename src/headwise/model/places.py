"""Sites and places of attention in a model of given sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headwise.attention.place import Place, Site
from headwise.config.schema import ModelConfig
from headwise.errors import ConfigError, refuse, require


def site_alone(config: ModelConfig, name: str, column: str) -> Site:
    """Return the self-attention site of a model of one stack, for one column of a batch."""
    site = Site(name, 0, column, column)
    n_layers = config.encoder_layers if site.side == "encoder" else config.decoder_layers
    return replace(site, n_layers=n_layers if config.layers is None else config.layers)


def check_layers(config: ModelConfig, sites: Sequence[Site]) -> None:
    """Raise ConfigError for depths that belong to a model with another number of stacks."""
    sizes = config.encoder_layers, config.decoder_layers
    if len({site.side for site in sites}) > 1:
        if config.layers is not None:
            raise ConfigError(
                f"model.layers={config.layers} is for models with one stack, and this one "
                "has two: set model.encoder_layers and model.decoder_layers"
            )
    elif sizes[0] != sizes[1]:
        raise ConfigError(
            "model.encoder_layers={} and model.decoder_layers={} are for models with two stacks, "
            "and this one has one: set model.layers".format(*sizes)
        )


def place_of(config: ModelConfig, site: str, layer: int) -> Place:
    """Return the place of one site of one layer (from 1), without pruned heads."""
    head_dim = config.d_model // config.n_heads
    qk_dim = None if config.qk_width is None else config.qk_width // config.n_heads
    if not config.heads or site not in config.heads:
        return Place(site, layer, config.n_heads, head_dim, qk_dim=qk_dim)
    numbers = tuple(config.heads[site][layer - 1])
    return Place(site, layer, len(numbers), head_dim, config.d_model, numbers, qk_dim)


def places(config: ModelConfig, sites: Sequence[Site]) -> Iterator[Place]:
    """Yield every place, site by site."""
    for site in sites:
        for layer in range(1, site.n_layers + 1):
            yield place_of(config, site.name, layer)


def chosen_sites(key: str, names: Sequence[str] | None, sites: Sequence[Site]) -> list[str]:
    """Return the names of sites, for None all; raise ConfigError at `key` for unknown ones."""
    present = [site.name for site in sites]
    require(names is None or bool(names), key, f"some of {', '.join(present)}", names)
    for name in names or ():
        if name not in present:
            raise refuse(key, name, present)
    return present if names is None else list(names)


def typed_heads(heads: Mapping[str, Any]) -> str:
    """Return the command-line override for a model with only these heads."""
    sites = ",".join(f"{site}:{layers}" for site, layers in heads.items())
    return f"model.heads={{{sites}}}".replace(" ", "")


def check_heads(config: ModelConfig, sites: Sequence[Site], key: str = "model.heads") -> None:
    """Check that the lists of head numbers fit this model; errors name `key`.

    A missing site has all its heads.

    Raises:
        ConfigError: not lists of heads by layer, an unknown site, a wrong number of layers, or
            numbers that are not increasing within 1 .. n_heads.
    """
    heads: Any = config.heads  # from the command line, not validated
    if heads is None:
        return
    require(isinstance(heads, Mapping), key, "site: lists of heads by layer", heads)
    depths = {site.name: site.n_layers for site in sites}
    for site, layers in heads.items():
        if site not in depths:
            raise refuse(key, site, depths)
        fits = isinstance(layers, list) and len(layers) == depths[site]
        require(fits, f"{key}.{site}", f"a list of {depths[site]} layers", layers)
        for numbers in layers:
            allowed = f"increasing head numbers from 1 to {config.n_heads} in every layer"
            require(_are_increasing(numbers, config.n_heads), f"{key}.{site}", allowed, numbers)


def _are_increasing(numbers: Any, highest: int) -> bool:
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        return False
    return numbers == sorted(set(numbers)) and all(1 <= number <= highest for number in numbers)

"""Build models from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from torch import nn

from headwise.attention.attention import Attention, ScoreAttention
from headwise.attention.build import AttentionFactory, check_weights
from headwise.attention.place import Place, Site
from headwise.attention.positions import Positions
from headwise.config.instantiate import instantiate
from headwise.config.schema import SITE_GROUPS, Config
from headwise.errors import ConfigError
from headwise.model.blocks import Activation, Residual
from headwise.model.classifier import Classifier
from headwise.model.family import Model, check_model_config
from headwise.model.gates import Gates
from headwise.model.init import Init
from headwise.model.parts import Parts
from headwise.model.places import check_heads, check_layers, place_of
from headwise.model.single import SingleStack
from headwise.model.stack import MakeAttention
from headwise.model.transformer import Transformer, encoder_decoder_sites
from headwise.seed import seeded

M = TypeVar("M", bound=Model)


def parts_of(config: Config) -> Parts:
    """Return the parts that a config selects."""
    return Parts(
        lambda **sizes: instantiate(config.norm, "norm", Residual, **sizes),
        lambda: instantiate(config.activation, "activation", Activation),
        instantiate(config.init, "init", Init),
        instantiate(config.positions, "positions", Positions),
    )


def attention_maker(config: Config, gates: Gates, sites: Sequence[Site]) -> MakeAttention:
    """Return a function from place to attention, with its gate, for a model with these sites."""
    check_layers(config.model, sites)
    check_heads(config.model, sites)
    gates.check(sites)
    factory = AttentionFactory(
        {group: getattr(config, group) for group in SITE_GROUPS},
        {group: asdict(getattr(config, key)) for group, key in SITE_GROUPS.items()},
        config.model.attention_dropout,
        config.seed,
        parts_of(config).positions,
        [site.name for site in sites],
    )

    def make(place: Place) -> Attention:
        attention = factory(place)
        with seeded(config.seed, place.site, place.layer, "gates"):
            gate = gates(place)
        if gate is not None:
            attention.gate = gate
        return attention

    return make


def check_model(config: Config, sites: Sequence[Site], longest: Mapping[str, int]) -> None:
    """Raise `ConfigError` for attentions that cannot be combined with other settings.

    They are built at one place of each site; `headwise.tasks.check` builds the model.

    Args:
        sites: of the model.
        longest: column of a batch -> maximum number of positions of a row, without CLS tokens, as
            set by `tokenizer.max_sentence_tokens`.
    """
    check_model_config(config.model, config.tokenizer.joint, parts_of(config))
    make = attention_maker(config, instantiate(config.gates, "gates", Gates), sites)
    unpruned = replace(config.model, heads=None)  # a pruned place may have no heads
    prefixed, n_cls = sites[0].queries, config.model.cls_tokens
    for site in sites:
        attention = make(place_of(unpruned, site.name, 1))
        n_prefix = n_cls if site.keys == prefixed else 0
        n_keys = longest.get(site.keys, 0) + n_prefix
        if attention.max_keys is not None and n_keys > attention.max_keys:
            raise ConfigError(
                f"{type(attention).__name__} at {site.name} has at most {attention.max_keys} keys, "
                f"but a {site.keys} may have {n_keys}: tokenizer.max_sentence_tokens="
                f"{config.tokenizer.max_sentence_tokens}, its special tokens and "
                f"model.cls_tokens={n_prefix}. "
                f"Try {_key_of(config, site.name)}.max_length={n_keys}"
            )
        if attention.without_documents and getattr(config.data, "document_mask", False):
            raise ConfigError(attention.without_documents)
        if isinstance(attention, ScoreAttention):
            check_weights(attention.normaliser)
        pattern = getattr(attention, "pattern", None)
        if n_prefix and site.queries == site.keys and pattern is not None:
            raise ConfigError(
                f"model.cls_tokens={n_cls} do not work with {type(pattern).__name__} at "
                f"{site.name}, which would hide them from most tokens; use "
                f"pattern@pattern_sites.{site.name}=none"
            )


def _key_of(config: Config, site: str) -> str:
    """Return the config key of the attention of a site."""
    return "attention" if getattr(config.sites, site) is None else f"sites.{site}"


def build_model(config: Config, input_size: int, output_size: int, joint: bool) -> Transformer:
    """Return the encoder-decoder for these vocabulary sizes; one vocabulary if `joint`."""
    make = partial(Transformer, config.model, input_size, output_size, joint)
    return _built(config, encoder_decoder_sites(config.model), make)


def build_single(config: Config, vocabulary: int, site: Site) -> SingleStack:
    """Return the model of one stack with this site (`headwise.model.places.site_alone`)."""
    return _built(config, [site], partial(SingleStack, config.model, vocabulary, site))


def build_classifier(
    config: Config, table: nn.Module, n_classes: int, site: Site, **options: Any
) -> Classifier:
    """Return the classifier of one stack with this site; `table` embeds ids."""
    make = partial(Classifier, config.model, table, n_classes, site, **options)
    return _built(config, [site], make)


def _built(config: Config, sites: Sequence[Site], make: Callable[..., M]) -> M:
    """Return a model with the attentions, seed and parts of a config.

    Raises:
        ConfigError: `model.heads` or other settings do not fit the model.
    """
    gates = instantiate(config.gates, "gates", Gates)
    model = make(attention_maker(config, gates, sites), config.seed, parts_of(config))
    gates.prepare(model)
    return model

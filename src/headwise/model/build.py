"""A Transformer from the whole configuration."""

from __future__ import annotations

from dataclasses import asdict, replace

from headwise.attention.build import AttentionFactory
from headwise.attention.place import Place
from headwise.attention.positions import Positions
from headwise.attention.protocol import Attention
from headwise.config.instantiate import instantiate
from headwise.config.schema import SITE_GROUPS, SITES, Config
from headwise.errors import ConfigError
from headwise.model.activations import Activation
from headwise.model.blocks import Residual
from headwise.model.gates import Gates
from headwise.model.init import Init
from headwise.model.parts import Parts
from headwise.model.places import check_heads, place_of, places
from headwise.model.stack import MakeAttention
from headwise.model.transformer import Transformer, check_model_config
from headwise.seed import seeded


def attention_factory(config: Config) -> AttentionFactory:
    """What makes the attention of each place."""
    return AttentionFactory(
        {group: getattr(config, group) for group in SITE_GROUPS},
        {group: asdict(getattr(config, key)) for group, key in SITE_GROUPS.items()},
        config.model.attention_dropout,
        config.seed,
        parts_of(config).positions,
    )


def parts_of(config: Config) -> Parts:
    """What a config chooses of them."""
    return Parts(
        lambda **sizes: instantiate(config.norm, "norm", Residual, **sizes),
        lambda: instantiate(config.activation, "activation", Activation),
        instantiate(config.init, "init", Init),
        instantiate(config.positions, "positions", Positions),
    )


def attention_maker(config: Config, gates: Gates) -> MakeAttention:
    """What makes the attention of each place, with its gate."""
    factory = attention_factory(config)

    def make(place: Place) -> Attention:
        attention = factory(place)
        with seeded(config.seed, place.site, place.layer, "gates"):
            gate = gates(place)
        if gate is not None:
            attention.gate = gate
        return attention

    return make


def check_model(config: Config) -> None:
    """Build one of each part and throw it away: every choice is refused before data."""
    parts = parts_of(config)
    check_model_config(config.model, config.tokenizer.joint, parts)
    parts.norm(d_model=config.model.d_model, dropout=config.model.dropout)
    parts.activation()
    check_heads(config.model)
    make = attention_maker(config, instantiate(config.gates, "gates", Gates))
    whole = replace(config.model, heads=None)  # a pruned place may have no heads
    by_site = {site: make(place_of(whole, site, 1)) for site in SITES}
    for site, made in by_site.items():
        if site == "decoder_self" or made.max_keys is None:
            continue
        pieces = config.tokenizer.max_sentence_pieces + 1 + config.model.register_tokens
        if pieces > made.max_keys:
            raise ConfigError(
                f"{type(made).__name__} at {site} takes at most {made.max_keys} positions, but a "
                f"source may have {pieces}: tokenizer.max_sentence_pieces="
                f"{config.tokenizer.max_sentence_pieces}, the end of the sentence and "
                f"model.register_tokens={config.model.register_tokens}. "
                f"Try {_key_of(config, site)}.max_length={pieces}"
            )
    encoder_pattern = getattr(by_site["encoder_self"], "pattern", None)
    if config.model.register_tokens and encoder_pattern is not None:
        raise ConfigError(
            f"model.register_tokens={config.model.register_tokens} cannot go with "
            f"{type(encoder_pattern).__name__} at encoder_self, which would hide them from most "
            "words; use pattern@pattern_sites.encoder_self=none"
        )
    if config.model.heads:
        make = attention_maker(config, instantiate(config.gates, "gates", Gates))
        for place in places(config.model):
            make(place)


def _key_of(config: Config, site: str) -> str:
    """Where the attention of a site is set."""
    return "attention" if getattr(config.sites, site) is None else f"sites.{site}"


def build_model(config: Config, source_vocab: int, target_vocab: int, joint: bool) -> Transformer:
    """The model of `config` for vocabularies of these sizes.

    Raises:
        ConfigError: `model.heads` does not describe it.
    """
    check_heads(config.model)
    gates = instantiate(config.gates, "gates", Gates)
    make = attention_maker(config, gates)
    sizes = source_vocab, target_vocab
    model = Transformer(config.model, *sizes, joint, make, config.seed, parts_of(config))
    gates.prepare(model)
    return model

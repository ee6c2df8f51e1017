"""A Transformer from the whole configuration."""

from __future__ import annotations

from dataclasses import asdict

from headwise.attention.base import Place
from headwise.attention.build import AttentionFactory
from headwise.model.transformer import Transformer, check_model_config
from headwise.schema import SITES, Config


def attention_factory(config: Config) -> AttentionFactory:
    """What makes the attention of each place."""
    return AttentionFactory(
        config.attention,
        config.pattern,
        asdict(config.sites),
        asdict(config.pattern_sites),
        config.model.attention_dropout,
    )


def check_model(config: Config) -> None:
    """Build one attention of each site and throw it away: every choice is refused before data."""
    check_model_config(config.model, config.tokenizer.joint)
    make = attention_factory(config)
    for site in SITES:
        make(Place(site, 1, config.model.n_heads, config.model.d_model // config.model.n_heads))


def build_model(config: Config, source_vocab: int, target_vocab: int, joint: bool) -> Transformer:
    """The model of `config` for vocabularies of these sizes."""
    return Transformer(
        config.model, source_vocab, target_vocab, joint, attention_factory(config), config.seed
    )

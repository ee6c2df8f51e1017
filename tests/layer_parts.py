"""Every choice of the groups that make up a layer, found by its yaml, in small models."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace
from typing import Any

import torch

from headwise.attention.attention import MultiHeadAttention
from headwise.attention.build import unsupported_sites
from headwise.config.instantiate import instantiate, target_class
from headwise.config.register import composed, group_choices, group_node, typed
from headwise.config.schema import SITE_GROUPS, SITES
from headwise.model.build import attention_maker, build_model, build_single
from headwise.model.gates import Gates
from headwise.model.places import place_of, site_alone
from headwise.model.transformer import encoder_decoder_sites

H, E, V = 4, 8, 13
D, BLOCKS = H * E, "block_sparse_from"
SMALL = (
    *("model.encoder_layers=2", "model.decoder_layers=2", "model.dropout=0"),
    *(f"model.d_model={D}", f"model.n_heads={H}", f"model.d_ff={2 * D}"),
    *("model.attention_dropout=0.5", "model.activation_dropout=0"),
)
ALONE = {"decoder": "decoder_self", "encoder": "encoder_self"}  # families of one stack
FAMILIES = ("translation", *ALONE)


@functools.cache
def base():
    return typed(composed(*SMALL))


node_of = functools.cache(group_node)


@dataclass(frozen=True)
class Part:
    """One choice of a group, with settings, and the attention and positions around it.

    The group `model` sets sizes.
    """

    group: str
    choice: str
    settings: tuple[tuple[str, Any], ...] = ()
    attention: str = "softmax"
    positions: str | None = None

    def __str__(self):
        settings = "-".join(f"{key}={value}" for key, value in self.settings)
        around = "" if self.group == "attention" else self.attention
        return "-".join(filter(None, (self.choice, settings, around)))

    @property
    def node(self):
        node = node_of(self.group, self.choice)
        return node | {k: list(v) if k == "shape" else v for k, v in self.settings}

    def lacks(self, site):
        """Whether the choice is not supported at a site."""
        return self.group in SITE_GROUPS and site in unsupported_sites(self.node, self.group)

    def config(self, seed=1, **sizes):
        """Settings of a small model; a site that the choice does not support has another."""
        chosen = {"attention": node_of("attention", self.attention)}
        if self.positions:
            chosen["positions"] = node_of("positions", self.positions)
        if self.group == "model":
            sizes = {**dict(self.settings), **sizes}
        else:
            chosen[self.group] = self.node
        lacking = [site for site in SITES if self.lacks(site)]
        if lacking:
            instead = dict.fromkeys(lacking, "softmax" if self.group == "attention" else "none")
            chosen[self.group] = {**self.node, "instead": instead}
        if self.group == "init":  # `scaled` has an output matrix of its own
            sizes = {"share_embeddings": "none", **sizes}
        model = replace(base().model, **sizes)
        return replace(base(), **chosen, seed=seed, model=model)

    def layer(self, site):
        """The attention at one place, evaluating; no weight has its initial value."""
        return copy.deepcopy(layer_of(self, site))

    def model(self, family="translation", vocabulary=V, **sizes):
        config = self.config(**sizes)
        if family == "translation":
            return build_model(config, vocabulary, vocabulary, joint=True).eval()
        site = site_alone(config.model, ALONE[family], "text")
        return build_single(config, vocabulary, site).eval()


def new_layer(part, site):
    torch.manual_seed(0)
    config = part.config()
    gates = instantiate(config.gates, "gates", Gates)
    make = attention_maker(config, gates, encoder_decoder_sites(config.model))
    layer = make(place_of(config.model, site, 2)).eval()
    assert isinstance(layer, MultiHeadAttention)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


layer_of = functools.cache(new_layer)


def parts_of(group, *settings, attention="softmax"):
    """Every choice of a group as it is, and with each of these settings that it has."""
    parts = []
    for choice in group_choices(group):
        node = dict(node_of(group, choice))
        if "shape" in node:  # of the data
            node["shape"] = (2, 2, 3)
        defaults = {"shape": node["shape"]} if "shape" in node else {}
        for some in ({}, *settings):
            if all(type(node.get(key)) is type(value) for key, value in some.items()):
                parts.append(Part(group, choice, tuple({**defaults, **some}.items()), attention))
    return parts


def acts_on_scores(part):
    """Whether positions act in a layer, not only on embeddings."""
    scheme = target_class(part.node, "positions")
    return scheme.rotates or scheme.biases


NORMALISERS = ("softmax", "alpha_entmax")  # fused by torch and by kernels here
ATTENTIONS = parts_of(
    *("attention", {"share": "site"}, {"depends_on": "query"}, {"sharing": "none"}),
    *({"before_split": True}, *({"projection": name} for name in ("mean", "max", "convolution"))),
)
POSITIONS = parts_of("positions", attention="alpha_entmax")
NARROW = [
    Part("model", "narrow", (("qk_width", D // 2),), attention)
    for attention in ("alpha_entmax", "linear", "linformer")
]
PATTERNS = [
    *(part for name in NORMALISERS for part in parts_of("pattern", {BLOCKS: 1}, attention=name)),
    *parts_of(
        *("pattern", {"combine": "interleaved", BLOCKS: 1}, {"combine": "heads", BLOCKS: 1}),
        attention="alpha_entmax",
    ),
]
SCALINGS = [
    part
    for name in NORMALISERS
    for part in parts_of("scaling", {"learned": "query"}, {"learned": False}, attention=name)
]
GATES = parts_of("gates", attention="alpha_entmax")
LAYERS = [
    *ATTENTIONS,
    *dict.fromkeys(
        part
        for part in (*NARROW, *PATTERNS, *SCALINGS, *filter(acts_on_scores, POSITIONS), *GATES)
        if part.choice != "none"
    ),
]
MODELS = [
    *(part for part in ATTENTIONS if not part.settings),
    *POSITIONS,
    *(
        part
        for group in ("pattern", "scaling", "norm", "activation", "init", "gates")
        for part in parts_of(group, attention="alpha_entmax")
        if part.choice != "none"
    ),
]

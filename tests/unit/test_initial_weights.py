"""Initial weights of a variant's parameters depend on seed, site, layer and group only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.config.folders import composed
from headwise.config.register import typed
from headwise.model.build import build_model

VARIANTS = {
    "α": ("attention=alpha_entmax", "alpha_logit"),
    "projections": ("attention=linformer", "length_projection.weight"),
    "β": ("attention=softmax", "scaling.beta"),
}


def initial_weights(variant: str, vocabulary: int = 11, **overrides: object) -> dict[str, Tensor]:
    attention, ending = VARIANTS[variant]
    settings = {"scaling": "length", "model": "tiny", **overrides}
    if variant == "projections":
        settings["scaling"] = "none"
    config = typed(composed(attention, *(f"{key}={value}" for key, value in settings.items())))
    weights = build_model(config, vocabulary, vocabulary, True).state_dict()
    return {name: weights[name] for name in weights if name.endswith(ending)}


def are_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first | second)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_weights_do_not_depend_on_other_modules(variant: str) -> None:
    torch.manual_seed(1)
    first = initial_weights(variant)
    torch.manual_seed(2)
    overrides = {"model.share_embeddings": "none", "model.cls_tokens": 0, "model.d_ff": 16}
    assert first
    assert are_equal(first, initial_weights(variant, vocabulary=29, **overrides))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_weights_differ_by_seed(variant: str) -> None:
    assert not are_equal(initial_weights(variant), initial_weights(variant, seed=2))


@pytest.mark.parametrize("variant", ["α", "β"])
def test_variant_weights_differ_by_site_and_layer(variant: str) -> None:
    weights = initial_weights(variant)
    assert len({tuple(weight.flatten().tolist()) for weight in weights.values()}) == len(weights)


def test_variants_do_not_use_the_global_generator() -> None:
    states = []
    for attention in ("softmax", "alpha_entmax"):
        torch.manual_seed(1)
        config = typed(composed(f"attention={attention}", "model=tiny"))
        build_model(config, 11, 11, True)
        states.append(torch.random.get_rng_state())
    assert torch.equal(*states)

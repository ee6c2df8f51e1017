"""Every type of model in the installed Transformers is made sparse as a whole, or refused."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import configuration_auto, modeling_auto

from headwise.hf import sparsify

pytestmark = pytest.mark.slow

DEPTH = re.compile(r"(^|_)(n_layers?|num_layers|(hidden|encoder|decoder|mixer)_layers)$|^depth$")
# Functions that compute weights from scores, or call one that does.
COMPUTES = {"softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}
COMPUTES |= {"Softmax", "ALL_ATTENTION_FUNCTIONS", "flex_attention"}
# With transformers 5.24 and neither timm nor scipy: types by outcome, of all and of every 12th.
VERSION = "5.24.0"
COUNTS = {
    1: {"accepted": 415, "refused": 196, "not built": 55},
    12: {"accepted": 30, "refused": 21, "not built": 5},
}
ALL = pytest.mark.skipif("HEADWISE_EVERY_TYPE" not in os.environ, reason="takes four minutes")


def kinds() -> dict[str, list[Any]]:
    """The mappings of Auto classes that contain a type of model, the plain models' first."""
    mappings: dict[str, list[Any]] = {}
    names = sorted(vars(modeling_auto), key=lambda name: (name != "MODEL_MAPPING", name))
    for mapping in (getattr(modeling_auto, name) for name in names if name.endswith("_MAPPING")):
        for kind in mapping._model_mapping:
            if kind in configuration_auto.CONFIG_MAPPING_NAMES:
                mappings.setdefault(kind, []).append(mapping)
    return dict(sorted(mappings.items()))


def shrink(config: Any) -> Any:
    """At most 2 layers, in parts as well."""
    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            shrink(value)
        elif isinstance(value, int) and value > 2 and DEPTH.search(name):
            setattr(config, name, 2)
        elif name in ("layer_types", "mlp_layer_types") and isinstance(value, list):
            setattr(config, name, value[:2])
    return config


def build(kind: str, mapping: Any) -> Any:
    """A model on the device `meta`, or None if its defaults or missing packages do not allow it."""
    for change in (shrink, lambda config: config):
        try:
            config = change(configuration_auto.CONFIG_MAPPING[kind]())
            chosen = mapping[type(config)]
            with torch.device("meta"):
                return (chosen[0] if isinstance(chosen, list | tuple) else chosen)(config)
        except Exception:  # noqa: BLE001 (whatever defaults that do not fit raise)
            continue
    return None


def computes_attention(module: nn.Module) -> bool:
    kind = type(module)
    if not re.search(r"att(entio)?n", kind.__name__, re.IGNORECASE):
        return False
    codes = [getattr(value, "__code__", None) for value in vars(kind).values()]
    return any(COMPUTES.intersection(code.co_names) for code in codes if code)


def outcome(kind: str, mapping: Any) -> str:
    model = build(kind, mapping)
    if model is None:
        return "not built"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            sparsify(model)
        except ValueError:  # says which
            assert not any(hasattr(module, "head_alpha") for module in model.modules())
            return "refused"
    notes = " ".join(str(warning.message) for warning in warned)
    found = {name for name, module in model.named_modules() if hasattr(module, "head_alpha")}
    for name, module in model.named_modules():
        parents = {name[: dot.start()] for dot in re.finditer(r"\.|$", name)}
        if computes_attention(module) and not parents & found:
            assert f"{name} (" in notes, name
        if isinstance(module, PreTrainedModel) or name in found:
            assert module.config._attn_implementation == "headwise"
    return "accepted"


@pytest.mark.parametrize("every", [pytest.param(1, marks=ALL), 12])
def test_every_type_is_sparse_as_a_whole_or_refused(every: int) -> None:
    chosen = list(kinds().items())[::every]
    outcomes = Counter(outcome(kind, mappings[0]) for kind, mappings in chosen)
    if transformers.__version__ == VERSION:
        assert outcomes == COUNTS[every]

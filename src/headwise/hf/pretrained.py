"""Build and load sparse models from configs that have the settings of `sparsify`.

Transformers builds a model, calls its `post_init`, loads weights, and initialises those that are
missing. With `headwise.hf` imported, a model whose config has the settings is sparse once it is
built, whoever builds it: Auto classes, pipelines, PEFT, or a model of which it is a part.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from headwise.hf.interface import HEAD_ALPHA, FixedMap
from headwise.hf.sparsify import attach_by_config
from headwise.nn.alpha import HeadAlpha


def from_pretrained(kind: Any, folder: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a sparse model with its α: `kind.from_pretrained`, and an error if it is dense.

    Args:
        kind: an Auto class, such as `AutoModelForCausalLM`, or a class of models.
        folder: a folder or the name of a repository; saved by `save_pretrained` of a sparse model.
        *args: as for `kind.from_pretrained`.
        **kwargs: as for `kind.from_pretrained`.

    Returns:
        As `kind.from_pretrained`.

    Raises:
        ValueError: the model was not saved sparse, or only as a part of another model.
    """
    wants_info = kwargs.pop("output_loading_info", False)
    model, info = kind.from_pretrained(folder, *args, output_loading_info=True, **kwargs)
    if not _is_sparse(model):
        reason = "has no sparse heads: headwise.hf.sparsify(….from_pretrained(…)) adds them"
        if unused := [key for key in info["unexpected_keys"] if f".{HEAD_ALPHA}." in key]:
            reason = f"has {unused[0]}, but its config has no settings for it: load the whole model"
        raise ValueError(f"{folder} {reason}")
    return (model, info) if wants_info else model


def _is_sparse(model: nn.Module) -> bool:
    return any(hasattr(module, HEAD_ALPHA) for module in model.modules())


def _build_by_config() -> None:
    """Extend what Transformers does at the end of building a model, and with weights."""
    post_init, initialize = PreTrainedModel.post_init, PreTrainedModel._initialize_weights
    load = PreTrainedModel._load_from_state_dict

    @functools.wraps(post_init)
    def post_init_sparse(self: PreTrainedModel) -> None:
        post_init(self)
        attach_by_config(self)

    def initialize_alpha(self: PreTrainedModel, module: nn.Module, *args: Any) -> None:
        if not isinstance(module, HeadAlpha | FixedMap):
            initialize(self, module, *args)
        elif not getattr(module, "_is_hf_initialized", False):
            module.reset_parameters()  # of weights that were loaded, Transformers changes none
            module._is_hf_initialized = True  # type: ignore[assignment]

    def load_or_warn(self: PreTrainedModel, state: dict[str, Any], *rest: Any) -> None:
        load(self, state, *rest)  # in load_state_dict: PEFT does not say what it leaves out
        if any(f".{HEAD_ALPHA}." in key for key in state) and not _is_sparse(self):
            warnings.warn("α is not loaded: call headwise.hf.sparsify(model) before", stacklevel=2)

    PreTrainedModel.post_init = post_init_sparse
    PreTrainedModel._load_from_state_dict = load_or_warn
    PreTrainedModel._initialize_weights = initialize_alpha


_build_by_config()

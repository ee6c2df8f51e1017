"""Build and load sparse models from configs that have the settings of `sparsify`.

Transformers builds a model, calls its `post_init`, loads weights, and initialises those that are
missing. With `headwise.hf` imported, a model whose config has the settings is sparse once it is
built, whoever builds it: Auto classes, pipelines, PEFT, or a model of which it is a part.
"""

from __future__ import annotations

import functools
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
    if not any(hasattr(module, HEAD_ALPHA) for module in model.modules()):
        reason = "has no sparse heads: headwise.hf.sparsify(….from_pretrained(…)) adds them"
        if unused := [key for key in info["unexpected_keys"] if f".{HEAD_ALPHA}." in key]:
            reason = f"has {unused[0]}, but its config has no settings for it: load the whole model"
        raise ValueError(f"{folder} {reason}")
    return (model, info) if wants_info else model


def _build_by_config() -> None:
    """Extend what Transformers does at the end of building a model, and with missing weights."""
    post_init, initialize = PreTrainedModel.post_init, PreTrainedModel._initialize_weights

    @functools.wraps(post_init)
    def post_init_sparse(self: PreTrainedModel) -> None:
        post_init(self)
        attach_by_config(self)

    @functools.wraps(initialize)
    def initialize_alpha(self: PreTrainedModel, module: nn.Module, *args: Any) -> None:
        if not isinstance(module, HeadAlpha | FixedMap):
            initialize(self, module, *args)
        elif not getattr(module, "_is_hf_initialized", False):
            module.reset_parameters()  # of weights that were loaded, Transformers changes none
            module._is_hf_initialized = True  # type: ignore[assignment]

    PreTrainedModel.post_init = post_init_sparse
    PreTrainedModel._initialize_weights = initialize_alpha


_build_by_config()

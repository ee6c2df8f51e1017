"""Build and load sparse models from configs that say so.

Transformers builds a model, calls its `post_init`, and then loads weights. With `headwise.hf`
imported, a model whose config has the settings of `sparsify` is sparse from there on: for all of
Transformers' loaders, and for parts.
"""

from __future__ import annotations

import functools
from typing import Any

from transformers import PreTrainedModel

from headwise.hf.interface import HEAD_ALPHA
from headwise.hf.sparsify import attach_built


def from_pretrained(kind: Any, folder: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a sparse model with its α: `kind.from_pretrained`, which must find some.

    Args:
        kind: an Auto class, such as `AutoModelForCausalLM`, or a class of models.
        folder: a folder or the name of a repository; saved by `save_pretrained` of a sparse model.
        *args: as for `kind.from_pretrained`.
        **kwargs: as for `kind.from_pretrained`.

    Returns:
        As `kind.from_pretrained`.

    Raises:
        ValueError: the model was not saved sparse.
    """
    wants_info = kwargs.pop("output_loading_info", False)
    model, info = kind.from_pretrained(folder, *args, output_loading_info=True, **kwargs)
    if not any(hasattr(module, HEAD_ALPHA) for module in model.modules()):
        raise ValueError(
            f"{folder} has no sparse heads: headwise.hf.sparsify(….from_pretrained(…)) adds them"
        )
    # heads that the saved model did not have
    for name in (*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])):
        if name.endswith(f".{HEAD_ALPHA}.bias"):
            model.get_submodule(name.removesuffix(".bias")).reset_parameters()
    return (model, info) if wants_info else model


def _build_sparse() -> None:
    post_init = PreTrainedModel.post_init

    @functools.wraps(post_init)
    def wrapped(self: PreTrainedModel) -> None:
        post_init(self)
        attach_built(self)

    PreTrainedModel.post_init = wrapped


_build_sparse()

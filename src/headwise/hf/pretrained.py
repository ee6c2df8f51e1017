"""Load sparse models that `save_pretrained` saved."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from headwise.hf.interface import HEAD_ALPHA
from headwise.hf.sparsify import BEFORE, SETTINGS, make_sparse


def from_pretrained(kind: type, folder: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a sparse model with its α.

    Transformers' own `from_pretrained` would load the dense model, and leave α unread.

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
    loaded = _sparse(kind).from_pretrained(folder, *args, output_loading_info=True, **kwargs)
    model, info = loaded
    if not hasattr(model, BEFORE):
        raise ValueError(
            f"{folder} has no sparse heads: headwise.hf.sparsify(….from_pretrained(…)) adds them"
        )
    model.__class__ = type(model).__mro__[1]
    # heads that the saved model did not have
    for name in (*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])):
        if name.endswith(f".{HEAD_ALPHA}.bias"):
            model.get_submodule(name.removesuffix(".bias")).reset_parameters()
    return loaded if wants_info else model


def _sparse(kind: type) -> Any:
    """Return a subclass whose models are sparse from their construction, if their config is."""
    if hasattr(kind, "_model_mapping"):
        mapping = _SparseMapping(kind._model_mapping)
        return type(kind.__name__, (kind,), {"_model_mapping": mapping})

    def __init__(self: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, *args, **kwargs)  # type: ignore[misc]
        settings = getattr(self.config, SETTINGS, None)
        if settings is not None:
            make_sparse(self, settings)

    names = {"__init__": __init__, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), names)


class _SparseMapping:
    """The mapping of an Auto class from configs to classes of models, made sparse."""

    def __init__(self, mapping: Any) -> None:
        self.mapping = mapping

    def __getitem__(self, config: type) -> Any:
        kinds = self.mapping[config]
        if isinstance(kinds, list | tuple):
            return [_sparse(kind) for kind in kinds]
        return _sparse(kinds)

    def __contains__(self, config: type) -> bool:
        return config in self.mapping

    def keys(self) -> Any:
        return self.mapping.keys()

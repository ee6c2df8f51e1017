"""Sparse heads in models of Hugging Face Transformers.

model = sparsify(AutoModelForCausalLM.from_pretrained("…"))   # α = 1: the model as it was
model = AutoModelForCausalLM.from_pretrained(FOLDER)  # sparse if it was saved sparse

The import extends `PreTrainedModel`, so that models are sparse whose configs say so.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError("headwise.hf needs Transformers: pip install 'headwise[hf]'") from error

from headwise.hf.heads import heads, recorded_weights
from headwise.hf.pretrained import from_pretrained
from headwise.hf.sparsify import desparsify, sparsify

if TYPE_CHECKING:
    from headwise.hf.callback import AlphaCallback
    from headwise.hf.survey import record

__all__ = [
    "AlphaCallback",
    "desparsify",
    "from_pretrained",
    "heads",
    "record",
    "recorded_weights",
    "sparsify",
]


_MODULES = {"AlphaCallback": "headwise.hf.callback", "record": "headwise.hf.survey"}


def __getattr__(name: str) -> Any:
    """Import what loads the Trainer or the analysis at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)

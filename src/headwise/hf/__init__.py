"""Sparse heads in models of Hugging Face Transformers.

model = sparsify(AutoModelForCausalLM.from_pretrained("…"))   # α = 1: the model as it was
model = headwise.hf.from_pretrained(AutoModelForCausalLM, FOLDER)  # saved by save_pretrained
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError("headwise.hf needs Transformers: pip install 'headwise[hf]'") from error

from headwise.hf.callback import AlphaCallback
from headwise.hf.heads import heads, recorded_weights
from headwise.hf.pretrained import from_pretrained
from headwise.hf.sparsify import desparsify, sparsify

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """Import `record` at first use: it loads the analysis."""
    if name != "record":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headwise.hf.survey import record

    return record

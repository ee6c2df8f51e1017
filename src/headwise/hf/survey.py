"""The tables of `headwise analyze` for sparse models of Transformers.

Axes: B batch, H heads, Q and K numbers of queries and keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import torch
from torch import Tensor, nn

from headwise.analysis.findings import UNMEASURED, findings
from headwise.analysis.observe import Call, OnBlock
from headwise.analysis.roles import Thresholds
from headwise.analysis.survey import survey
from headwise.analysis.tables import DENSITY, FINDINGS, HEADS, LAYERS
from headwise.attention.place import Place, Site
from headwise.data.batch import Batch, Column
from headwise.hf.heads import COLUMNS, alphas, places
from headwise.hf.interface import HEAD_ALPHA, recording
from headwise.hf.sparsify import device_of
from headwise.model.family import evaluating
from headwise.ops.visible import Visible

if TYPE_CHECKING:
    from headwise.attention.mask import Mask
    from headwise.model.family import Model


@dataclass(frozen=True)
class _Attention:
    """What the analysis asks of an attention."""

    place: Place
    alpha_H: Tensor | None

    def stats(self) -> dict[str, Tensor]:
        return {} if self.alpha_H is None else {"alpha": self.alpha_H}

    def distribution_heads(self) -> tuple[bool, ...]:
        return (True,) * self.place.n_heads


class _Model:
    """What the analysis asks of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.of: dict[nn.Module, _Attention] = {}
        alpha_H = alphas(model)
        for module, (_, site, layer) in places(model).items():
            place = Place(site, layer, getattr(module, HEAD_ALPHA).n_heads, 1)
            self.of[module] = _Attention(place, alpha_H[module])
        counts = Counter(attention.place.site for attention in self.of.values())
        self.sites = tuple(Site(name, n, *COLUMNS[name]) for name, n in counts.items())

    def attentions(self) -> Iterator[tuple[str, int, _Attention]]:
        for attention in self.of.values():
            yield attention.place.site, attention.place.layer, attention


def record(
    model: nn.Module, batches: Iterable[Mapping[str, Any]], max_offset: int = 5
) -> dict[str, pd.DataFrame]:
    """Measure every head on some inputs, as `headwise analyze` does.

    An attention that several layers share, as in ALBERT, is one attention: its rows are over all of
    its calls. Models that `torch.compile` has compiled are called without their compiled code.

    Args:
        model: a sparse model; called in evaluation mode without gradients.
        batches: keyword arguments of `model`, such as tokenizers return, with tensors; or one.
        max_offset: offsets from -max_offset to max_offset are measured.

    Returns:
        The tables `heads` (α, density, entropy, offsets, roles), `layers` (diversity), `density`
        (histograms), and `findings`: those that need no words.

    Raises:
        ValueError: no attention was measured: there are no batches.
        TypeError: a batch is no dict, or has a list in place of a tensor.
    """
    if isinstance(batches, Mapping):
        batches = [batches]
    measured = cast("Model", _Model(model))
    blocks = partial(_for_each_call, model, batches, measured)
    result = survey(measured, blocks, {}, max_offset)
    if not result.tables["density"]:
        raise ValueError("no attention was measured: there are no batches")
    about = {
        "counts": {},
        "languages": "",
        "self_attention": {s.name: s.keys for s in measured.sites if s.queries == s.keys},
        "thresholds": asdict(Thresholds()),
    }
    rows = findings({**result.tables, "trajectories": []}, about)
    rows_of = {**result.tables, "findings": [r for r in rows if r["outcome"] != UNMEASURED]}
    return {
        table.name: pd.DataFrame(rows_of[table.name], columns=list(table.columns))
        for table in (HEADS, LAYERS, DENSITY, FINDINGS)
    }


def _for_each_call(
    model: nn.Module, batches: Iterable[Mapping[str, Any]], measured: Any, on_block: OnBlock
) -> None:
    """Call `on_block` with the weights of every attention on every batch."""
    inputs: Mapping[str, Any] = {}
    device, main = device_of(model), getattr(model, "main_input_name", "input_ids")

    def observe(module: nn.Module, weights_BHQK: Tensor, visible: Visible) -> None:
        attention = measured.of.get(module)
        if attention is None:  # of another model
            return
        site = attention.place.site
        columns = COLUMNS[site]
        n_batch, _, n_queries, n_keys = weights_BHQK.shape
        allowed = visible.dense(n_queries, n_keys, weights_BHQK.device)
        is_real_BQ = weights_BHQK.new_ones(n_batch, n_queries, dtype=torch.bool)
        if site == "cross":
            if (given := inputs.get("decoder_attention_mask")) is not None:
                is_real_BQ = given.bool()
        elif allowed is not None:  # padding is a key that no query sees
            # queries are the last keys: others come from a cache or prefix
            is_real_BQ = allowed.any(2).any(1).expand(n_batch, n_keys)[:, -n_queries:]
        call = Call(
            site, *columns, attention.place.layer, is_real_BQ, attention=attention,
            mask=cast("Mask", visible), weights_BHQK=weights_BHQK.float(),
        )  # fmt: skip
        on_block(_batch(columns, n_batch, (n_queries, n_keys), weights_BHQK.device), call)

    force_eager = torch.compiler.set_stance("force_eager")  # compiled calls record nothing
    with evaluating(model), torch.no_grad(), force_eager, recording(observe):
        for inputs in batches:
            if not isinstance(inputs, Mapping) or isinstance(inputs.get(main), list):
                raise TypeError(f"{main} must be a tensor: tokenizer(…, return_tensors='pt')")
            on_device = {
                name: value.to(device) if isinstance(value, Tensor) else value
                for name, value in inputs.items()
            }
            model(**on_device)


def _batch(
    columns: tuple[str, ...], n_batch: int, sizes: tuple[int, ...], device: torch.device
) -> Batch:
    """Return a batch of rows without special tokens at their ends, as far as is known."""
    lengths = (torch.full((n_batch,), n, device=device) for n in sizes)
    ids = (torch.zeros(n_batch, n, dtype=torch.long, device=device) for n in sizes)
    named = dict(zip(columns, map(Column, ids, lengths), strict=True))
    none = torch.zeros(0, dtype=torch.long, device=device)
    return Batch(named, none, none, list(range(n_batch)), 0)

"""Choose heads to remove, measure the effect, and slice the weights of the remaining heads.

Kept heads are `site -> layers -> ascending head numbers from 1`, as in `model.heads`. The numbers
are those of the unpruned model, even if heads were removed before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from headwise.analysis.collect import HeadTable
from headwise.analysis.importance import head_factors
from headwise.analysis.tables import HEAD_KEY
from headwise.attention.attention import Attention, MultiHeadAttention, NoHeads
from headwise.data.batch import Batch, Column
from headwise.errors import RunError
from headwise.model.family import Model
from headwise.model.gates import HardConcreteGate
from headwise.track.base import numbered

Heads = dict[str, list[list[int]]]
Head = tuple[str, int, int]  # site, layer, number


def present_heads(model: Model) -> Heads:
    """Return all heads of a model."""
    heads: Heads = {}
    for site, _, attention in model.attentions():
        heads.setdefault(site, []).append(list(attention.place.head_numbers))
    return heads


def open_heads(model: Model) -> Heads:
    """Return the heads whose gates are open or absent."""
    heads: Heads = {}
    for site, _, attention in model.attentions():
        numbers = attention.place.head_numbers
        gate = attention.gate if isinstance(attention, MultiHeadAttention) else None
        if isinstance(gate, HardConcreteGate):
            is_open = gate.open_heads().tolist()
            numbers = tuple(n for n, is_kept in zip(numbers, is_open, strict=True) if is_kept)
        heads.setdefault(site, []).append(list(numbers))
    return heads


def is_gated(model: Model) -> bool:
    """Whether any head has a hard-concrete gate."""
    return any(isinstance(module, HardConcreteGate) for module in model.modules())


def common_heads(a: Heads, b: Heads) -> Heads:
    """Return the heads in both; sites missing from `b` are copied from `a`."""
    return {
        site: [
            [n for n in numbers if n in b[site][index]] if site in b else list(numbers)
            for index, numbers in enumerate(layers)
        ]
        for site, layers in a.items()
    }


def without(heads: Heads, removed: Sequence[Head]) -> Heads:
    """Return `heads` without the removed heads."""
    return {
        site: [
            [n for n in numbers if (site, layer, n) not in removed]
            for layer, numbers in enumerate(layers, start=1)
        ]
        for site, layers in heads.items()
    }


def flat_heads(heads: Heads, sites: Sequence[str] | None = None) -> list[Head]:
    """Return the heads of some sites as a flat list; None: all sites."""
    return [
        (site, layer, number)
        for site, layers in heads.items()
        if sites is None or site in sites
        for layer, numbers in enumerate(layers, start=1)
        for number in numbers
    ]


def n_heads(heads: Heads) -> dict[str, int]:
    """Return the number of heads at each site."""
    return {site: sum(map(len, layers)) for site, layers in heads.items()}


def pruning_order(importance: HeadTable, heads: Heads, sites: Sequence[str]) -> list[Head]:
    """Sort the heads of `sites`, least important first (Michel et al. 2019, section 4.2).

    Args:
        importance: one value per head of `heads`, comparable across layers.
    """
    return sorted(flat_heads(heads, sites), key=dict(numbered(importance, heads)).__getitem__)


@contextmanager
def masked(model: Model, kept: Heads) -> Iterator[None]:
    """Zero the outputs of all heads not in `kept` within the block."""
    with head_factors(model) as gates:
        for gate in gates:
            numbers = kept[gate.place.site][gate.place.layer - 1]
            for index, number in enumerate(gate.place.head_numbers):
                gate.factors[:, index] = float(number in numbers)
        yield


# -- tables ---------------------------------------------------------------------------------------

Measure = Callable[[], Mapping[str, float]]


def pruning_curve(
    model: Model, order: Sequence[Head], measure: Measure, n_steps: int = 10
) -> list[dict[str, Any]]:
    """Mask heads cumulatively and measure after each step, without retraining.

    Args:
        order: heads in order of removal.
        measure: evaluates the model; called once for each number of removed heads.
        n_steps: number of equal steps in which `order` is removed.

    Returns:
        One row per step, from no heads removed: the nominal share of `order` removed (before
        rounding to whole heads), the heads left at each site, and the measured values.
    """
    heads = present_heads(model)
    measured: dict[int, dict[str, float]] = {}
    removals = [round(len(order) * step / n_steps) for step in range(n_steps + 1)]
    for n_removed in dict.fromkeys(removals):
        kept = without(heads, order[:n_removed])
        with masked(model, kept):
            measured[n_removed] = {**n_heads(kept), **measure()}
    return [
        {"removed": step / n_steps, **measured[n_removed]}
        for step, n_removed in enumerate(removals)
    ]


def one_removed(model: Model, sites: Sequence[str], measure: Measure) -> list[dict[str, Any]]:
    """Ablate each head in turn (Michel et al. 2019, section 3.2), one row per head."""
    heads = present_heads(model)
    rows = []
    for head in flat_heads(heads, sites):
        with masked(model, without(heads, [head])):
            scores = measure()
        rows.append({**dict(zip(HEAD_KEY, head, strict=True)), **scores})
    return rows


def one_left(
    model: Model,
    sites: Sequence[str],
    measure: Measure,
    key: Callable[[Mapping[str, float]], tuple[float, ...]],
) -> list[dict[str, Any]]:
    """Measure the model with only the best head of a layer (section 3.3), one row per layer.

    Args:
        key: sort key of the measured values; higher is better.
    """
    heads = present_heads(model)
    rows = []
    for site in sites:
        for layer, numbers in enumerate(heads[site], start=1):
            tried = []
            for number in numbers:
                others = [(site, layer, n) for n in numbers if n != number]
                with masked(model, without(heads, others)):
                    tried.append((number, measure()))
            if tried:
                best, scores = max(tried, key=lambda pair: key(pair[1]))
                rows.append({"site": site, "layer": layer, "head": best, **scores})
    return rows


# -- weights --------------------------------------------------------------------------------------


def pruned_state(model: Model, smaller: Model) -> dict[str, Tensor]:
    """Return the state dict of `smaller`, a copy of `model` with fewer heads.

    Gates of `model` are dropped: the kept heads must be open.

    Raises:
        RunError: a module has per-head parameters that its `head_axes` does not declare.
    """
    full = model.state_dict()
    layers = {(site, layer): attention for site, layer, attention in model.attentions()}
    names = {id(module): name for name, module in model.named_modules()}
    state = {name: value for name, value in full.items() if name in smaller.state_dict()}
    for site, layer, attention in smaller.attentions():
        old = layers[site, layer]
        prefix = names[id(old)]
        for name, value in _attention_state(old, attention).items():
            state[f"{prefix}.{name}"] = value
    return {name: state[name] for name in smaller.state_dict()}


def _attention_state(old: Attention, new: Attention) -> dict[str, Tensor]:
    if isinstance(new, NoHeads):
        return {"bias": old.state_dict()["bias" if isinstance(old, NoHeads) else "output.bias"]}
    axes = _head_axes(old)
    kept = {name: module.place.head_numbers for name, module in _placed(new)}
    before = {name: module.place.head_numbers for name, module in _placed(old)}
    full, state = old.state_dict(), {}
    for name, target in new.state_dict().items():
        if name not in full:
            raise _error(old, name)
        value = full[name]
        owner, axis, width = axes.get(name, ("", None, 1))
        if axis is not None and value.shape != target.shape:
            if owner not in kept:
                raise _error(old, name)
            value = _slice(value, axis, width, before[owner], kept[owner])
        if value.shape != target.shape:
            raise _error(old, name)
        state[name] = value
    return state


def _slice(
    value: Tensor, axis: int, width: int, before: Sequence[int], kept: Sequence[int]
) -> Tensor:
    """Select the entries of the kept heads, `width` per head along `axis`."""
    starts = [list(before).index(number) * width for number in kept]
    indices = [start + offset for start in starts for offset in range(width)]
    chosen = torch.tensor(indices, dtype=torch.long, device=value.device)
    return value.index_select(axis, chosen)


def _placed(attention: Attention) -> Iterator[tuple[str, Any]]:
    """Yield name and module of every submodule that has a `place`."""
    for name, module in attention.named_modules():
        if hasattr(module, "place"):
            yield name, module


def _head_axes(attention: Attention) -> dict[str, tuple[str, int, int]]:
    """Return parameter -> (name of its module, axis of the heads, entries per head)."""
    axes: dict[str, tuple[str, int, int]] = {}
    if isinstance(attention, MultiHeadAttention):
        width, key_dim = attention.place.head_dim, attention.place.key_dim
        for proj, size in (("query", key_dim), ("key", key_dim), ("value", width)):
            axes[f"{proj}.weight"] = axes[f"{proj}.bias"] = ("", 0, size)
        axes["output.weight"] = ("", 1, width)
    for name, module in _placed(attention):
        for parameter, axis in getattr(module, "head_axes", {}).items():
            axes[f"{name}.{parameter}" if name else parameter] = (name, axis, 1)
    return axes


def _error(attention: Attention, name: str) -> RunError:
    kinds = {key: type(module).__name__ for key, module in attention.named_modules()}
    owner = kinds.get(name.rpartition(".")[0], type(attention).__name__)
    place = attention.place
    return RunError(
        f"heads of {place.site} in layer {place.layer} cannot be removed: {owner}.head_axes "
        f"must declare the axis of the heads in {name}"
    )


def check_pruned(model: Model, kept: Heads, smaller: Model) -> None:
    """Check that the smaller model matches the larger one with heads masked.

    Raises:
        RunError: logits differ, e.g. as a variant indexes heads by position, not number.
    """
    generator = torch.Generator().manual_seed(0)
    columns = {}
    for name, column in model.columns.items():
        columns[name] = Column(column.random_ids(2, 7, generator), torch.tensor([7, 5]))
    ids = torch.tensor([], dtype=torch.long)
    batch = Batch(columns, ids, ids, [0, 1], 0).to(next(model.parameters()).device)
    with torch.no_grad():
        with masked(model, kept):
            expected = model(**model.inputs(batch))
        logits = smaller(**smaller.inputs(batch))
    difference = (logits - expected).abs().max()
    if difference > 1e-3 * expected.abs().max().clamp(min=1):
        raise RunError(
            f"the pruned model does not match the model with these heads masked (logits differ by "
            f"{float(difference):.2g}): this attention cannot be pruned"
        )

"""Make the attentions of a model of Transformers sparse, and dense again."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from numbers import Integral
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from headwise.hf.interface import (
    EAGER,
    HEAD_ALPHA,
    KNOWN,
    NAME,
    NAMES,
    FixedMap,
    forget_call,
    note_call,
)
from headwise.nn.alpha import HeadAlpha
from headwise.nn.functional import MAPS

SETTINGS = "headwise"  # attribute of the config, hence in config.json
_WEIGHTS = {"softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}  # functions
# Code for masks that only the function of this name gets, such as None for causal ones.
_SDPA_ALONE = re.compile(r"_attn_implementation (==|in) \(?[^)\n]*\"sdpa\"")
BEFORE = "_headwise_before"  # attribute of a sparse model: what `desparsify` puts back


def sparsify(
    model: PreTrainedModel,
    attention: str = "alpha_entmax",
    layers: Sequence[int] | int | str | None = None,
    alpha_init: float = 1.0,
    alpha_lr_factor: float = 10.0,
) -> PreTrainedModel:
    """Make the attentions of a model sparse, in place.

    With "alpha_entmax", every head gets a learned α (Correia, Niculae and Martins 2019). At
    α = 1, the default start, the model computes what it did before. `save_pretrained` saves α;
    where `headwise.hf` is imported, `from_pretrained` loads it. Attentions that are sparse already,
    in a part of the model, keep their map and α.

    Args:
        model: of a type whose attentions call Transformers' `AttentionInterface`.
        attention: "alpha_entmax", or a fixed map for all heads: "entmax15", "sparsemax", "softmax".
        layers: which attentions; the others keep softmax. None: all. Numbers as in the names of
            modules, from 0, or a regular expression that matches whole names of modules.
        alpha_init: initial α of "alpha_entmax", in [1, 2].
        alpha_lr_factor: how much faster α moves than other weights.

    Returns:
        The model.

    Raises:
        ValueError: the model has attentions that cannot be made sparse (by name), `layers` names
            none, an argument is out of range, or the model is sparse with other arguments.
        TypeError: it is no model of Transformers.

    Poolings by attention and the like that compute their own softmax keep it, with a warning.
    """
    given, model = model, _unwrapped(model)
    if attention not in MAPS:
        raise ValueError(f"attention must be one of {', '.join(MAPS)}, got {attention!r}")
    if layers is not None and not isinstance(layers, str):
        numbers = [*layers] if isinstance(layers, Iterable) else [layers]
        if not all(isinstance(number, Integral) for number in numbers):
            raise ValueError(f"layers must be whole numbers or a regular expression, got {layers}")
        layers = sorted({int(number) for number in numbers})
    settings: dict[str, Any] = {
        "attention": attention,
        "layers": layers,
        "alpha_init": float(alpha_init),
        "alpha_lr_factor": float(alpha_lr_factor),
    }
    by_name = attentions(model)
    base = model.base_model_prefix
    selected = _selected(by_name, layers, base)
    missing = [str(layer) for layer, names in selected.items() if not names]
    if missing or not selected:
        raise ValueError(f"no attention for layers {', '.join(missing)}; there are: {[*by_name]}")
    maps = _maps(settings, by_name, base)
    has = {n: x.attention for n, m in by_name.items() if (x := getattr(m, HEAD_ALPHA, None))}
    if has.keys() == by_name.keys():
        now = {**settings, **getattr(model.config, SETTINGS, {}), "maps": has}
        if now != {**settings, "maps": maps}:
            raise ValueError(
                f"the model is sparse already, with {now}: call headwise.hf.desparsify before"
            )
        return given
    if dense := _left_dense(model, by_name):
        warnings.warn(
            f"{type(model).__name__}: {', '.join(dense)} keep softmax, as they do not use "
            "Transformers' AttentionInterface",
            stacklevel=2,
        )
    maps |= has
    attach(model, maps, settings)
    setattr(model.config, SETTINGS, {**settings, "maps": maps})
    if attention == "alpha_entmax" and hasattr(given, "peft_config"):
        warnings.warn(
            "α is frozen, as PEFT saves only what it trains itself. To train and save α, call "
            "sparsify before get_peft_model, with modules_to_save=['head_alpha'] in its config",
            stacklevel=2,
        )
        for name in by_name.keys() - has.keys():
            getattr(by_name[name], HEAD_ALPHA).requires_grad_(False)
    return given


def _unwrapped(model: Any) -> PreTrainedModel:
    """Return a model of Transformers, without what PEFT puts around it."""
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"{type(model).__name__} is no model of Transformers; for torch's own modules there is "
            "headwise.nn.MultiheadAttention"
        )
    return model


def attach_by_config(model: PreTrainedModel) -> None:
    """Make a model that was just built sparse if its config has the settings of `sparsify`.

    Parts were built before, some with the same config: what is decided last, for the whole, holds.
    """
    settings = getattr(model.config, SETTINGS, None)
    if settings and (maps := _maps(settings, _callers(model), model.base_model_prefix)):
        attach(model, maps, settings)
        # headwise 0.1.0 did not save them
        ignored = {*(model._keys_to_ignore_on_load_missing or ()), r"\.head_alpha\.(factor|alpha)$"}
        model._keys_to_ignore_on_load_missing = ignored


def attach(model: PreTrainedModel, maps: dict[str, str], settings: dict[str, Any]) -> None:
    """Give attentions the maps of their names in `maps`; those that have that map keep it.

    The configs of parts get the settings too, with names of modules relative to the part.
    """
    modules = dict(model.named_modules())
    added: dict[nn.Module, HeadAlpha | FixedMap] = {}
    for name, kind in maps.items():
        module = modules[name]
        if getattr(getattr(module, HEAD_ALPHA, None), "attention", None) == kind:
            continue
        n_heads, device = _n_heads(name, module), device_of(module)
        if kind == "alpha_entmax":
            start = settings["alpha_init"], settings["alpha_lr_factor"]
            added[module] = HeadAlpha(n_heads, *start, device=device)
        else:
            added[module] = FixedMap(n_heads, kind, device)
    for module, own in added.items():  # nothing fails from here on
        # what is on the device meta is to be loaded, or initialised if it is missing there
        own._is_hf_initialized = not any(x.is_meta for x in own.state_dict().values())  # type: ignore[assignment]
        setattr(module, HEAD_ALPHA, own.train(module.training))
    _restore(model)  # parts that were sparse already
    parts = {name: part for name, part in modules.items() if isinstance(part, PreTrainedModel)}
    owners = {id(part.config): part for part in parts.values()}
    before = []
    for module in (*parts.values(), *(modules[name] for name in maps)):  # from the whole to parts
        owner = owners.get(id(module.config), model)
        kind = module.config._attn_implementation
        if kind is None or kind in NAMES:  # set by hand, or for another model with this config
            kind = "sdpa" if owner._supports_sdpa else "eager"
        before.append((module, kind, kind == "eager" and not owner._supports_sdpa))
    for module, _, is_eager in before:
        module.config._attn_implementation = EAGER if is_eager else NAME
    handles = []
    for name, part in reversed(parts.items()):  # of parts with one config, the outermost last
        handles.append(part.register_forward_pre_hook(note_call, with_kwargs=True))
        handles.append(part.register_forward_hook(forget_call, always_call=True))
        own_maps = {n.removeprefix(f"{name}."): maps[n] for n in maps if n.startswith(f"{name}.")}
        if own_maps and part.config is not model.config:
            setattr(part.config, SETTINGS, {**settings, "maps": own_maps})
    setattr(model, BEFORE, (before, handles))


def device_of(module: nn.Module) -> Any:
    """Return where an attention computes: of offloaded models, not where its weights are."""
    for inner in module.modules():
        device = getattr(getattr(inner, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return device
    return next((weight.device for weight in module.parameters()), None)


def desparsify(model: PreTrainedModel) -> PreTrainedModel:
    """Make the attentions of a sparse model dense again, in place; α is lost.

    Raises:
        ValueError: the model is not sparse, or it is a part of a model that was made sparse.
    """
    changed = _restore(inner := _unwrapped(model))
    if not changed:
        raise ValueError("the model was not made sparse, or only as a part of another model")
    for module in changed:
        module.config.__dict__.pop(SETTINGS, None)
    for module in [module for module in inner.modules() if hasattr(module, HEAD_ALPHA)]:
        delattr(module, HEAD_ALPHA)
    return model


def _restore(model: nn.Module) -> list[Any]:
    """Undo what `attach` did to hooks and configs of parts and attentions, and return these."""
    changed = []
    for module in model.modules():
        before, handles = module.__dict__.pop(BEFORE, ((), ()))
        for handle in handles:
            handle.remove()
        for inner, implementation, _ in before:
            inner.config._attn_implementation = implementation
            changed.append(inner)
    return changed


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attentions of a model, by name.

    Raises:
        ValueError: it has none, or some that do not call the interface or pass it unknown
            arguments.
    """
    own = {n: m for n, m in model.named_modules() if not type(m).__module__.startswith("torch.")}
    first: dict[Any, str] = {type(module): name for name, module in reversed(own.items())}
    by_name = _callers(model)
    outside = [
        f"{name} ({type(module).__name__})"
        for name, module in own.items()
        if name not in by_name
        and type(module).__name__.endswith("Attention")
        and not any(inner.startswith(f"{name}.") for inner in by_name)
    ]
    kind = type(model).__name__
    if outside or not by_name:
        raise ValueError(
            f"{kind} cannot be made sparse: its attention does not use Transformers' "
            f"AttentionInterface{': ' if outside else ''}{', '.join(outside[:3])}"
        )
    for part, name in reversed(first.items()):
        if unknown := (_keywords(part) or frozenset()) - KNOWN:
            raise ValueError(
                f"{kind} cannot be made sparse: {name} ({part.__name__}) passes "
                f"{', '.join(sorted(unknown))} to its attention function, which is not known here"
            )
        if _SDPA_ALONE.search(_code_of(part)):
            raise ValueError(
                f"{kind} cannot be made sparse: {name} ({part.__name__}) computes "
                "something else with attn_implementation='sdpa' than with other functions"
            )
    return by_name


def _callers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that call the interface, by name."""
    return {n: m for n, m in model.named_modules() if _keywords(type(m)) is not None}


def _left_dense(model: nn.Module, by_name: dict[str, nn.Module]) -> list[str]:
    """Return the names of parts that compute weights on their own, such as attention poolings."""
    return [
        f"{name} ({type(module).__name__})"
        for name, module in model.named_modules()
        if name not in by_name
        and re.search("atte?n", type(module).__name__, re.IGNORECASE)
        and _WEIGHTS.intersection(type(module).forward.__code__.co_names)
    ]


@cache
def _code_of(kind: Any) -> str:
    """Return the source of a class or function; empty if there is none."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def _keywords(kind: type[nn.Module]) -> frozenset[str] | None:
    """Return the keywords that a class passes to the interface; None if it does not call it."""
    code = _code_of(kind.forward)
    if "ALL_ATTENTION_FUNCTIONS" not in code:
        return None
    calls = [n for n in ast.walk(ast.parse(textwrap.dedent(code))) if isinstance(n, ast.Call)]
    words = (
        keyword.arg
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id.endswith("_interface")
        for keyword in call.keywords
    )
    return frozenset(word for word in words if word is not None)


def _maps(settings: dict[str, Any], names: Iterable[str], base: str) -> dict[str, str]:
    """Return the maps that settings have for attentions, with or without the base's prefix."""
    if "maps" not in settings:  # new ones, and those that headwise 0.1.0 saved
        chosen = set().union(*_selected(names, settings["layers"], base).values())
        return {name: settings["attention"] if name in chosen else "softmax" for name in names}
    maps = settings["maps"]
    return {name: maps[key] for name in names for key in _spellings(name, base) if key in maps}


def _spellings(name: str, base: str) -> set[str]:
    return {name, name.removeprefix(f"{base}."), f"{base}.{name}"}


def _selected(names: Iterable[str], layers: Any, base: str) -> dict[Any, set[str]]:
    """Return the names of attentions that each number, or the expression, selects."""
    if layers is None:
        return {None: set(names)}
    if not isinstance(layers, str):
        return {n: {name for name in names if _first_number(name) == n} for n in layers}
    try:
        pattern = re.compile(layers)
    except re.error as error:
        raise ValueError(f"layers={layers!r} is no regular expression: {error}") from error
    return {layers: {n for n in names if any(map(pattern.fullmatch, _spellings(n, base)))}}


def _first_number(name: str) -> int | None:
    match = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(match[1]) if match else None


def _n_heads(name: str, module: nn.Module) -> int:
    for place in (module, module.config):
        for key in ("num_heads", "num_attention_heads", "n_heads", "n_head"):
            if isinstance(number := getattr(place, key, None), int):
                return number
    raise ValueError(f"the number of heads of {name} ({type(module).__name__}) is not known")

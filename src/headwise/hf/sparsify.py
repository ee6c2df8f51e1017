"""Make the attentions of a model of Transformers sparse, and dense again."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import warnings
from collections.abc import Sequence
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
    `headwise.hf.from_pretrained` loads it.

    Args:
        model: of a type whose attentions call Transformers' `AttentionInterface`.
        attention: "alpha_entmax", or a fixed map for all heads: "entmax15", "sparsemax", "softmax".
        layers: which attentions; the others keep softmax. None: all. Numbers as in the names of
            modules, from 0, or a regular expression that matches whole names of modules.
        alpha_init: initial α of "alpha_entmax", in [1, 2].
        alpha_lr_factor: how much faster α moves than other weights under Adam.

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
        layers = sorted(
            {int(number) for number in ([layers] if isinstance(layers, int) else layers)}
        )
    settings: dict[str, Any] = {
        "attention": attention,
        "layers": layers,
        "alpha_init": float(alpha_init),
        "alpha_lr_factor": float(alpha_lr_factor),
    }
    if (now := getattr(model.config, SETTINGS, None)) is not None and any(
        now[key] != settings[key] for key in ("attention", "layers", "alpha_lr_factor")
    ):
        raise ValueError(
            f"the model is sparse already, with {now}: call headwise.hf.desparsify(model) before"
        )
    by_name = attentions(model)
    if all(hasattr(module, HEAD_ALPHA) for module in by_name.values()):
        return given
    if dense := _left_dense(model, by_name):
        warnings.warn(
            f"{type(model).__name__}: {', '.join(dense)} keep softmax, as they do not use "
            "Transformers' AttentionInterface",
            stacklevel=2,
        )
    chosen = _chosen(list(by_name), layers, model.base_model_prefix)
    settings["maps"] = {name: attention if name in chosen else "softmax" for name in by_name}
    attach(model, settings)
    if given is not model and attention == "alpha_entmax":
        warnings.warn(
            "α stays as it is: PEFT saves what it adds alone. To train α, call sparsify before, "
            "and PEFT with modules_to_save=['head_alpha']",
            stacklevel=2,
        )
        for module in by_name.values():
            getattr(module, HEAD_ALPHA).requires_grad_(False)
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


def attach(model: PreTrainedModel, settings: dict[str, Any]) -> None:
    """Give attentions the maps of `settings`, by name; those that have one keep it.

    The config of every part gets the settings of its own attentions, so that parts that are saved
    or loaded alone know theirs too.
    """
    modules = dict(model.named_modules())
    maps: dict[nn.Module, nn.Module] = {}
    start = settings["alpha_init"], settings["alpha_lr_factor"]
    for name, kind in settings["maps"].items():
        if not hasattr(module := modules[name], HEAD_ALPHA):
            n_heads = _n_heads(name, module)
            if kind == "alpha_entmax":
                maps[module] = HeadAlpha(n_heads, *start, device=device_of(module))
            else:
                maps[module] = FixedMap(n_heads, kind)
    for module, own in maps.items():  # nothing fails from here on
        setattr(module, HEAD_ALPHA, own.train(module.training))
    before: dict[int, tuple[Any, str]] = {}
    handles: list[Any] = []
    prefixes = {f"{name}.".removeprefix("."): m for name, m in modules.items()}
    parts = {p: m for p, m in prefixes.items() if isinstance(m, PreTrainedModel)}
    own_configs = {id(p.config): p for p in parts.values()}
    for module in (*parts.values(), *(modules[name] for name in settings["maps"])):
        config, part = module.config, own_configs.get(id(module.config), model)
        if inner := module.__dict__.pop(BEFORE, None):  # a part that was loaded sparse
            before |= inner[0]
            handles += inner[1]
        elif isinstance(module, PreTrainedModel):
            handles.append(module.register_forward_pre_hook(note_call, with_kwargs=True))
            handles.append(module.register_forward_hook(forget_call, always_call=True))
        kind = config._attn_implementation
        if kind in NAMES or kind is None:
            kind = "sdpa" if part._supports_sdpa else "eager"
        before.setdefault(id(config), (config, kind))
    for config, kind in before.values():
        part = own_configs.get(id(config), model)
        is_eager = kind == "eager" and not part._supports_sdpa
        config._attn_implementation = EAGER if is_eager else NAME
    for prefix, part in reversed(parts.items()):  # the outermost of those that share a config last
        own_maps = {
            name.removeprefix(prefix): kind
            for name, kind in settings["maps"].items()
            if name.startswith(prefix)
        }
        if own_maps:
            setattr(part.config, SETTINGS, {**settings, "maps": own_maps})
    setattr(model, BEFORE, (before, handles))


def attach_built(model: PreTrainedModel) -> None:
    """After a model was built: make it sparse if its config says so."""
    settings = getattr(model.config, SETTINGS, None)
    if settings is None:
        return
    names = {name for name, _ in model.named_modules()}
    base = f"{model.base_model_prefix}."
    maps = {}
    for name, kind in settings["maps"].items():  # of the model with its head, or without
        spellings = (name, name.removeprefix(base), base + name)
        if (own := next((s for s in spellings if s in names), None)) is not None:
            maps[own] = kind
    if maps:
        attach(model, {**settings, "maps": maps})


def device_of(module: nn.Module) -> Any:
    """Return where an attention computes: of offloaded models, not where its weights are."""
    for inner in module.modules():
        if (device := getattr(getattr(inner, "_hf_hook", None), "execution_device", None)) is not None:
            return device
    return next((weight.device for weight in module.parameters()), None)


def desparsify(model: PreTrainedModel) -> PreTrainedModel:
    """Make the attentions of a sparse model dense again, in place; α is lost.

    Raises:
        ValueError: the model is not sparse, or only a part of it is.
    """
    given, model = model, _unwrapped(model)
    if not hasattr(model, BEFORE):
        raise ValueError(f"this {type(model).__name__} was not made sparse as a whole")
    before, handles = getattr(model, BEFORE)
    for handle in handles:
        handle.remove()
    for config, implementation in before.values():
        config._attn_implementation = implementation
        config.__dict__.pop(SETTINGS, None)
    for module in [module for module in model.modules() if hasattr(module, HEAD_ALPHA)]:
        delattr(module, HEAD_ALPHA)
    delattr(model, BEFORE)
    return given


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attentions of a model, by name.

    Raises:
        ValueError: it has none, or some that do not call the interface or pass it unknown
            arguments.
    """
    own = {n: m for n, m in model.named_modules() if not type(m).__module__.startswith("torch.")}
    first = {type(module): name for name, module in reversed(own.items())}  # name of each class
    keywords = {kind: _keywords(kind) for kind in first}
    by_name = {name: m for name, m in own.items() if keywords[type(m)] is not None}
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
        if unknown := (keywords[part] or frozenset()) - KNOWN:
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


def _left_dense(model: nn.Module, by_name: dict[str, nn.Module]) -> list[str]:
    """Return the names of parts that compute weights on their own, such as attention poolings."""
    return [
        f"{name} ({type(module).__name__})"
        for name, module in model.named_modules()
        if name not in by_name
        and re.search("atte?n", type(module).__name__, re.IGNORECASE)
        and _WEIGHTS.intersection(type(module).forward.__code__.co_names)
    ]


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


def _chosen(names: Sequence[str], layers: Sequence[int] | str | None, base: str) -> set[str]:
    """Return the names of attentions that `layers` selects, with or without the base's prefix."""
    if layers is None:
        return set(names)
    if isinstance(layers, str):
        try:
            pattern = re.compile(layers)
        except re.error as error:
            raise ValueError(f"layers={layers!r} is no regular expression: {error}") from error
        spellings = {
            name: (name, name.removeprefix(f"{base}."), f"{base}.{name}") for name in names
        }
        chosen = {name for name in names if any(map(pattern.fullmatch, spellings[name]))}
        missing = [] if chosen else [layers]
    else:
        numbers = {name: _first_number(name) for name in names}
        chosen = {name for name, number in numbers.items() if number in layers}
        missing = [str(n) for n in layers if n not in numbers.values()]
    if missing or not chosen:
        raise ValueError(f"no attention for layers {', '.join(missing)}; there are: {list(names)}")
    return chosen


def _first_number(name: str) -> int | None:
    match = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(match[1]) if match else None


def _n_heads(name: str, module: nn.Module) -> int:
    for place in (module, module.config):
        for key in ("num_heads", "num_attention_heads", "n_heads", "n_head"):
            if isinstance(number := getattr(place, key, None), int):
                return number
    raise ValueError(f"the number of heads of {name} ({type(module).__name__}) is not known")

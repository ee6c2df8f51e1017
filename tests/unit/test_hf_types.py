"""Every type of model in the installed Transformers is made sparse as a whole, or refused."""

import copy
import inspect
import os
import re
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._pytree import tree_leaves
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import configuration_auto, modeling_auto

from headwise.hf import sparsify
from headwise.hf.interface import NAMES
from headwise.hf.sparsify import attentions
from transformers_models import chosen_attention

pytestmark = pytest.mark.slow

# The largest values of settings, by patterns of their names.
DEPTH = {r"(^|_)(n_layers?|num_layers|(hidden|encoder|decoder|mixer)_layers)$|^depth$": 2}
SMALL = DEPTH | {
    r"vocab_size$": 101, r"token_(id|index)$": 100, r"experts$": 4, r"per_tok$|top_?k$|moe_k$": 2,
    r"(key_value|kv)_heads$": 2, r"heads?$": 4, r"head_dim$|^d_kv$|kv_channels$|head_size$": 16,
    r"hidden_size|d_model|n_embd|embed_dim|^dim|^width|hidden_dim|embed\w*_size": 64,
    r"projection_dim|output_dim": 64, r"intermediate|ffn_dim|d_ff$|ffn_hidden_size|n_inner": 96,
    r"^image_size$": 32, r"^patch_size$": 8, r"^max_source_positions$": 32,
}  # fmt: skip
# Functions that compute weights from scores, or call one that does.
COMPUTES = {"softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}
COMPUTES |= {"Softmax", "ALL_ATTENTION_FUNCTIONS", "flex_attention"}
STEP = 1 if "HEADWISE_EVERY_TYPE" in os.environ else 12  # all types take four minutes
# With transformers 5.24 and neither timm nor scipy: types accepted, refused and not built.
VERSION, COUNTS = "5.24.0", {1: (422, 187, 57), 12: (32, 19, 5)}[STEP]


# What the source of a type says of masks and of the context, and one type for each that the small
# settings run ("-": none).
SAID = re.compile(
    r"\bcreate_\w*mask\w*(?=\()|_prepare_4d\w*(?=\()|get_extended_attention_mask(?=\()"
    r"|_supports_sdpa = \w+|self\.is_causal = \w+|attn_output\w* = attn_output\S*view\("
    r"|\b(?:softcap|s_aux|position_bias|sliding_window)=|\bdecoder_input_ids\b"
)
LISTED = Path(__file__).parents[1] / "golden/masks_of_types.tsv"
PATHS = dict(line.split("\t")[::-1] for line in LISTED.read_text("utf-8").splitlines())


def kinds():
    """The mappings of Auto classes that contain a type of model, the plain models' first."""
    mappings = {}
    names = sorted(vars(modeling_auto), key=lambda name: (name != "MODEL_MAPPING", name))
    for mapping in (getattr(modeling_auto, name) for name in names if name.endswith("_MAPPING")):
        for kind in mapping._model_mapping:
            if kind in configuration_auto.CONFIG_MAPPING_NAMES:
                mappings.setdefault(kind, []).append(mapping)
    return dict(sorted(mappings.items()))


def shrink(config, sizes):
    """Make settings at most so large, in parts as well, with two layers of different types."""
    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            shrink(value, sizes)
        elif name in ("layer_types", "mlp_layer_types") and isinstance(value, list) and sizes:
            setattr(config, name, [*dict.fromkeys(value), *value][:2])
        elif type(value) is int:
            most = next((most for key, most in sizes.items() if re.search(key, name)), value)
            if value > most:
                setattr(config, name, most)
    return config


def build(kind, mapping, sizes, device="meta"):
    config = shrink(configuration_auto.CONFIG_MAPPING[kind](), sizes)
    chosen = mapping[type(config)]
    with torch.device(device):
        return (chosen[0] if isinstance(chosen, list | tuple) else chosen)(config).eval()


def attempt(function, *args):
    """What is returned, or None if defaults, inputs or missing packages do not allow it."""
    try:
        return function(*args)
    except Exception:  # noqa: BLE001 (whatever settings that do not fit raise)
        return None


def computes_attention(module):
    kind = type(module)
    if not re.search(r"att(entio)?n", kind.__name__, re.IGNORECASE):
        return False
    codes = [getattr(value, "__code__", None) for value in vars(kind).values()]
    return any(COMPUTES.intersection(code.co_names) for code in codes if code)


def outcome(kind, mapping):
    model = attempt(build, kind, mapping, DEPTH) or attempt(build, kind, mapping, {})
    if model is None:
        return "not built"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            sparsify(model)
        except ValueError:  # says which
            assert not any(hasattr(module, "head_alpha") for module in model.modules())
            return "refused"
    notes = " ".join(str(warning.message) for warning in warned)
    built = {name for name, module in model.named_modules() if hasattr(module, "head_alpha")}
    for name, module in model.named_modules():
        parents = {name[: dot.start()] for dot in re.finditer(r"\.|$", name)}
        if computes_attention(module) and not parents & built:
            assert f"{name} (" in notes, name
        if isinstance(module, PreTrainedModel) or name in built:
            assert chosen_attention(module) in NAMES
    return "accepted"


def test_every_type_is_sparse_as_a_whole_or_refused():
    chosen = list(kinds().items())[::STEP]
    n = Counter(outcome(kind, mappings[0]) for kind, mappings in chosen)
    if transformers.__version__ == VERSION:
        assert (n["accepted"], n["refused"], n["not built"]) == COUNTS


def batches(model):
    """Inputs that may fit the model, of two examples: all that it takes, or some left out."""
    torch.manual_seed(1)
    config = getattr(model.config, "vision_config", model.config)
    size = getattr(config, "image_size", 32)
    sizes = (size, size) if isinstance(size, int) else size
    ids = torch.randint(3, 97, (2, 24))
    frames = torch.randn(2, 64, getattr(config, "num_mel_bins", 80))
    every = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "input_features": frames.mT}
    every |= {"decoder_input_ids": ids[:, :12], "input_values": torch.randn(2, 4000)}
    every |= {"pixel_values": torch.randn(2, getattr(config, "num_channels", 3), *sizes)}
    fitting = {n: every[n] for n in inspect.signature(model.forward).parameters if n in every}
    if "input_ids" not in fitting:
        fitting.pop("attention_mask", None)
    for others in ({}, {"input_features": frames}):
        for left_out in ("", "pixel_values", "input_ids attention_mask"):
            taken = {name: x for name, x in fitting.items() if name not in left_out.split()}
            yield {name: others.get(name, x) for name, x in taken.items()}


def outputs(model, batch):
    """The floating-point outputs, without padding; none if some are not finite."""
    torch.manual_seed(0)  # for masks that are drawn
    mask = batch.get("attention_mask")
    with torch.no_grad():
        tensors = [x for x in tree_leaves(model(**batch)) if isinstance(x, Tensor)]
    tensors = [x for x in tensors if x.is_floating_point() and x.numel()]
    if mask is not None:
        tensors = [x[mask > 0] if x.shape[:2] == mask.shape else x for x in tensors]
    return tensors if all(x.isfinite().all() for x in tensors) else []


def small(kind):
    """A model that can be made sparse, and inputs; None if none runs."""
    for mapping in kinds()[kind]:
        model = attempt(build, kind, mapping, SMALL)
        if not attempt(attentions, model) or sum(x.numel() for x in model.parameters()) > 2e7:
            continue
        torch.manual_seed(0)
        model = build(kind, mapping, SMALL, "cpu")
        for name, x in model.named_parameters():  # weights that are far from uniform
            if x.dim() == 2 and "embed" not in name and x.std() < 0.1:
                x.detach().mul_(4.0)
        for batch in batches(model):
            if attempt(outputs, model, batch):
                return model, batch
    return None


def test_masks_of_every_type_are_listed():
    said = {}
    for kind in kinds():
        name = configuration_auto.model_type_to_module_name(kind)
        for source in Path(transformers.__file__).parent.glob(f"models/{name}/modeling_{name}.py"):
            code = source.read_text("utf-8")
            if "ALL_ATTENTION_FUNCTIONS" in code or "AutoModel" in code:
                said.setdefault(" ".join(sorted(set(SAID.findall(code)))), []).append(kind)
    new = {path: of for path, of in said.items() if path not in PATHS}
    assert not new, f"add to {LISTED.name}, with a type that small settings run, or '-': {new}"


@pytest.mark.parametrize("kind", kinds() if STEP == 1 else sorted({*PATHS.values()} - {"-"}))
def test_at_alpha_1_equals_dense(kind):
    built = small(kind)
    assert built or kind not in PATHS.values()
    dense, batch = built or pytest.skip("refused, or small settings do not run it")
    sparse = sparsify(copy.deepcopy(dense))
    padded = (torch.arange(24) < torch.tensor([[24], [14]])).long()
    masks = [{"attention_mask": mask} for mask in (None, padded, padded.flip(1))]
    for mask in masks if "attention_mask" in batch else [{}]:
        if expected := attempt(outputs, dense, batch | mask):
            for exact, ours in zip(expected, outputs(sparse, batch | mask), strict=True):
                assert (exact - ours).abs().max() <= 1e-5 * exact.abs().max()

"""Small models with selected heads, for the tests of importance and pruning."""

import copy

import torch

from headwise.analysis.pruning import (
    flat_heads,
    present_heads,
    pruned_state,
    without,
)
from headwise.config.register import typed
from headwise.model.build import build_model
from headwise.tasks.translation.batches import evaluation_batches
from headwise.tasks.translation.corpus import EncodedSplit

V, D, H = 13, 16, 4
CPU = torch.device("cpu")
SMALL = (
    f"model.d_model={D}", f"model.n_heads={H}", "model.d_ff=16", "model.dropout=0",
    "model.attention_dropout=0", "model.activation_dropout=0",
)  # fmt: skip
# uneven; some layers keep all heads, one keeps none
KEPT = {
    "encoder_self": [[2, 3], []],
    "decoder_self": [[1, 2, 3, 4], [4]],
    "cross": [[1, 3, 4], [2]],
}
SOURCES = [[4, 5, 6, 7, 8], [9, 10], [11, 12, 4]]
TARGETS = [[5, 6], [7, 8, 9, 10], [4]]


def config_of(make, *overrides, heads=None):
    config = typed(make([*SMALL, *overrides]))
    config.model.heads = heads
    return config


def model_of(make, *overrides, heads=None):
    """A model in float64 whose weights are all changed from their initial values."""
    config = config_of(make, *overrides, heads=heads)
    model = build_model(config, V, V, config.tokenizer.joint).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator).double())
    return model


def smaller_of(make, model, *overrides, heads):
    smaller = build_model(config_of(make, *overrides, heads=heads), V, V, True).double().eval()
    smaller.load_state_dict(pruned_state(model, smaller))
    return smaller


def batches(max_tokens=100):
    return list(evaluation_batches(EncodedSplit.from_lists(SOURCES, TARGETS), max_tokens))


def logits(model):
    (batch,) = batches()
    with torch.no_grad():
        output = model(**model.inputs(batch))
    return output


def scale_head(model, site, layer, place, factor):
    """Multiply the columns of the output projection for one head (from 0)."""
    for module_site, module_layer, attention in model.attentions():
        if (module_site, module_layer) == (site, layer):
            width = attention.place.head_dim
            with torch.no_grad():
                attention.output.weight[:, place * width : (place + 1) * width] *= factor


def zeroed(model, kept):
    """A copy whose pruned heads are multiplied by zero."""
    model = copy.deepcopy(model)
    for site, layer, number in flat_heads(without(present_heads(model), flat_heads(kept))):
        scale_head(model, site, layer, number - 1, 0.0)
    return model


def close_gates(model, site, layer, is_open):
    for module_site, module_layer, attention in model.attentions():
        if (module_site, module_layer) == (site, layer):
            values = [3.0 if flag else -3.0 for flag in is_open]
            with torch.no_grad():
                attention.gate.log_a.copy_(torch.tensor(values))

"""Sparse models of Transformers beside float64 copies with explicit weights."""

import copy

import pytest
import torch
from torch import Tensor

from headwise.hf import heads, recorded_weights, sparsify
from headwise.hf.interface import attention_forward
from transformers_models import (
    DECODERS,
    FAMILIES,
    TRANSLATORS,
    draw_alpha,
    inputs,
    make,
    output,
    reference,
)

pytestmark = pytest.mark.slow

# Every family with one kind of padding, and one with each, also of the length from which weights
# are not formed; `golden/masks_of_types.tsv` lists how other types make masks.
SIDES = {family: "left" if family in DECODERS else "right" for family in FAMILIES}
SIDES |= {"vit": "", "whisper": ""}
CASES = [(family, side, 24) for family, side in SIDES.items()]
CASES += [("mistral", side, n) for side in ("", "right", "left") for n in (24, 140)]
CASES = [*dict.fromkeys([*CASES, ("bert", "right", 140)])]
GENERATORS = (*DECODERS, *TRANSLATORS, "whisper")


def error(ours, exact, floor=0.0):
    """The largest error relative to the largest exact value."""
    return float((ours.double() - exact).abs().max() / exact.abs().max().clamp_min(floor))


def as_dtype(batch, dtype):
    return {n: x.to(dtype) if x.is_floating_point() else x for n, x in batch.items()}


@pytest.mark.parametrize(("family", "padding", "n"), CASES)
def test_outputs_and_gradients_equal_float64(family, padding, n):
    dense, batch = make(family), inputs(family, padding, n)
    untouched = output(family, dense, batch).detach()
    model = sparsify(copy.deepcopy(dense))
    assert error(output(family, model, batch), untouched.double()) < 3e-6  # at α = 1
    exact, alpha = reference(dense, draw_alpha(model))
    result = output(family, model, batch)
    expected = output(family, exact, as_dtype(batch, torch.float64))
    assert error(result, expected) < 1e-5
    assert error(untouched, expected) > 1e-2

    factors = torch.randn(result.shape, generator=torch.Generator().manual_seed(3))
    (result * factors).sum().backward()
    (expected * factors).sum().backward()
    gradients = {name: x.grad for name, x in exact.named_parameters() if x.grad is not None}
    floor = 1e-3 * max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, parameter in model.named_parameters():
        if name.endswith("head_alpha.bias"):
            through = alpha[name.removesuffix(".head_alpha.bias")].grad
            assert (parameter.grad.double() - through).abs().max() < 5e-4 * through.abs().max()
        elif name in gradients:
            assert error(parameter.grad, gradients[name], floor) < 5e-4, name
        else:
            assert parameter.grad is None


@pytest.mark.parametrize("n", [24, 140])
def test_context_is_contiguous_as_that_of_sdpa(n):
    attention = sparsify(make("llama")).model.layers[0].self_attn
    context, _ = attention_forward(attention, *(torch.randn(2, h, n, 16) for h in (4, 2, 2)), None)
    assert context.shape == (2, n, 4, 16)
    assert context.is_contiguous()  # some models view it


@pytest.mark.parametrize(
    ("family", "cache"),
    [(family, "dynamic") for family in GENERATORS]
    + [(family, cache) for family in ("mistral", "bart") for cache in ("static", "beams")],
)
def test_generation_equals_float64(family, cache):
    dense = make(family)
    options = {
        "max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "output_logits": True,
        "return_dict_in_generate": True, "num_beams": 3 if cache == "beams" else 1,
    }  # fmt: skip
    cached = {"cache_implementation": "static"} if cache == "static" else {}
    # static caches of unpadded texts have no mask at first, but more keys than queries
    padding = "" if cache == "static" else "left" if family in DECODERS else "right"
    batch = inputs(family, padding, 16)
    batch.pop("decoder_input_ids", None)
    model = sparsify(copy.deepcopy(dense))
    same = model.generate(**batch, **options, **cached).sequences
    assert same.equal(dense.generate(**batch, **options, **cached).sequences)
    exact, _ = reference(dense, draw_alpha(model))
    result = model.generate(**batch, **options, **cached)
    expected = exact.generate(**as_dtype(batch, torch.float64), **options)
    assert result.sequences.equal(expected.sequences)
    assert error(torch.stack(result.logits), torch.stack(expected.logits)) < 1e-5


@pytest.mark.parametrize("family", ["bert", "gemma2", "gpt_oss", "t5", "clip"])
def test_bfloat16_is_as_close_as_eager_attention(family):
    dense, batch = make(family).bfloat16(), inputs(family)
    model = sparsify(copy.deepcopy(dense))
    alpha = draw_alpha(model)
    dense.set_attn_implementation("eager")
    exact = as_dtype(batch, torch.float64)
    errors = []
    with torch.no_grad():
        for candidate, values in (
            (model, alpha),
            (dense, {n: x * 0 + 1 for n, x in alpha.items()}),
        ):
            expected = output(family, reference(dense, values)[0], exact)
            result = output(family, candidate, as_dtype(batch, torch.bfloat16))
            errors.append(float((result.double() - expected).norm() / expected.norm()))
    assert errors[0] < 2 * errors[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_equal_float64(family):
    dense, batch = make(family), inputs(family, "right")
    model = sparsify(copy.deepcopy(dense))
    exact, _ = reference(dense, draw_alpha(model))
    with recorded_weights(model) as recorded, torch.no_grad():
        handed_on = model(**batch, output_attentions=True)
        expected = exact(**as_dtype(batch, torch.float64), output_attentions=True)
    modules = set(heads(model).module)
    assert set(recorded) == modules
    assert all(len(weights) == 1 for weights in recorded.values())
    compared = 0
    for ours, theirs in _weights(handed_on, expected):
        real = ours.sum(-1) > 0  # queries that are padding have no visible key
        sums = ours.sum(-1)[real]
        if family != "gpt_oss":  # a part is on its sinks
            torch.testing.assert_close(sums, torch.ones_like(sums))
        assert (ours - theirs)[real].abs().max() < 3e-5
        n_zeros, expected_zeros = (float((x == 0).double().mean()) for x in (ours, theirs))
        assert 0.01 < n_zeros == pytest.approx(expected_zeros, abs=1e-2)
        assert any(weights[0].equal(ours) for weights in recorded.values())
        compared += 1
    assert compared == len(modules)


def _weights(ours, theirs):
    """Pairs of all weights that two outputs contain."""
    pairs = []
    for name, value in ours.items():
        if "attentions" in name and value is not None:
            pairs += zip(value, theirs[name], strict=True)
        elif hasattr(value, "items"):
            pairs += _weights(value, theirs[name])
    return pairs


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_gradient_checkpointing_changes_nothing(family):
    gradients = []
    for is_checkpointed in (False, True):
        model = sparsify(make(family), alpha_init=1.4)
        if is_checkpointed:
            model.gradient_checkpointing_enable()
        model.config.use_cache = False
        torch.manual_seed(5)
        output(family, model.train(), inputs(family, "right")).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_compiled_without_graph_breaks_equals_eager():
    model = sparsify(make("bert"), alpha_init=1.5)
    batch = inputs("bert", "right")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_autocast(family):
    model = sparsify(make(family), alpha_init=1.3)
    expected = output(family, model, inputs(family))
    with torch.autocast("cpu", torch.bfloat16):
        result = output(family, model, inputs(family))
    result.float().sum().backward()
    assert error(result, expected.double()) < 0.05
    assert all(isinstance(x.grad, Tensor) for n, x in model.named_parameters() if "alpha" in n)

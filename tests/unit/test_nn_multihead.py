"""`headwise.nn.MultiheadAttention` beside torch's module, and inside torch's layers."""

import copy
import pickle
from itertools import product

import peft
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from headwise.nn import MultiheadAttention, functional
from headwise.nn.functional import attend_heads

B, Q, K, D, H = 3, 5, 7, 16, 4
MASKS = (None, torch.bool, torch.float64)
ALPHA = torch.tensor([1.0, 1.3, 1.5, 2.0])  # of the heads


def pair(**options):
    """Torch's module and ours with softmax, with equal weights."""
    modules = []
    for class_, more in (
        (nn.MultiheadAttention, {}),
        (MultiheadAttention, {"attention": "softmax"}),
    ):
        torch.manual_seed(1)
        modules.append(class_(D, H, dtype=torch.float64, **options, **more))
    for ours, theirs in zip(*(module.parameters() for module in modules), strict=True):
        assert ours.equal(theirs)
        nn.init.normal_(theirs, std=0.3)
    modules[1].load_state_dict(modules[0].state_dict())
    return modules[0], modules[1]


def results(module, inputs, call=None, **options):
    """Output, weights, and gradients of inputs and parameters; `call` replaces the module."""
    module.zero_grad()
    leaves = [x.clone().requires_grad_() for x in inputs]
    output, weights = (call or module)(*leaves, **options)
    (output.square().sum() + (0 if weights is None else weights.square().sum())).backward()
    return [output, weights, *(leaf.grad for leaf in (*leaves, *module.parameters()))]


def mask(dtype, *shape):
    """Boolean: blocked, but the first key is not; or additive."""
    if dtype is torch.bool:
        blocked = torch.rand(shape) > 0.6
        blocked[..., 0] = False
        return blocked
    return torch.randn(shape, dtype=dtype)


@pytest.mark.filterwarnings("ignore:Support for mismatched")  # torch's: of two masks
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True, "kdim": 12, "vdim": 10},
        {"add_bias_kv": True, "add_zero_attn": True, "bias": False},
    ],
)
@pytest.mark.parametrize("batched", [True, False])
def test_softmax_equals_torch(options, batched):
    theirs, ours = pair(**options)
    axes = (1, 0, 2) if batched and not theirs.batch_first else (0, 1, 2)
    sizes = ((Q, D), (K, theirs.kdim), (K, theirs.vdim))
    inputs = [torch.randn(B, *size, dtype=torch.float64).permute(axes) for size in sizes]
    inputs = inputs if batched else [x[0] for x in inputs]
    batch = (B,) if batched else ()
    for padding, pairs, is_3d, output in product(MASKS, MASKS, (False, True), range(3)):
        more = {
            "key_padding_mask": padding and mask(padding, *batch, K),
            "attn_mask": pairs and mask(pairs, *[len(batch) * (B - 1) * H + H] * is_3d, Q, K),
            "need_weights": output > 0,
            "average_attn_weights": output > 1,
        }
        expected = results(theirs, inputs, **more)
        actual = results(ours, inputs, **more)
        torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


def test_is_causal_is_the_causal_mask():
    states = torch.randn(Q, B, D, dtype=torch.float64)
    causal = torch.ones(Q, Q, dtype=torch.bool).triu(1)
    for options in ({}, {"add_zero_attn": True}):
        theirs, ours = pair(**options)
        expected = theirs(states, states, states, attn_mask=causal)
        for more in ({}, {"attn_mask": causal}):
            actual = ours(states, states, states, is_causal=True, **more)
            torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_is_causal_is_a_hint_beside_a_mask(need_weights):
    theirs, ours = pair()
    states = torch.randn(Q, B, D, dtype=torch.float64)
    causal = torch.full((Q, Q), -torch.inf, dtype=torch.float64).triu(1)
    bias = causal + torch.randn(Q, Q) if need_weights else causal  # else torch does not read it
    options = {"attn_mask": bias, "is_causal": True, "need_weights": need_weights}
    expected = theirs(states, states, states, **options)[0]
    torch.testing.assert_close(ours(states, states, states, **options)[0], expected)


def test_alpha_stays_float32_in_half_precision():
    module = MultiheadAttention(8, 2, alpha_init=1.3).bfloat16()
    assert module.in_proj_weight.dtype is torch.bfloat16
    assert module.alpha is not None
    assert module.alpha.bias.dtype is torch.float32
    assert module.alpha().tolist() == pytest.approx([1.3, 1.3])


def test_every_head_has_its_alpha_and_hidden_rows_are_zero():
    module = MultiheadAttention(D, H)
    with torch.no_grad():
        module.alpha.bias.copy_((ALPHA - 1) / 10)
    states = 3 * torch.randn(K, B, D)
    padding = torch.zeros(B, K, dtype=torch.bool)
    padding[0] = True
    options = {"key_padding_mask": padding, "average_attn_weights": False}
    output, weights = module(states, states, states, **options)
    assert not weights[0].any()
    assert output.isfinite().all()
    for head, attention in ((0, "softmax"), (2, "entmax15"), (3, "sparsemax")):
        other = MultiheadAttention(D, H, attention=attention)
        other.load_state_dict(module.state_dict(), strict=False)
        fixed = other(states, states, states, **options)[1]
        torch.testing.assert_close(weights[:, head], fixed[:, head], atol=1e-6, rtol=0)
    without = module(states, states, states, padding, need_weights=False)[0]
    torch.testing.assert_close(without, output)


def test_weights_of_torch_load_and_alpha_stays():
    theirs, ours = nn.MultiheadAttention(D, H), MultiheadAttention(D, H, alpha_init=1.5)
    outer = nn.ModuleList([theirs])
    nn.ModuleList([ours]).load_state_dict(outer.state_dict())
    assert ours.in_proj_weight.equal(theirs.in_proj_weight)
    assert ours.alpha().eq(1.5).all()
    unexpected = theirs.load_state_dict(ours.state_dict(), strict=False).unexpected_keys
    assert unexpected == ["alpha.bias", "alpha.factor"]
    again = MultiheadAttention(D, H, alpha_lr_factor=100)
    again.load_state_dict(ours.state_dict())
    assert again.alpha().eq(1.5).all()
    assert again.alpha.factor == 100


def sparse_layers(layers):
    """Put our attention with the weights of torch's into its layers."""
    for layer, name in product(layers, ("self_attn", "multihead_attn")):
        if hasattr(layer, name):
            theirs = getattr(layer, name)
            ours = MultiheadAttention(
                D, H, batch_first=theirs.batch_first, alpha_init=1.7, dropout=theirs.dropout
            )
            ours.load_state_dict(theirs.state_dict())
            setattr(layer, name, ours)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor|The PyTorch API of nested")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("replaced", ["before", "after"])
def test_encoder_of_torch_computes_our_attention(replaced, batch_first):
    layer = nn.TransformerEncoderLayer(D, H, 2 * D, dropout=0.0, batch_first=batch_first)
    sparse_layers([layer] if replaced == "before" else [])
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)
    dense = copy.deepcopy(encoder).eval()
    sparse_layers(encoder.layers)
    states = torch.randn(B, K, D)
    padding = torch.arange(K) >= torch.tensor([[K], [4], [2]])
    is_text = ~padding if batch_first else ~padding.T
    inputs = states if batch_first else states.transpose(0, 1)
    for options in ({}, {"src_key_padding_mask": padding}):
        expected = encoder.train()(inputs, **options)[is_text]
        with torch.no_grad():
            actual = encoder.eval()(inputs, **options)[is_text]
            torch.testing.assert_close(actual, expected)
            if replaced == "after":
                assert not torch.allclose(dense(inputs, **options)[is_text], expected, atol=1e-3)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_keep_their_layout(layout):
    module = MultiheadAttention(D, H, attention="entmax15", batch_first=True)
    rows = [torch.randn(length, D) for length in (3, K)]
    nested = torch.nested.nested_tensor(rows, layout=layout)
    output, _ = module(nested, nested, nested)
    assert output.layout is layout
    for actual, row in zip(output.unbind(), rows, strict=True):
        torch.testing.assert_close(actual, module(row, row, row)[0])
    with pytest.raises(TypeError, match="must not be nested"):
        functional.attention(nested, nested, nested, attention="entmax15")


def test_lora_of_peft_adapts_our_attention():
    model = nn.ModuleDict({"own": MultiheadAttention(D, H, alpha_init=1.5)})
    states = torch.randn(3, Q, B, D)
    expected = model["own"](*states)[0]
    config = peft.LoraConfig(r=2, target_modules=["own"], init_lora_weights=False)
    peft.inject_adapter_in_model(config, model)["own"](*states)[0].square().sum().backward()
    assert model["own"].lora_A.default.weight.grad.abs().sum() > 0
    assert not torch.allclose(model["own"](*states)[0], expected, atol=1e-3)


def test_decoder_of_torch_computes_our_attention():
    layer = nn.TransformerDecoderLayer(D, H, 2 * D, dropout=0.0, batch_first=True)
    states, memory = torch.randn(B, Q, D), torch.randn(B, K, D)
    mask = nn.Transformer.generate_square_subsequent_mask(Q)
    dense = layer(states, memory, mask)
    sparse_layers([layer])
    expected = layer(states, memory, mask)
    assert not torch.allclose(dense, expected, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(states, memory, mask), expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_compiled_checkpointed_pickled_and_in_half_precision(need_weights):
    module = MultiheadAttention(D, H, alpha_init=1.3)
    states = torch.randn(140, B, D)  # enough for a kernel

    def attend(*inputs):
        return module(*inputs, need_weights=need_weights)

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    again = pickle.loads(pickle.dumps(copy.deepcopy(module)))
    expected = results(module, [states] * 3, need_weights=need_weights)
    for call in (compiled, lambda *inputs: checkpoint(attend, *inputs, use_reentrant=False)):
        actual = results(module, [states] * 3, call)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    assert again(states, states, states)[0].equal(module(states, states, states)[0])
    with torch.autocast("cpu", torch.bfloat16):
        output = attend(states, states.bfloat16(), states)[0]
    torch.testing.assert_close(output.float(), expected[0], atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "multiple of num_heads"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"attention": "entmax"}, "one of softmax"),
        ({"alpha_init": 0.9}, r"alpha_init must be in \[1, 2\]"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        MultiheadAttention(**({"embed_dim": D, "num_heads": H} | options))


def test_wrong_inputs():
    module, states = MultiheadAttention(D, H), torch.randn(Q, B, D)
    with pytest.raises(ValueError, match="query, key and value must be"):
        module(states, states[:, :2], states[:, :2])
    with pytest.raises(ValueError, match=r"attn_mask must have the shape \(5, 5\) or \(12, 5, 5\)"):
        module(states, states, states, attn_mask=torch.zeros(Q, Q + 1))
    with pytest.raises(TypeError, match="key_padding_mask must be bool"):
        module(states, states, states, torch.zeros(B, Q, dtype=torch.int64))


def test_padding_of_an_encoder_reaches_the_kernels_as_a_mask_of_keys(monkeypatch):
    seen = []

    def attend(*args, **kwargs):
        seen.append(args[5].visible)
        return attend_heads(*args, **kwargs)

    monkeypatch.setattr("headwise.nn.multihead.attend_heads", attend)
    layer = nn.TransformerEncoderLayer(D, H, 2 * D, dropout=0.0, batch_first=True)
    layer.self_attn = MultiheadAttention(D, H, batch_first=True, attention="sparsemax")
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    is_padding = torch.arange(6) >= torch.tensor([[6], [4]])
    states = torch.randn(2, 6, D)
    results = []
    for padding in (is_padding, is_padding.float() * -2.0):  # the second changes scores alone
        seen.clear()
        results.append(encoder(states, src_key_padding_mask=padding))
        keys = [None if one.key_mask_BK is None else one.key_mask_BK.tolist() for one in seen]
        assert keys == [(~is_padding).tolist() if padding is is_padding else None] * 2
    assert not torch.allclose(*results)

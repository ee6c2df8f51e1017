"""Search with a prepared model, beside the model itself."""

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from torch import nn

from headwise.attention.build import AttentionFactory
from headwise.attention.heads import HeadGate
from headwise.attention.place import Place
from headwise.attention.recorder import recording
from headwise.attention.rotary import Rotary
from headwise.attention.softmax import Softmax
from headwise.config.folders import group_node
from headwise.config.schema import DecodeConfig, ModelConfig
from headwise.decode.beam import beam_search
from headwise.decode.prepared import PreparedModel, supports
from headwise.decode.translator import Translator
from headwise.losses.loss import SparsemaxLoss
from headwise.losses.output_map import SOFTMAX
from headwise.model.blocks import PostNorm, PreNorm
from headwise.model.parts import SINUSOIDAL, Parts
from headwise.model.stack import Block
from headwise.model.transformer import Transformer
from headwise.precision import autocast
from kernel_marks import needs_kernels
from number_words import PAIR

pytestmark = needs_kernels

CPU, V, EOS = torch.device("cpu"), 24, 3
PLACE = Place("decoder_self", 2, 2, 16)
FAMILY = ("softmax", "entmax15", "sparsemax", "alpha_entmax")


def build(attention="alpha_entmax", norm=PreNorm, positions=SINUSOIDAL, heads=None, **choices):
    """A model with heads of 16 whose random weights are sharp enough for hypotheses to differ."""
    config = ModelConfig("test", 2, 2, d_model=32, n_heads=2, d_ff=48, share_embeddings="none")
    config.heads = heads
    nodes = {group: group_node(group, name) for group, name in choices.items()}
    nodes["attention"] = group_node("attention", attention)
    factory = AttentionFactory(nodes, positions=positions)
    model = Transformer(config, V, V, False, factory, 3, Parts(norm, positions=positions))
    numbers = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.0)
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=numbers))
        model.output.weight[EOS] *= 2.0
    return model.eval()


def draw(n, seed=1):
    """Sources and limits."""
    numbers = random.Random(seed)
    sources = [
        [*(numbers.randrange(4, V) for _ in range(numbers.randint(1, 12))), EOS] for _ in range(n)
    ]
    return sources, [numbers.randint(1, 20) for _ in sources]


def assert_same_search(model, prepared, n, output=SOFTMAX, **options):
    sources, limits = draw(n)
    expected, actual = (
        beam_search(one, sources, limits, CPU, output=output, **options)
        for one in (model, prepared)
    )
    for first, second in zip(expected, actual, strict=True):
        assert [(h.ids, h.finished) for h in first] == [(h.ids, h.finished) for h in second]
        assert [h.score for h in first] == pytest.approx([h.score for h in second], abs=1e-4)


@pytest.mark.parametrize("norm", [PreNorm, PostNorm])
@pytest.mark.parametrize("attention", FAMILY)
def test_searches_equal_those_of_the_model(attention, norm):
    model = build(attention, norm)
    assert supports(model, torch.float32)
    prepared = PreparedModel(model, torch.float32)
    # 1 and 4 rows are multiplied in another way than 60
    shapes = ((1, 1, 1, 1.0), (7, 1, 1, 1.0), (1, 4, 4, 0.6), (15, 4, 2, -0.5))
    for n, beam, n_best, penalty in shapes:
        options = {"beam": beam, "n_best": n_best, "length_penalty": penalty}
        assert_same_search(model, prepared, n, **options)
    assert_same_search(model, prepared, 1, SparsemaxLoss().output_map, beam=3, n_best=3)


def test_layers_and_sites_that_keep_different_heads():
    model = build(
        heads={"encoder_self": [[1], [2]], "decoder_self": [[1, 2], [2]], "cross": [[1], [1, 2]]}
    )
    assert supports(model, torch.float32)
    assert_same_search(model, PreparedModel(model, torch.float32), 5, beam=3, n_best=2)


def test_caches_that_grow_and_wide_beams():
    model = build()
    prepared = PreparedModel(model, torch.float32)
    sources = [[5, 6, 7, EOS]] * 2
    with torch.no_grad():
        model.output.weight[EOS] = 0.0
    for beam in (1, 12):
        expected, actual = (
            beam_search(one, sources, [70, 33], CPU, beam) for one in (model, prepared)
        )
        assert [h[0].ids for h in expected] == [h[0].ids for h in actual]
        assert len(actual[0][0].ids) == 70


def refuse(*arguments, **options):
    raise AssertionError("the modules were called")


def assert_same_texts(actual, expected):
    for first, second in zip(actual, expected, strict=True):
        assert [text for text, _ in first.n_best] == [text for text, _ in second.n_best]
        scores = [[score for _, score in one.n_best] for one in (first, second)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_translator_uses_the_weights_of_each_call(monkeypatch):
    model, lines = build(), ["5 6 7", "", "8 9 10 11"]
    config = DecodeConfig(beam=3, n_best=2, max_length_extra=5)
    translator = Translator(model, PAIR, config)

    def by_the_modules():
        with recording(model, lambda attention, weights: None):  # not supported
            return Translator(model, PAIR, config).translate(lines)

    expected = by_the_modules()
    with monkeypatch.context() as patch:
        patch.setattr(Transformer, "decode", refuse)
        assert_same_texts(translator.translate(lines), expected)
        assert_same_texts(translator.translate(lines[:1]), expected[:1])
    for parameter in model.parameters():
        parameter.grad = torch.linspace(-1, 1, parameter.numel()).view_as(parameter)
    torch.optim.Adam(model.parameters(), lr=0.1, fused=True).step()  # raises no version
    changed = by_the_modules()
    assert [one.score for one in changed] != [one.score for one in expected]
    assert_same_texts(translator.translate(lines), changed)


def test_threads_share_a_model_in_training_mode(monkeypatch):
    """The first call ends while the second is in its encoder."""
    model, lines = build(), ["5 6 7", "8 9 10 11"]
    translator = Translator(model, PAIR, DecodeConfig(beam=3, max_length_extra=5))
    expected = translator.translate(lines)
    model.train()
    first_begun, second_begun, encode = Event(), Event(), Transformer.encode

    def encode_in_turn(*arguments):
        if not first_begun.is_set():
            first_begun.set()
            assert second_begun.wait(60)
        else:
            second_begun.set()
            first.result()
        return encode(*arguments)

    monkeypatch.setattr(Transformer, "encode", encode_in_turn)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(translator.translate, lines)
        assert first_begun.wait(60)
        assert_same_texts(translator.translate(lines), expected)
    assert_same_texts(first.result(), expected)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    "choices",
    [{"pattern": "window"}, {"scaling": "ssmax"}, {"attention": "tanh"}, {"attention": "linear"}],
)
def test_other_parts_take_the_modules(choices):
    assert not supports(build(**choices), torch.float32)


def test_positions_gates_and_other_dtypes_take_the_modules():
    assert not supports(build(positions=Rotary()), torch.float32)
    model = build()
    model.decoder.blocks[1].cross_attention.gate = HeadGate()
    assert not supports(model, torch.float32)
    model = build()
    assert supports(model, torch.bfloat16)
    assert not supports(model.double(), torch.float32)


class Uniform(Softmax):
    """Other weights, which are formed."""

    is_fused = False

    def forward(self, scores_BHQK, context):
        return super().forward(0.0 * scores_BHQK, context)


class Adapted(nn.Module):
    """A layer with a further weight beside that of another."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.weight, self.bias = layer, layer.weight, layer.bias

    def forward(self, values):
        return 2 * self.layer(values)


@pytest.mark.parametrize(
    "change",
    [
        lambda block: block.feed_forward.register_forward_hook(lambda *_: None),
        lambda block: block.self_attention.value.register_forward_pre_hook(lambda *_: None),
        lambda block: setattr(block.self_attention, "query", Adapted(block.self_attention.query)),
        lambda block: setattr(block.feed_forward, "outer", Adapted(block.feed_forward.outer)),
        lambda block: setattr(block.self_attention, "normaliser", Uniform(PLACE)),
        lambda block: block.cross_attention.key.register_parameter("bias", None),
        lambda block: setattr(block, "__class__", type("OtherBlock", (Block,), {})),
    ],
)
def test_other_modules_and_hooks_take_the_modules(change):
    model = build()
    change(model.decoder.blocks[1])
    assert not supports(model, torch.float32)


def test_weights_that_are_not_contiguous():
    model = build()
    attention = model.decoder.blocks[1].self_attention
    for layer in (attention.key, attention.output):
        layer.weight = nn.Parameter(layer.weight.detach().T.contiguous().T)
    assert_same_search(model, PreparedModel(model, torch.float32), 5, beam=3)


def test_prepared_in_inference_mode_and_used_outside():
    model = build()
    with torch.inference_mode():
        prepared = PreparedModel(model, torch.float32)
        assert_same_search(model, prepared, 5, beam=3)
    assert not prepared._layers[0]._qkv._weight_OD.is_inference()  # such weights are not packed
    assert_same_search(model, prepared, 5, beam=3)


def test_another_default_device():
    model = build()
    with torch.device("meta"):
        assert_same_search(model, PreparedModel(model, torch.float32), 5, beam=3)


def test_bfloat16_is_as_near_to_float32_as_the_model():
    ids_RT = torch.randint(4, V, (5, 9), generator=torch.Generator().manual_seed(2))
    exact, of_model, of_prepared = [], [], []
    for model in (build(attention, norm) for attention in FAMILY for norm in (PreNorm, PostNorm)):
        for one, precision, logits in (
            (model, "fp32", exact),
            (model, "bf16", of_model),
            (PreparedModel(model, torch.bfloat16), "bf16", of_prepared),
        ):
            with torch.no_grad(), autocast(CPU, precision):
                memory = one.encode(torch.tensor([[5, 6, 7, EOS]]), torch.tensor([4]))
                cache = one.make_cache()
                steps = [one.decode(ids_R1, memory, cache) for ids_R1 in ids_RT.split(1, 1)]
                logits.append(torch.cat(steps, 1).float())
    exact_NRTV = torch.stack(exact)
    error, of_modules = (
        (torch.stack(logits) - exact_NRTV).norm() for logits in (of_prepared, of_model)
    )
    # the sums of one differ from those of the other in their last bits
    assert error < 1.1 * of_modules < 0.1 * exact_NRTV.norm()

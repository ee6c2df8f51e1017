"""Search with a prepared model, beside the model itself."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from torch import nn

from headwise.attention.attention import HeadGate
from headwise.attention.place import Place
from headwise.attention.recorder import recording
from headwise.attention.rotary import Rotary
from headwise.attention.softmax import Softmax
from headwise.config.schema import DecodeConfig
from headwise.decode.beam import beam_search
from headwise.decode.prepared import PreparedModel, supports
from headwise.decode.translator import Translator
from headwise.losses.loss import SparsemaxLoss
from headwise.losses.output_map import SOFTMAX
from headwise.model.blocks import PostNorm, PreNorm
from headwise.model.stack import Block
from headwise.precision import autocast
from kernel_marks import needs_kernels
from number_words import EOS, PAIR, VOCAB_SIZE, sharp_model

pytestmark = needs_kernels

CPU = torch.device("cpu")
PLACE = Place("decoder_self", 2, 2, 16)
FAMILY = ("softmax", "entmax15", "sparsemax", "alpha_entmax")


def build(attention="alpha_entmax", **choices):
    return sharp_model(attention, **choices)


def assert_same_search(model, prepared, sources, limits, output=SOFTMAX, **options):
    expected, actual = (
        beam_search(one, sources, limits, CPU, output=output, **options)
        for one in (model, prepared)
    )
    for first, second in zip(expected, actual, strict=True):
        assert [(h.ids, h.finished) for h in first] == [(h.ids, h.finished) for h in second]
        assert [h.score for h in first] == pytest.approx([h.score for h in second], abs=1e-4)
    return actual


def assert_same_searches(model, prepared):
    numbers = random.Random(1)
    # 1 and 4 rows are multiplied in another way than 60
    for n, beam, n_best, penalty, output in (
        (1, 1, 1, 1.0, SOFTMAX),
        (7, 1, 1, 1.0, SOFTMAX),
        (1, 4, 4, 0.6, SOFTMAX),
        (15, 4, 2, -0.5, SOFTMAX),
        (1, 3, 3, 1.0, SparsemaxLoss().output_map),
    ):
        words = [numbers.choices(range(4, VOCAB_SIZE), k=numbers.randint(1, 12)) for _ in range(n)]
        options = {"beam": beam, "n_best": n_best, "length_penalty": penalty, "output": output}
        limits = [numbers.randint(1, 20) for _ in words]
        assert_same_search(model, prepared, [[*ids, EOS] for ids in words], limits, **options)


def not_contiguous():
    model = build()
    attention = model.decoder.blocks[1].self_attention
    for layer in (attention.key, attention.output):
        layer.weight = nn.Parameter(layer.weight.detach().T.contiguous().T)
    return model


KEPT = {"encoder_self": [[1], [2]], "decoder_self": [[1, 2], [2]], "cross": [[1], [1, 2]]}
MODELS = {
    **{f"{attention} after": lambda a=attention: build(a, norm=PostNorm) for attention in FAMILY},
    **{attention: lambda a=attention: build(a) for attention in FAMILY},
    "different heads in layers and sites": lambda: build(heads=KEPT),
    "weights that are not contiguous": not_contiguous,
}


@pytest.mark.parametrize("name", MODELS)
def test_searches_equal_those_of_the_model(name):
    model = MODELS[name]()
    assert supports(model, torch.float32)
    assert_same_searches(model, PreparedModel(model, torch.float32))


def held_tensors(owner):
    """Tensors of an object and of its parts, without those of modules."""
    for value in vars(owner).values():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, torch.Tensor):
                yield one
            elif type(one).__module__.startswith("headwise") and not isinstance(one, nn.Module):
                yield from held_tensors(one)


@pytest.mark.parametrize("context", [torch.inference_mode, lambda: torch.device("meta")])
def test_a_model_prepared_in_another_mode_is_used_within_and_outside(context):
    model = build()
    with context():
        prepared = PreparedModel(model, torch.float32)
        assert not any(map(torch.is_inference, held_tensors(prepared)))  # these are not packed
        assert_same_searches(model, prepared)
    assert_same_searches(model, prepared)


def test_caches_that_grow_and_wide_beams():
    model = build()
    with torch.no_grad():
        model.output.weight[EOS] = 0.0
    prepared = PreparedModel(model, torch.float32)
    for beam in (1, 12):
        found = assert_same_search(model, prepared, [[5, 6, 7, EOS]] * 2, [70, 33], beam=beam)
        assert len(found[0][0].ids) == 70


def refuse(*arguments, **options):
    raise AssertionError("the modules were called")


def assert_same_texts(actual, expected):
    for first, second in zip(actual, expected, strict=True):
        assert [text for text, _ in first.n_best] == [text for text, _ in second.n_best]
        scores = [[score for _, score in one.n_best] for one in (first, second)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_translator_uses_the_weights_of_each_call(monkeypatch):
    model, lines = build(), ["5 6 7", "", "8 9 10 11"]
    translator = Translator(model, PAIR, DecodeConfig(beam=3, n_best=2, max_length_extra=5))

    n_recorded = Counter()

    def by_the_modules():
        with recording(model, lambda attention, weights: n_recorded.update("1")):
            return translator.translate(lines)

    expected = by_the_modules()
    assert n_recorded["1"] > 4 * len(model.decoder.blocks)  # at every step, not the encoder alone
    with monkeypatch.context() as patch:
        patch.setattr(model, "decode", refuse)
        assert_same_texts(translator.translate(lines), expected)
        assert_same_texts(translator.translate(lines[:1]), expected[:1])
    for parameter in model.parameters():
        parameter.grad = torch.linspace(-1, 1, parameter.numel()).view_as(parameter)
    torch.optim.Adam(model.parameters(), lr=0.1, fused=True).step()  # raises no version
    changed = by_the_modules()
    assert [one.score for one in changed] != [one.score for one in expected]
    assert_same_texts(translator.translate(lines), changed)


def test_threads_share_a_model_in_training_mode():
    """The first call ends while the second is in its encoder."""
    model, lines = build(), ["5 6 7", "8 9 10 11"]
    translator = Translator(model, PAIR, DecodeConfig(beam=3, max_length_extra=5))
    expected = translator.translate(lines)
    model.train()
    first_begun, second_begun = Event(), Event()

    def encode_in_turn(*_):
        if not first_begun.is_set():
            first_begun.set()
            assert second_begun.wait(60)
        else:
            second_begun.set()
            first.result()

    model.encoder.register_forward_pre_hook(encode_in_turn)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(translator.translate, lines)
        assert first_begun.wait(60)
        assert_same_texts(translator.translate(lines), expected)
    assert_same_texts(first.result(), expected)
    assert all(module.training for module in model.modules())


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
    "choices",
    [
        {"pattern": "window"},
        {"scaling": "ssmax"},
        {"attention": "tanh"},
        {"attention": "linear"},
        {"positions": Rotary()},
    ],
)
def test_other_parts_take_the_modules(choices):
    assert not supports(build(**choices), torch.float32)


@pytest.mark.parametrize(
    "change",
    [
        lambda block: block.feed_forward.register_forward_hook(lambda *_: None),
        lambda block: block.self_attention.value.register_forward_pre_hook(lambda *_: None),
        lambda block: setattr(block.self_attention, "query", Adapted(block.self_attention.query)),
        lambda block: setattr(block.feed_forward, "outer", Adapted(block.feed_forward.outer)),
        lambda block: setattr(block.self_attention, "normaliser", Uniform(PLACE)),
        lambda block: setattr(block.cross_attention, "gate", HeadGate()),
        lambda block: block.cross_attention.key.register_parameter("bias", None),
        lambda block: setattr(block, "__class__", type("OtherBlock", (Block,), {})),
        lambda block: block.double(),
    ],
)
def test_other_modules_hooks_and_dtypes_take_the_modules(change):
    model = build()
    assert supports(model, torch.float32)
    assert supports(model, torch.bfloat16)
    change(model.decoder.blocks[1])
    assert not supports(model, torch.float32)


def test_bfloat16_is_as_near_to_float32_as_the_model():
    ids_RT = torch.randint(4, VOCAB_SIZE, (5, 9), generator=torch.Generator().manual_seed(2))
    exact, of_model, of_prepared = [], [], []
    for model in (
        build(attention, norm=norm) for attention in FAMILY for norm in (PreNorm, PostNorm)
    ):
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

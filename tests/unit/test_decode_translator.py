"""Translating and scoring text with a small Transformer of random, sharpened weights."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from headwise.attention.positions import Learned
from headwise.config.schema import DecodeConfig
from headwise.data.tokenizer import BYTE_MODEL, Tokenizer, TokenizerPair
from headwise.decode.translator import Translator, check_lengths
from headwise.errors import DataError
from headwise.losses.output_map import SOFTMAX, OutputMap
from headwise.model.parts import SINUSOIDAL
from headwise.precision import resolve_precision
from number_words import EOS, PAIR, VOCAB_SIZE, NumberWords, sharp_model

CPU = torch.device("cpu")


def sentences(n, seed=0, longest=14):
    numbers = random.Random(seed)
    return [
        " ".join(str(numbers.randrange(4, VOCAB_SIZE)) for _ in range(numbers.randint(1, longest)))
        for _ in range(n)
    ]


@pytest.fixture(scope="module")
def model():
    return sharp_model()


CONFIG = DecodeConfig(beam=4, n_best=3, max_length_ratio=1.0, max_length_extra=6, max_tokens=300)


def sources_of(lines):
    return [[*line, EOS] for line in PAIR.source.encode(lines)]


def assert_same(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        assert one.text == other.text
        assert [text for text, _ in one.n_best] == [text for text, _ in other.n_best]
        scores = [score for _, score in other.n_best]
        assert [score for _, score in one.n_best] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(("beam", "n_best"), [(4, 3), (1, 1)])
def test_batch_size_and_order_change_nothing(model, beam, n_best):
    lines = sentences(40, seed=2)
    config = replace(CONFIG, beam=beam, n_best=n_best)
    together = Translator(model, PAIR, replace(config, max_tokens=100_000)).translate(lines)
    alone = Translator(model, PAIR, replace(config, max_tokens=1)).translate(lines)
    assert_same(together, alone)
    assert len({translation.text for translation in alone}) > 10
    order = list(range(40))
    random.Random(1).shuffle(order)
    shuffled = Translator(model, PAIR, config).translate([lines[i] for i in order])
    assert_same(shuffled, [alone[i] for i in order])


def test_scores_follow_teacher_forcing(model):
    sources, targets = sentences(17, seed=5), [*sentences(16, seed=6), ""]
    scores = Translator(model, PAIR, replace(CONFIG, max_tokens=64)).score(sources, targets)
    alone = Translator(model, PAIR, replace(CONFIG, max_tokens=1)).score(sources, targets)
    for target, score, score_alone in zip(targets, scores, alone, strict=True):
        assert score.n_tokens == len(target.split()) + 1 == len(score.token_log_probs)
        assert score.log_prob == pytest.approx(sum(score.token_log_probs))
        assert score.token_log_probs == pytest.approx(score_alone.token_log_probs, abs=1e-4)
        assert all(value <= 0 for value in score.token_log_probs)
    # teacher forcing by hand
    source, target = sources_of(sources[:1]), PAIR.source.encode(targets[:1])[0]
    arguments = ([*source], [len(source[0])], [[2, *target]])
    output = model(*map(torch.tensor, arguments))
    expected = output.log_softmax(-1)[0, range(len(target) + 1), [*target, EOS]]
    assert scores[0].token_log_probs == pytest.approx(expected.tolist(), abs=1e-4)


def test_empty_lines_stay_empty(model):
    translator = Translator(model, PAIR, CONFIG)
    lines = ["", *sentences(3, seed=7), "   ", *sentences(2, seed=8)]
    translations = translator.translate(lines)
    assert [translations[0].text, translations[4].text] == ["", ""]
    assert translations[0].score == 0.0
    assert translations[0].n_best == (("", 0.0),)
    nonempty = [line for line in lines if line.strip()]
    assert_same([translations[i] for i in (1, 2, 3, 5, 6)], translator.translate(nonempty))
    assert translator.translate([]) == []
    assert translator.translate(["", ""]) == [translations[0], translations[0]]


def test_learned_positions_limit_source_and_translation():
    model = sharp_model(positions=Learned(32))
    translator = Translator(model, PAIR, replace(CONFIG, max_length_ratio=3.0, n_best=1))
    line = " ".join(["7"] * 31)  # and eos
    translation = translator.translate([line])[0]
    assert translation.hypotheses[0].n_tokens <= 32
    # sinusoidal positions have no limit
    assert Translator(sharp_model(), PAIR, CONFIG).translate([line + " 7 7"])[0].text


@pytest.mark.parametrize("beam", [4, 1])
@pytest.mark.parametrize("positions", [SINUSOIDAL, Learned(32)])
def test_search_limit_depends_on_source_length(beam, positions):
    """Where eos has no probability, every hypothesis has the tokens of its limit."""
    model, shapes = sharp_model(positions=positions), []
    model.encoder.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape))
    without_eos = torch.zeros(VOCAB_SIZE).index_fill(0, torch.tensor([EOS]), -torch.inf)
    output = OutputMap(lambda logits: SOFTMAX.log_probs(logits) + without_eos, is_sparse=False)
    settings = {"beam": beam, "n_best": 1, "max_length_ratio": 2.5, "max_length_extra": 1}
    config = replace(CONFIG, **settings, max_tokens=120)
    lines = [" ".join(["7"] * n) for n in (1, 2, 5, 13, 20, 3, 3, 3)]
    translations = Translator(model, PAIR, config, output=output).translate(lines)
    n_tokens = [len(translation.hypotheses[0].ids) for translation in translations]
    expected = [3, 6, 13, 33, 51, 8, 8, 8]  # of the source without eos
    longest = positions.max_positions if positions is not SINUSOIDAL else 51
    assert n_tokens == [min(n, longest) for n in expected]
    assert len(shapes) > 1
    assert all(rows * beam * length <= config.max_tokens for rows, length, *_ in shapes)


def test_whitespace_line_is_empty_with_byte_tokenizer(model):
    byte = Tokenizer(BYTE_MODEL)
    translator = Translator(model, TokenizerPair(byte, byte, True), CONFIG)
    translations = translator.translate(["", " ", "\t \u3000"])
    assert [(one.text, one.hypotheses) for one in translations] == [("", ())] * 3


class TwoLineTokenizer(NumberWords):
    def decode(self, ids):
        return ["one\ntwo\u2028three" for _ in ids]


def test_translation_is_one_line(model):
    pair = SimpleNamespace(source=NumberWords(), target=TwoLineTokenizer())
    assert Translator(model, pair, CONFIG).translate(["5"])[0].text == "one two three"


@pytest.mark.parametrize("beam", [4, 1])
def test_model_keeps_its_mode_and_stays_trainable(beam):
    model = sharp_model().train()
    model.encoder.eval()  # as if it were frozen
    long_line = [" ".join(["9"] * 40)]  # extends the table of positions
    config = replace(CONFIG, beam=beam, n_best=1)
    first = Translator(model, PAIR, config).translate(long_line)
    assert (model.training, model.encoder.training, model.decoder.training) == (True, False, True)
    assert_same(first, Translator(model, PAIR, config).translate(long_line))  # without dropout
    ids = torch.full((1, 40), 9)
    model(ids, torch.tensor([40]), ids).sum().backward()
    # no inference tensors remain: distributed training writes to parameters and buffers
    assert not any(state.is_inference() for state in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)]
)
@pytest.mark.parametrize("attention", ["tanh", "linear", "linformer"])
def test_decoding_uses_the_configured_precision(attention, precision, dtype):
    model = sharp_model(attention)
    types = set()

    def log_probs(logits):
        types.add(logits.dtype)
        return SOFTMAX.log_probs(logits)

    output = OutputMap(log_probs, is_sparse=False)
    lines = sentences(5)
    for beam, n_best in ((4, 2), (1, 1)):
        config = replace(CONFIG, beam=beam, n_best=n_best, precision=precision)
        translator = Translator(model, PAIR, config, output=output)
        assert all(len(translation.n_best) == n_best for translation in translator.translate(lines))
        assert types == {dtype}
        types.clear()
    (score,) = translator.score(["5 7 9"], ["6 8"])
    assert types == {dtype}
    full_precision = Translator(model, PAIR, CONFIG).score(["5 7 9"], ["6 8"])[0]
    assert score.log_prob == pytest.approx(full_precision.log_prob, rel=0.05)


def test_device_and_precision_are_resolved(model):
    translator = Translator(model, PAIR, replace(CONFIG, precision="auto"))
    assert translator.config.precision == resolve_precision("auto", CPU)
    moved = Translator(sharp_model(), PAIR, CONFIG, "meta").model
    assert {parameter.device.type for parameter in moved.parameters()} == {"meta"}


def test_only_learned_positions_limit_targets():
    assert sharp_model("linformer").target_embedding.max_positions is None
    assert sharp_model(positions=Learned(32)).target_embedding.max_positions == 32


LONG = " ".join(["7"] * 32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda one: one.translate(["7", LONG]), r"source line 2 has 33 tokens.*at most 32"),
        (lambda one: one.score(["7"], [LONG]), "translation line 1 has 33 tokens"),
        (lambda one: one.score(["5", "6"], ["5"]), "2 source lines but 1 translations"),
        (lambda one: one.score(["5", " "], ["5", "6"]), "source line 2 is empty"),
        (lambda one: one.translate("5"), "list of sentences"),
        (lambda one: one.score(["5"], "5"), "list of sentences"),
        (lambda _: check_lengths("target", [32, 33], 32, split="valid"), "line 2 of valid has 33"),
    ],
)
def test_lines_that_cannot_be_translated_or_scored_are_named(call, message):
    translator = Translator(sharp_model(positions=Learned(32)), PAIR, CONFIG)
    with pytest.raises(DataError, match=message):
        call(translator)

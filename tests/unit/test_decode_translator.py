"""Translating and scoring text with a small Transformer of random, sharpened weights."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from headwise.attention.build import AttentionFactory
from headwise.attention.positions import Learned
from headwise.config.folders import group_node
from headwise.config.schema import DecodeConfig, ModelConfig
from headwise.data.tokenizer import BYTE_MODEL, Tokenizer, TokenizerPair
from headwise.decode import translator as translator_module
from headwise.decode.translator import Translator, check_lengths
from headwise.errors import DataError
from headwise.losses.output_map import SOFTMAX, OutputMap
from headwise.model.blocks import PreNorm
from headwise.model.parts import SINUSOIDAL, Parts
from headwise.model.transformer import Transformer
from headwise.precision import resolve_precision
from number_words import PAIR, NumberWords

CPU = torch.device("cpu")
VOCAB_SIZE, EOS = 24, 3


def build(attention="softmax", positions=SINUSOIDAL, norm=PreNorm):
    config = ModelConfig("test", 2, 2, d_model=16, n_heads=2, d_ff=32, share_embeddings="none")
    factory = AttentionFactory({"attention": group_node("attention", attention)})
    model = Transformer(
        config, VOCAB_SIZE, VOCAB_SIZE, False, factory, 3, Parts(norm, positions=positions)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.5)  # random weights alone give almost constant logits
        model.output.weight[EOS] *= 2.0  # and hardly ever eos
    return model.eval()


def sentences(n, seed=0, longest=14):
    numbers = random.Random(seed)
    return [
        " ".join(str(numbers.randrange(4, VOCAB_SIZE)) for _ in range(numbers.randint(1, longest)))
        for _ in range(n)
    ]


@pytest.fixture(scope="module")
def model():
    return build()


CONFIG = DecodeConfig(beam=4, n_best=3, max_length_ratio=1.0, max_length_extra=6, max_tokens=300)


def sources_of(lines):
    return [[*line, EOS] for line in PAIR.source.encode(lines)]


def assert_same(actual, expected):
    assert [translation.text for translation in actual] == [
        translation.text for translation in expected
    ]
    for translation, expected_translation in zip(actual, expected, strict=True):
        assert [text for text, _ in translation.n_best] == [
            text for text, _ in expected_translation.n_best
        ]
        for (_, score), (_, expected_score) in zip(
            translation.n_best, expected_translation.n_best, strict=True
        ):
            assert score == pytest.approx(expected_score, abs=1e-4)


@pytest.mark.parametrize(("beam", "n_best"), [(4, 3), (1, 1)])
def test_batch_size_and_order_change_nothing(model, beam, n_best):
    lines = sentences(20, seed=2)
    config = replace(CONFIG, beam=beam, n_best=n_best)
    together = Translator(model, PAIR, replace(config, max_tokens=100_000)).translate(lines)
    alone = Translator(model, PAIR, replace(config, max_tokens=1)).translate(lines)
    assert_same(together, alone)
    assert len({translation.text for translation in alone}) > 10
    order = list(range(20))
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
    model = build(positions=Learned(32))
    translator = Translator(model, PAIR, replace(CONFIG, max_length_ratio=3.0, n_best=1))
    line = " ".join(["7"] * 31)  # and eos
    translation = translator.translate([line])[0]
    assert translation.hypotheses[0].n_tokens <= 32
    with pytest.raises(DataError, match=r"source line 2 has 33 tokens.*takes at most 32"):
        translator.translate(["7", line + " 7"])
    with pytest.raises(DataError, match="translation line 1 has 33 tokens"):
        translator.score(["7"], [line + " 7"])
    # sinusoidal positions have no limit
    assert Translator(build(), PAIR, CONFIG).translate([line + " 7 7"])[0].text


@pytest.mark.parametrize("beam", [4, 1])
@pytest.mark.parametrize("positions", [SINUSOIDAL, Learned(32)])
def test_search_limit_depends_on_source_length(monkeypatch, beam, positions):
    limits = {}
    search = translator_module.beam_search

    def spy(model, sources, source_limits, *rest, **options):
        limits.update(zip(map(len, sources), source_limits, strict=True))
        assert len(sources) * beam * max(map(len, sources)) <= CONFIG.max_tokens
        return search(model, sources, source_limits, *rest, **options)

    monkeypatch.setattr(translator_module, "beam_search", spy)
    config = replace(CONFIG, beam=beam, n_best=1, max_length_ratio=2.5, max_length_extra=1)
    lines = [" ".join(["7"] * n) for n in (1, 2, 5, 13, 20)]
    Translator(build(positions=positions), PAIR, config).translate(lines)
    long_limits = (33, 51) if positions is SINUSOIDAL else (32, 32)
    assert limits == {
        2: 3,
        3: 6,
        6: 13,
        14: long_limits[0],
        21: long_limits[1],
    }  # the limits exclude eos


def test_whitespace_line_is_empty_with_byte_tokenizer(model):
    byte = Tokenizer(BYTE_MODEL)
    translator = Translator(model, TokenizerPair(byte, byte, True), CONFIG)
    translations = translator.translate(["", " ", "\t \u3000"])
    assert [(translation.text, translation.hypotheses) for translation in translations] == [
        ("", ())
    ] * 3
    with pytest.raises(DataError, match="source line 1 is empty"):
        translator.score([" "], [" "])


class TwoLineTokenizer(NumberWords):
    def decode(self, ids):
        return ["one\ntwo\u2028three" for _ in ids]


def test_translation_is_one_line(model):
    pair = SimpleNamespace(source=NumberWords(), target=TwoLineTokenizer())
    assert Translator(model, pair, CONFIG).translate(["5"])[0].text == "one two three"


@pytest.mark.parametrize("beam", [4, 1])
def test_model_keeps_its_mode_and_stays_trainable(beam):
    model = build().train()
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
    model = build(attention)
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
    moved = Translator(build(), PAIR, CONFIG, "meta").model
    assert {parameter.device.type for parameter in moved.parameters()} == {"meta"}


def test_only_learned_positions_limit_targets():
    assert build("linformer").target_embedding.max_positions is None
    limit = build(positions=Learned(32)).target_embedding.max_positions
    with pytest.raises(DataError, match="target line 2 of valid has 33 tokens"):
        check_lengths("target", [32, 33], limit, split="valid")


def test_unequal_or_empty_lines_cannot_be_scored(model):
    translator = Translator(model, PAIR, CONFIG)
    with pytest.raises(DataError, match="2 source lines but 1 translations"):
        translator.score(["5", "6"], ["5"])
    with pytest.raises(DataError, match="source line 2 is empty"):
        translator.score(["5", ""], ["5", "6"])

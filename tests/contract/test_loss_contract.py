"""Contract of every loss in `conf/loss/`, found by glob.

Axes: B batch, T target length, V vocabulary.
"""

import random
from dataclasses import replace

import pytest
import torch

from headwise.attention.build import AttentionFactory
from headwise.attention.positions import Learned
from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import instantiate
from headwise.config.schema import DecodeConfig, ModelConfig
from headwise.data.loader import BatchLoader
from headwise.data.tokenizer import EOS
from headwise.decode.beam import beam_search
from headwise.decode.translator import Translator
from headwise.losses.loss import Loss
from headwise.model.blocks import PostNorm
from headwise.model.parts import Parts
from headwise.model.transformer import Transformer
from headwise.tasks.translation.batches import TrainingPairs
from headwise.tasks.translation.store import EncodedSplit
from headwise.train.optim import build_optimizer
from number_words import PAIR
from slow_marks import slow_but

LOSSES = group_choices("loss")
B, T = 3, 5
every_loss = pytest.mark.parametrize("name", LOSSES)
every_vocabulary = pytest.mark.parametrize("vocab_size", [11, 1500])


def build(name):
    loss = instantiate(group_node("loss", name), "loss")
    assert isinstance(loss, Loss)
    return loss


def example(vocab_size, dtype=torch.float32):
    generator = torch.Generator().manual_seed(4)
    logits_BTV = 2 * torch.randn(B, T, vocab_size, generator=generator)
    target_BT = torch.randint(vocab_size, (B, T), generator=generator)
    target_BT[0, 3:] = 0
    logits_BTV.scatter_(-1, target_BT[:, :, None], -1.0)  # no target has the largest logit
    return logits_BTV.to(dtype).requires_grad_(), target_BT


@every_loss
@every_vocabulary
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_and_gradients_are_finite(name, vocab_size, dtype):
    logits_BTV, target_BT = example(vocab_size, dtype)
    sums = build(name)(logits_BTV, target_BT)
    assert sums.loss.shape == sums.measure.shape == ()
    assert sums.loss.dtype == sums.measure.dtype == torch.float32
    assert torch.isfinite(sums.loss)
    assert torch.isfinite(sums.measure)
    assert not sums.measure.requires_grad
    (gradient,) = torch.autograd.grad(sums.loss, logits_BTV)
    assert gradient.dtype == dtype
    assert torch.isfinite(gradient).all()
    # probabilities and targets both sum to one
    assert gradient.float().sum(-1).abs().max() < (1e-5 if dtype is torch.float32 else 0.05)
    assert (gradient.gather(-1, target_BT[:, :, None]) < 0).all()


@every_loss
@every_vocabulary
def test_class_0_is_not_special(name, vocab_size):
    loss = build(name)
    logits_BTV, target_BT = example(vocab_size)
    order = torch.arange(vocab_size)
    order[[0, 7]] = order[[7, 0]]
    renumbered = loss(logits_BTV[..., order], order[target_BT])
    sums = loss(logits_BTV, target_BT)
    torch.testing.assert_close((renumbered.loss, renumbered.measure), (sums.loss, sums.measure))
    zero_targets = loss(logits_BTV[:1, 3:], torch.zeros(1, 2, dtype=torch.long))
    assert zero_targets.loss > 0


@every_loss
@every_vocabulary
def test_sums_of_batches_add_up(name, vocab_size):
    loss = build(name)
    logits_BTV, target_BT = example(vocab_size)
    whole = loss(logits_BTV, target_BT)
    parts = [loss(logits_BTV[:1], target_BT[:1]), loss(logits_BTV[1:], target_BT[1:])]
    torch.testing.assert_close(parts[0].loss + parts[1].loss, whole.loss)
    torch.testing.assert_close(parts[0].measure + parts[1].measure, whole.measure)


@every_loss
@every_vocabulary
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_sum_to_one_and_give_the_measure(name, vocab_size, dtype):
    loss = build(name)
    logits_BTV, target_BT = example(vocab_size, dtype)
    log_probs_BTV = loss.log_probs(logits_BTV.detach())
    assert log_probs_BTV.shape == logits_BTV.shape
    assert log_probs_BTV.dtype == torch.float32
    torch.testing.assert_close(log_probs_BTV.exp().sum(-1), torch.ones(B, T))
    assert loss.output_map.log_probs(logits_BTV.detach()).equal(log_probs_BTV)
    is_impossible_BTV = log_probs_BTV == -torch.inf
    assert bool(is_impossible_BTV.any()) == loss.output_map.is_sparse
    expected = {
        "nll": -log_probs_BTV.gather(-1, target_BT[:, :, None])[:, :, 0],
        "support": (~is_impossible_BTV).sum(-1).float(),
    }
    measure = loss(logits_BTV, target_BT).measure
    torch.testing.assert_close(measure, expected[loss.measure].sum())


N_SYMBOLS, LONGEST, FIRST_ID, N_UPDATES, CPU = 6, 4, 4, 160, torch.device("cpu")
ADAM = {"_target_": "torch.optim.Adam", "lr": 1e-2, "betas": [0.9, 0.98]}
SEARCH = DecodeConfig(beam=3, n_best=2, max_length_ratio=1.0, max_length_extra=3)


def sequences(n, seed):
    generator = random.Random(seed)
    symbols = range(FIRST_ID, FIRST_ID + N_SYMBOLS)
    return [generator.sample(symbols, generator.randint(1, LONGEST)) for _ in range(n)]


def make_model():
    config = ModelConfig(
        "reverse",
        encoder_layers=1,
        decoder_layers=1,
        d_model=32,
        n_heads=4,
        d_ff=64,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
    )
    torch.manual_seed(1)
    factory = AttentionFactory({"attention": group_node("attention", "softmax")})
    n_ids = FIRST_ID + N_SYMBOLS
    return Transformer(
        config, n_ids, n_ids, True, factory, 1, Parts(PostNorm, positions=Learned(16))
    )


def train(model, loss):
    """Train on copying, which is learned quickly; returns the loss per token of each update."""
    examples = sequences(1000, seed=1)
    loader = BatchLoader(TrainingPairs(EncodedSplit.from_lists(examples, examples), 300, seed=1))
    optimizer = build_optimizer(ADAM, model)
    model.train()
    losses = []
    for _ in range(N_UPDATES):
        batch = next(loader)
        output = model(**model.inputs(batch))
        mean = loss(batch.scored(output), batch.targets_R).loss / batch.n_targets
        mean.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean.item())
    model.eval()
    return losses


@pytest.fixture(scope="module", params=slow_but(LOSSES, "cross_entropy", "entmax"))
def trained(request):
    model, loss = make_model(), build(request.param)
    return model, loss, train(model, loss)


def test_training_lowers_the_loss(trained):
    losses = trained[2]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@pytest.mark.parametrize("search", [SEARCH, replace(SEARCH, beam=1, n_best=1)])
def test_trained_model_translates_text(trained, search):
    model, loss, _ = trained
    lines = PAIR.target.decode(sequences(20, seed=2))
    translator = Translator(model, PAIR, search, output=loss.output_map)
    translations = translator.translate(["", *lines])
    assert translations[0].search is None
    assert sum(t.text == line for t, line in zip(translations[1:], lines, strict=True)) >= 10
    for translation in translations[1:]:
        assert (translation.search is not None) == loss.output_map.is_sparse
        assert -1e9 < translation.score <= 0
    scores = translator.score(lines, [translation.text for translation in translations[1:]])
    for translation, score in zip(translations[1:], scores, strict=True):
        best = translation.hypotheses[0]
        log_prob = sum(score.token_log_probs[: best.n_tokens])
        assert log_prob == pytest.approx(best.log_prob, abs=1e-4)


def test_cached_equals_uncached(trained):
    model, loss, _ = trained
    sources = [[*line, EOS] for line in sequences(20, seed=3)]
    limits = [LONGEST + 3] * len(sources)
    cached, uncached = (
        beam_search(
            model, sources, limits, CPU, beam=3, n_best=2, cached=flag, output=loss.output_map
        )
        for flag in (True, False)
    )
    for first, second in zip(cached, uncached, strict=True):
        assert [hypothesis.ids for hypothesis in first] == [hypothesis.ids for hypothesis in second]
        assert [h.score for h in first] == pytest.approx([h.score for h in second], abs=1e-4)

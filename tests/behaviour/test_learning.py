"""Every attention in `conf/attention/` and every loss in `conf/loss/`, found by glob, learns.

Models reverse or copy short sequences in which no symbol occurs twice, and fill masked symbols of
palindromes. Eight narrow heads and 350 updates, because sparsemax, whose gradient is zero wherever
its weight is, learns most slowly.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.attention.build import AttentionFactory, unsupported_sites
from headwise.attention.positions import Learned
from headwise.config.instantiate import instantiate
from headwise.config.register import group_choices, group_node
from headwise.config.schema import SITES, DecodeConfig, ModelConfig
from headwise.data.loader import BatchLoader
from headwise.data.tokenizer import BOS, BYTE_MODEL, EOS, N_SPECIALS, Tokenizer
from headwise.decode.beam import beam_search
from headwise.decode.translator import Translator
from headwise.losses.loss import CrossEntropy
from headwise.model.blocks import PostNorm
from headwise.model.parts import Parts
from headwise.model.places import site_alone
from headwise.model.single import SingleStack
from headwise.model.transformer import Transformer
from headwise.tasks.measure import measure_losses
from headwise.tasks.stream.masked_lm import (
    MaskedEvaluationWindows,
    MaskedLM,
    MaskedTrainingWindows,
    Masking,
    MaskSettings,
    is_correct,
)
from headwise.tasks.stream.stream import TokenStream
from headwise.tasks.translation.batches import TrainingPairs
from headwise.tasks.translation.corpus import EncodedSplit
from headwise.train.distributed import Ranks
from headwise.train.optim import Cosine, build_optimizer, set_learning_rate
from number_words import PAIR
from slow_marks import slow_but

CPU = torch.device("cpu")
N_SYMBOLS, LONGEST, WINDOW = 8, 4, 4
LIMIT, N_IDS = LONGEST + 3, N_SPECIALS + N_SYMBOLS  # LIMIT of a target
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
CONFIG = ModelConfig("learning", 1, 1, d_model=32, n_heads=8, d_ff=64, **NO_DROPOUT)
PARTS = Parts(PostNorm, positions=Learned(16))
ADAM = {"_target_": "torch.optim.Adam", "lr": 1e-2, "betas": [0.9, 0.98]}
MASKING = Masking(MaskSettings(0.25, 0.8, 0.1), Tokenizer(BYTE_MODEL))
ATTENTIONS, LOSSES = group_choices("attention"), group_choices("loss")
SEARCH = DecodeConfig(beam=3, n_best=2, max_length_ratio=1.0, max_length_extra=3)


def train(model, examples, n_updates, loss):
    """The loss per target of each update."""
    loader, schedule = BatchLoader(examples), Cosine(30, n_updates)
    optimizer, losses = build_optimizer(ADAM, model), []
    model.train()
    for update in range(1, n_updates + 1):
        batch = next(loader)
        states_RD = batch.scored(model.states(**model.inputs(batch)))
        mean = model.output.loss(states_RD, batch.targets_R, loss).loss / batch.n_targets
        mean.backward()
        set_learning_rate(optimizer, schedule.learning_rate(update, ADAM["lr"]))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean.item())
    model.eval()
    return losses


def sequences(n, seed):
    generator, symbols = random.Random(seed), range(N_SPECIALS, N_IDS)
    return [generator.sample(symbols, generator.randint(1, LONGEST)) for _ in range(n)]


def trained_on(change, n_updates, loss, attention="softmax"):
    """A model with this attention at all sites that support it, and its losses in training."""
    node, softmax = group_node("attention", attention), group_node("attention", "softmax")
    sites = {site: node for site in SITES if site not in unsupported_sites(node, "attention")}
    factory = AttentionFactory({"attention": softmax}, {"attention": sites})
    torch.manual_seed(1)
    model = Transformer(CONFIG, N_IDS, N_IDS, True, factory, 1, PARTS)
    examples = sequences(3000, seed=1)
    split = EncodedSplit.from_lists(examples, [change(example) for example in examples])
    return model, train(model, TrainingPairs(split, 300, seed=1), n_updates, loss)


def searched(model, examples, **settings):
    sources = [[*example, EOS] for example in examples]
    return beam_search(model, sources, [LIMIT] * len(sources), CPU, **settings)


@pytest.mark.parametrize("attention", slow_but(ATTENTIONS, "alpha_entmax"))
def test_every_attention_learns_to_reverse(attention):
    model, _ = trained_on(lambda ids: ids[::-1], 350, CrossEntropy(0.0), attention)
    examples = sequences(100, seed=2)
    for beam in (1, 3):
        outputs = zip(searched(model, examples, beam=beam), examples, strict=True)
        assert sum(list(best.ids) == ids[::-1] for (best,), ids in outputs) > 90


def palindromes(n, seed):
    halves = N_SPECIALS + np.random.default_rng(seed).integers(4, size=(n, WINDOW // 2))
    return TokenStream(np.concatenate((halves, halves[:, ::-1]), 1).flatten().astype(np.uint16))


NOT_CAUSAL = [
    name
    for name in ATTENTIONS
    if MaskedLM.site not in unsupported_sites(group_node("attention", name), "attention")
]


@pytest.mark.parametrize("attention", slow_but(NOT_CAUSAL, "softmax"))
def test_every_attention_learns_to_fill_masked_symbols(attention):
    """One of four symbols is masked, replaced or unchanged; it equals the mirrored one."""
    factory = AttentionFactory(
        {"attention": group_node("attention", attention)}, present=[MaskedLM.site]
    )
    torch.manual_seed(1)
    site, n_ids = site_alone(CONFIG, MaskedLM.site, "tokens"), MASKING.tokenizer.vocab_size
    model, loss = SingleStack(CONFIG, n_ids, site, factory, 1, PARTS), CrossEntropy(0.0)
    sizes = WINDOW, 512, 1, 1, True
    train(
        model, MaskedTrainingWindows(palindromes(4000, 1), BOS, *sizes, masking=MASKING), 150, loss
    )
    windows = MaskedEvaluationWindows(palindromes(300, 2), BOS, WINDOW, 512, masking=MASKING)
    items = measure_losses(model, loss, windows, Ranks(0, 1, CPU), is_correct).items
    *_, n, n_correct = items.sum(0)
    assert n == 300
    assert n_correct > 0.7 * n, n_correct  # by chance 0.3 of them


@pytest.fixture(scope="module", params=slow_but(LOSSES, "cross_entropy", "entmax"))
def copying(request):
    """A model trained with a loss to copy, which is learned quickly; the loss; its values."""
    loss = instantiate(group_node("loss", request.param), "loss")
    model, losses = trained_on(list, 250, loss)
    return model, loss, losses


def test_training_lowers_every_loss(copying):
    losses = copying[2]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@pytest.mark.parametrize("search", [SEARCH, replace(SEARCH, beam=1, n_best=1)])
def test_model_of_every_loss_translates_text(copying, search):
    model, loss, _ = copying
    lines = PAIR.target.decode(sequences(20, seed=2))
    translator = Translator(model, PAIR, search, output=loss.output_map)
    empty, *translations = translator.translate(["", *lines])
    assert empty.search is None
    assert sum(t.text == line for t, line in zip(translations, lines, strict=True)) >= 10
    scores = translator.score(lines, [translation.text for translation in translations])
    for translation, score in zip(translations, scores, strict=True):
        assert (translation.search is not None) == loss.output_map.is_sparse
        assert -1e9 < translation.score <= 0
        best = translation.hypotheses[0]
        log_prob = sum(score.token_log_probs[: best.n_tokens])
        assert log_prob == pytest.approx(best.log_prob, abs=1e-4)


def test_cached_search_equals_the_uncached_with_every_loss(copying):
    model, loss, _ = copying
    settings = {"beam": 3, "n_best": 2, "output": loss.output_map}
    results = [
        searched(model, sequences(20, seed=3), cached=cached, **settings)
        for cached in (True, False)
    ]
    for first, second in zip(*results, strict=True):
        assert [hypothesis.ids for hypothesis in first] == [hypothesis.ids for hypothesis in second]
        assert [h.score for h in first] == pytest.approx([h.score for h in second], abs=1e-4)

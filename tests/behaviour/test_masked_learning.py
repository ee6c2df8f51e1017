"""Every variant at `encoder_self`, found by glob, learns to fill masked symbols of palindromes.

A masked symbol equals the one at the mirrored position. One of the four symbols of a window is
chosen; it is masked, replaced by another token, or unchanged.
"""

import numpy as np
import pytest
import torch

from headwise.attention.build import AttentionFactory, unsupported_sites
from headwise.attention.positions import Learned
from headwise.config.folders import group_choices, group_node
from headwise.config.schema import ModelConfig
from headwise.data.loader import BatchLoader
from headwise.data.tokenizer import BOS, BYTE_MODEL, N_SPECIALS, Tokenizer
from headwise.losses.loss import CrossEntropy
from headwise.model.blocks import PostNorm
from headwise.model.parts import Parts
from headwise.model.places import site_alone
from headwise.model.single import SingleStack
from headwise.tasks.measure import measure_losses
from headwise.tasks.stream.masked_lm import SITE, is_correct
from headwise.tasks.stream.masking import (
    MaskedEvaluationWindows,
    MaskedTrainingWindows,
    Masking,
    MaskSettings,
)
from headwise.tasks.stream.stream import TokenStream
from headwise.train.distributed import Ranks
from headwise.train.optim import build_optimizer, set_learning_rate
from headwise.train.schedule import Cosine
from slow_marks import slow_but

VARIANTS = [
    name
    for name in group_choices("attention")
    if SITE not in unsupported_sites(group_node("attention", name), "attention")
]
N_SYMBOLS, WINDOW, MAX_TOKENS = 4, 4, 512
LEARNING_RATE, N_UPDATES, WARMUP_UPDATES = 1e-2, 150, 30
CONFIG = ModelConfig(
    "palindromes",
    encoder_layers=1,
    decoder_layers=1,
    d_model=32,
    n_heads=8,
    d_ff=64,
    dropout=0.0,
    attention_dropout=0.0,
    activation_dropout=0.0,
)
MASKING = Masking(MaskSettings(0.25, 0.8, 0.1), Tokenizer(BYTE_MODEL))


def palindromes(n, seed):
    halves = N_SPECIALS + np.random.default_rng(seed).integers(N_SYMBOLS, size=(n, WINDOW // 2))
    return TokenStream(np.concatenate((halves, halves[:, ::-1]), 1).flatten().astype(np.uint16))


@pytest.mark.parametrize("variant", slow_but(VARIANTS, "softmax"))
def test_every_variant_learns_to_fill_masked_symbols(variant):
    factory = AttentionFactory({"attention": group_node("attention", variant)}, present=[SITE])
    torch.manual_seed(1)
    site, parts = site_alone(CONFIG, SITE, "tokens"), Parts(PostNorm, positions=Learned(WINDOW))
    model = SingleStack(CONFIG, MASKING.tokenizer.vocab_size, site, factory, 1, parts)
    sizes = WINDOW, MAX_TOKENS, 1, 1, True
    examples = MaskedTrainingWindows(palindromes(4000, 1), BOS, *sizes, masking=MASKING)
    loader, loss = BatchLoader(examples), CrossEntropy(0.0)
    adam = {"_target_": "torch.optim.Adam", "lr": LEARNING_RATE, "betas": [0.9, 0.98]}
    optimizer, schedule = build_optimizer(adam, model), Cosine(WARMUP_UPDATES, N_UPDATES)
    model.train()
    for update in range(1, N_UPDATES + 1):
        batch = next(loader)
        states_RD = batch.scored(model.states(**model.inputs(batch)))
        (model.output.loss(states_RD, batch.targets_R, loss).loss / batch.n_targets).backward()
        set_learning_rate(optimizer, schedule.learning_rate(update, LEARNING_RATE))
        optimizer.step()
        optimizer.zero_grad()
    windows = MaskedEvaluationWindows(palindromes(300, 2), BOS, WINDOW, MAX_TOKENS, masking=MASKING)
    ranks = Ranks(0, 1, torch.device("cpu"))
    *_, n, n_correct = measure_losses(model, loss, windows, ranks, is_correct).items.sum(0)
    assert n == 300
    assert n_correct > 0.7 * n, n_correct  # by chance 0.3 of them

"""Every variant in `conf/attention/`, found by glob, learns to reverse short sequences.

No symbol occurs twice in a sequence. 250 updates and eight narrow heads, because sparsemax, whose
gradient is zero wherever its weight is, learns most slowly.
"""

import random

import pytest
import torch

from headwise.attention.build import AttentionFactory, unsupported_sites
from headwise.attention.positions import Learned
from headwise.config.folders import group_choices, group_node
from headwise.config.schema import SITES, ModelConfig
from headwise.data.loader import BatchLoader
from headwise.data.tokenizer import EOS
from headwise.decode.beam import beam_search
from headwise.losses.loss import CrossEntropy
from headwise.model.blocks import PostNorm
from headwise.model.parts import Parts
from headwise.model.transformer import Transformer
from headwise.tasks.translation.batches import TrainingPairs
from headwise.tasks.translation.store import EncodedSplit
from headwise.train.optim import build_optimizer, set_learning_rate
from headwise.train.schedule import Cosine
from slow_marks import slow_but

CPU = torch.device("cpu")
N_SYMBOLS, LONGEST, FIRST_ID = 8, 4, 4
CONFIG = ModelConfig(
    "reverse",
    encoder_layers=1,
    decoder_layers=1,
    d_model=32,
    n_heads=8,
    d_ff=64,
    dropout=0.0,
    attention_dropout=0.0,
    activation_dropout=0.0,
)
LEARNING_RATE, N_UPDATES, WARMUP_UPDATES, MAX_TOKENS = 1e-2, 350, 30, 300
ADAM = {"_target_": "torch.optim.Adam", "lr": LEARNING_RATE, "betas": [0.9, 0.98]}


def sequences(n, seed):
    generator = random.Random(seed)
    symbols = range(FIRST_ID, FIRST_ID + N_SYMBOLS)
    return [generator.sample(symbols, generator.randint(1, LONGEST)) for _ in range(n)]


def make_model(variant):
    """The variant at every site that supports it, softmax at the others."""
    node = group_node("attention", variant)
    unsupported = unsupported_sites(node, "attention")
    sites = {site: node for site in SITES if site not in unsupported}
    factory = AttentionFactory(
        {"attention": group_node("attention", "softmax")}, {"attention": sites}
    )
    torch.manual_seed(1)
    n_ids = FIRST_ID + N_SYMBOLS
    return Transformer(
        CONFIG, n_ids, n_ids, True, factory, 1, Parts(PostNorm, positions=Learned(16))
    )


def train(model, examples):
    split = EncodedSplit.from_lists(examples, [example[::-1] for example in examples])
    loader = BatchLoader(TrainingPairs(split, MAX_TOKENS, seed=1))
    loss, schedule = CrossEntropy(0.0), Cosine(WARMUP_UPDATES, N_UPDATES)
    optimizer = build_optimizer(ADAM, model)
    model.train()
    for update in range(1, N_UPDATES + 1):
        batch = next(loader)
        output = model(**model.inputs(batch))
        (loss(batch.scored(output), batch.targets_R).loss / batch.n_targets).backward()
        set_learning_rate(optimizer, schedule.learning_rate(update, LEARNING_RATE))
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


@pytest.mark.parametrize("variant", slow_but(group_choices("attention"), "alpha_entmax"))
def test_every_variant_learns_to_reverse(variant):
    model = make_model(variant)
    train(model, sequences(3000, seed=1))
    examples = sequences(100, seed=2)
    sources = [[*sequence, EOS] for sequence in examples]
    limits = [LONGEST + 3] * len(sources)
    for beam in (1, 3):
        outputs = beam_search(model, sources, limits, CPU, beam)
        correct = [
            list(best.ids) == sequence[::-1]
            for (best,), sequence in zip(outputs, examples, strict=True)
        ]
        assert sum(correct) > 90, (variant, sum(correct))

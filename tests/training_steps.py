"""Updates of small models on any device, and the settings to test on every kind of device."""

import numpy as np
import torch

from headwise.attention.build import AttentionFactory
from headwise.config.instantiate import instantiate
from headwise.config.register import group_choices, group_node
from headwise.config.schema import ModelConfig, TrainerConfig
from headwise.losses.loss import CrossEntropy
from headwise.metrics.metric import Measured, Metric
from headwise.model.build import build_model
from headwise.model.transformer import Transformer
from headwise.runs.folder import RunFolder
from headwise.runs.log import RunLog
from headwise.tasks.translation.batches import collate
from headwise.tasks.translation.corpus import EncodedSplit
from headwise.train.distributed import Ranks
from headwise.train.interrupt import StopRequest
from headwise.train.optim import Constant
from headwise.train.step import TrainingStep, build_step
from headwise.train.trainer import Trainer, Validation

VOCAB_SIZE = 40
VARIANTS = [
    *([f"attention={choice}"] for choice in group_choices("attention") if choice != "linformer"),
    ["attention=linformer", "attention.max_length=512"],  # longer sentences are rejected
    *([f"pattern={choice}", "attention=entmax15"] for choice in group_choices("pattern")),
    *([f"scaling={choice}"] for choice in group_choices("scaling")),
    *([f"gates={choice}"] for choice in group_choices("gates")),
    *([f"repulsion={choice}"] for choice in group_choices("repulsion")),
    ["attention.depends_on=query"],
    ["model.cls_tokens=2"],
    ["model.recompute=true"],
]
PAIRS = EncodedSplit.from_lists(
    [[4, 5], [6, 7, 8], [5, 5, 5, 5], [8], [4, 6]], [[5, 4, 4], [8], [6, 7], [4, 4, 4, 4], [5]]
)
CONFIG = TrainerConfig(
    max_updates=4, log_every=1, validate_every=2, save_every=2, keep=2, monitor="loss",
    precision="fp32", progress=False,
)  # fmt: skip
# Settings whose updates are the same on a CPU and a GPU, where the host does not wait.
UPDATES = [
    *VARIANTS,
    *([f"attention={name}", "pattern=strided"] for name in ("softmax", "alpha_entmax")),
    *([f"attention={name}", "pattern=fixed"] for name in ("softmax", "tanh")),
    ["attention=alpha_entmax", "scaling=length"],
    ["attention=alpha_entmax", "model.recompute=true"],
    ["attention=alpha_entmax", "gates=hard_concrete"],
    ["positions=learned", "model.cls_tokens=4"],
    ["model=deep", "model.encoder_layers=2", "model.decoder_layers=2", "model.d_model=32"],
    ["optimizer=adamw", "trainer.clip_norm=1"],
    *([f"loss={name}"] for name in ("entmax", "entmax15", "sparsemax")),
]


def step_of(config, device, vocab_size=VOCAB_SIZE):
    model = build_model(config, vocab_size, vocab_size, joint=True).to(device)
    return build_step(config, model, instantiate(config.loss, "loss"), Ranks(0, 1, device))


def batch(*lengths):
    """A batch of rows of these lengths, in host memory."""
    rows = [[4 + i % 30 for i in range(n)] for n in lengths]
    split = EncodedSplit.from_lists(rows, rows[::-1])
    return collate(split, np.arange(len(rows), dtype=np.int32))


class Loader:
    """Repeat batches of these rows of a split."""

    def __init__(self, split, *rows):
        self.batches = [collate(split, np.array(list(some), dtype=np.int32)) for some in rows]
        self.position = 0

    def __next__(self):
        self.position += 1
        return self.batches[(self.position - 1) % len(self.batches)]

    def state(self):
        return {"epoch": 1, "batch": self.position}

    def restore(self, state):
        self.position = state["batch"]


def small_model(layers=1, heads=2, dropout=0.0, attention="alpha_entmax", **settings):
    """A model with nine vocabulary entries; always the same weights. Settings: of the attention."""
    node = {**group_node("attention", attention), **settings}
    factory = AttentionFactory({"attention": node}, dropout=dropout)
    sizes = (layers, layers, 8, heads, 16)
    config = ModelConfig("test", *sizes, dropout=dropout, activation_dropout=0.0)
    torch.manual_seed(1)
    return Transformer(config, 9, 9, True, factory, seed=1)


def validation(**values):
    """Validation of one item whose sums are the scores; a higher `bleu` is better."""
    better = {"bleu": "higher"}
    metrics = [
        Metric(name, better.get(name, "lower"), lambda sums: sums[0], [column], "", "", "")
        for column, name in enumerate(values)
    ]
    return Validation([Measured(np.array([list(values.values())]), metrics)])


def make_trainer(folder, model=None, **changes):
    """A trainer with plain SGD, so that a step is the gradient, and made-up scores."""
    model = model or small_model()
    scores = iter(changes.pop("scores", [3.0, 2.0, 1.0, 0.5]))
    run = RunFolder(folder)
    run.make()
    step_options = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=changes.pop("lr", 1.0)),
        "schedule": Constant(),
        "config": CONFIG,
        "transform": lambda update: None,
    }
    step_options |= {name: changes.pop(name) for name in set(step_options) & set(changes)}
    parts = {
        "loader": Loader(PAIRS, [0, 1], [2, 3], [4]),
        "validate": lambda whole: validation(loss=next(scores)),
        "reported": dict,
        "stop": StopRequest(),
        **changes,
    }
    ranks = Ranks(0, 1, torch.device("cpu"))
    step = TrainingStep(model, CrossEntropy(0.1), seed=1, ranks=ranks, **step_options)
    return Trainer(step, folder=run, records=RunLog(run), **parts)

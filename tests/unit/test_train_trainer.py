import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.losses.loss import CrossEntropy
from headwise.tasks.translation.batches import collate
from headwise.track.jsonl import read_jsonl
from headwise.train.checkpoint import load_checkpoint
from training_steps import CONFIG, PAIRS, Loader, make_trainer, small_model, validation


def gradients(model, batch, n_tokens):
    model.train()
    logits_BTV = model(**model.inputs(batch))
    loss = CrossEntropy(0.1)(batch.scored(logits_BTV), batch.targets_R).loss / n_tokens
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("rows", [[[0, 1, 2, 3, 4]], [[0, 1], [2, 3, 4]], [[3], [0, 2], [1, 4]]])
def test_update_is_the_mean_gradient_over_tokens(tmp_path, rows):
    before = small_model()
    batch = collate(PAIRS, np.arange(5, dtype=np.int32))
    expected = gradients(before, batch, batch.n_targets)
    config = replace(CONFIG, max_updates=1, accumulate=len(rows), clip_norm=100)  # clips nothing
    trainer = make_trainer(tmp_path, loader=Loader(PAIRS, *rows), config=config)
    trainer.run()
    assert trainer.state.tokens == batch.n_targets
    moved = zip(before.parameters(), trainer.model.parameters(), expected, strict=True)
    for old, new, gradient in moved:
        torch.testing.assert_close((old - new).detach(), gradient, rtol=1e-4, atol=1e-6)
    logged = read_jsonl(tmp_path / "metrics.jsonl")[0]
    logits_RV = batch.scored(before(**before.inputs(batch)))
    sums = CrossEntropy(0.1)(logits_RV, batch.targets_R)
    assert logged["train/loss"] == pytest.approx(sums.loss.item() / batch.n_targets, rel=1e-6)
    assert logged["train/nll"] == pytest.approx(sums.measure.item() / batch.n_targets, rel=1e-6)
    norm = torch.cat([gradient.flatten() for gradient in expected]).norm().item()
    assert logged["train/gradient_norm"] == pytest.approx(norm, rel=1e-5)


def test_logged_loss_covers_the_updates_since_the_last_log(tmp_path):
    """With a learning rate of 0 the weights stay, so that every batch has one loss."""
    config = replace(CONFIG, log_every=2, validate_every=3)
    loader = Loader(PAIRS, [0, 1], [2], [3], [4])
    trainer = make_trainer(tmp_path, config=config, lr=0.0, loader=loader)
    trainer.run()
    sums = []
    for batch in loader.batches:
        logits = batch.scored(trainer.model(**trainer.model.inputs(batch)))
        sums.append((CrossEntropy(0.1)(logits, batch.targets_R), batch.n_targets))
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert [row["update"] for row in rows if "valid/loss" in row] == [3, 4]  # and at the end
    logged = [row for row in rows if "train/loss" in row]
    assert [row["update"] for row in logged] == [2, 4]
    for row, window in zip(logged, (sums[:2], sums[2:]), strict=True):
        n_tokens = sum(n for _, n in window)
        loss = sum(loss_sums.loss.item() for loss_sums, _ in window) / n_tokens
        nll = sum(loss_sums.measure.item() for loss_sums, _ in window) / n_tokens
        assert row["train/loss"] == pytest.approx(loss, rel=1e-5)
        assert row["train/nll"] == pytest.approx(nll, rel=1e-5)
        assert "train/gradient_norm" not in row, "only clipping computes it"
    assert logged[0]["train/loss"] != pytest.approx(logged[1]["train/loss"], rel=1e-4)


def test_logs_of_alphas_and_time(tmp_path):
    """Alphas are logged from update 0; the time includes earlier processes."""
    trainer = make_trainer(tmp_path, reported=lambda: {"alpha": {"cross": [[1.5, 1.25]]}})
    trainer.seconds = 1000.0
    trainer.run()
    assert [row["update"] for row in read_jsonl(tmp_path / "heads.jsonl")] == [0, 1, 2, 3, 4]
    last = json.loads((tmp_path / "checkpoints" / "last.json").read_text())
    assert 1000 < last["train_seconds"] == round(trainer.seconds, 3)


def test_validation_uses_eval_mode_and_restores_training_mode(tmp_path):
    modes = []
    model = small_model(dropout=0.3)

    def validate(whole):
        modes.append(model.training)
        assert not torch.is_grad_enabled()
        return validation(loss=1.0)

    def record_mode(update):
        modes.append(model.training)

    make_trainer(tmp_path, model=model, validate=validate, transform=record_mode).run()
    assert modes == [True, True, False, True, True, False]


class Falling:
    """The base learning rate divided by the number of the update."""

    def learning_rate(self, update, base_lr):
        return base_lr / update


def test_every_update_uses_its_learning_rate(tmp_path):
    """With a clipped gradient the length of a step is proportional to the learning rate."""
    model = small_model()
    weights = []

    def record_weights(update=0):
        weights.append(nn.utils.parameters_to_vector(model.parameters()).detach().double())

    config = replace(CONFIG, clip_norm=0.01)
    options = {"lr": 2.0, "schedule": Falling(), "transform": record_weights}
    make_trainer(tmp_path, model=model, config=config, **options).run()
    record_weights()
    steps = [(after - before).norm().item() for before, after in itertools.pairwise(weights)]
    assert steps == pytest.approx([0.02, 0.01, 0.02 / 3, 0.005], rel=1e-2)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    logged = [row for row in rows if "train/lr" in row]
    assert [row["train/lr"] for row in logged] == [2, 1, 2 / 3, 0.5]
    assert all(row["train/gradient_norm"] > 0.02 for row in logged), "before clipping"


def test_precision_applies_to_products_and_weights_stay_float32(tmp_path):
    weights = []
    for precision in ("fp32", "bf16"):
        config = replace(CONFIG, max_updates=1, precision=precision)
        trainer = make_trainer(tmp_path / precision, config=config)
        trainer.run()
        weights.append(nn.utils.parameters_to_vector(trainer.model.parameters()))
    assert weights[0].dtype == weights[1].dtype == torch.float32
    start = nn.utils.parameters_to_vector(small_model().parameters())
    exact, rounded = (weight - start for weight in weights)
    assert 0 < (rounded - exact).norm() < 2**-6 * exact.norm(), "rounding to 8 bits, a few times"


def test_only_the_newest_numbered_checkpoints_are_kept(tmp_path):
    config = replace(CONFIG, max_updates=5, save_every=1, validate_every=5, keep=2)
    make_trainer(tmp_path, config=config).run()
    names = sorted(p.name for p in (tmp_path / "checkpoints").glob("*.pt"))
    assert names == ["best.pt", "last.pt", "update_00000004.pt", "update_00000005.pt"]
    none = tmp_path / "none"
    make_trainer(none, config=replace(config, keep=0)).run()
    assert sorted(p.name for p in (none / "checkpoints").glob("*.pt")) == ["best.pt", "last.pt"]


def test_best_score_is_tracked_and_patience_ends_training(tmp_path):
    config = replace(CONFIG, max_updates=40, patience=2, save_every=5)
    scores = [3.0, 2.0, 2.5, 1.0, 1.0, 1.5, 0.1]
    trainer = make_trainer(tmp_path, config=config, scores=scores)
    trainer.run()
    state = trainer.state
    assert (state.update, state.best_update, state.best_score) == (12, 8, -1.0)
    assert state.stopped_early
    last = load_checkpoint(tmp_path / "checkpoints" / "last.pt")
    assert last["state"]["update"] == 12
    assert last["state"]["stopped_early"]


def test_bleu_is_better_when_higher(tmp_path):
    scores = iter([10.0, 30.0, 20.0])
    trainer = make_trainer(
        tmp_path,
        config=replace(CONFIG, max_updates=6, monitor="bleu"),
        validate=lambda whole: validation(bleu=next(scores), loss=1.0),
    )
    trainer.run()
    assert (trainer.state.best_update, trainer.state.best_score) == (4, 30.0)


def checkpoints_of(folder):
    return {p.name: p.read_bytes() for p in (folder / "checkpoints").iterdir()}


class Diverging:
    """An infinite learning rate from one update on."""

    def __init__(self, at):
        self.at = at

    def learning_rate(self, update, base_lr):
        return base_lr if update < self.at else math.inf


@pytest.mark.parametrize(("log_every", "validate_every"), [(1, 50), (50, 3), (50, 50)])
@pytest.mark.parametrize("at", [3, 4])
def test_diverged_weights_are_not_saved(tmp_path, log_every, validate_every, at):
    """Also if the loss of the diverging update is finite."""
    cadence = {"log_every": log_every, "validate_every": validate_every, "save_every": 2}
    config = replace(CONFIG, max_updates=9, **cadence)
    good = make_trainer(tmp_path, config=replace(config, max_updates=2))
    good.run()
    before = checkpoints_of(tmp_path)
    scores = [1.0 if at == 3 else 9.0]  # only diverged weights would be the best
    trainer = make_trainer(tmp_path, config=config, schedule=Diverging(at), scores=scores)
    trainer.restore(load_checkpoint(tmp_path / "checkpoints" / "last.pt"))
    with pytest.raises(HeadwiseError, match=r"near update [345].*intact.*optimizer\.lr"):
        trainer.run()
    assert {name: checkpoints_of(tmp_path)[name] for name in before} == before


def test_nan_validation_is_never_the_best(tmp_path):
    trainer = make_trainer(tmp_path, scores=[math.nan])
    with pytest.raises(HeadwiseError, match="valid/loss is nan"):
        trainer.run()
    assert not list((tmp_path / "checkpoints").glob("*.pt"))

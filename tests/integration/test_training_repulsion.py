"""Updates and runs with repulsion between heads."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.analysis.projections import projection_distances
from headwise.train.repulsion import SPOS, SVGD, NoRepulsion
from training_runs import NO_DROPOUT, read_log
from training_steps import CONFIG, PAIRS, Loader, make_trainer, small_model


def trained(folder, repulsion, rows, n_updates=1, **changes):
    """A model after some updates with plain SGD, so that a step is the gradient."""
    model = small_model(2, 4)
    config = replace(CONFIG, max_updates=n_updates, **changes)
    make_trainer(
        folder, model, config=config, loader=Loader(PAIRS, *rows), scores=itertools.repeat(1.0),
        transform=lambda update: repulsion(model, update, 1),
    ).run()  # fmt: skip
    return model


def weight_changes(model):
    before = dict(small_model(2, 4).named_parameters())
    return {name: (new - before[name]).detach() for name, new in model.named_parameters()}


@pytest.mark.parametrize("repulsion", [SVGD(step_size=1.0), SPOS(step_size=1.0)])
def test_accumulated_batches_equal_one_batch(tmp_path, repulsion):
    one = weight_changes(trained(tmp_path / "one", repulsion, [[0, 1, 2, 3, 4]]))
    two = weight_changes(trained(tmp_path / "two", repulsion, [[3], [0, 2], [1, 4]], accumulate=3))
    for name, change in one.items():
        torch.testing.assert_close(two[name], change, rtol=1e-4, atol=1e-6)
    plain = weight_changes(trained(tmp_path / "plain", NoRepulsion(), [[0, 1, 2, 3, 4]]))
    affected = {name for name, change in one.items() if not torch.equal(plain[name], change)}
    assert len(affected) == 18
    assert all(name.endswith(("query.weight", "key.weight", "value.weight")) for name in affected)


def test_repulsion_is_applied_before_clipping(tmp_path):
    """The clipped norm is that of the final gradients."""
    repulsion = SVGD(step_size=1000.0)
    clipped = weight_changes(trained(tmp_path, repulsion, [[0, 1, 2, 3, 4]], clip_norm=0.01))
    norm = torch.cat([change.flatten() for change in clipped.values()]).norm()
    assert norm.item() == pytest.approx(0.01, rel=1e-3)


def mean_distance(model):
    distances = [
        value
        for table in projection_distances(model).values()
        for layers in table.values()
        for heads in layers
        for value in heads
    ]
    assert len(distances) == 3 * 6 * 4
    return float(np.mean(distances))


def test_repulsion_increases_distances_of_heads(tmp_path):
    rows = [[0, 1, 2], [3, 4]]
    without = trained(tmp_path / "without", SVGD(step_size=1.0, weight=0.0), rows, 20)
    with_force = trained(tmp_path / "with", SVGD(step_size=1.0, weight=0.1), rows, 20)
    assert mean_distance(with_force) > 1.1 * mean_distance(without)


# -- runs in separate processes -----------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_equal_one_with_twice_the_tokens(runs):
    """Every rank draws the same noise, so that their weights stay equal."""
    changes = {**NO_DROPOUT, "repulsion": "spos"}
    results = runs.train_ranks("pair", {**changes, "trainer.max_tokens": 80})
    assert [rank.code for rank in results] == [0, 0], results
    runs.train("one", {**changes, "trainer.max_tokens": 160})
    one, pair = (read_log(runs.run_folder(name) / "metrics.jsonl") for name in ("one", "pair"))
    for single, double in zip(one, pair, strict=True):
        assert single.keys() == double.keys()
        for name, value in single.items():
            assert double[name] == pytest.approx(value, abs=1e-4), (single["update"], name)

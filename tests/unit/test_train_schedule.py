import inspect
import itertools
import math

import pytest

from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import target_class
from headwise.train.schedule import Constant, Cosine, InverseSqrt, Noam

BASE = 7e-4


def test_noam_matches_the_formula_of_the_paper():
    noam = Noam(warmup_updates=20_000, d_model=512, factor=2.0)
    # papers: factor 2, D = 512 and 20k warm-up peak at 6.25e-4
    assert noam.learning_rate(20_000, BASE) == pytest.approx(6.25e-4, rel=1e-12)
    for update in (1, 777, 20_000, 123_456):
        expected = 2 * 512**-0.5 * min(update**-0.5, update * 20_000**-1.5)
        assert noam.learning_rate(update, BASE) == pytest.approx(expected, rel=1e-12)
    assert noam.learning_rate(10_000, BASE) == noam.learning_rate(10_000, 123.0)


def test_inverse_sqrt_warms_up_linearly_and_then_decays():
    schedule = InverseSqrt(warmup_updates=400)
    assert schedule.learning_rate(1, BASE) == pytest.approx(BASE / 400)
    assert schedule.learning_rate(200, BASE) == pytest.approx(BASE / 2)
    assert schedule.learning_rate(400, BASE) == pytest.approx(BASE)
    assert schedule.learning_rate(1600, BASE) == pytest.approx(BASE / 2)


def test_cosine_decays_from_the_base_to_the_final_learning_rate():
    schedule = Cosine(warmup_updates=100, total_updates=1100, final_fraction=0.2)
    assert schedule.learning_rate(50, BASE) == pytest.approx(BASE / 2)
    assert schedule.learning_rate(100, BASE) == pytest.approx(BASE)
    assert schedule.learning_rate(600, BASE) == pytest.approx(BASE * 0.6)
    quarter = 0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4))
    assert schedule.learning_rate(350, BASE) == pytest.approx(BASE * quarter)
    for update in (1100, 5000):
        assert schedule.learning_rate(update, BASE) == pytest.approx(BASE * 0.2)


def test_constant_does_not_decay():
    assert Constant().learning_rate(1, BASE) == BASE
    assert Constant(10).learning_rate(5, BASE) == pytest.approx(BASE / 2)
    assert Constant(10).learning_rate(99, BASE) == BASE


@pytest.mark.parametrize(
    "schedule",
    [InverseSqrt(300), Noam(300, 64), Cosine(300, 2000), Constant(300)],
    ids=lambda schedule: type(schedule).__name__,
)
def test_no_jump_at_the_end_of_the_warmup(schedule):
    learning_rates = [schedule.learning_rate(update, BASE) for update in range(1, 600)]
    highest = max(learning_rates)
    assert learning_rates.index(highest) == 299
    assert all(lr > 0 for lr in learning_rates)
    steps = [abs(after - before) for before, after in itertools.pairwise(learning_rates)]
    assert max(steps) <= highest / 300 * (1 + 1e-9)


@pytest.mark.parametrize("name", group_choices("scheduler"))
def test_yamls_have_the_defaults(name):
    node = group_node("scheduler", name)
    arguments = inspect.signature(target_class(node, "scheduler")).parameters.values()
    defaults = {a.name: a.default for a in arguments if a.default is not a.empty}
    assert {key: node[key] for key in defaults} == defaults

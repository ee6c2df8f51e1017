"""Repulsion gradients of heads against their formulas, and training with them."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.analysis.projections import projection_distances
from headwise.attention.build import AttentionFactory
from headwise.config.instantiate import instantiate
from headwise.config.register import group_node
from headwise.config.schema import SITES, ModelConfig
from headwise.errors import ConfigError
from headwise.model.transformer import Transformer, encoder_decoder_sites
from headwise.seed import derived_seed
from headwise.train.repulsion import SPOS, SVGD, NoRepulsion, stein_gradient
from training_runs import NO_DROPOUT, read_log
from training_steps import CONFIG, PAIRS, Loader, make_trainer, small_model

LAYERS, HEADS, WIDTH = 2, 4, 8
FACTORY = AttentionFactory({"attention": group_node("attention", "alpha_entmax")}, dropout=0.0)


# -- the formulas -------------------------------------------------------------------------------


def squared_distances(particles_NP):
    return (particles_NP[:, None] - particles_NP).square().sum(-1)


def bandwidth_of(particles_NP):
    distances = squared_distances(particles_NP).flatten().sort().values
    if len(particles_NP) == 2:  # half of the four are zeros of the diagonal
        distances = distances[2:]
    return 0.5 * distances[(len(distances) - 1) // 2] / math.log(len(particles_NP) + 1)


def svgd_by_definition(particles_NP, gradients_NP, weight, h=None):
    """The SVGD direction (N, P) with an RBF kernel of bandwidth h, or of the median."""
    h = bandwidth_of(particles_NP) if h is None else h
    kernel_NN = (-squared_distances(particles_NP) / (2 * h)).exp()
    differences_NNP = particles_NP[:, None] - particles_NP
    force_NP = (kernel_NN[..., None] * differences_NNP / h).sum(1)
    return (kernel_NN @ gradients_NP - weight * force_NP) / len(particles_NP)


def random_particles(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bandwidth", [None, 3.7])
@pytest.mark.parametrize("n_particles", [2, 3, 4, 5, 8])
def test_stein_gradients_match_the_formulas(n_particles, bandwidth):
    particles = random_particles(3, n_particles, 12)
    gradients = random_particles(3, n_particles, 12, seed=1)
    # not at the centre, not of one size
    particles = (particles + 2) * torch.tensor([1.0, 0.1, 5.0], dtype=torch.float64)[:, None, None]
    directions = stein_gradient(particles, gradients, 0.3, bandwidth)
    for direction, *arguments in zip(directions, particles, gradients, strict=True):
        expected = svgd_by_definition(*arguments, 0.3, bandwidth)
        torch.testing.assert_close(direction, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bandwidth", [None, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 0.37])
def test_identical_particles_have_no_repulsion(scale, dtype, bandwidth):
    one = random_particles(1, 1, 6).to(dtype) * scale
    gradients = random_particles(1, 4, 6, seed=1).to(dtype)
    directions = stein_gradient(one.expand(-1, 4, -1).clone(), gradients, 10.0, bandwidth)
    torch.testing.assert_close(directions, gradients.mean(1, keepdim=True).expand_as(directions))


def test_close_particles_far_from_the_origin_are_precise():
    """Compare float32 with float64, where the expansion |a|^2 + |b|^2 - 2ab fails."""
    particles = (1000 + 0.01 * random_particles(1, 4, 64)).float()
    gradients = random_particles(1, 4, 64, seed=1).float()
    exact = stein_gradient(particles.double(), gradients.double(), 1.0)
    directions = stein_gradient(particles, gradients, 1.0)
    largest = float(exact.abs().max())
    torch.testing.assert_close(directions.double(), exact, rtol=1e-4, atol=1e-4 * largest)


# -- on a model ---------------------------------------------------------------------------------


def make_model(heads=None):
    sizes = (LAYERS, LAYERS, WIDTH, HEADS, 16)
    config = ModelConfig("test", *sizes, dropout=0.0, activation_dropout=0.0, heads=heads)
    return Transformer(config, 9, 9, True, FACTORY, seed=1).double()


def set_gradients(model, seed=5):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return gradients_of(model)


def gradients_of(model):
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: gradient.clone() for name, gradient in gradients.items() if gradient is not None}


def weights_of(model, sites=SITES, projections=("query", "key", "value"), layers=(1, 2, 3)):
    """Name in the model, weight and number of heads."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for site, layer, attention in model.attentions():
        for projection in projections if site in sites and layer in layers else ():
            weight = getattr(attention, projection).weight
            yield names[id(weight)], weight, attention.place.n_heads


def svgd_reference(weight, gradient, n_heads, alpha):
    """The SVGD direction of one weight (H * E, D), head by head."""
    particles, slopes = (tensor.detach().view(n_heads, -1) for tensor in (weight, gradient))
    return svgd_by_definition(particles, slopes, alpha).view_as(weight)


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"sites": ["cross"]},
        {"projections": ["query", "query"]},
        {"layers": [2]},
        {"sites": ["encoder_self", "cross"], "projections": ["value", "key"], "layers": [1]},
    ],
)
@pytest.mark.parametrize("kind", [SVGD, SPOS])
def test_only_selected_gradients_change(kind, chosen):
    model = make_model()
    before, weights = set_gradients(model), copy.deepcopy(model.state_dict())
    kind(**chosen)(model, 1, 1)
    selected = {name for name, _, _ in weights_of(model, **chosen)}
    after = gradients_of(model)
    assert {name for name in after if not torch.equal(after[name], before[name])} == selected
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


KEPT = {"encoder_self": [[2], [1, 3]], "cross": [[2], [1, 3]], "decoder_self": [[1, 2, 3, 4]] * 2}


@pytest.mark.parametrize(("heads", "numbers"), [(None, {4}), (KEPT, {1, 2, 4})])
def test_heads_of_every_projection_are_particles(heads, numbers):
    """A single head of a pruned layer has no others to be repelled by."""
    model = make_model(heads=heads)
    before = set_gradients(model)
    SVGD(step_size=0.5, weight=0.3)(model, 1, 1)
    weights = list(weights_of(model))
    assert len(weights) == 18
    assert {n_heads for _, _, n_heads in weights} == numbers
    for name, weight, n_heads in weights:
        reference = svgd_reference(weight, before[name], n_heads, 0.3)
        expected = before[name] if n_heads == 1 else reference
        assert not weight.grad.requires_grad
        torch.testing.assert_close(weight.grad, 0.5 * expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [SVGD, SPOS])
def test_frozen_weights_alone_are_refused(kind):
    model = make_model()
    NoRepulsion().check_model(model.requires_grad_(False))
    with pytest.raises(ConfigError, match=r"only frozen weights.*repulsion=none"):
        kind().check_model(model)
    next(iter(weights_of(model)))[1].requires_grad_(True)
    kind().check_model(model)


def test_frozen_weights_stay_without_a_gradient():
    model = make_model()
    set_gradients(model)
    (first, frozen, _), *others = list(weights_of(model))
    frozen.grad = None
    before = gradients_of(model)
    SVGD()(model, 1, 1)
    assert frozen.grad is None
    assert first not in gradients_of(model)
    assert all(not torch.equal(weight.grad, before[name]) for name, weight, _ in others)
    model.zero_grad()
    SPOS()(model, 1, 1)
    assert not gradients_of(model)


# -- noise --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["median_gradient", "one"])
def test_spos_adds_the_gradient_and_noise(scale):
    """The noise depends on seed and update, and differs between weights."""
    repulsion = SPOS(beta=0.2, step_size=0.05, weight=0.3, noise_scale=scale)
    model = make_model()
    before = set_gradients(model)
    state = torch.get_rng_state()
    repulsion(model, 7, 3)
    assert torch.equal(torch.get_rng_state(), state)  # dropout is not affected
    noise = []
    for name, weight, n_heads in weights_of(model):
        phi = svgd_reference(weight, before[name], n_heads, repulsion.weight)
        rest = weight.grad / repulsion.step_size - phi - repulsion.beta * before[name]
        median = before[name].abs().median().item()
        size = math.sqrt(2 * 0.2 / 0.05) * (median if scale == "median_gradient" else 1.0)
        noise.append((-rest / size).flatten())
    generator = torch.Generator().manual_seed(derived_seed(3, 7, "repulsion"))
    shape = (len(noise), HEADS, WIDTH * WIDTH // HEADS)
    expected = torch.randn(shape, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(torch.stack(noise), expected.flatten(1), rtol=0, atol=1e-10)


# -- choices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), [("none", NoRepulsion), ("svgd", SVGD), ("spos", SPOS)])
def test_yamls_have_the_defaults(name, kind):
    created = instantiate(group_node("repulsion", name), "repulsion")
    assert type(created) is kind
    defaults = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(kind()).items()}
    assert {k: list(v) if isinstance(v, tuple) else v for k, v in vars(created).items()} == defaults


def test_layers_of_each_site_are_accepted():
    config = encoder_decoder_sites(ModelConfig("test", 6, 3, WIDTH, HEADS, 16))
    SVGD(layers=[1, 6]).check(config)
    SVGD(sites=["cross"], layers=[3]).check(config)
    SVGD().check(config)
    NoRepulsion().check(config)


# -- in training --------------------------------------------------------------------------------


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

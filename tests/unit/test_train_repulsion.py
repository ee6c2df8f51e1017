"""Repulsion gradients of heads, compared with the formulas in plain loops."""

import copy
import math

import pytest
import torch

from headwise.attention.build import AttentionFactory
from headwise.config.folders import group_node
from headwise.config.instantiate import instantiate
from headwise.config.schema import SITES, ModelConfig
from headwise.errors import ConfigError
from headwise.model.transformer import Transformer, encoder_decoder_sites
from headwise.seed import derived_seed
from headwise.train.particles import stein_gradient
from headwise.train.repulsion import SPOS, SVGD, NoRepulsion

Rows = list[list[float]]
LAYERS, HEADS, WIDTH = 2, 4, 8
FACTORY = AttentionFactory({"attention": group_node("attention", "alpha_entmax")}, dropout=0.0)


# -- the formulas, particle by particle and number by number ------------------------------------


def squared_distance(a, b):
    return math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def bandwidth_of(particles):
    distances = sorted(squared_distance(a, b) for a in particles for b in particles)
    if len(particles) == 2:  # half of the four are zeros of the diagonal
        distances = distances[2:]
    lower_middle = distances[(len(distances) - 1) // 2]
    return 0.5 * lower_middle / math.log(len(particles) + 1)


def svgd_by_loops(particles, gradients, weight, h):
    n_particles, n_numbers = len(particles), len(particles[0])
    directions = []
    for i in range(n_particles):
        smoothed, force = [0.0] * n_numbers, [0.0] * n_numbers
        for j in range(n_particles):
            kernel = math.exp(-squared_distance(particles[i], particles[j]) / (2 * h))
            for p in range(n_numbers):
                smoothed[p] += kernel * gradients[j][p]
                force[p] += kernel * (particles[i][p] - particles[j][p]) / h
        both = zip(smoothed, force, strict=True)
        directions.append([(s - weight * f) / n_particles for s, f in both])
    return torch.tensor(directions, dtype=torch.float64)


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
    for number in range(3):
        rows = particles[number].tolist()
        h = bandwidth_of(rows) if bandwidth is None else bandwidth
        expected_direction = svgd_by_loops(rows, gradients[number].tolist(), 0.3, h)
        torch.testing.assert_close(directions[number], expected_direction, rtol=1e-12, atol=1e-12)


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


def make_model(make=FACTORY, heads=None, encoder_layers=LAYERS):
    sizes = (encoder_layers, LAYERS, WIDTH, HEADS, 16)
    config = ModelConfig("test", *sizes, dropout=0.0, activation_dropout=0.0, heads=heads)
    return Transformer(config, 9, 9, True, make, seed=1).double()


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
    particles, slopes = (tensor.view(n_heads, -1).tolist() for tensor in (weight, gradient))
    return svgd_by_loops(particles, slopes, alpha, bandwidth_of(particles)).view_as(weight)


def test_every_projection_is_a_set_of_particles():
    model = make_model()
    before = set_gradients(model)
    SVGD(step_size=0.05, weight=0.3)(model, 1, 1)
    weights = list(weights_of(model))
    assert len(weights) == 18
    for name, weight, n_heads in weights:
        expected = 0.05 * svgd_reference(weight, before[name], n_heads, 0.3)
        assert not weight.grad.requires_grad
        torch.testing.assert_close(weight.grad, expected, rtol=1e-12, atol=1e-12)


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


def test_pruned_heads():
    """Layers with one, two and all heads use the particles they have."""
    heads = {site: [[2], [1, 3]] for site in ("encoder_self", "cross")}
    heads["decoder_self"] = [[1, 2, 3, 4]] * 2
    model = make_model(heads=heads)
    before = set_gradients(model)
    SVGD(step_size=0.5, weight=0.3)(model, 1, 1)
    head_counts = set()
    for name, weight, n_heads in weights_of(model):
        head_counts.add(n_heads)
        expected = before[name]
        if n_heads > 1:
            expected = svgd_reference(weight, before[name], n_heads, 0.3)
        torch.testing.assert_close(weight.grad, 0.5 * expected, rtol=1e-12, atol=1e-12)
    assert head_counts == {1, 2, 4}


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

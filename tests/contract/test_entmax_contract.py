"""Contract of every map from scores to weights, and of every implementation of one.

A new implementation is a row of `IMPLEMENTATIONS`, a new map a row of `MAPS`.
Axes: B batch, H heads, Q queries, K keys.
"""

import functools
from dataclasses import dataclass

import pytest
import torch

import oracle
from headwise import entmax
from headwise.entmax import alpha_entmax
from headwise.ops import dispatch
from headwise.ops.family import ALPHAS, Power
from headwise.ops.maps import export, operator, reference
from headwise.ops.maps import triton as triton_maps
from triton_marks import DEVICE, IS_INTERPRETED, choose_implementation, needs_triton

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Implementation:
    """How weights are computed, and the largest error of weights by dtype."""

    name: str  # of `choose_implementation`
    limits: dict[torch.dtype, float]
    weights: object = staticmethod(operator.weights)
    has_alpha_gradient: bool = True
    device: str = "cpu"


SINGLE, DOUBLE = {torch.float32: 5e-7}, {torch.float64: 1e-11}
CPP, TORCH = Implementation("kernels", SINGLE), Implementation("torch", SINGLE | DOUBLE)
TRITON = Implementation("triton", SINGLE, device=DEVICE)
EXPORTED = Implementation("torch", {torch.float64: 1e-9}, export.weights, False)
IMPLEMENTATIONS = [
    pytest.param(CPP, id="C++"),
    pytest.param(TORCH, id="torch"),
    pytest.param(TRITON, marks=needs_triton, id="Triton"),
    pytest.param(EXPORTED, id="exported"),
]


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request, monkeypatch):
    """Use one implementation."""
    choose_implementation(request.param.name, monkeypatch)
    return request.param


def randn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def seen(*shape, seed=2):
    """Draw a mask; its second batch sees no key."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.3
    mask[1:2] = False
    return mask


def adversarial(n_keys):
    """Rows that are hard to solve: plateaus, ramps, gaps, heavy tails, large offsets."""
    ramp, normal = torch.arange(n_keys, dtype=torch.float32), randn(n_keys, seed=n_keys)
    first = ramp == 0
    return torch.stack([
        torch.zeros(n_keys),
        torch.where(first, 1.0, 0.0),
        torch.where(first, 0.0, -1.0),
        torch.where(ramp < n_keys // 2, 0.0, -0.999),
        torch.where(first, 1e4, 0.0),
        torch.where(ramp % 2 == 0, 1e4, -1e4),
        -ramp,
        -ramp / n_keys,
        -ramp * 1e-6,
        -(2.0 ** (-ramp.clamp_max(60))),
        2.0 ** (-ramp.clamp_max(60)),
        -(1.1 ** ramp.clamp_max(100)),
        torch.floor(ramp.sqrt()) * -0.5,
        normal / normal.roll(1),
        normal * 1e-3 + 1e4,
        normal * 1e-6,
        torch.linspace(-1, 1, n_keys) * 3e38,
        torch.full((n_keys,), -INF),
    ])  # fmt: skip


ALPHA = torch.tensor([1.0, 1.6]).view(1, 2, 1, 1)
EVERY_ALPHA = torch.tensor(
    [1, 1.001, 1.02, 1.09, 1.11, 1.3, 1.5, 1.7, 1.8, 1.9, 1.99, 2.0, 2.0000002]
).view(1, -1, 1, 1)
NEAR_1 = torch.tensor([1, 1 + 1e-6, 1.0001, 1.02, 1.25, 1.5, 1.75, 1.95, 2.0]).view(1, -1, 1, 1)
LENGTHS = (1, 2, 15, 16, 17, 30, 64, 65, 95, 96, 97, 128, 500, 1031)
SHAPES = {  # of the mask and of α for scores (4, 3, 2, 40)
    "equal": ((1, 1, 1, 40), (1, 1, 1, 1)),
    "by batch": ((4, 1, 1, 40), (4, 3, 2, 1)),
    "by head": ((1, 3, 2, 40), (1, 3, 1, 1)),
    "by row": ((4, 3, 2, 1), (1, 1, 2, 1)),
    "by query": ((1, 1, 2, 40), (4, 3, 2, 1)),
}
N_ROWS = 20 if IS_INTERPRETED else 1100  # the interpreter is slow


@dataclass(frozen=True)
class Case:
    """Scores (B, H, Q, K), α where it is a tensor, and a mask."""

    scores: torch.Tensor
    alpha: torch.Tensor
    mask: torch.Tensor | None = None
    is_hard: bool = False  # gradients are not compared

    def inputs(self, power):
        """Scores and α of a map."""
        if power is Power.ANY:
            return self.scores, self.alpha
        scores = self.scores[:, :1] if self.mask is None else self.scores
        return scores, torch.tensor(ALPHAS[power])


CASES = {f"{n} keys": Case(2 * randn(3, 2, 11, n), ALPHA, seen(3, 1, 1, n)) for n in LENGTHS}
CASES |= {
    f"broadcast {name}": Case(randn(4, 3, 2, 40), 1 + randn(*alpha).sigmoid(), seen(*mask))
    for name, (mask, alpha) in SHAPES.items()
}
CASES |= {
    "upright mask": Case(randn(4, 3, 2, 40), torch.full((1, 3, 1, 1), 1.3), seen(4, 3, 40, 2).mT),
    "many rows": Case(2 * randn(8, 2, N_ROWS // 10, 30), ALPHA),  # keys at the support's border
    "several chunks": Case(4 * randn(1, 2, N_ROWS, 130), ALPHA),
    "nearly equal": Case(0.01 * randn(1, 13, 3, 200), EVERY_ALPHA),
    "every α": Case(randn(1, 13, 3, 200), EVERY_ALPHA),
    "far apart": Case(30 * randn(1, 13, 3, 200), EVERY_ALPHA),
}
HARD = {
    n: Case(adversarial(n).expand(1, NEAR_1.numel(), -1, -1), NEAR_1, is_hard=True)
    for n in (2, 33, 500, 4096)
}
CASES |= {f"hard, {n} keys": case for n, case in HARD.items()}


def results(implementation, dtype, scores, alpha, mask, power, grad):
    """Weights, gradients of the scores and, if α is a tensor, of α; float64."""
    leaves = [scores, alpha] if power is Power.ANY else [scores]
    leaves = [x.to(implementation.device, dtype, copy=True).requires_grad_() for x in leaves]
    mask = None if mask is None else mask.to(implementation.device)
    weights = implementation.weights(leaves[0], (*leaves, None)[1], mask, power)
    inputs = leaves if implementation.has_alpha_gradient else leaves[:1]
    grads = torch.autograd.grad(weights, inputs, grad.to(weights).expand(weights.shape))
    return [x.detach().double().cpu() for x in (weights, *grads)]


@functools.cache
def exact_results(name, power):
    """The same by the oracle, for α as it is clamped."""
    case = CASES[name]
    scores, alpha = case.inputs(power)
    alpha = alpha.double().clamp(1 + 1e-7, 2) if power is Power.ANY else alpha

    def call(scores, alpha):
        return oracle.weights(scores, alpha, case.mask)

    return oracle.with_gradients(call, [scores, alpha], randn(*scores.shape, seed=5))


def is_clear(weights, alpha):
    """Rows without a key so close to the border of the support that float32 errs."""
    beta = alpha.double() - 1
    return ~((weights > 0) & (weights**beta < 3e-2) & (beta >= 0.5)).any(-1)


@pytest.mark.parametrize("power", Power)
def test_implementation_is_used(power, implementation):
    """A kernel whose check failed would be replaced by torch."""
    scores = randn(1, 2, 3, 20).to(implementation.device)
    is_torch = implementation is TRITON and power is Power.EXP  # torch has a kernel of its own
    expected = {"kernels": dispatch.CPP, "triton": dispatch.TRITON}.get(implementation.name)
    assert dispatch.maps(scores, power).kernel == ((not is_torch and expected) or dispatch.TORCH)


@pytest.mark.parametrize("power", Power)
@pytest.mark.parametrize("name", CASES)
def test_weights_and_gradients_are_exact(name, power, implementation, monkeypatch):
    case, exact = CASES[name], exact_results(name, power)
    if not case.is_hard:  # with Triton, rows of usual length take several blocks
        monkeypatch.setattr(triton_maps, "MAX_BLOCK", 64)
    scores, alpha = case.inputs(power)
    grad = randn(*scores.shape, seed=5)
    for dtype, limit in implementation.limits.items():
        actual = results(implementation, dtype, scores, alpha, case.mask, power, grad)
        assert (actual[0] - exact[0]).abs().max() <= limit
        assert (actual[0] >= 0).all()
        if power is not Power.EXP:  # torch's softmax is less precise
            assert (actual[0].sum(-1) - exact[0].sum(-1)).abs().max() <= limit
        if case.mask is not None:
            assert not actual[0][~case.mask.expand(scores.shape)].any()
        if case.is_hard:
            continue
        assert not actual[1][actual[0] == 0].any()
        rows = is_clear(exact[0], alpha)
        assert rows.double().mean() > 0.5 or case.mask is None
        bound = 4 * limit * exact[1].abs().max().clamp_min(1)
        assert ((actual[1] - exact[1]).abs().amax(-1) * rows).max() <= bound
        for ours, theirs in zip(actual[2:], exact[2:], strict=False):
            # gradients of α of nearly equal scores are sums that cancel
            bound = max((20 if name == "nearly equal" else 4) * limit, 2e-6)
            assert ours.shape == theirs.shape
            assert (ours - theirs).abs().max() <= bound * theirs.abs().max().clamp_min(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_keys", HARD)
@pytest.mark.parametrize("power", [Power.ANY, Power.SQUARE, Power.LINEAR])
def test_fixed_numbers_of_steps_solve_hard_rows(power, n_keys, dtype, monkeypatch):
    """As on an accelerator, where the host does not wait for the rows."""
    scores, alpha = HARD[n_keys].inputs(power)
    alpha = alpha.to(dtype) if power is Power.ANY else ALPHAS[power]
    with monkeypatch.context() as patch:  # some rows are always unsolved
        patch.setattr(torch.Tensor, "any", lambda values: torch.tensor(True))
        weights = reference.weights(scores.to(dtype), alpha)
    exact = exact_results(f"hard, {n_keys} keys", power)[0]
    assert (weights - exact).abs().max() <= TORCH.limits[dtype]


@pytest.mark.parametrize("n_keys", [7, 31, 60, 93])
def test_largest_score_at_any_position_gets_all_weight(n_keys, implementation):
    power, scores = Power.SQUARE, 50 * torch.eye(n_keys)[None, None]
    for dtype in implementation.limits:
        actual = results(implementation, dtype, scores, None, None, power, scores)[0]
        assert torch.equal(actual, scores.double() / 50)


@pytest.mark.parametrize("n_keys", [5, 100, 300])
@pytest.mark.parametrize("power", Power)
def test_nan_and_inf_stay_in_their_row(power, n_keys, implementation):
    scores, alpha, grad = randn(1, 1, 40, n_keys), torch.full((1, 1, 1, 1), 1.3), randn(n_keys)
    wild = scores.clone()
    wild[0, 0, 2, -1], wild[0, 0, 5, 3] = NAN, INF
    wild[0, 0, 2, :-1] = -INF  # NaN is the only visible key of its block
    wild[0, 0, 9] *= 1e4  # extreme rows do not change other rows either
    is_calm = torch.tensor([row not in (2, 5, 9) for row in range(40)])
    for dtype in implementation.limits:
        clean, actual = (
            results(implementation, dtype, z, alpha, None, power, grad) for z in (scores, wild)
        )
        for one, other in zip(actual[:2], clean[:2], strict=True):
            assert torch.equal(one[:, :, is_calm], other[:, :, is_calm])
        assert actual[0][:, :, [2, 5]].isnan().all()


@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.8])
def test_gradients_equal_finite_differences(alpha):
    scores = randn(200, 6, seed=5).double()
    # finite differences must not cross the border of the support
    scores = scores[is_clear(alpha_entmax(scores, alpha), torch.tensor(alpha))][:12]
    heads = torch.full((3, 1, 1), alpha, dtype=torch.float64, requires_grad=True)
    scores = scores.view(2, 3, 2, 6).requires_grad_()
    assert torch.autograd.gradcheck(alpha_entmax, (scores, heads))
    assert torch.autograd.gradcheck(oracle.weights, (scores, heads))


def learned(alpha):
    """α-entmax with α as a tensor, the general path."""

    def call(scores, dim=-1, *, mask=None):
        return alpha_entmax(scores, torch.tensor(alpha), dim, mask=mask)

    return call


MAPS = {name: getattr(entmax, name) for name in ("softmax", "entmax15", "sparsemax")}
MAPS |= {f"α = {alpha}": learned(alpha) for alpha in (1.0, 1.05, 1.8)}
BISECTED = {
    "α = 0.4": lambda X, dim=-1, **given: entmax.entmax_bisect(X, 0.4, dim, **given),
    "α = 3": lambda X, dim=-1, **given: entmax.entmax_bisect(X, 3, dim, **given),
    "normmax": lambda X, dim=-1, **given: entmax.normmax_bisect(X, 2, dim, **given),
    "budget": lambda X, dim=-1, **given: entmax.budget_bisect(X, 2, dim, **given),
}
MAPS |= BISECTED


ON_CPU = IMPLEMENTATIONS[: 3 if IS_INTERPRETED else 2]


@pytest.fixture(
    params=[
        pytest.param((MAPS[name], one.values[0]), marks=one.marks, id=f"{name}, {one.id}")
        for one in ON_CPU
        for name in MAPS
        if name not in BISECTED or one.values[0] is TORCH  # one implementation
    ]
)
def apply_map(request, monkeypatch):
    """Each map by each of its implementations."""
    choose_implementation(request.param[1].name, monkeypatch)
    return request.param[0]


def both(apply_map, scores, grad=None, **given):
    """Weights and gradient."""
    leaf = scores.detach().requires_grad_()
    weights = apply_map(leaf, **given)
    grad = randn(*weights.shape, seed=3).to(weights) if grad is None else grad
    return weights.detach(), torch.autograd.grad(weights, leaf, grad)[0]


def test_masking_equals_removing_keys(apply_map):
    scores, mask, grad = randn(6, 11), randn(6, 11, seed=4) > -0.3, randn(6, 11, seed=5)
    mask[:, 0] = True
    alone = [both(apply_map, z[m], g[m]) for z, m, g in zip(scores, mask, grad, strict=True)]
    with_mask = [(junk, mask) for junk in (0.0, 1e9, INF, -INF, NAN)]
    for junk, given in (*with_mask, (-INF, None)):
        actual = both(apply_map, torch.where(mask, scores, junk), grad, mask=given)
        for row, seen_keys in enumerate(mask):
            for values, right in zip(actual, alone[row], strict=True):
                assert not values[row, ~seen_keys].any()
                torch.testing.assert_close(values[row, seen_keys], right, rtol=1e-5, atol=1e-6)


def test_extreme_rows(apply_map):
    mask = torch.tensor([[True, True, False], [False] * 3])
    for scores, given in ((randn(2, 3), mask), (randn(2, 3).masked_fill(~mask, -INF), None)):
        weights, grad = both(apply_map, scores, mask=given)
        assert not weights[1].any()
        assert not grad[1].any()
        assert grad.isfinite().all()
    far = torch.tensor([[1, -INF, 2], [3e38, -3e38, 0], [1, -1e9, 2]])
    assert all(values.isfinite().all() for values in both(apply_map, far))
    assert (apply_map(randn(5, 1)) == 1).all()
    assert apply_map(torch.tensor(3.0)) == 1
    assert apply_map(torch.tensor([-INF, 3.0, -INF])).tolist() == [0.0, 1.0, 0.0]
    for n_keys in (2, 3, 7, 64, 1000):
        equal = apply_map(torch.full((2, n_keys), 4.2))
        assert (equal == equal[0, 0]).all()
    tied = apply_map(torch.tensor([1.0, -4.0, 1.0, -4.0, 1.0]))
    assert tied[0] == tied[2] == tied[4]
    assert tied[1] == tied[3]
    assert apply_map(torch.tensor([[1, NAN, 2], [1, INF, 2]])).isnan().all()
    for shape in ((0, 4), (3, 0), (2, 0, 5)):
        assert [values.shape for values in both(apply_map, torch.zeros(shape))] == [shape, shape]


def test_any_axis_and_layout_of_scores_and_gradient(apply_map):
    scores, mask, grad = randn(3, 4, 5, 6), randn(4, 1, 6) > -0.5, randn(3, 4, 5, 6, seed=2)
    last = both(apply_map, scores, grad, mask=mask)
    mask = mask.expand(scores.shape)
    for dim in range(-4, 4):
        z, m, g = (values.movedim(-1, dim) for values in (scores, mask, grad))
        for layout in (z, z.contiguous(), torch.stack([z, z], -1)[..., 0]):
            for values, right in zip(
                both(apply_map, layout, g, dim=dim, mask=m), last, strict=True
            ):
                torch.testing.assert_close(values.movedim(dim, -1), right, rtol=0, atol=3e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_at_the_end(apply_map, dtype):
    scores, grad = (2 * randn(30, 70)).to(dtype), randn(30, 70, seed=2).to(dtype)
    half, single = both(apply_map, scores, grad), both(apply_map, scores.float(), grad.float())
    for actual, exact in zip(half, single, strict=True):
        assert torch.equal(actual, exact.to(dtype))


@pytest.mark.usefixtures("every_implementation")
def test_alpha_is_single_for_half_precision():
    grads = []
    for dtype in (torch.bfloat16, torch.float32):
        alpha = torch.full((3, 1, 1), 1.3, requires_grad=True)
        weights = alpha_entmax(randn(2, 3, 4, 5).bfloat16().to(dtype), alpha)
        weights.bfloat16().float().square().sum().backward()
        grads.append(alpha.grad)
    assert grads[0].dtype is torch.float32
    assert torch.equal(*grads)


def test_one_node_of_graphs_differentiable_once(apply_map):
    scores = randn(4, 6)
    compiled = torch.compile(apply_map, backend="eager", fullgraph=True)
    assert torch.equal(compiled(scores), apply_map(scores))
    mapped = torch.vmap(apply_map)(scores)
    torch.testing.assert_close(mapped, apply_map(scores), rtol=0, atol=3e-7)
    leaf = scores.requires_grad_()
    (grad,) = torch.autograd.grad(apply_map(leaf)[:, 0].sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        grad.sum().backward()


@pytest.mark.usefixtures("every_implementation")
@pytest.mark.parametrize("with_alpha", [True, False])
def test_only_weights_are_saved_for_backward(with_alpha):
    saved_sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved_sizes.append(x.numel()) or x, id):
        scores = torch.randn(4, 3, 8, 16, requires_grad=True)
        alpha = torch.full((3, 1, 1), 1.3, requires_grad=True) if with_alpha else 1.5
        mask = torch.ones(4, 1, 1, 16, dtype=torch.bool)
        alpha_entmax(scores, alpha, mask=mask)
    assert sum(saved_sizes) == scores.numel() + (3 if with_alpha else 0)

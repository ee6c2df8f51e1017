"""Fused α-entmax attention compared with float64, in Triton's interpreter or on a GPU."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from headwise.ops.attention import triton_launch, triton_tiles
from headwise.ops.attention.triton import triton_entmax_attention, unsupported_reason
from headwise.ops.family import Power
from triton_cases import assert_precise, errors, fused, make_case, reference
from triton_marks import DEVICE, needs_triton

kernels = pytest.mark.usefixtures("form")
FORMS = ("resident", "streaming")
MASKS = [
    "padding", "causal", "offset", "cross", "few keys", "one query", "slopes", "slopes, causal",
    "slopes, offset",
]  # fmt: skip


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    if request.param == "streaming":
        monkeypatch.setattr(triton_tiles, "RESIDENT_BYTES", 0)
    return str(request.param)


class TestAgainstFloat64:
    pytestmark = needs_triton

    @kernels
    @pytest.mark.parametrize(
        "case",
        [
            make_case((2, 2, 21, 40, 16), lengths=[40, 7]),
            make_case((1, 3, 33, 33, 24), causal=True),
            make_case((2, 2, 9, 21, 16), lengths=[21, 15], causal=True, offset=12),
            make_case((1, 2, 19, 40, 16)),
            make_case((1, 2, 40, 19, 16)),
            make_case((1, 2, 1, 35, 16)),
            make_case((2, 3, 21, 21, 16), lengths=[21, 9], n_prefix=3),
            make_case((1, 2, 33, 33, 24), causal=True, n_prefix=0),
            make_case((1, 2, 9, 21, 16), causal=True, offset=12, n_prefix=14),
        ],
        ids=MASKS,
    )
    def test_masks(self, case):
        assert_precise(fused(case), reference(case))

    @kernels
    @pytest.mark.parametrize(("head_dim", "deviation"), [(16, 4.0), (128, 1.5)])
    def test_rows_of_several_blocks(self, head_dim, deviation, monkeypatch):
        monkeypatch.setattr(triton_tiles, "RESIDENT_KEYS", 512)
        shape = (1, 2, 90, 150, head_dim)
        case = make_case(shape, None, torch.float32, deviation, [140], causal=True, offset=60)
        assert_precise(fused(case), reference(case))

    @kernels
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_slopes_do_not_lower_precision(self, dtype):
        """Over several blocks, with scores up to a hundred."""
        worst = []
        for n_prefix in (None, 5):
            case = make_case((1, 2, 90, 150, 16), [1.2, 1.5], dtype, n_prefix=n_prefix)
            worst.append(max(errors(fused(case), reference(case))))
        assert worst[1] < max(2 * worst[0], 3e-5)

    @kernels
    def test_alpha_per_head(self):
        case = make_case((1, 6, 16, 70, 16), [1.0, 1.01, 1.3, 1.5, 1.8, 2.0])
        actual, expected = fused(case), reference(case)
        # at α = 1 the reference uses a slightly larger α
        assert max(errors(actual, expected)) < 5e-5
        rest = [[tensor.movedim(1, 0)[1:] for tensor in part[:4]] for part in (actual, expected)]
        assert_precise([*rest[0], actual[4][1:]], [*rest[1], expected[4][1:]])

    @kernels
    @pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
    def test_one_alpha_for_all_heads(self, alpha):
        case = make_case((1, 2, 16, 100, 16), [alpha, alpha], deviation=3.0)
        assert max(errors(fused(case, alpha=alpha), reference(case))) < 5e-5

    @kernels
    @pytest.mark.parametrize("head_dim", [24, 64, 80, 128])
    def test_head_dims(self, head_dim):
        case = make_case((1, 1, 16, 20, head_dim), [1.4])
        assert_precise(fused(case), reference(case))

    @kernels
    @pytest.mark.parametrize(
        ("dtype", "head_dim", "bound"),
        [
            (torch.bfloat16, 16, 1.5e-2),
            (torch.bfloat16, 64, 1.5e-2),
            (torch.bfloat16, 128, 1.5e-2),
            (torch.float16, 16, 2e-3),
        ],
        ids=["bf16", "bf16, 64 wide", "bf16, 128 wide", "fp16"],
    )
    def test_half_precision(self, dtype, head_dim, bound):
        shape = (2, 4, 17, 70, head_dim)
        case = make_case(shape, [1.0, 1.02, 1.5, 1.9], dtype, lengths=[70, 33])
        actual = fused(case)
        assert actual[0].dtype is dtype
        assert actual[4].dtype is torch.float32
        assert max(errors(actual, reference(case))) < bound

    @pytest.mark.parametrize(("n_queries", "head_dim", "causal"), [(1, 64, False), (70, 80, True)])
    def test_half_precision_in_long_rows(self, n_queries, head_dim, causal):
        n_keys = triton_tiles.RESIDENT_KEYS + 40
        shape, offset = (2, 2, n_queries, n_keys, head_dim), n_keys - n_queries
        case = make_case(shape, None, torch.bfloat16, 1.5, [n_keys, 110], causal, offset)
        for tensor, exact in zip(fused(case), reference(case), strict=True):
            assert (tensor.double() - exact).norm() < 0.02 * exact.norm()

    @kernels
    def test_adversarial_rows(self):
        case = make_case((1, 3, 16, 70, 16), [1.02, 1.5, 1.9])
        query, key, _ = case.tensors
        key[:, :, 10:30] = key[:, :, :1]  # ties
        query[:, :, 0] = 0  # all equal
        query[:, :, 1] *= 4e3  # one key far above the rest
        query[:, :, 2] = 1e4 * torch.sign(query[:, :, 2])
        query[:, :, 3] = key[:, :, 3] * 1e-3  # hardly any spread
        case.grad[:, :, 1:3] = 0  # float32 scores of 1e4 are 1e-3 apart
        actual, expected = fused(case), reference(case)
        assert_precise(actual, expected)
        for row in (1, 2):
            assert errors([actual[0][:, :, row]], [expected[0][:, :, row]])[0] < 2e-3


class TestEdges:
    pytestmark = needs_triton

    @kernels
    def test_rows_without_keys_are_zero(self):
        case = make_case((2, 2, 18, 20, 16), lengths=[20, 0])
        context, grad_query, grad_key, grad_value, grad_alpha = fused(case)
        for tensor in (context, grad_query, grad_key, grad_value):
            assert not tensor[1].any()
            assert tensor[0].any()
        assert grad_alpha.isfinite().all()
        alone = make_case((2, 2, 18, 20, 16), lengths=[20, 0])
        alone.tensors = [tensor[:1] for tensor in alone.tensors]
        alone.grad, alone.lengths = alone.grad[:1], None
        torch.testing.assert_close(fused(alone)[4], grad_alpha)

    @kernels
    def test_any_layout_of_lengths(self):
        case = make_case((2, 2, 8, 20, 16), lengths=[13, 13])
        expected = fused(case)
        for lengths in (torch.tensor([13]), torch.tensor(13), torch.tensor([13, 1, 13])[::2]):
            case.lengths = lengths.to(DEVICE)
            for one, other in zip(fused(case), expected, strict=True):
                assert torch.equal(one, other)

    @kernels
    def test_padding_is_not_read(self):
        case = make_case((1, 2, 16, 40, 16), lengths=[25])
        all_expected = fused(case)
        for tensor in case.tensors[1:]:
            tensor[:, :, 25:] = torch.nan
        for actual, expected in zip(fused(case), all_expected, strict=True):
            assert torch.equal(actual, expected)

    @kernels
    def test_nan_stays_in_its_row(self):
        case = make_case((1, 2, 18, 40, 16))
        before = fused(case)[0]
        case.tensors[0][0, 1, 5, 2] = torch.nan
        context, grad_query, *_ = fused(case)
        assert context[0, 1, 5].isnan().all()
        assert grad_query[0, 1, 5].isnan().all()
        context[0, 1, 5] = before[0, 1, 5]
        assert torch.equal(context, before)

    @kernels
    def test_results_are_deterministic(self):
        case = make_case((2, 2, 20, 70, 16), lengths=[70, 33])
        for first, second in zip(fused(case), fused(case), strict=True):
            assert torch.equal(first, second)

    @pytest.mark.parametrize("n_queries", [128, 70])
    @pytest.mark.parametrize("causal", [False, True])
    def test_empty_blocks_are_skipped(self, n_queries, causal, monkeypatch):
        """Rows beyond the last query do not keep a block live."""
        monkeypatch.setattr(triton_tiles, "RESIDENT_BYTES", 0)
        offset = 256 - n_queries if causal else 0
        case = make_case((1, 1, n_queries, 256, 16), [1.5], causal=causal, offset=offset)
        query, key, _ = case.tensors
        # the first queries attend to the first and second block, the others to the third
        query.mul_(0.2), key.mul_(0.2)
        query[:, :, :64, 0], query[:, :, 64:, 1] = 4, 4
        key[:, :, :128, 0], key[:, :, 128:192, 1] = 4, 4
        live = triton_launch.forward(
            *case.tensors, case.alpha, *[None] * 6,
            int(Power.ANY), causal, offset, 0.0, case.scale, 0,
        )[4]  # fmt: skip
        assert live[0, 0].tolist() == [[1, 1, 0, 0], [0, 0, 1, 0]]
        # scores computed in tiles of other shapes differ in their last bits
        assert max(errors(fused(case), reference(case))) < 1e-4


class TestDropout:
    pytestmark = needs_triton
    RATE = 0.3

    def keep_mask(self, shape, seed, causal=False):
        """Return the weights that dropout keeps, from equal weights and unit vectors as values."""
        n_batch, n_heads, n_queries, n_keys = shape
        assert n_keys <= 128
        zeros = torch.zeros(n_batch, n_heads, max(n_queries, n_keys), 128, device=DEVICE)
        value = torch.eye(128, device=DEVICE)[:n_keys].expand(n_batch, n_heads, -1, -1)
        torch.manual_seed(seed)
        context = triton_entmax_attention(
            zeros[:, :, :n_queries], zeros[:, :, :n_keys], value, 1.5, dropout=self.RATE
        )
        return context[..., :n_keys] > 0

    @kernels
    def test_gradients_use_the_dropout_mask(self):
        case = make_case((1, 2, 40, 80, 16), [1.2, 1.7], causal=True, offset=40, n_prefix=2)
        keep = self.keep_mask((1, 2, 40, 80), seed=3)
        torch.manual_seed(3)
        actual = fused(case, self.RATE)
        assert_precise(actual, reference(case, keep, self.RATE))

    def test_dropout_rate_and_independence(self):
        keep = self.keep_mask((2, 2, 64, 128), seed=1).double()
        n_weights = keep.numel()
        deviation = (self.RATE * (1 - self.RATE) / n_weights) ** 0.5
        assert abs(float(keep.mean()) - (1 - self.RATE)) < 4 * deviation
        centred = keep - keep.mean()
        for axis in range(4):
            other = centred.roll(1, axis)
            correlation = float((centred * other).mean() / centred.square().mean())
            assert abs(correlation) < 4 * n_weights**-0.5

    def test_torch_seed_determines_the_mask(self):
        first, again, other = (self.keep_mask((1, 1, 16, 32), seed) for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_checkpointing_repeats_the_mask(self):
        case = make_case((1, 2, 16, 32, 16))
        torch.manual_seed(5)
        expected = fused(case, self.RATE)
        query = case.tensors[0].detach().requires_grad_()

        def attend(query):
            return triton_entmax_attention(
                query, *case.tensors[1:], case.alpha, dropout=self.RATE, scale=case.scale
            )

        torch.manual_seed(5)
        context = checkpoint(attend, query, use_reentrant=False)
        assert torch.equal(context, expected[0])
        assert torch.equal(torch.autograd.grad(context, query, case.grad)[0], expected[1])


@pytest.mark.parametrize("n_keys", [2048, 16384])
def test_memory_grows_linearly(n_keys):
    """Tensors saved besides the inputs do not grow per query with the number of keys."""
    query = torch.empty(1, 1, n_keys, 64, device="meta", dtype=torch.bfloat16)
    saved = triton_launch._fake_forward(
        query, query, query, query, *[None] * 6, 0, False, 0, 0.0, 1.0, 0
    )
    assert sum(tensor.numel() for tensor in saved[:4]) / n_keys == 2 * 64 + 2
    assert saved[4].numel() / n_keys <= n_keys / 64**2  # one flag per block


def test_refusals(monkeypatch):
    monkeypatch.setattr("headwise.ops.triton.device.HAS_TRITON", True)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    query = torch.zeros(1, 2, 3, 16)
    assert "on cpu" in str(unsupported_reason(query, query, query))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert unsupported_reason(query, query, query) is None
    assert "pattern" in str(unsupported_reason(query, query, query, pattern=True))
    assert "depends on the query" in str(
        unsupported_reason(query, query, query, alpha_per_query=True)
    )
    assert "one dtype" in str(unsupported_reason(query, query, query.half()))
    assert "one dtype" in str(unsupported_reason(*[query.double()] * 3))
    assert "head width" in str(unsupported_reason(*[torch.zeros(1, 2, 3, 256)] * 3))
    assert "(B, H, K, E)" in str(unsupported_reason(query, query[:, :1], query[:, :1]))
    assert "no keys" in str(unsupported_reason(query, query[:, :, :0], query[:, :, :0]))
    monkeypatch.setattr("headwise.ops.triton.device.HAS_TRITON", False)
    assert "not installed" in str(unsupported_reason(query, query, query))
    with pytest.raises(ValueError, match="not installed"):
        triton_entmax_attention(query, query, query, 1.5)

"""Inside the implementations of attention: when each is used, which blocks are computed, sums.

What they have in common is in `contract/test_attention_contract.py`. Axes: B batch, H heads, N
positions, T blocks, E head width.
"""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attention_cases import (
    COMBINATIONS,
    IMPLEMENTATIONS,
    PATTERNS,
    Case,
    by_cpp,
    equal,
    make_pattern,
)
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.window import Window
from headwise.nn.functional import Scores, attend_heads
from headwise.ops import check, dispatch
from headwise.ops.attention import (
    cpu_few,
    cpu_sparse,
    triton_blocks,
    triton_launch,
    triton_tiles,
)
from headwise.ops.attention.cpu import attention
from headwise.ops.attention.cpu_few import attention_of_few
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.attention.pattern_rule import POSITION, Rule
from headwise.ops.attention.triton import triton_entmax_attention, unsupported_reason
from headwise.ops.family import Power
from headwise.ops.flops import register_flops
from headwise.ops.visible import EVERYTHING, Visible
from kernel_marks import needs_kernels
from triton_marks import DEVICE, needs_triton

CHUNK_SCORES = "headwise.ops.attention.cpu.CHUNK_SCORES"
CPU = torch.device("cpu")


def context_and_gradients(case, tensors, within=False):
    *heads, grad, alpha = tensors
    leaves = [x.detach().requires_grad_() for x in heads]
    context = by_cpp(case, *leaves, alpha, 0.0)
    with torch.autocast("cpu", enabled=within):
        return [context.detach(), *torch.autograd.grad(context, leaves, grad)]


@needs_kernels
class TestCpp:
    @pytest.fixture
    def small_chunks(self, monkeypatch):
        monkeypatch.setattr(CHUNK_SCORES, 4)

    @pytest.mark.usefixtures("small_chunks")
    def test_bfloat16_sums_over_chunks_are_exact(self):
        query, key = torch.zeros(1, 1, 600, 8).bfloat16(), torch.ones(1, 1, 4, 8).bfloat16()
        tensors = [query, key, key, torch.ones_like(query), None]
        value_grad = context_and_gradients(Case((1, 1, 600, 4)), tensors)[3]
        assert (value_grad == 600 / 4).all()  # in bfloat16 64 + 0.25 is 64

    def test_bfloat16_sums_over_parts_of_a_pattern_are_exact(self):
        layout = BlockLayout(Rule(4, (64,), (POSITION,)), 64, False, torch.tensor([64]))
        query, value = torch.zeros(2, 1, 1, 64, 8).bfloat16()
        value += 2**-5  # the sum of each block but the first is 2^-9
        value[:, :, :4] = 16
        settings = cpu_sparse.Settings(layout, Power.EXP, 0.0, 1.0)
        context = cpu_sparse.sparse_attention(query, query, value, None, settings)
        assert (context == 1 + 4 / 128).all()  # 1 + 15 · 2^-9; in bfloat16 1 + 2^-9 is 1

    @pytest.mark.usefixtures("small_chunks")
    def test_backward_is_equal_within_autocast(self):
        case = Case((2, 2, 9, 30), Power.SQUARE)
        outside, inside = (context_and_gradients(case, case.inputs(), x) for x in (False, True))
        assert equal(outside, inside)

    def test_compiled_equals_eager(self):
        case, results = Case((2, 2, 20, 20), Power.ANY), []
        *heads, grad, alpha = case.inputs()

        def attend(*leaves):
            return by_cpp(case, *leaves, 0.1) * 3

        for call in (attend, torch.compile(attend, backend="aot_eager", fullgraph=True)):
            leaves = [x.clone().requires_grad_() for x in (*heads, alpha)]
            torch.manual_seed(1)
            context = call(*leaves)
            results.append([context, *torch.autograd.grad(context, leaves, grad)])
        assert equal(*results)

    def test_flop_counter_counts_two_products_forward_and_five_backward(self):
        case = Case((2, 3, 5, 7), Power.SQUARE)
        register_flops()
        with FlopCounterMode(display=False) as counter:
            context_and_gradients(case, case.inputs())
        assert counter.get_total_flops() == (2 + 5) * 2 * (2 * 3 * 5 * 7) * case.width

    @pytest.mark.parametrize("shape", [(2, 2, 0, 5), (2, 2, 5, 0), (0, 2, 3, 4)])
    def test_empty_queries_keys_or_batch(self, shape):
        case = Case(shape, Power.LINEAR)
        tensors = case.inputs()
        results = context_and_gradients(case, tensors)
        assert results[0].shape == tensors[0].shape
        assert all((result == 0).all() for result in results)

    def test_sparse_attention_forms_no_mask_of_all_positions(self):
        case = Case((1, 3, 100, 100), causal=True, sparse=("strided",))
        layout = case.layout
        assert layout.n_slots < 100
        assert "allowed_BHNK" not in vars(layout)


@needs_kernels
class TestFewQueries:
    FEW, MANY = (torch.zeros(2, 2, n, 16) for n in (cpu_few.MAX_QUERIES, 20))
    MISFITS = (
        (FEW, MANY[:1], MANY[:1]),
        (FEW, MANY[:, [0] * 3], MANY[:, [0] * 3]),
        (FEW, MANY, MANY[:, :, :4]),
        (FEW, MANY[..., :8], MANY),
    )

    def test_takes_only_few_queries_without_gradients(self):
        few, many = self.FEW, self.MANY
        others = [
            (many, many, many),
            (few, many, many.transpose(2, 3).contiguous().mT),
            (few.double(), many.double(), many.double()),
            (few, many, many.bfloat16()),
            (few, many[:, :, :0], many[:, :, :0]),
            (few[:, :, :0], many, many),
        ]
        assert not cpu_few.supports(few, many, many)
        with torch.no_grad():
            assert cpu_few.supports(few, many, many)
            assert cpu_few.supports(few, many, many[..., :8])
            assert cpu_few.supports(few, many[:, :1], many[:, :1])
            assert not any(cpu_few.supports(*tensors) for tensors in (*others, *self.MISFITS))

    @pytest.mark.parametrize("call", [attention_of_few, attention])
    def test_alpha_outside_of_its_range_is_refused(self, call):
        alpha, rest = (
            torch.full((1, 2, 1, 1), 2.1),
            [1.0] if call is attention_of_few else [0.0, 1.0],
        )
        with pytest.raises(ValueError, match="alpha must be in"):
            call(self.FEW, self.MANY, self.MANY, alpha, Power.ANY, Visible(), *rest)

    @pytest.mark.parametrize("tensors", MISFITS)
    def test_other_shapes_are_refused(self, tensors):
        with pytest.raises(ValueError, match=r"must have shape|must be a multiple"):
            attention_of_few(*tensors, None, Power.EXP, Visible(), 1.0)

    def test_empty_batch(self):
        tensors = [x[:0] for x in (self.FEW, self.MANY, self.MANY)]
        context = attention_of_few(*tensors, None, Power.SQUARE, Visible(), 1.0)
        assert context.shape == tensors[0].shape


class TestTriton:
    pytestmark = needs_triton

    @pytest.fixture(autouse=True)
    def _streaming(self, monkeypatch):
        monkeypatch.setattr(triton_tiles, "RESIDENT_BYTES", 0)

    @pytest.mark.parametrize("n_queries", [128, 70])
    @pytest.mark.parametrize("causal", [False, True])
    def test_empty_blocks_are_skipped(self, n_queries, causal):
        """Rows beyond the last query do not keep a block live."""
        offset = 256 - n_queries if causal else 0
        case = Case((1, 1, n_queries, 256), causal=causal, offset=offset, device=DEVICE)
        query, key, value, _, _ = case.inputs()
        # the first queries attend to the first and second block, the others to the third
        query.mul_(0.2), key.mul_(0.2)
        query[:, :, :64, 0], query[:, :, 64:, 1] = 4, 4
        key[:, :, :128, 0], key[:, :, 128:192, 1] = 4, 4
        alpha = torch.tensor([1.5], device=DEVICE)
        settings = (int(Power.ANY), causal, offset, 0.0, 0.3, 0)
        live = triton_launch.forward(query, key, value, alpha, *[None] * 8, *settings)[4]
        assert live[0, 0].tolist() == [[1, 1, 0, 0], [0, 0, 1, 0]]

    @pytest.mark.parametrize("is_resident", [True, False])
    def test_masked_keys_are_not_read(self, is_resident, monkeypatch):
        if is_resident:
            monkeypatch.undo()
        case = Case((2, 1, 20, 100), is_masked=True, power=Power.SQUARE, device=DEVICE)
        row = next(one for one in IMPLEMENTATIONS if one.name == "Triton resident")
        tensors = case.inputs()
        expected = row.results(case, tensors)
        hidden = ~case.keys_BK[:, None, :, None].expand(tensors[1].shape)
        tensors[1][hidden], tensors[2][hidden] = torch.nan, torch.inf
        assert equal(row.results(case, tensors), expected)

    def test_blocks_of_masked_keys_and_of_other_documents_are_not_listed(self):
        keys_BK = (torch.arange(100) >= 40).repeat(2, 1).to(DEVICE)
        segments_BN = torch.arange(100, device=DEVICE)[None] // 50
        sizes = (None, 100, 100, True, 0, 32)

        def listed(*masks):
            lists = triton_blocks.mask_lists(sizes[0], *masks, *sizes[1:])[0, 0].tolist()
            return [line[1 : 1 + line[0]] for line in lists]

        assert triton_blocks.mask_lists(sizes[0], None, None, *sizes[1:]) is None
        # ~1: a block with pairs that are not visible beside causality
        assert listed(keys_BK, None) == [[], [~1], [~1, 2], [~1, 2, ~3]]
        assert listed(None, segments_BN) == [[0], [~0, ~1], [~1, 2], [~1, ~2, ~3]]

    @pytest.mark.parametrize("causal", [False, True])
    def test_window_with_masked_keys_documents_and_grouped_keys(self, causal):
        case = Case((2, 4, 70, 70), power=Power.SQUARE, key_heads=2, device=DEVICE)
        *heads, grad, _ = case.inputs()
        masks = {
            "segments_BN": (torch.arange(70, device=DEVICE) // 40)[None],
            "mask": torch.arange(70, device=DEVICE)[None, None, None].expand(2, -1, -1, -1) % 9 > 2,
        }
        visible = Visible(None, causal, window=20, **masks)
        triton = dispatch.Choice(dispatch.TRITON, "")

        def results(dtype, choice):
            leaves = [x.detach().to(dtype).requires_grad_() for x in heads]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(dispatch, "attention", lambda *args, **kwargs: choice)
                scores = Scores(visible, 0.3)
                context, weights = attend_heads(*leaves, Power.SQUARE, None, scores)
            assert (weights is None) == (choice is triton)
            gradients = torch.autograd.grad(context, leaves, grad.to(dtype))
            return [context, *gradients]

        expected = results(torch.float64, dispatch.Choice(dispatch.WEIGHTS, ""))
        for ours, exact in zip(results(torch.float32, triton), expected, strict=True):
            torch.testing.assert_close(ours.double(), exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("n_keys", [2048, 16384])
def test_memory_of_triton_grows_linearly(n_keys):
    """Tensors saved besides the inputs do not grow per query with the number of keys."""
    query = torch.empty(1, 1, n_keys, 64, device="meta", dtype=torch.bfloat16)
    alpha = torch.empty(1, device="meta")
    saved = triton_launch.forward(query, query, query, alpha, *[None] * 8, 0, False, 0, 0.0, 1.0, 0)
    assert sum(tensor.numel() for tensor in saved[:4]) / n_keys == 2 * 64 + 2
    assert saved[4].numel() / n_keys <= n_keys / 64**2  # one flag per block


@pytest.fixture
def has_triton(monkeypatch):
    """Set whether Triton is installed."""

    def set_triton(is_installed=True):
        monkeypatch.setattr("headwise.ops.triton.device.HAS_TRITON", is_installed)

    set_triton()
    return set_triton


PLACE = Place("encoder_self", 1, 2, 16)
QUERY, KEYS = torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 5, 16)
REFUSED = [
    (([QUERY] * 3, Mask(None, False, Window(PLACE))), "pattern"),
    (([QUERY] * 3, Visible(mask=QUERY[..., :3] > 0)), "by query or head"),
    (([QUERY] * 3, Visible(mask=QUERY[:, :, :1, :3] > 0)), "by query or head"),
    (([QUERY, KEYS, KEYS], Visible(window=1)), "earlier queries"),
    (([QUERY, KEYS, KEYS], Visible(segments_BN=KEYS[:, 0, :, 0])), "earlier queries"),
    (([QUERY] * 3, EVERYTHING, True), "depends on the query"),
    (([QUERY, QUERY, QUERY.half()],), "one dtype"),
    (([QUERY.double()] * 3,), "one dtype"),
    (([torch.zeros(1, 2, 3, 264)] * 3,), "head width"),
    (([QUERY, QUERY[:, [0] * 3], QUERY[:, [0] * 3]],), "multiple"),
    (([QUERY, QUERY[:, :, :0], QUERY[:, :, :0]],), "no keys"),
]


@pytest.mark.parametrize(("arguments", "reason"), REFUSED)
def test_calls_that_triton_refuses(has_triton, monkeypatch, arguments, reason):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    heads, *others = arguments
    assert unsupported_reason(QUERY, QUERY, QUERY) is None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(unsupported_reason(*heads, *others))


def test_triton_that_is_not_installed_or_has_no_device(has_triton, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "on cpu" in str(unsupported_reason(QUERY, QUERY, QUERY))
    has_triton(False)
    with pytest.raises(ValueError, match="not installed"):
        triton_entmax_attention(QUERY, QUERY, QUERY, 1.5)


def test_choice_for_sparse_patterns_on_a_gpu(on_gpu, monkeypatch):
    monkeypatch.setattr(check, "failure", lambda library: None)
    query = on_gpu(torch.zeros(1, 2, 300, 16))
    arguments = (query, query, Power.EXP)
    assert dispatch.sparse_attention(*arguments).kernel == dispatch.TRITON
    per_query = dispatch.sparse_attention(*arguments, alpha_per_query=True)
    assert per_query == (dispatch.WEIGHTS, "α depends on the query")
    double = [tensor.double() for tensor in arguments[:2]]
    assert "float64" in dispatch.sparse_attention(*double, Power.EXP).reason


@pytest.fixture
def marks_of(monkeypatch):
    """Marks of blocks of a rule, (B, H, T, T): no visible pair, only such pairs, or both."""
    monkeypatch.setattr(triton_blocks, "block_lists", lambda marks, by_keys: marks)

    def marks(rule, n, causal, lengths, block):
        return triton_blocks.pattern_tiles(rule, n, causal, lengths, block).lists

    return marks


class TestMarks:
    """Which blocks the Triton kernels compute."""

    @pytest.mark.parametrize("causal", [True, False])
    @pytest.mark.parametrize("name", PATTERNS)
    def test_every_visible_pair_is_in_a_marked_block(self, name, causal, marks_of):
        n, lengths = 78, torch.tensor([78, 33, 1])
        for combination, (stride, block) in itertools.product(
            COMBINATIONS, ((8, 4), (7, 16), (30, 8))
        ):
            mask = Mask(lengths, causal, make_pattern(name, *combination, stride=stride))
            rule, visible = mask.layout(n, n, CPU).rule, mask.dense(n, n, CPU)
            places = triton_blocks.places(rule, n, 3, CPU)
            visible = visible.expand(3, 3, n, n)
            visible = visible.gather(2, places[:, :, 0, :, None].long().expand_as(visible))
            visible = visible.gather(3, places[:, :, 2, None].long().expand_as(visible))
            columns = nn.functional.pad(visible, (0, -n % block))
            any_visible, all_visible = (
                nn.functional.pad(columns, (0, 0, 0, -n % block), value=value)
                .unflatten(3, (-1, block))
                .unflatten(2, (-1, block))
                for value in (False, True)
            )
            marks = marks_of(rule, n, causal, lengths, block)
            assert not any_visible.any(5).any(3)[marks == 0].any()
            assert all_visible.all(5).all(3)[marks == 1].all()
            assert (marks == 0).any()

    @pytest.mark.parametrize("combine", ["merged", "heads"])
    @pytest.mark.parametrize("name", PATTERNS)
    def test_number_of_blocks_grows_as_n_sqrt_n(self, name, combine, marks_of):
        counts = []
        for n in (4096, 16384):
            lengths = torch.tensor([n])
            rule = make_pattern(name, combine, stride=math.isqrt(n)).rule(n, True, lengths)
            marks = marks_of(rule, n, True, lengths, 64)
            counts.append(int((marks > 0).sum()))
        assert counts[1] <= 8.5 * counts[0]
        assert counts[1] <= 0.25 * marks.numel() / 2  # of a causal dense computation

    @pytest.mark.parametrize("causal", [True, False])
    def test_slots_and_blocks_per_query_of_a_window_are_constant(self, causal, marks_of):
        slots, blocks = [], []
        for n in (1024, 4096):
            window = Window(Place("encoder_self", 1, 2, 8), 32, 4)
            layout = window.layout(n, causal, None, CPU)
            slots.append(layout.n_slots)
            marks = marks_of(layout.rule, n, causal, torch.tensor([n]), 64)
            blocks.append(int((marks > 0).sum()) / n)
        assert slots == [(2 if causal else 3) * 32 + 4] * 2
        assert blocks[1] == pytest.approx(blocks[0], rel=0.05)


def test_rule_that_states_too_few_keys_is_refused():
    n, lengths = 40, torch.tensor([40])
    every_BHN = (torch.arange(n) % 8 < 2)[None, None]
    for numbers in ((1, None), (2, 1)):
        rule = Rule(8, (3, 3), (POSITION, POSITION), every_BHN, *numbers)
        with pytest.raises(ValueError, match=r"n_every=. .*2 keys|every_blocks"):
            _ = BlockLayout(rule, n, False, lengths).allowed_BHNK

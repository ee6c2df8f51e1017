"""Contract of a layer's attention with every attention, pattern, scaling, positions and gates.

Cases are found by their yaml. Axes: B rows, H heads, N positions, D model width.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch

from headwise.attention.attention import ScoreAttention
from headwise.attention.build import AttentionFactory, unsupported_sites
from headwise.attention.linear import LinearAttention
from headwise.attention.mask import Mask
from headwise.attention.normaliser import Normaliser
from headwise.config.instantiate import target_class
from headwise.config.register import group_choices, group_node
from headwise.config.schema import SITE_GROUPS, SITES
from headwise.errors import ConfigError
from layer_parts import BLOCKS, LAYERS, POSITIONS, D, H, acts_on_scores, new_layer, parts_of
from weights_recorded import with_weights

N, LENGTHS, FIRST = 70, (70, 9, 2), 24  # FIRST of a second document
B = len(LENGTHS)
TYPES = {torch.float64: 1e-10, torch.float32: 1e-4}  # float32: by fused kernels
CASES = [
    (part, site)
    for part in LAYERS
    for site in SITES
    if not part.lacks(site) and (part.group, site) != ("pattern", "cross")  # not restricted
]
pytestmark = pytest.mark.usefixtures("kernels_for_short_rows")


def every(cases):
    return pytest.mark.parametrize(("part", "site"), cases, ids=str)


def layers(part, site):
    for dtype, limit in TYPES.items():
        yield part.layer(site).to(dtype), limit


def inputs(site, layer, n=N):
    """States of queries and keys (B, N, D), and the mask of a site."""
    dtype = layer.query.weight.dtype
    key, query = torch.randn(2, B, n, D, generator=torch.Generator().manual_seed(n)).to(dtype)
    lengths = torch.tensor(LENGTHS).clamp(max=n)
    mask = Mask(causal=True) if site == "decoder_self" else Mask(lengths)
    return (query if site == "cross" else key), key, mask


def with_documents(mask, layer):
    """The mask, and also one of two documents where the attention can separate them."""
    if layer.place.kind == "cross" or layer.without_documents:
        return [mask]
    return [mask, replace(mask, segments_BN=(torch.arange(N) >= FIRST).long().repeat(B, 1))]


def assert_close(actual, expected, limit):
    torch.testing.assert_close(actual, expected, rtol=limit, atol=limit)


@every([case for case in CASES if case[1] != "decoder_self"])
def test_padding_changes_nothing(part, site):
    for layer, limit in layers(part, site):
        query, key, mask = inputs(site, layer)
        whole = layer(query, key, key, mask)
        longer = torch.cat((key, key[:, :3]), dim=1)
        for row, length in enumerate(LENGTHS):
            longer[row, length:] = 37.0
        padded = layer(query if site == "cross" else longer, longer, longer, mask)
        for row, length in enumerate(LENGTHS):
            keys = key[row : row + 1, :length]
            queries = query[row : row + 1] if site == "cross" else keys
            alone, n = layer(queries, keys, keys, Mask())[0], queries.shape[1]
            assert_close(whole[row, :n], alone, limit)
            assert_close(padded[row, :n], alone, limit)


@every([case for case in CASES if case[1] == "decoder_self"])
def test_the_future_changes_nothing(part, site):
    for layer, limit in layers(part, site):
        query, _, mask = inputs(site, layer)
        before = layer(query, query, query, mask)
        for first in (1, 8, 9, 33, N - 1):
            changed = query.clone()
            changed[:, first:] += 10.0
            after = layer(changed, changed, changed, mask)
            assert_close(after[:, :first], before[:, :first], limit)
            assert not torch.allclose(after[:, first:], before[:, first:])


# first and last position of a step, and the rows that follow it: moved, more, fewer
STEPS = [(0, 54, [2, 0, 0, 1]), *((i, i + 1, [*range(4)]) for i in range(54, 63)), (63, 66, [3, 1])]


@every([case for case in CASES if case[1] != "encoder_self"])
def test_cached_steps_equal_the_whole_and_follow_their_rows(part, site):
    for (layer, limit), is_recorded in product(layers(part, site), (False, True)):
        if is_recorded and isinstance(layer, LinearAttention):
            continue  # its cache has no keys
        query, key, mask = inputs(site, layer)
        whole, all_weights = with_weights(layer, query, key, key, mask)
        cache, rows = layer.make_cache(static=site == "cross"), torch.arange(B)
        cache.reorder(rows)  # nothing is in it
        for start, end, moved in [*STEPS, (66, N, [0, 1])]:
            keys = new = query[rows, start:end]
            mask = Mask(causal=True, query_offset=start)
            if site == "cross":  # read only once
                keys = torch.full_like(key[rows], torch.nan) if start else key
                mask = Mask(torch.tensor(LENGTHS)[rows])
            arguments = new, keys, keys, mask, cache
            if is_recorded:
                context, weights = with_weights(layer, *arguments)
                if weights is not None:
                    expected = all_weights[rows, :, start:end, : weights.shape[-1]]
                    assert_close(weights, expected, limit)
            else:
                context = layer(*arguments)
            assert_close(context, whole[rows, start:end], limit)
            assert cache.is_complete == (site == "cross")
            cache.reorder(torch.tensor(moved))
            rows = rows[moved]


@every(CASES)
def test_blocks_of_queries_equal_the_whole(part, site):
    """The analysis of long sequences relies on it."""
    for layer, limit in layers(part, site):
        query, key, mask = inputs(site, layer)
        for one in with_documents(mask, layer):
            whole = layer(query, key, key, one)
            keys = key[:, :40] if one.causal else key
            block = layer(query[:, 20:40], keys, keys, replace(one, query_offset=20))
            assert_close(block, whole[:, 20:40], limit)


@every(CASES)
def test_recording_changes_nothing_and_weights_are_of_visible_keys(part, site):
    for (layer, limit), n in product(layers(part, site), (1, 2, N)):
        query, key, mask = inputs(site, layer, n)
        for one in with_documents(mask, layer) if n == N else [mask]:
            context, weights = with_weights(layer, query, key, key, one)
            assert_close(context, layer(query, key, key, one), limit)
            if layer.forms_weights == "no":
                assert weights is None
                continue
            assert weights.shape == (B, H, n, n)
            positions = torch.arange(n)
            hidden = (positions >= torch.tensor(LENGTHS)[:, None])[:, None].repeat(1, n, 1)
            if one.causal:
                hidden[:] = positions > positions[:, None]
            if one.segments_BN is not None:
                hidden |= (positions >= FIRST) != (positions >= FIRST)[:, None]
            assert not weights.masked_select(hidden[:, None]).any()
            for row, length in enumerate(LENGTHS):
                real = slice(length if site == "encoder_self" else n)
                rows = weights[row, list(layer.distribution_heads()), real]
                assert (rows >= 0).all()
                assert_close(rows.sum(-1), torch.ones_like(rows[..., 0]), max(limit, 1e-6))


@every(CASES)
def test_dropout_acts_in_training_and_after_recording(part, site):
    layer = part.layer(site)
    query, key, mask = inputs(site, layer)
    whole, weights = with_weights(layer, query, key, key, mask)
    assert layer.dropout == 0.5
    layer.train()
    dropped, recorded = with_weights(layer, query, key, key, mask)
    assert recorded is weights is None or torch.equal(recorded, weights)
    if not isinstance(layer, LinearAttention):  # forms no weights to drop
        for context in (dropped, layer(query, key, key, mask)):
            assert not torch.allclose(context, whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every(CASES)
def test_every_weight_gets_a_finite_gradient(part, site, dtype):
    layer = part.layer(site).train()
    query, key, mask = inputs(site, layer)
    with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
        context = layer(query, key, key, mask)
    weights = torch.randn(context.shape, generator=torch.Generator().manual_seed(5))
    loss = (context.float() * weights).sum()
    penalty = None if layer.gate is None else layer.gate.penalty()
    (loss if penalty is None else loss + penalty).backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if name != "key.bias":  # it adds a constant to all scores of a row
            assert parameter.grad.any(), name


@every([case for case in CASES if case[1] == "cross"])
def test_row_without_a_key_is_zero(part, site):
    for (layer, _), is_recorded in product(layers(part, site), (False, True)):
        query, key, _ = (value for value in inputs(site, layer))
        query, key = query.requires_grad_(), key.requires_grad_()
        arguments = query, key, key, Mask(torch.tensor([0, 9, N]))
        context = with_weights(layer, *arguments)[0] if is_recorded else layer(*arguments)
        assert_close(context[0], layer.output.bias.expand(N, D), 0)
        context.square().sum().backward()
        for gradient in (query.grad, key.grad):
            assert gradient is not None
            assert gradient.isfinite().all()
            assert not gradient[0].any()
            assert gradient[1].any()
        assert key.grad is not None
        assert not key.grad[1, 9:].any()


@every(CASES)
def test_weights_are_saved_and_values_are_those_of_heads(part, site):
    layer, other = part.layer(site), part.layer(site)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.load_state_dict(layer.state_dict())
    query, key, mask = inputs(site, layer)
    assert torch.equal(other(query, key, key, mask), layer(query, key, key, mask))
    for name, values in layer.stats().items():
        assert values.shape == (H,), name
        assert values.isfinite().any(), name  # NaN: no value for that head
        assert not values.isinf().any(), name
    for module in layer.modules():
        for name, axis in getattr(module, "head_axes", {}).items():
            n_heads = module.place.n_heads
            assert module.get_parameter(name).shape[axis] == n_heads, name


@every(CASES)
def test_layer_is_built_on_the_meta_device(part, site):
    with torch.device("meta"):
        assert all(parameter.is_meta for parameter in new_layer(part, site).parameters())


@every([case for case in CASES if case[0].group == "scaling"])
def test_factor_has_one_value_per_head_and_query(part, site):
    layer = part.layer(site)
    assert isinstance(layer, ScoreAttention)
    assert (layer.scaling is None) == (part.choice == "none")
    if layer.scaling is not None:
        query, _, mask = inputs(site, layer)
        visible = mask.n_visible(N, N, query.device)
        factor = layer.scaling(query, visible)
        assert factor.dtype is torch.float32
        assert factor.shape in ((1, H, N, 1), (B, H, N, 1))
        assert factor.isfinite().all()
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(layer.scaling(query, visible), factor)


def is_normaliser(choice):
    return issubclass(target_class(group_node("attention", choice), "attention"), Normaliser)


@pytest.mark.parametrize(
    ("attention", "positions"),
    [
        *((choice, None) for choice in filter(is_normaliser, group_choices("attention"))),
        *(("entmax15", part.choice) for part in filter(acts_on_scores, POSITIONS)),
    ],
)
@every([case for case in CASES if BLOCKS in dict(case[0].settings)])
def test_block_sparse_layer_equals_the_dense_one(part, site, attention, positions):
    results = []
    for start in (1, 10**9):
        settings = {**dict(part.settings), BLOCKS: start}
        part = replace(part, settings=tuple(settings.items()))
        layer = replace(part, attention=attention, positions=positions).layer(site)
        assert isinstance(layer, ScoreAttention)
        assert layer.pattern is not None
        query, _, mask = inputs(site, layer.double())
        layout = layer.pattern.layout(N, mask.causal, mask.key_lengths_B, query.device)
        assert (layout is None) == (start > 1)
        context = layer(query.requires_grad_(), query, query, mask)
        is_real = (
            torch.arange(N) < torch.tensor(LENGTHS if site == "encoder_self" else [N])[:, None]
        )
        context = context * is_real[..., None]
        context.square().sum().backward()
        results.append([context.detach(), query.grad, *(p.grad for p in layer.parameters())])
    for one, other in zip(*results, strict=True):
        assert one is other is None or not assert_close(one, other, 1e-9)


@pytest.mark.parametrize(
    ("group", "choice", "site", "reason"),
    [
        (group, part.choice, site, reason)
        for group in SITE_GROUPS
        for part in parts_of(group)
        for site, reason in unsupported_sites(part.node, group).items()
    ],
)
def test_unsupported_sites_are_refused_with_alternatives(group, choice, site, reason):
    nodes = {"attention": group_node("attention", "softmax")}
    supported = "softmax" if group == "attention" else "none"
    with pytest.raises(ConfigError, match=rf"{group}@.*\.{site}=.*{supported}") as error:
        AttentionFactory(nodes, {group: {site: group_node(group, choice)}})
    assert reason in str(error.value)

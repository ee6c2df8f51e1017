"""Kinds of heads: planted local, row, column, global and data-dependent heads."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.analysis.kinds import REGIONS, Places, Variations, kinds, region_shares
from weights_by_hand import Means, Model, batch_of, observation

SITE = "decoder_self"
SHAPE = 8, 8, 3
N = 8 * 8 * 3
IMAGE = Places(N, row=24, channels=3, n_start=1, image=N)
TEXT = Places(N, n_start=1)
STRIDED = Places(N, row=32, n_start=1)


def weights_to(keys_of):
    """Equal weights (N, N) of query q to the values `keys_of(q)`, or to itself."""
    rows = torch.zeros(N, N)
    for query in range(N):
        keys = [v + 1 for v in keys_of(query) if -1 <= v < query] or [query]
        rows[query, keys] = 1 / len(keys)
    return rows


def pixel(value):
    return tuple(np.unravel_index(value, SHAPE)[:2])


def region_of(name):
    """The earlier values of a region of an image, by its definition."""

    def is_inside(query, value):
        (row, column), (other_row, other_column) = pixel(query), pixel(value)
        is_near, rows = abs(column - other_column) <= 1, row - other_row
        return {
            "local": rows <= 1 and is_near, "row": rows == 0 and not is_near,
            "column": rows > 1 and is_near, "global": rows > 0 and not is_near,
        }[name]  # fmt: skip

    return lambda query: [v for v in range(query) if is_inside(query, v)]


def shares_of(weights, places):
    means = Means(region_shares, places)
    means.add(batch_of([1], [N - 1]), observation(SITE, [weights.tolist()], [N], causal=True))
    return {n: v for n in REGIONS if (v := means.of(n, SITE)) is not None}


@pytest.mark.parametrize("name", ["local", "row", "column", "global"])
def test_heads_of_a_region_of_an_image_have_its_kind(name):
    shares = shares_of(weights_to(region_of(name)), IMAGE)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[name] > 0.9 or name == "row"  # the first pixels of a row have only neighbours
    assert kinds(shares) == [name]


def test_values_of_another_image_are_global():
    queries = torch.arange(N, 2 * N)
    two = replace(IMAGE, window=2 * N)
    regions = two.regions(queries, 2 * N)
    start, other = REGIONS.index("start"), REGIONS.index("global")
    assert (regions[:, [0, N]] == start).all()
    assert (regions[:, 1:N] == other).all()
    assert torch.equal(regions[:, N:], IMAGE.regions(queries - N, N))


@pytest.mark.parametrize(
    ("keys_of", "in_text", "in_rows"),
    [
        (lambda q: range(q - 8, q), ["local"], ["local"]),
        (lambda q: range(q - 32, q - 8), ["global"], ["row"]),
        (lambda q: range(q - 32, -1, -32), ["global"], ["column"]),
        (lambda q: range(q - 33, -1, -32), ["global"], ["column"]),  # key positions of `strided`
        (lambda q: range(q - 50, q - 40), ["global"], ["global"]),
        (lambda _: [-1], [], []),
    ],
)
def test_kinds_in_sequences(keys_of, in_text, in_rows):
    weights = weights_to(keys_of)
    assert kinds(shares_of(weights, TEXT)) == in_text
    assert kinds(shares_of(weights, STRIDED)) == in_rows
    assert "row" not in shares_of(weights, TEXT)


def variation_of(weights, block=N):
    """Variation of inputs with weights (n, N, N), in blocks of queries."""
    variations, n = Variations(N), len(weights)
    whole = observation(SITE, weights.tolist(), [N] * n, causal=True)
    for first in range(0, N, block):
        rows = slice(first, first + block)
        parts = whole.weights_BHQK[:, :, rows], whole.allowed_BHQK[:, :, rows]
        queries_BQ = whole.queries_BQ[:, rows]
        variations.add(
            replace(
                whole, weights_BHQK=parts[0], allowed_BHQK=parts[1], queries_BQ=queries_BQ,
                first=first,
            )
        )  # fmt: skip
    model = Model(1)
    ((value,),) = variations.table(model)[SITE][:1]
    assert value is not None
    return value


def test_variation_compares_inputs_with_their_mean():
    generator = torch.Generator().manual_seed(0)
    same = torch.rand(1, N, N, generator=generator).tril()
    same = (same / same.sum(-1, keepdim=True)).expand(5, N, N)
    assert variation_of(same) == pytest.approx(0, abs=1e-6)
    offsets = [weights_to(lambda q, o=o: [q - o]) for o in range(1, 6)]
    assert variation_of(torch.stack(offsets)) == pytest.approx(1, abs=0.01)
    different = (torch.rand(5, N, N, generator=generator) ** 4).tril()
    different = different / different.sum(-1, keepdim=True)
    selected = [(i + 1) * N // 16 - 1 for i in range(16)]
    p = different[:, selected].double()
    expected = 1 - p.mean(0).square().sum(-1) / p.square().sum(-1).mean(0)
    assert variation_of(different) == pytest.approx(float(expected.mean() * 5 / 4))
    assert variation_of(different, block=50) == pytest.approx(variation_of(different))
    assert kinds({"variation": variation_of(different)}) == ["data_dependent"]


def test_one_input_has_no_variation():
    variations, model = Variations(N), Model(1)
    variations.add(observation(SITE, [torch.eye(N).tolist()], [N], causal=True))
    assert variations.table(model) == {}

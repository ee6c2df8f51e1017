"""Jensen-Shannon divergence of heads: definition and bounds."""

import math

import pytest
import torch

from headwise.analysis.diversity import as_distributions, entropies, jensen_shannon

B, H, Q, K = 2, 5, 3, 4


def rows(seed=0, n_heads=H, n_keys=K):
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(B, n_heads, Q, n_keys, generator=generator, dtype=torch.float64)
    weights = (scores - scores.mean(-1, keepdim=True)).clamp(min=0)  # exact zeros among them
    return weights / weights.sum(-1, keepdim=True)


def shannon(row):
    return -math.fsum(share * math.log(share) for share in row if share > 0)


@pytest.mark.parametrize("n_heads", [2, 3, H])
@pytest.mark.parametrize("base", ["heads", "keys"])
def test_divergence_follows_the_definition(base, n_heads):
    p = rows(n_heads=n_heads)
    n_keys = torch.tensor([[K, 3, 2], [K, K, 1]])
    divergences = jensen_shannon(p, n_keys, base)
    assert divergences.shape == (B, Q)
    assert bool((entropies(p) > 0).any())
    for batch in range(B):
        for query in range(Q):
            heads = p[batch, :, query].tolist()
            mean = [math.fsum(column) / n_heads for column in zip(*heads, strict=True)]
            divergence = shannon(mean) - math.fsum(map(shannon, heads)) / n_heads
            # a logarithm to base 1 does not exist
            n = n_heads if base == "heads" else max(2, int(n_keys[batch, query]))
            expected = divergence / math.log(n)
            assert divergences[batch, query].item() == pytest.approx(expected, abs=1e-10)


def test_equal_heads_give_0_and_disjoint_heads_give_1():
    n_keys = torch.full((B, Q), 7)
    for n_heads in range(2, 9):  # the mean of equal numbers may be rounded
        same = rows(n_heads=1, n_keys=7).expand(-1, n_heads, -1, -1)
        torch.testing.assert_close(jensen_shannon(same, n_keys), torch.zeros(B, Q).double())
        assert bool((jensen_shannon(same, n_keys) >= 0).all())
    apart = torch.eye(7, dtype=torch.float64)[:H, None].expand(B, H, Q, 7)
    torch.testing.assert_close(jensen_shannon(apart, n_keys), torch.ones(B, Q).double())
    by_keys = jensen_shannon(apart, n_keys, "keys")
    expected = torch.full((B, Q), math.log(H) / math.log(7), dtype=torch.float64)
    torch.testing.assert_close(by_keys, expected)


def test_signed_rows_are_normalised_and_zero_rows_marked():
    weights = torch.tensor([[0.5, -1.5, 0.0], [0.0, 0.0, 0.0], [1.0, math.nan, 0.0]])
    distributions, exists = as_distributions(weights[None, None])
    torch.testing.assert_close(distributions[0, 0, 0], torch.tensor([0.25, 0.75, 0.0]))
    torch.testing.assert_close(distributions[0, 0, 1], torch.zeros(3))
    # non-finite rows must not count as rows without weights
    assert exists.tolist() == [[[True, False, True]]]
    assert bool(entropies(distributions)[0, 0, 2].isnan())

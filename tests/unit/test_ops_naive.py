"""The pages of the papers' equations, beside the oracle, which shares no line with them."""

import pytest
import torch

import oracle
from headwise.ops.attention.naive import attention
from headwise.ops.losses.naive import entmax_loss
from headwise.ops.maps.naive import alpha_entmax

EXACT = {"rtol": 0, "atol": 1e-9}


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("alpha", [1.01, 1.3, 1.5, 2.0])
def test_equations_of_the_papers_equal_the_oracle(alpha):
    scores, target = 3 * draw(5, 40), torch.arange(5)
    expected = oracle.weights(scores, alpha)
    torch.testing.assert_close(alpha_entmax(scores, alpha), expected, **EXACT)

    results = [
        oracle.with_gradients(lambda z, loss=loss: loss(z, target, alpha), [scores], draw(5))
        for loss in (entmax_loss, oracle.loss)
    ]
    torch.testing.assert_close(*results, **EXACT)

    query, key, value = draw(3, 2, 7, 4)
    mask = oracle.visible(7, 7, is_causal=True)[0]
    expected = oracle.attention(query, key, value, alpha, mask)
    torch.testing.assert_close(attention(query, key, value, alpha, mask), expected, **EXACT)

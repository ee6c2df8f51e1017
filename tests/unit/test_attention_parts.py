"""Masks, α, patterns and their composition."""

import math
from contextlib import suppress

import pytest
import torch
from torch import nn

from headwise.attention import heads
from headwise.attention.alpha_entmax import AlphaEntmax
from headwise.attention.build import AttentionFactory, completed
from headwise.attention.mask import Mask
from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.attention.recorder import recorded_weights
from headwise.attention.scores import ScoreAttention
from headwise.attention.softmax import Softmax
from headwise.config.folders import group_node
from headwise.errors import ConfigError
from headwise.ops import linear
from weights_recorded import with_weights

B, H, E, Q, K = 2, 4, 8, 5, 7
PLACE = Place("encoder_self", 1, H, E)
CPU = torch.device("cpu")


class Window(Pattern):
    """A pattern for the tests: neighbours at most one position away."""

    def allowed(self, query_positions_Q, n_keys, causal, key_lengths_B):
        distance = query_positions_Q[:, None] - torch.arange(n_keys)
        return (distance.abs() <= 1)[None, None]


def test_dense_mask_of_lengths_and_causality():
    lengths = torch.tensor([3, 1])
    mask = Mask(key_lengths_B=lengths, causal=True).dense(3, 3, CPU)
    expected = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]]).bool()
    assert torch.equal(mask[0, 0], expected)
    assert torch.equal(mask[1, 0], torch.tensor([[1, 0, 0]] * 3).bool())


def test_one_cached_step_needs_no_mask_and_two_do():
    assert Mask(causal=True, query_offset=4).dense(1, 5, CPU) is None
    two = Mask(causal=True, query_offset=4).dense(2, 6, CPU)
    assert torch.equal(two[0, 0], torch.tensor([[1, 1, 1, 1, 1, 0], [1] * 6]).bool())
    ahead = Mask(causal=True, query_offset=2).dense(1, 5, CPU)
    assert torch.equal(ahead[0, 0], torch.tensor([[1, 1, 1, 0, 0]]).bool())


def test_plain_causal_excludes_offsets_lengths_and_patterns():
    assert Mask(causal=True).is_plain_causal
    lengths, pattern = torch.tensor([3, 1]), Window(PLACE)
    for more in ({"query_offset": 2}, {"key_lengths_B": lengths}, {"pattern": pattern}):
        assert not Mask(causal=True, **more).is_plain_causal
    assert not Mask().is_plain_causal


def test_recorders_get_weights_until_detached():
    sites = ("encoder_self", "cross")
    model = nn.ModuleList(
        ScoreAttention(place, Softmax(place), None, dropout=0.0)
        for place in (Place(site, layer, H, E) for site in sites for layer in (1, 2))
    )
    states = torch.randn(B, Q, H * E)

    def run():
        for attention in model:
            attention(states, states, states, Mask())

    with recorded_weights(model) as outer:
        with suppress(RuntimeError), recorded_weights(model[0]) as inner:
            run()
            raise RuntimeError("stop")
        for site in sites:
            assert list(outer[site]) == [1, 2]
        assert inner == {"encoder_self": {1: outer["encoder_self"][1]}}
        first_weights = inner["encoder_self"][1]
        run()
    assert inner["encoder_self"][1] is first_weights, "the inner recorder was not detached"
    assert outer["encoder_self"][1] is not first_weights
    before = outer["cross"][2]
    run()
    assert outer["cross"][2] is before
    assert not any(attention.recorders for attention in model)


def test_dense_mask_is_expanded_to_all_keys():
    class OddQueries(Pattern):
        def allowed(self, query_positions_Q, *others):
            return query_positions_Q[:, None] % 2 == 1  # (Q, 1)

    dense = Mask(pattern=OddQueries(PLACE)).dense(4, 6, CPU)
    assert dense.shape == (1, 1, 4, 6)
    assert dense[0, 0].sum(-1).tolist() == [0, 6, 0, 6]


def test_pattern_is_combined_with_padding_and_causality():
    attention = ScoreAttention(PLACE, Softmax(PLACE), Window(PLACE), dropout=0.0)
    states = torch.randn(B, Q, H * E)
    mask = Mask(key_lengths_B=torch.tensor([5, 3]), causal=True)
    _, weights = with_weights(attention, states, states, states, mask)
    i, j = torch.meshgrid(torch.arange(Q), torch.arange(Q), indexing="ij")
    expected = (j <= i) & (i - j <= 1)
    assert torch.equal(weights[0, 0] > 0, expected)
    # the last query of the padded row sees no key at all: zeros, not NaN
    assert (weights[1, :, 4] == 0).all()


def test_softmax_attention_equals_torch_multihead():
    torch.manual_seed(0)
    attention = ScoreAttention(PLACE, Softmax(PLACE), None, dropout=0.0)
    reference = nn.MultiheadAttention(H * E, H, batch_first=True)
    with torch.no_grad():
        parts = (attention.query, attention.key, attention.value)
        reference.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        reference.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        reference.out_proj.weight.copy_(attention.output.weight)
        reference.out_proj.bias.copy_(attention.output.bias)
    query, key = torch.randn(B, Q, H * E), torch.randn(B, K, H * E)
    lengths = torch.tensor([K, 4])
    padding = torch.arange(K) >= lengths[:, None]
    options = {"key_padding_mask": padding, "average_attn_weights": False}
    expected, weights = reference(query, key, key, **options)
    context, recorded = with_weights(attention, query, key, key, Mask(key_lengths_B=lengths))
    torch.testing.assert_close(context, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(recorded, weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_self", [True, False])
def test_joined_projections_in_bfloat16(monkeypatch, is_self):
    torch.manual_seed(0)
    place = Place("encoder_self", 1, 3, E, width=H * E, qk_dim=6)  # a head was pruned
    attention = ScoreAttention(place, Softmax(place), None, dropout=0.0)
    query_BQD, key_BKD = torch.randn(B, Q, H * E), torch.randn(B, K, H * E)
    states = (query_BQD, *([query_BQD] * 2 if is_self else [key_BKD] * 2))
    joined = []

    def separate(values, *layers):
        joined.append(layers)
        return [layer(values) for layer in layers]

    monkeypatch.setattr(linear, "TRAINING_DTYPES", (torch.bfloat16,))  # on any processor
    results = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            context = attention(*states, Mask())
        grads = torch.autograd.grad(context.float().square().sum(), list(attention.parameters()))
        results.append((context, *grads))
        monkeypatch.setattr(heads, "linear_of_each", separate)
    layers = (attention.query, attention.key, attention.value)
    assert joined == [layers if is_self else layers[1:]]
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=2**-6, atol=2**-6)


def test_initial_alpha_has_the_distribution_of_the_authors():
    torch.manual_seed(0)
    place = Place("cross", 1, 4000, 2)
    alpha = AlphaEntmax(place).alpha()
    assert alpha.min() > 1.01
    assert alpha.max() < 2.0
    # a ~ N(0, 1): one standard deviation up is sigmoid(1) of the range
    share = (alpha < 1.01 + 0.99 / (1 + math.exp(-1))).float().mean()
    assert share.item() == pytest.approx(0.8413, abs=0.02)
    assert alpha.median().item() == pytest.approx(1.505, abs=0.02)


def test_fixed_initial_alpha_and_gradients_near_the_limits():
    module = AlphaEntmax(PLACE, alpha_init=1.3)
    torch.testing.assert_close(module.alpha(), torch.full((H,), 1.3))
    with torch.no_grad():
        module.alpha_logit.copy_(torch.tensor([-6.0, 6.0, 0.0, 1.0]))
    module.alpha().sum().backward()
    assert (module.alpha_logit.grad > 0).all(), "a clamp would have killed the gradient"


def test_pattern_on_cross_attention_is_refused(monkeypatch):
    # a search folds the hypotheses of a source into one row of queries without positions
    name = Window.__module__
    monkeypatch.setenv("HEADWISE_PLUGINS", name.split(".")[0])
    node = {"_target_": f"{name}.Window"}
    make = AttentionFactory({"attention": group_node("attention", "softmax"), "pattern": node})
    make(Place("decoder_self", 1, H, E))
    with pytest.raises(ConfigError, match="Window restricts attention at cross"):
        make(Place("cross", 1, H, E))


def test_saved_settings_include_instead():
    node = {**group_node("attention", "softmax"), "instead": {"cross": "alpha_entmax"}}
    saved = completed("attention", node)
    assert saved["instead"] == {"cross": group_node("attention", "alpha_entmax")}
    saved["instead"]["cross"]["alpha_init"] = 1.25  # not the value of the yaml
    attention = AttentionFactory({"attention": saved})(Place("cross", 1, H, E))
    torch.testing.assert_close(attention.stats()["alpha"], torch.full((H,), 1.25))
    at_other_site = AttentionFactory({"attention": saved})(PLACE)
    assert at_other_site.stats() == {}

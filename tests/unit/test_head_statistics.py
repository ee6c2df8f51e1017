"""Statistics of heads compared with a count by hand, with padding in every batch."""

import math
import operator
from contextlib import ExitStack

import pytest
import torch

from head_counting import (
    CPU,
    HEADS,
    LAYERS,
    SENTENCES,
    Dense,
    NegativeWeights,
    Signed,
    Thresholded,
    Weightless,
    Window,
    all_visible,
    assert_same,
    build,
    collate,
    divergence_of,
    flat,
    in_window,
    padded_batches,
    statistics_by_hand,
    with_normaliser,
)
from headwise.analysis.collect import (
    HeadMeans,
    add_statistics,
    alphas,
    head_statistics,
    reported,
)
from headwise.analysis.diversity import as_distributions, entropies, jensen_shannon
from headwise.analysis.observe import for_each_block
from headwise.attention.alpha_entmax import AlphaEntmax
from headwise.attention.attention import ScoreAttention
from headwise.attention.length_scaling import LengthScaling
from headwise.attention.place import Place
from headwise.config.schema import SITES
from headwise.errors import ConfigError


@pytest.mark.parametrize("kind", [Thresholded, Dense, Signed])
@pytest.mark.parametrize("pattern", [None, Window])
@pytest.mark.parametrize("n_cls", [0, 2])
def test_statistics_of_padded_batches_equal_a_count_per_sentence(kind, pattern, n_cls):
    """Only keys allowed by the pattern count; CLS tokens are neither queries nor keys."""
    model = build(with_normaliser(kind, pattern), cls_tokens=n_cls)
    statistics = head_statistics(model, padded_batches(), CPU)
    cls_statistics = {"cls_mass", "cls_divergence"} if n_cls else set()
    assert statistics.keys() == {"density", "entropy", "diversity", "output_norm"} | cls_statistics
    assert statistics["density"].keys() == set(SITES)
    assert_same(statistics, statistics_by_hand(model, in_window if pattern else all_visible, n_cls))
    densities = set(flat(statistics["density"]))
    assert densities == {1.0} if kind is Dense else len(densities) > 4  # values differ
    if n_cls:
        assert statistics["cls_mass"].keys() == {"encoder_self", "cross"}
        assert statistics["cls_divergence"].keys() == {"encoder_self"}


def test_base_of_keys_counts_keys_visible_to_any_head():
    """Of three tokens the second head sees all, the first does not."""
    model, batch = build(with_normaliser(Dense, Window)), collate([([5, 6, 7], [2, 4])])
    means, bases = HeadMeans(), ("heads", "keys")
    first = []
    for_each_block(model, [batch], CPU, lambda _, call: first or first.append(call))
    for call in first:
        add_statistics(means, call, dict(zip(bases, bases, strict=True)))
    heads, keys = (means.tables(model)[base]["encoder_self"][:1] for base in bases)
    for (by_heads,), by_keys in zip(heads, keys, strict=True):
        assert by_heads is not None
        assert by_keys == pytest.approx([by_heads * math.log(2) / math.log(3)])


def means_from_hooks(model, values_of):
    """Average over all queries the numbers that `values_of` returns, a list per head.

    Args:
        values_of: (attention, site, its arguments, its output).
    """
    values_by_head = {}
    with ExitStack() as hooks:
        for site, layer, attention in model.attentions():

            def record(module, args, output, site=site, layer=layer):
                for head, values in enumerate(values_of(module, site, args, output)):
                    values_by_head.setdefault((site, layer, head), []).extend(values)

            hooks.enter_context(attention.register_forward_hook(record))
        with torch.no_grad():
            for sentence in SENTENCES:
                batch = collate([sentence])
                model(**model.inputs(batch))
    return {
        site: [
            [math.fsum(v := values_by_head[site, layer, head]) / len(v) for head in range(HEADS)]
            for layer in (1, 2)
        ]
        for site in SITES
    }


def test_output_norms_are_those_of_head_outputs():
    """With the identity as output projection, attention returns the outputs of its heads."""
    model = build(
        lambda place: (Weightless if place.site == "cross" else ScoreAttention)(
            place, Dense(place), None, 0.5
        ),
        cls_tokens=1,
    ).eval()
    for _, _, attention in model.attentions():
        with torch.no_grad():
            attention.output.weight.copy_(torch.eye(8))

    def norms(attention, site, args, output):
        rows_QI = output[0, 1 if site == "encoder_self" else 0 :]
        heads = [rows_QI[:, head * 4 : head * 4 + 4].tolist() for head in range(HEADS)]
        return [[math.hypot(*row) for row in rows] for rows in heads]

    statistics = head_statistics(model, padded_batches(), CPU)
    assert "cross" not in statistics["density"]
    assert_same(statistics, {"output_norm": means_from_hooks(model, norms)})


def test_shared_alpha_of_queries_is_averaged_per_layer():
    shared = AlphaEntmax(Place("cross", 1, HEADS, 4), share="layer", depends_on="query")
    with torch.no_grad():
        shared.alpha_weight.normal_()
    model = build(lambda place: ScoreAttention(place, shared, None, 0.5)).eval()

    def alphas_of(attention, site, args, output):
        queries_HQE = attention.split(attention.query(args[0]))[0].tolist()
        weight = shared.alpha_weight[0].tolist()
        start = shared.alpha_logit.item()
        sums = [[math.fsum(map(operator.mul, weight, q)) for q in rows] for rows in queries_HQE]
        return [[1.01 + 0.99 / (1 + math.exp(-start - value)) for value in of] for of in sums]

    statistics = head_statistics(model, padded_batches(), CPU)
    assert_same(statistics, {"alpha": means_from_hooks(model, alphas_of)})
    assert len({round(value, 6) for value in flat(statistics["alpha"])}) == 3 * LAYERS * HEADS
    assert alphas(model) == {}


def test_query_statistics_exclude_cls_tokens():
    class Numbered(Dense):
        def query_stats(self, context):
            place_Q = torch.arange(context.queries_BHQE.shape[2])
            return {"place": place_Q.expand(context.queries_BHQE.shape[:3])}

    model = build(with_normaliser(Numbered), cls_tokens=2)
    place_means = head_statistics(model, [collate(SENTENCES[:1])], CPU)["place"]
    source, target = map(len, SENTENCES[0])
    n_cls = {"encoder_self": 2}  # CLS tokens precede the source
    for site, n in (("encoder_self", source), ("decoder_self", target), ("cross", target)):
        assert place_means[site] == [[n_cls.get(site, 0) + (n - 1) / 2] * HEADS] * LAYERS


def test_scaling_factor_and_its_parameters_are_reported():
    def make(place):
        scaling = LengthScaling(place, learned="head") if place.site == "encoder_self" else None
        return ScoreAttention(place, Dense(place), None, 0.5, scaling)

    model = build(make)
    statistics = head_statistics(model, padded_batches(), CPU)
    assert statistics["scale"].keys() == {"encoder_self"}
    lengths = [len(source) for source, _ in SENTENCES]
    for layer, attention in ((la, at) for site, la, at in model.attentions() if site == SITES[0]):
        beta, gamma = attention.scaling.beta.tolist(), attention.scaling.gamma.tolist()
        mean = [
            math.fsum(n * (1 + b * math.log(n + 1) ** g) for n in lengths) / sum(lengths)
            for b, g in zip(beta, gamma, strict=True)
        ]
        assert statistics["scale"]["encoder_self"][layer - 1] == pytest.approx(mean, abs=1e-10)
        assert statistics["scale_beta"]["encoder_self"][layer - 1] == pytest.approx(beta)
        assert statistics["scale_gamma"]["encoder_self"][layer - 1] == pytest.approx(gamma)


def test_model_and_random_state_are_unchanged():
    model = build(with_normaliser(Dense))
    model.train()
    model.encoder.eval()  # a frozen part stays frozen
    before = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    first = head_statistics(model, [collate(SENTENCES)], CPU)
    assert [module.training for module in model.modules()] == before
    assert head_statistics(model, [collate(SENTENCES)], CPU) == first  # no dropout
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in model.parameters())
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_unmeasurable_statistics_are_absent():
    def mixed(place):
        if place.site == "cross":
            return Weightless(place, Dense(place), None, 0.0)
        kind = NegativeWeights if (place.site, place.layer) == ("encoder_self", 1) else Dense
        return ScoreAttention(place, kind(place), None, 0.0)

    statistics = head_statistics(build(mixed), [collate(SENTENCES)], CPU)
    assert statistics["density"] == {
        "encoder_self": [[1.0, None], [1.0, 1.0]],
        "decoder_self": [[1.0, 1.0]] * 2,
    }
    is_missing = [value is None for value in flat(statistics["entropy"])]
    assert is_missing == [False] * 5 + [True] + [False] * 2
    assert [len(layer) for layer in statistics["diversity"]["encoder_self"]] == [0, 1]
    assert list(statistics["output_norm"]) == list(SITES)
    assert head_statistics(build(mixed), [], CPU) == {}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("is_declared", [True, False])
def test_nonfinite_weights_are_not_measured(value, is_declared):
    class Broken(Dense):
        is_distribution = is_declared

        def forward(self, scores_BHQK, context):
            weights = super().forward(scores_BHQK, context).clone()
            weights[0, 0, 0, 0] = value
            return weights

    def make(place):
        kind = Broken if (place.site, place.layer) == ("cross", 2) else Dense
        return ScoreAttention(place, kind(place), None, 0.0)

    # also where only one of the batches has them
    batches = [collate(SENTENCES[:2]), collate(SENTENCES[2:])]
    statistics = head_statistics(build(make), batches, CPU)
    for name in ("density", "entropy"):
        assert statistics[name]["cross"][1][0] is None
        assert statistics[name]["cross"][1][1] is not None
    assert statistics["diversity"]["cross"][1] == []


def test_heads_without_alpha_are_none():
    class Partly(Dense):
        def stats(self):
            other = math.nan if self.place.layer == 2 else 1.25
            return {"alpha": torch.tensor([math.nan, other])}

    alphas_of_sites = alphas(build(with_normaliser(Partly)))
    assert alphas_of_sites == {site: [[None, 1.25], []] for site in SITES}


@pytest.mark.parametrize("wrong", [torch.ones(HEADS + 1), torch.ones(HEADS, 1), 1.5])
def test_reported_statistics_must_be_one_number_per_head(wrong):
    class Wrong(Dense):
        def stats(self):
            return {"mine": wrong}

    with pytest.raises(ConfigError, match=r"Wrong at encoder_self .*shape \(2,\); 'mine' is"):
        reported(build(with_normaliser(Wrong)))

    class Misnamed(LengthScaling):
        def stats(self):
            return {"update": torch.ones(HEADS)}

    def make(place):
        return ScoreAttention(place, Dense(place), None, 0.0, Misnamed(place))

    with pytest.raises(ConfigError, match=r"Misnamed at encoder_self must not return 'update'"):
        reported(build(make))


# -- diversity ------------------------------------------------------------------------------------

B, H, Q, K = 2, 5, 3, 4


def distributions(n_heads=H, n_keys=K):
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(B, n_heads, Q, n_keys, generator=generator, dtype=torch.float64)
    weights = (scores - scores.mean(-1, keepdim=True)).clamp(min=0)  # exact zeros among them
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("n_heads", [2, 3, H])
def test_divergence_follows_the_definition(n_heads):
    p, n_keys = distributions(n_heads), torch.tensor([[K, 3, 2], [K, K, 1]])
    rows = p.transpose(1, 2).tolist()
    expected = torch.tensor(
        [[divergence_of(heads) for heads in of] for of in rows], dtype=torch.float64
    )
    torch.testing.assert_close(jensen_shannon(p, n_keys), expected, rtol=0, atol=1e-10)
    # a logarithm to base 1 does not exist
    by_keys = jensen_shannon(p, n_keys, "keys") * n_keys.clamp(min=2).double().log()
    torch.testing.assert_close(by_keys, expected * math.log(n_heads), rtol=0, atol=1e-10)


def test_equal_heads_give_0_and_disjoint_heads_give_1():
    n_keys = torch.full((B, Q), 7)
    for n_heads in range(2, 9):  # the mean of equal numbers may be rounded
        same = jensen_shannon(distributions(1, 7).expand(-1, n_heads, -1, -1), n_keys)
        torch.testing.assert_close(same, torch.zeros(B, Q).double())
        assert bool((same >= 0).all())
    apart = torch.eye(7, dtype=torch.float64)[:H, None].expand(B, H, Q, 7)
    for base, value in (("heads", 1.0), ("keys", math.log(H) / math.log(7))):
        expected = torch.full((B, Q), value, dtype=torch.float64)
        torch.testing.assert_close(jensen_shannon(apart, n_keys, base), expected)


def test_signed_rows_are_normalised_and_zero_rows_marked():
    weights = torch.tensor([[0.5, -1.5, 0.0], [0.0, 0.0, 0.0], [1.0, math.nan, 0.0]])
    shares, exists = as_distributions(weights[None, None])
    assert shares[0, 0, :2].tolist() == [[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]
    # non-finite rows must not count as rows without weights
    assert exists.tolist() == [[[True, False, True]]]
    assert bool(entropies(shares)[0, 0, 2].isnan())

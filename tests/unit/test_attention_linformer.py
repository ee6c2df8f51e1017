"""Linformer compared with its formula for every sharing and projection.

Axes: B batch, H heads, Q queries, K keys, M mixtures, D width, E head width.
"""

import math

import pytest
import torch

from headwise.attention.build import AttentionFactory
from headwise.attention.length_projection import MeanPooling
from headwise.attention.linformer import PROJECTIONS, SHARING, Linformer
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.scores import ScoreAttention
from headwise.config.folders import group_node
from headwise.config.schema import ModelConfig
from headwise.errors import DataError
from headwise.model.transformer import Transformer
from weights_recorded import with_weights

B, H, E, Q, K = 3, 2, 3, 4, 7
D = H * E
SMALL_K, MAX_LENGTH = 4, 12  # windows of 3
LENGTHS = torch.tensor([K, 4, 1])
EVERY = [
    *((sharing, projection, False) for sharing in SHARING for projection in PROJECTIONS),
    *(("key_value", projection, True) for projection in PROJECTIONS),
]
every = pytest.mark.parametrize(("sharing", "projection", "before_split"), EVERY)


def make(site="cross", place=None, **settings):
    torch.manual_seed(0)
    settings = {"k": SMALL_K, "max_length": MAX_LENGTH, **settings}
    attention = Linformer(place or Place(site, 1, H, E), **settings).double().eval()
    if settings.get("projection") == "convolution":  # different from the initial mean
        with torch.no_grad():
            for name, parameter in attention.named_parameters():
                if "length_projection" in name:
                    parameter.add_(torch.randn_like(parameter))
    return attention


def states(length, seed, batch=B, width=D):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, width, generator=generator, dtype=torch.float64)


def shares(module, head, mixture, length):
    """Return the weight of each position in one mixture of a sentence: a row of E."""
    weights = next(iter(module.parameters()), torch.zeros(0)).tolist()
    row = weights[head if len(weights) > 1 else 0] if weights else []
    if type(module).__name__ == "LearnedProjection":
        return row[mixture][:length]
    size = MAX_LENGTH // SMALL_K
    inside = [j for j in range(mixture * size, (mixture + 1) * size) if j < length]
    row_of_positions = [0.0] * length
    for j in inside:
        row_of_positions[j] = (
            1 / len(inside) if isinstance(module, MeanPooling) else row[j - mixture * size]
        )
    return row_of_positions


def mixed(module, head, vectors):
    """The mixtures of a sentence without padding, channel by channel: (N, D) to (M, D)."""
    size, length = MAX_LENGTH // SMALL_K, len(vectors)
    kind = type(module).__name__
    n_mixtures = SMALL_K if kind == "LearnedProjection" else math.ceil(length / size)
    mixtures = torch.zeros(n_mixtures, vectors.shape[1], dtype=torch.float64)
    for d, column in enumerate(vectors.T.tolist()):
        for m in range(n_mixtures):
            if kind == "MaxPooling":
                mixtures[m, d] = max(column[m * size : (m + 1) * size])
                continue
            row = shares(module, head, m, length)
            mixtures[m, d] = sum(share * x for share, x in zip(row, column, strict=True))
    return mixtures


@torch.no_grad()
def reference(attention, query, key, lengths):
    """softmax(Q (E K)^T / sqrt(E)) (F V), head by head, on sentences cut to their length."""
    key_projection, separate_projection = (
        attention.length_projection,
        attention.value_length_projection,
    )
    value_projection = key_projection if separate_projection is None else separate_projection
    context = torch.zeros(len(lengths), query.shape[1], D, dtype=torch.float64)
    for b, length in enumerate(lengths):
        states = key[b, :length]
        for h in range(H):
            channels = slice(h * E, (h + 1) * E)
            if attention.before_split:
                k = attention.key(mixed(key_projection, h, states))[:, channels]
                v = attention.value(mixed(value_projection, h, states))[:, channels]
            else:
                k = mixed(key_projection, h, attention.key(states)[:, channels])
                v = mixed(value_projection, h, attention.value(states)[:, channels])
            for i, q in enumerate(attention.query(query[b])[:, channels]):
                exps = [math.exp(float(q @ row) / math.sqrt(E)) for row in k]
                for x, row in zip(exps, v, strict=True):
                    context[b, i, channels] += x / sum(exps) * row
    return attention.output(context)


@every
@pytest.mark.parametrize("site", ["encoder_self", "cross"])
def test_context_is_correct(sharing, projection, before_split, site):
    attention = make(site, sharing=sharing, projection=projection, before_split=before_split)
    key = states(K, 1)
    query = key if site == "encoder_self" else states(Q, 2)
    expected = reference(attention, query, key, LENGTHS.tolist())
    mask = Mask(key_lengths_B=LENGTHS)
    recorded_context, _ = with_weights(attention, query, key, key, mask)
    for context in (attention(query, key, key, mask), recorded_context):
        torch.testing.assert_close(context, expected, rtol=0, atol=1e-10)
    unpadded = attention(query[:1], key[:1], key[:1], Mask())
    torch.testing.assert_close(unpadded, expected[:1], rtol=0, atol=1e-10)


@every
def test_weights_are_on_positions(sharing, projection, before_split):
    attention = make(sharing=sharing, projection=projection, before_split=before_split)
    query, key = states(Q, 1), states(K, 2)
    output, weights = with_weights(attention, query, key, key, Mask(key_lengths_B=LENGTHS))
    assert attention.distribution_heads() == (projection == "mean",) * H
    if projection == "max":
        assert attention.forms_weights == "no"
        assert weights is None
        return
    assert attention.forms_weights == Linformer.forms_weights == "effective"
    assert weights.shape == (B, H, Q, K)
    for row, length in enumerate(LENGTHS.tolist()):
        assert (weights[row, ..., length:] == 0).all()
    value = attention.value(key) - (attention.value.bias if before_split else 0)
    context = (weights @ attention.split(value)).transpose(1, 2).flatten(2)
    context = context + (attention.value.bias if before_split else 0)
    torch.testing.assert_close(attention.output(context), output, rtol=0, atol=1e-11)
    if projection == "mean":
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def linformer(**settings):
    return {**group_node("attention", "linformer"), **settings}


@pytest.mark.parametrize(
    ("sharing", "n_matrices"),
    [("none", 2 * H * 4), ("headwise", 2 * 4), ("key_value", 4), ("layerwise", 1)],
)
def test_sharing_has_the_number_of_matrices_of_the_paper(sharing, n_matrices):
    config = ModelConfig("sharing", 2, 2, D, H, 2 * D)  # four places: 2 of the encoder, 2 of cross
    factory = AttentionFactory({"attention": linformer(sharing=sharing, k=4, max_length=12)})
    model = Transformer(config, 11, 11, True, factory, seed=1)
    projections = [p for n, p in model.named_parameters() if "length_projection" in n]
    assert sum(p.numel() for p in projections) == n_matrices * 4 * 12
    for site, _, attention in model.attentions():
        assert isinstance(attention, ScoreAttention if site == "decoder_self" else Linformer)
    source, target = torch.randint(4, 11, (2, 5)), torch.randint(4, 11, (2, 3))
    model(source, torch.tensor([5, 4]), target).sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in projections)


def test_layerwise_sharing_is_per_size():
    common = linformer(k=4, max_length=12)
    cross = linformer(k=6, max_length=12)
    factory = AttentionFactory({"attention": common}, {"attention": {"cross": cross}})
    attentions = [factory(Place(s, n, H, E)) for s in ("encoder_self", "cross") for n in (1, 2)]
    parts = [attention.length_projection for attention in attentions]
    assert parts[0] is parts[1]
    assert parts[2] is parts[3]
    assert parts[0] is not parts[2]
    for projection, is_shared in (("convolution", True), ("mean", False), ("max", False)):
        node = linformer(k=4, max_length=12, projection=projection)
        assert (Linformer.share_key(attentions[0].place, node) is not None) == is_shared
    assert Linformer.share_key(attentions[0].place, {"sharing": "key_value"}) is None
    assert Linformer.share_key(attentions[0].place, {}) == "learned 64 × 256"


def test_too_long_sentence_is_refused():
    attention = make("encoder_self")
    assert attention.max_keys == MAX_LENGTH
    states_BKD = states(MAX_LENGTH + 1, 1)
    attention(states_BKD[:, 1:], states_BKD[:, 1:], states_BKD[:, 1:], Mask())
    for mask in (Mask(), Mask(key_lengths_B=torch.tensor([3, MAX_LENGTH + 1, 2]))):
        with pytest.raises(DataError, match=r"13 .* max_length=12 of the attention at encoder"):
            attention(states_BKD, states_BKD, states_BKD, mask)


def test_cache_holds_mixtures():
    attention, source = make(), states(K, 2)
    cache = attention.make_cache(static=True)
    attention(states(Q, 1), source, source, Mask(key_lengths_B=LENGTHS), cache)
    assert cache.content()[0].shape == (B, H, SMALL_K, E)


def test_initial_matrix_follows_the_paper():
    torch.manual_seed(0)
    factory = AttentionFactory({"attention": linformer()})
    config = ModelConfig("start", 1, 1, D, H, 2 * D)
    model = Transformer(config, 11, 11, True, factory, seed=1)
    (matrix,) = (p for n, p in model.named_parameters() if "length_projection" in n)
    assert matrix.shape == (1, 64, 256)
    assert matrix.std().item() == pytest.approx(64**-0.5, rel=0.03)
    initial = Linformer(Place("cross", 1, H, E), projection="convolution").length_projection.weight
    assert torch.equal(initial, torch.full((1, 4), 0.25))
    with torch.device("meta"):
        assert Linformer(Place("cross", 1, H, E), sharing="none").length_projection.weight.is_meta

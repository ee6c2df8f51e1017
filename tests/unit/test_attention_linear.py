"""Linear attention and Linformer, which form no matrix of all pairs, against their formulas.

Axes: B batch, H heads, Q queries, K keys, N a length, M mixtures, D width, E head width, F = E + 1.
"""

import pytest
import torch
from benchmarks.saved_storages import n_bytes, saved_storages

import oracle
from headwise.attention.attention import ScoreAttention
from headwise.attention.build import AttentionFactory
from headwise.attention.linear import LinearAttention, causal_product, positive_elu
from headwise.attention.linformer import PROJECTIONS, SHARING, Linformer
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.config.register import group_node
from headwise.config.schema import ModelConfig
from headwise.errors import DataError
from headwise.model.transformer import Transformer
from weights_recorded import with_weights

B, H, E, Q, K = 3, 2, 4, 6, 9
D, CROSS = H * E, Place("cross", 1, H, E)
LENGTHS = torch.tensor([K, 4, 1])


def states(length, seed, batch=B):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, D, generator=generator, dtype=torch.float64)


def split(attention, query, key):
    """Projected queries, keys and values of heads in float64."""
    projected = (attention.query(query), attention.key(key), attention.value(key))
    return [attention.split(part).detach().double() for part in projected]


def joined(attention, context_BHQE):
    return attention.output(context_BHQE.transpose(1, 2).flatten(2))


# -- linear attention -------------------------------------------------------------------------


def linear(site, chunk_size=4):
    torch.manual_seed(0)
    return LinearAttention(Place(site, 1, H, E), chunk_size).double().eval()


def linear_weights(query, key, mask):
    """Weights of the paper, with φ(x) = elu(x) + 1."""
    query, key = (torch.where(x > 0, x + 1, x.exp()) for x in (query, key))
    scores = (query @ key.mT) * mask
    return scores / (scores.sum(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("site", ["encoder_self", "decoder_self", "cross"])
def test_context_and_weights_follow_the_formula(site):
    attention, causal, key = linear(site), site == "decoder_self", states(K, 1)
    query = states(Q, 2) if site == "cross" else key
    mask = Mask(key_lengths_B=LENGTHS, causal=causal)
    q, k, v = split(attention, query, key)
    visible = oracle.visible(query.shape[1], K, LENGTHS, causal)
    weights = linear_weights(q, k, visible)
    context, recorded = with_weights(attention, query, key, key, mask)
    torch.testing.assert_close(recorded, weights, rtol=0, atol=1e-10)
    torch.testing.assert_close(context, joined(attention, weights @ v), rtol=0, atol=1e-10)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("chunk_size", [3, 8])
def test_causal_product_and_its_derivatives(chunk_size, reverse):
    generator = torch.Generator().manual_seed(0)
    a, b, v = (
        torch.randn(2, 1, 5, width, generator=generator, dtype=torch.float64, requires_grad=True)
        for width in (3, 3, 2)
    )
    expected = torch.zeros(2, 1, 5, 2, dtype=torch.float64)
    for i in range(5):
        for j in range(i, 5) if reverse else range(i + 1):
            expected[:, :, i] += (a[:, :, i] * b[:, :, j]).sum(-1, keepdim=True) * v[:, :, j]

    def product(*tensors):
        return causal_product(*tensors, chunk_size, reverse)

    torch.testing.assert_close(product(a, b, v), expected, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(product, (a, b, v))
    assert torch.autograd.gradgradcheck(product, (a, b, v))


def test_feature_map_is_elu_plus_one_and_positive():
    x = torch.tensor([-3.0, -0.4, 0.0, 1e-9, 2.5], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(positive_elu(x), torch.nn.functional.elu(x) + 1)
    positive_elu(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.exp(x.detach().clamp(max=0)))
    inner = x.detach()[[0, 1, 4]].requires_grad_()  # the derivative has a kink at 0
    assert torch.autograd.gradgradcheck(positive_elu, (inner,))
    far = positive_elu(torch.tensor([-60.0, 1e30]))
    assert far[0] > 0, "elu + 1 rounds to 0 here"
    assert torch.isfinite(far).all()


@pytest.mark.parametrize(("site", "steps"), [("decoder_self", (1, 6, 10)), ("cross", (3, 1))])
def test_cache_has_constant_size(site, steps):
    attention, target, start = linear(site), states(17, 1), 0
    cache = attention.make_cache(static=site == "cross")
    for n_new in steps:
        new = target[:, start : start + n_new]
        key = target if site == "cross" else new
        attention(new, key, key, Mask(causal=site != "cross", query_offset=start), cache)
        assert cache.sums_BHEF.shape == (B, H, E, E + 1)
        start += n_new


@pytest.mark.parametrize("causal", [False, True])
def test_sums_are_float32_under_autocast(causal):
    attention = linear("decoder_self").float()
    n = 2048  # a bfloat16 sum of so many terms stops growing
    states_BND, contexts = states(n, 3, batch=1).float(), []
    attention.output.register_forward_pre_hook(lambda _, inputs: contexts.append(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        arguments = states_BND, states_BND, states_BND, Mask(causal=causal)
        output, recorded = with_weights(attention, *arguments)
        q, k, v = split(attention, states_BND, states_BND)
    assert output.dtype is torch.bfloat16
    weights = linear_weights(q, k, oracle.visible(n, n, is_causal=causal))
    expected = (weights @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(recorded, weights.float(), rtol=1e-5, atol=1e-8)
    # rounded once, at the end, to the 8 bits of bfloat16
    torch.testing.assert_close(contexts[0].double(), expected, rtol=2**-8, atol=1e-5)


def test_gradients_under_autocast_equal_float32():
    torch.manual_seed(0)
    a, b, v = (torch.rand(1, H, 600, E, requires_grad=True) for _ in range(3))
    product = causal_product(a, b, v, 4)
    expected = torch.autograd.grad(product.sum(), (a, b, v), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        grads = torch.autograd.grad(product.sum(), (a, b, v))
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def saved_bytes(n, head_dim=32):
    """Return the bytes that autograd saves in one causal attention over n positions."""
    attention = LinearAttention(Place("decoder_self", 1, 2, head_dim))
    states = torch.randn(1, n, 2 * head_dim)
    with saved_storages(attention) as saved:
        attention(states, states, states, Mask(causal=True))
    return n_bytes(saved)


def test_saved_memory_grows_linearly():
    short, long = saved_bytes(256), saved_bytes(1024)
    assert long <= 4 * short
    tensor_bytes = 1024 * 64 * 4  # one float32 tensor (N, D)
    assert long < 7 * tensor_bytes, "scores or running sums are saved"


# -- Linformer --------------------------------------------------------------------------------

SMALL_K, MAX_LENGTH = 4, 12
WINDOW = MAX_LENGTH // SMALL_K
EVERY = [
    *((sharing, projection, False) for sharing in SHARING for projection in PROJECTIONS),
    *(("key_value", projection, True) for projection in PROJECTIONS),
]
every = pytest.mark.parametrize(("sharing", "projection", "before_split"), EVERY)


def linformer(site="cross", **settings):
    torch.manual_seed(0)
    settings = {"k": SMALL_K, "max_length": MAX_LENGTH, **settings}
    attention = Linformer(Place(site, 1, H, E), **settings).double().eval()
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            if "length_projection" in name:
                parameter.add_(torch.randn_like(parameter))
    return attention


def mixtures(module, projection, head, states_ND):
    """E states (M, D) of a sentence without padding."""
    if projection == "max":
        return torch.stack([window.amax(0) for window in states_ND.split(WINDOW)])
    positions = torch.arange(len(states_ND))
    is_inside_MN = positions // WINDOW == positions[::WINDOW, None] // WINDOW
    if projection == "mean":
        matrix_MN = is_inside_MN / is_inside_MN.sum(-1, keepdim=True).double()
    else:
        weight = module.weight[min(head, len(module.weight) - 1)]
        is_matrix = projection == "learned"
        matrix_MN = weight[:, positions] if is_matrix else is_inside_MN * weight[positions % WINDOW]
    return matrix_MN @ states_ND


@torch.no_grad()
def linformer_context(attention, projection, query, key):
    """softmax(Q (E K)^T / sqrt(E)) (F V), head by head, on sentences cut to their length."""
    keys = attention.length_projection
    values = attention.value_length_projection or keys
    context = torch.zeros(B, H, query.shape[1], E, dtype=torch.float64)
    for b, length in enumerate(LENGTHS.tolist()):
        real = key[b, :length]
        q_HQE = attention.split(attention.query(query[b : b + 1]))[0]
        for h in range(H):
            channels = slice(h * E, (h + 1) * E)

            def mixed(module, layer, h=h, channels=channels, real=real):
                if attention.before_split:
                    return layer(mixtures(module, projection, h, real))[:, channels]
                return mixtures(module, projection, h, layer(real)[:, channels])

            k, v = mixed(keys, attention.key), mixed(values, attention.value)
            context[b, h] = oracle.attention(q_HQE[h], k, v, 1)
    return joined(attention, context)


@every
@pytest.mark.parametrize("site", ["encoder_self", "cross"])
def test_linformer_follows_the_formula(sharing, projection, before_split, site):
    attention = linformer(site, sharing=sharing, projection=projection, before_split=before_split)
    key = states(K, 1)
    query = key if site == "encoder_self" else states(Q, 2)
    context = attention(query, key, key, Mask(key_lengths_B=LENGTHS))
    expected = linformer_context(attention, projection, query, key)
    torch.testing.assert_close(context, expected, rtol=0, atol=1e-10)


@every
def test_effective_weights_times_values_are_the_context(sharing, projection, before_split):
    attention = linformer(sharing=sharing, projection=projection, before_split=before_split)
    query, key = states(Q, 1), states(K, 2)
    output, weights = with_weights(attention, query, key, key, Mask(key_lengths_B=LENGTHS))
    assert attention.distribution_heads() == (projection == "mean",) * H
    if projection == "max":
        assert attention.forms_weights == "no"
        return
    assert attention.forms_weights == Linformer.forms_weights == "effective"
    bias = attention.value.bias if before_split else 0
    context = weights @ attention.split(attention.value(key) - bias)
    context = context + (attention.split(bias[None, None]) if before_split else 0)
    torch.testing.assert_close(joined(attention, context), output, rtol=0, atol=1e-11)


def node(**settings):
    return {**group_node("attention", "linformer"), "k": 4, "max_length": 12, **settings}


@pytest.mark.parametrize(
    ("sharing", "n_matrices"),
    [("none", 2 * H * 4), ("headwise", 2 * 4), ("key_value", 4), ("layerwise", 1)],
)
def test_sharing_has_the_number_of_matrices_of_the_paper(sharing, n_matrices):
    config = ModelConfig("sharing", 2, 2, D, H, 2 * D)  # four places: 2 of the encoder, 2 of cross
    factory = AttentionFactory({"attention": node(sharing=sharing)})
    model = Transformer(config, 11, 11, True, factory, seed=1)
    projections = [p for n, p in model.named_parameters() if "length_projection" in n]
    assert sum(p.numel() for p in projections) == n_matrices * 4 * 12
    for site, _, attention in model.attentions():
        assert isinstance(attention, ScoreAttention if site == "decoder_self" else Linformer)


def test_layerwise_sharing_is_per_size():
    common = node()
    cross = node(k=6)
    factory = AttentionFactory({"attention": common}, {"attention": {"cross": cross}})
    attentions = [factory(Place(s, n, H, E)) for s in ("encoder_self", "cross") for n in (1, 2)]
    parts = [attention.length_projection for attention in attentions]
    assert parts[0] is parts[1]
    assert parts[2] is parts[3]
    assert parts[0] is not parts[2]
    for projection, is_shared in (("convolution", True), ("mean", False), ("max", False)):
        key = Linformer.share_key(CROSS, node(projection=projection))
        assert (key is not None) == is_shared
    assert Linformer.share_key(CROSS, {"sharing": "key_value"}) is None
    assert Linformer.share_key(CROSS, {}) == "learned 64 × 256"


def test_too_long_sentence_is_refused():
    attention = linformer("encoder_self")
    assert attention.max_keys == MAX_LENGTH
    states_BKD = states(MAX_LENGTH + 1, 1)
    attention(states_BKD[:, 1:], states_BKD[:, 1:], states_BKD[:, 1:], Mask())
    for mask in (Mask(), Mask(key_lengths_B=torch.tensor([3, MAX_LENGTH + 1, 2]))):
        with pytest.raises(DataError, match=r"13 .* max_length=12 of the attention at encoder"):
            attention(states_BKD, states_BKD, states_BKD, mask)


def test_cache_holds_mixtures():
    attention, source = linformer(), states(K, 2)
    cache = attention.make_cache(static=True)
    attention(states(Q, 1), source, source, Mask(key_lengths_B=LENGTHS), cache)
    assert cache.content()[0].shape == (B, H, SMALL_K, E)


def test_initial_matrix_follows_the_paper():
    torch.manual_seed(0)
    factory = AttentionFactory({"attention": group_node("attention", "linformer")})
    config = ModelConfig("start", 1, 1, D, H, 2 * D)
    model = Transformer(config, 11, 11, True, factory, seed=1)
    (matrix,) = (p for n, p in model.named_parameters() if "length_projection" in n)
    assert matrix.shape == (1, 64, 256)
    assert matrix.std().item() == pytest.approx(64**-0.5, rel=0.03)
    initial = Linformer(CROSS, projection="convolution").length_projection.weight
    assert torch.equal(initial, torch.full((1, 4), 0.25))
    with torch.device("meta"):
        assert Linformer(CROSS, sharing="none").length_projection.weight.is_meta

"""Contract of every family of models, with every choice of the groups that make up its layers.

Axes: B rows, N positions, P CLS tokens, V vocabulary.
"""

import functools
from collections import defaultdict

import pytest
import torch

from command_line import composer
from headwise.analysis.collect import head_statistics
from headwise.analysis.pruning import check_pruned, present_heads, pruned_state
from headwise.attention.place import Variant
from headwise.attention.recorder import recorded_weights
from headwise.config.instantiate import instantiate, target_class
from headwise.config.register import typed
from headwise.data.batch import Batch, Column
from headwise.errors import ConfigError
from headwise.losses.loss import CrossEntropy
from headwise.model.build import build_model, build_single, check_model
from headwise.model.places import site_alone
from headwise.model.single import SingleStack
from headwise.model.transformer import Transformer, encoder_decoder_sites
from headwise.train.repulsion import SVGD
from layer_parts import (
    ALONE,
    ATTENTIONS,
    FAMILIES,
    GATES,
    MODELS,
    POSITIONS,
    SCALINGS,
    SMALL,
    D,
    H,
    Part,
    V,
)

B, N, LENGTHS = 3, 6, (6, 4, 2)
CPU = torch.device("cpu")
SINGLE = pytest.mark.parametrize("family", ALONE)


def every(parts, families=FAMILIES):
    pairs = [
        (family, part)
        for family in families
        for part in parts
        if family == families[0] or part.group not in ("norm", "activation", "init")
    ]
    return pytest.mark.parametrize(("family", "part"), pairs, ids=str)


@functools.cache
def evaluated(part, family):
    n_cls = 0 if part.group == "pattern" else 2  # patterns would hide them
    return part.model(family, cls_tokens=n_cls).double()


@pytest.fixture(scope="module")
def make():
    with composer() as compose:
        yield lambda *overrides: typed(compose([*SMALL, *overrides]))


def build(config, family):
    torch.manual_seed(0)
    if family == "translation":
        model = build_model(config, V, V, joint=True)
    else:
        model = build_single(config, V, site_alone(config.model, ALONE[family], "text"))
    return model.eval()


def batch(rows=slice(None), n_padding=0):
    generator = torch.Generator().manual_seed(0)
    columns = {}
    for name in ("source", "target", "text"):
        ids = torch.randint(V, (B, N), generator=generator)
        lengths = torch.tensor(LENGTHS)[rows]
        ids = torch.nn.functional.pad(ids[rows, : int(lengths.max())], (0, n_padding), value=7)
        columns[name] = Column(ids, lengths)
    real = columns["text"].is_real_BN.flatten().nonzero()[:, 0]
    targets = columns["text"].ids_BN.flatten()[real]
    return Batch(columns, real, targets, list(range(B))[rows], len(real))


def logits(model, data):
    logits_BNV = model(**model.inputs(data))
    return logits_BNV


@every(MODELS)
def test_other_rows_and_padding_change_nothing(family, part):
    model = evaluated(part, family)
    batched = logits(model, batch())
    assert batched.shape == (B, N, V)
    padded = logits(model, batch(n_padding=3))
    for row, length in enumerate(LENGTHS):
        alone = logits(model, batch(slice(row, row + 1)))
        for result in (alone[0], padded[row]):
            torch.testing.assert_close(result[:length], batched[row, :length])


@every(MODELS, ("translation", "decoder"))
def test_cached_steps_equal_the_whole_and_follow_their_rows(family, part):
    model = evaluated(part, family)
    assert isinstance(model, Transformer | SingleStack)
    columns, cache, rows = batch().columns, model.make_cache(), torch.arange(B)
    if isinstance(model, Transformer):
        ids, source = columns["target"].ids_BN, columns["source"]
        memory = model.encode(source.ids_BN, source.lengths_B)
        whole = model.decode(ids, memory)
    else:
        ids, lengths = columns["text"].ids_BN, columns["text"].lengths_B
        whole = model.states(ids, lengths)
    # the first step has two positions; rows are moved, then there are more, then fewer
    for start, end, moved in ((0, 2, [2, 0, 1]), (2, 3, [1, 0, 0, 2]), (3, 5, [3, 1]), (5, 6, [0])):
        new = ids[rows, start:end]
        if isinstance(model, Transformer):
            step = model.decode(new, memory.index_select(rows), cache)
            cache.reorder_memory(torch.tensor(moved))
        else:
            step = model.states(new, lengths[rows], cache)
        torch.testing.assert_close(step, whole[rows, start:end])
        cache.reorder(torch.tensor(moved))
        rows = rows[moved]


def weights_of(part, seed_of_torch=1, **options):
    torch.manual_seed(seed_of_torch)
    return dict(part.model(**options).named_parameters())


def assert_same(some, others, names):
    for name in names:
        assert torch.equal(some[name], others[name]), name


@pytest.fixture(scope="module")
def plain():
    """Weights of a model without variants, and the state of torch's generator after it."""
    return weights_of(Part("attention", "softmax")), torch.random.get_rng_state()


OTHER_SIZES = {"share_embeddings": "none", "cls_tokens": 2, "d_ff": 16, "vocabulary": 29}


@pytest.mark.parametrize("part", dict.fromkeys([*ATTENTIONS, *SCALINGS, *MODELS]), ids=str)
def test_initial_weights_depend_on_seed_and_place_only(part, plain):
    weights, (of_plain, state) = weights_of(part), plain
    own = {name for name in weights.keys() - of_plain.keys() if "coder." in name}
    if part.group not in ("init", "positions"):  # whose draws come before those of others
        assert_same(weights, of_plain, weights.keys() & of_plain.keys())
        if {name.split(".")[4] for name in own} & {"normaliser", "scaling", "gate"}:
            assert torch.equal(torch.random.get_rng_state(), state), "drawn from torch's generator"
    assert_same(weights, weights_of(part, 2, **OTHER_SIZES), own)
    other_seed = weights_of(part, seed=2)
    drawn = [name for name in weights if len(weights[name].unique()) > 1]
    assert not any(torch.equal(weights[name], other_seed[name]) for name in drawn)
    values = {(name.split(".")[-1], *weights[name].flatten().tolist()) for name in own & {*drawn}}
    assert len(values) == len(own & {*drawn}), "equal in two places"


@pytest.mark.parametrize("part", [part for part in MODELS if part.group == "init"], ids=str)
def test_cls_tokens_and_recomputation_change_no_initial_weights(part):
    before, after = weights_of(part), weights_of(part, 2, cls_tokens=2, recompute=True)
    assert after.keys() - before.keys() == {"source_embedding.cls.weight"}
    assert after["source_embedding.cls.weight"].shape == (2, D)
    assert_same(before, after, before)


@pytest.mark.parametrize("part", [*ATTENTIONS, *SCALINGS, *GATES], ids=str)
def test_places_share_only_what_is_declared(part):
    """Every weight has one owner: its place, or the key that its class declares."""
    owners, weights = defaultdict(set), defaultdict(set)
    for site, layer, attention in part.model().attentions():
        for prefix, module in attention.named_modules():
            for name, weight in module.named_parameters(prefix, recurse=False):
                owner = owner_of(part, site, attention, name) or f"{site} {layer}"
                owners[weight].add(owner)
                weights[owner, name].add(weight)
    assert all(len(some) == 1 for some in owners.values())
    assert all(len(some) == 1 for some in weights.values())


def owner_of(part, site, attention, name):
    """The key of sharing of one weight of an attention."""
    if part.group not in ("attention", "pattern", "scaling") or part.lacks(site):
        return None
    kind, inner = target_class(part.node, part.group), ""
    assert issubclass(kind, Variant)
    if not isinstance(attention, kind):
        inner = "normaliser." if part.group == "attention" else f"{part.group}."
    is_own = name.split(".")[0] not in ("query", "key", "value", "output")
    is_part = is_own and name.startswith(inner + kind.shared_part)
    return kind.share_key(attention.place, part.node) if is_part else None


@pytest.mark.parametrize("family", FAMILIES)
def test_every_real_token_affects_the_output(make, family):
    model = build(make("attention=softmax", "model.cls_tokens=2"), family)
    before = logits(model, batch())
    for site in model.sites:
        for row, length in enumerate(LENGTHS):
            changed, last = batch(), 0 if site.causal else length - 1
            ids = changed.columns[site.keys].ids_BN
            ids[row, last] = (ids[row, last] + 1) % V
            change = (logits(model, changed) - before).abs().amax(2)[row, length - 1 - last]
            assert change > 1e-4, (site, row)


@pytest.mark.parametrize("part", POSITIONS, ids=str)
def test_cls_tokens_have_no_position(part):
    model = part.model("encoder", cls_tokens=2).double()
    before = logits(model, batch())
    table = next(iter(model.columns.values())).cls
    assert table is not None
    table.weight.data = table.weight.data.flip(0)
    torch.testing.assert_close(logits(model, batch()), before)


@pytest.mark.parametrize("part", POSITIONS, ids=str)
def test_order_of_tokens_changes_the_states(part):
    model, ids = part.model("encoder").double(), batch().columns["text"].ids_BN
    assert isinstance(model, SingleStack)
    before, after = (model.states(ids[:, order], torch.full((B,), N))[:, -1] for order in ORDERS)
    assert torch.allclose(before, after) == (part.choice == "none")


ORDERS = [0, 1, 2, 3, 4, 5], [1, 0, 2, 3, 4, 5]


@every([part for part in ATTENTIONS if part.choice in ("alpha_entmax", "linformer")])
def test_recorder_has_weights_of_every_site_and_layer(family, part):
    model = evaluated(part, family)
    with recorded_weights(model) as weights:
        with_recording = logits(model, batch())
    torch.testing.assert_close(logits(model, batch()), with_recording)
    for site in model.sites:
        has_weights = part.settings != (("projection", "max"),) or site.causal
        assert list(weights.get(site.name, {})) == ([1, 2] if has_weights else [])
        sizes = (N + model.n_prefix(site.queries), N + model.n_prefix(site.keys))
        for weight in weights.get(site.name, {}).values():
            assert weight.shape == (B, H, *sizes)
            if site.causal:
                assert not weight.triu(1).any()


@pytest.mark.parametrize("qk_width", ["null", 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_repulsion_and_pruning_work(make, family, qk_width):
    config = make("attention=alpha_entmax", "scaling=length", f"model.qk_width={qk_width}")
    model = build(config, family)
    sites = [site.name for site in model.sites]
    statistics = head_statistics(model, [batch()], CPU)
    assert (
        {*statistics["density"]}
        == {*statistics["diversity"]}
        == {*statistics["output_norm"]}
        == set(sites)
    )
    scored = batch().scored(model.states(**model.inputs(batch())))
    model.output.loss(scored, batch().targets_R, CrossEntropy()).loss.backward()
    before = [attention.query.weight.grad.clone() for _, _, attention in model.attentions()]
    SVGD()(model, 1, 1)
    after = [attention.query.weight.grad for _, _, attention in model.attentions()]
    assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))
    kept_heads = {site: [[2], [1, 2]] for site in sites}
    config.model.heads = kept_heads
    smaller = build(config, family)
    smaller.load_state_dict(pruned_state(model, smaller))
    assert present_heads(smaller) == kept_heads
    check_pruned(model, kept_heads, smaller)


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_stack_freezes_its_output_layer(make, family):
    side = "encoder" if family == "encoder" else "decoder"
    freeze = "gates=hard_concrete", f"gates.freeze=[{side}]"
    config = make(*freeze, "model.share_embeddings=none", "model.cls_tokens=2")
    model = build(config, family)
    open_parts = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert open_parts == (
        {"source_embedding", "encoder", "decoder"} if family == "translation" else {"stack"}
    )
    assert not model.output.weight.requires_grad
    trainable = [n for n, p in model.named_parameters() if p.requires_grad and "coder." not in n]
    if family != "translation":
        assert trainable
        assert all(name.endswith("log_a") for name in trainable)


@SINGLE
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("attention@sites.cross=softmax", "attention@sites must be one of {site}; got 'cross'"),
        (
            "pattern@pattern_sites.cross=none",
            "pattern@pattern_sites must be one of {site}; got 'cross'",
        ),
        ("model.decoder_layers=3", "set model.layers"),
        ("model.heads={{cross:[[1],[1]]}}", "model.heads must be one of {site}; got 'cross'"),
        ("repulsion=svgd repulsion.sites=[cross]", "repulsion.sites must be one of {site}"),
        ("repulsion=svgd repulsion.layers=[3]", "(2 at {site}), got 3"),
        ("gates=hard_concrete gates.sites=[cross]", "gates.sites must be one of {site}"),
        ("gates=hard_concrete gates.freeze=[{other}]", "gates.freeze must be one of {side}"),
        ("pattern=fixed model.cls_tokens=1", "pattern@pattern_sites.{site}=none"),
        ("model.layers=0", "model.layers must be null or in [1, 1000], got 0"),
    ],
)
def test_settings_of_missing_sites_are_rejected(make, family, override, message):
    names = {"site": ALONE[family], "side": family}
    names["other"] = "encoder" if family == "decoder" else "decoder"
    config = make(*override.format(**names).split())
    site = site_alone(config.model, ALONE[family], "text")

    def check():
        check_model(config, [site], {})
        instantiate(config.repulsion, "repulsion").check([site])

    with pytest.raises(ConfigError) as error:
        check()
    assert message.format(**names) in str(error.value)


@SINGLE
def test_model_layers_is_the_depth_of_a_single_stack(make, family):
    for override, n_layers in (("model.layers=null", 2), ("model.layers=5", 5)):
        model = build(make(override), family)
        assert [layer for _, layer, _ in model.attentions()] == list(range(1, n_layers + 1))


def test_model_layers_is_rejected_for_two_stacks(make):
    config = make("model.layers=2")
    with pytest.raises(ConfigError, match=r"set model\.encoder_layers and model\.decoder_layers"):
        check_model(config, encoder_decoder_sites(config.model), {})

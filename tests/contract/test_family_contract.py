"""Contract of every family of models, with every attention that its sites support.

Axes: B rows, N positions, P CLS tokens, V vocabulary.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from command_line import composer
from headwise.analysis.collect import head_statistics
from headwise.analysis.pruning import check_pruned, present_heads, pruned_state
from headwise.attention.build import unsupported_sites
from headwise.attention.recorder import recorded_weights
from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import instantiate
from headwise.config.register import typed
from headwise.config.schema import Config
from headwise.data.batch import Batch, Column
from headwise.errors import ConfigError
from headwise.losses.loss import CrossEntropy
from headwise.model.build import build_model, build_single, check_model
from headwise.model.family import Model
from headwise.model.places import site_alone
from headwise.model.single import SingleStack
from headwise.model.transformer import encoder_decoder_sites
from headwise.train.repulsion import SVGD

B, N, V, HEADS = 3, 6, 13, 2
SITES = {"decoder": "decoder_self", "encoder": "encoder_self"}  # of models with one stack
FAMILIES = ("translation", *SITES)
SMALL = (
    *("model.encoder_layers=2", "model.decoder_layers=2", "model.d_model=16", "model.n_heads=2"),
    *("model.d_ff=32", "model.dropout=0", "model.attention_dropout=0"),
    "model.activation_dropout=0",
)
CPU = torch.device("cpu")


def cases() -> list[tuple[str, str]]:
    """Pairs of family and attention, including attentions whose yaml names a substitute."""
    pairs = []
    for attention in group_choices("attention"):
        node = group_node("attention", attention)
        unsupported = set(unsupported_sites(node, "attention")) - set(node.get("instead", {}))
        pairs += [
            (family, attention) for family in FAMILIES if SITES.get(family) not in unsupported
        ]
    return pairs


CASES = pytest.mark.parametrize(("family", "attention"), cases())
SINGLE = pytest.mark.parametrize("family", SITES)


@pytest.fixture(scope="module")
def make() -> Any:
    with composer() as compose:
        yield lambda *overrides: typed(compose([*SMALL, *overrides]))


def build(config: Config, family: str) -> Model:
    torch.manual_seed(0)
    if family == "translation":
        model: Model = build_model(config, V, V, joint=True)
    else:
        model = build_single(config, V, site_alone(config.model, SITES[family], "text"))
    return model.eval()


def with_positions(choice: str) -> list[str]:
    """Overrides that choose positions; text has no shape."""
    shape = ["positions.shape=[2,2,3]"] if choice == "data_dims" else []
    return [f"positions={choice}", *shape]


def batch(rows: slice = slice(None), n_padding: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(0)
    columns = {}
    for name in ("source", "target", "text"):
        ids = torch.randint(V, (B, N), generator=generator)
        lengths = torch.tensor([N, 4, 2])[rows]
        ids = torch.nn.functional.pad(ids[rows, : int(lengths.max())], (0, n_padding), value=7)
        columns[name] = Column(ids, lengths)
    real = columns["text"].is_real_BN.flatten().nonzero()[:, 0]
    targets = columns["text"].ids_BN.flatten()[real]
    return Batch(columns, real, targets, list(range(B))[rows], len(real))


def logits(model: Model, data: Batch) -> Tensor:
    logits_BNV: Tensor = model(**model.inputs(data))
    return logits_BNV


@CASES
def test_other_rows_and_padding_change_nothing(make: Any, family: str, attention: str) -> None:
    model = build(make(f"attention={attention}", "model.cls_tokens=2"), family)
    batched = logits(model, batch())
    assert batched.shape == (B, N, V)
    padded = logits(model, batch(n_padding=3))
    for row, length in enumerate([N, 4, 2]):
        alone = logits(model, batch(slice(row, row + 1)))
        for result in (alone[0], padded[row]):
            torch.testing.assert_close(result[:length], batched[row, :length], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_real_token_affects_the_output(make: Any, family: str) -> None:
    model = build(make("attention=softmax", "model.cls_tokens=2"), family)
    before = logits(model, batch())
    for site in model.sites:
        for row, length in enumerate([N, 4, 2]):
            changed, last = batch(), 0 if site.causal else length - 1
            ids = changed.columns[site.keys].ids_BN
            ids[row, last] = (ids[row, last] + 1) % V
            change = (logits(model, changed) - before).abs().amax(2)[row, length - 1 - last]
            assert change > 1e-4, (site, row)


@pytest.mark.parametrize("positions", group_choices("positions"))
def test_cls_tokens_have_no_position(make: Any, positions: str) -> None:
    with_cls = ("attention=alpha_entmax", "model.cls_tokens=2")
    model = build(make(*with_cls, *with_positions(positions)), "encoder")
    before = logits(model, batch())
    table = next(iter(model.columns.values())).cls
    assert table is not None
    table.weight.data = table.weight.data.flip(0)
    torch.testing.assert_close(logits(model, batch()), before, rtol=1e-4, atol=1e-5)


@CASES
def test_recorder_has_weights_of_every_site_and_layer(
    make: Any, family: str, attention: str
) -> None:
    model = build(make(f"attention={attention}", "model.cls_tokens=2"), family)
    with recorded_weights(model) as weights:
        with_recording = logits(model, batch())
    torch.testing.assert_close(logits(model, batch()), with_recording, rtol=1e-4, atol=1e-5)
    for site in model.sites:
        assert list(weights[site.name]) == [1, 2]
        sizes = (N + model.n_prefix(site.queries), N + model.n_prefix(site.keys))
        for weight in weights[site.name].values():
            assert weight.shape == (B, HEADS, *sizes)
            if site.causal:
                assert not weight.triu(1).any()


@pytest.mark.parametrize(
    ("attention", "n_cls", "positions"),
    [
        *((attention, 0, "sinusoidal") for family, attention in cases() if family == "decoder"),
        *(("alpha_entmax", 2, choice) for choice in group_choices("positions")),
    ],
)
def test_single_decoder_with_cache_equals_without(
    make: Any, attention: str, n_cls: int, positions: str
) -> None:
    cls_tokens = f"model.cls_tokens={n_cls}"
    config = make(f"attention={attention}", cls_tokens, *with_positions(positions))
    model = build(config, "decoder")
    assert isinstance(model, SingleStack)
    column, cache = batch().columns["text"], model.make_cache()
    whole = model.states(column.ids_BN, column.lengths_B)
    ends = [0, 2, *range(3, N + 1)]  # the first step has two positions
    with torch.no_grad():
        steps = [
            model.states(column.ids_BN[:, first:end], column.lengths_B, cache)
            for first, end in pairwise(ends)
        ]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("qk_width", ["null", 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_repulsion_and_pruning_work(make: Any, family: str, qk_width: str) -> None:
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
def test_frozen_stack_freezes_its_output_layer(make: Any, family: str) -> None:
    side = "encoder" if family == "encoder" else "decoder"
    config = make("gates=hard_concrete", f"gates.freeze=[{side}]", "model.share_embeddings=none")
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
        ("model.layers=0", "model.layers must be from 1 to 1000, got 0"),
    ],
)
def test_settings_of_missing_sites_are_rejected(
    make: Any, family: str, override: str, message: str
) -> None:
    names = {"site": SITES[family], "side": family}
    names["other"] = "encoder" if family == "decoder" else "decoder"
    config = make(*override.format(**names).split())
    site = site_alone(config.model, SITES[family], "text")

    def check() -> None:
        check_model(config, [site], {})
        instantiate(config.repulsion, "repulsion").check([site])

    with pytest.raises(ConfigError) as error:
        check()
    assert message.format(**names) in str(error.value)


@SINGLE
def test_model_layers_is_the_depth_of_a_single_stack(make: Any, family: str) -> None:
    for override, n_layers in (("model.layers=null", 2), ("model.layers=5", 5)):
        model = build(make(override), family)
        assert [layer for _, layer, _ in model.attentions()] == list(range(1, n_layers + 1))


def test_model_layers_is_rejected_for_two_stacks(make: Any) -> None:
    config = make("model.layers=2")
    with pytest.raises(ConfigError, match=r"set model\.encoder_layers and model\.decoder_layers"):
        check_model(config, encoder_decoder_sites(config.model), {})

"""`headwise.hf`: which models and arguments are refused, what is undone, saved and measured."""

import copy
import pickle
from contextlib import ExitStack

import numpy as np
import pytest
import torch
import transformers

from headwise.analysis.tables import DENSITY, FINDINGS, HEADS, LAYERS
from headwise.hf import desparsify, from_pretrained, heads, record, recorded_weights, sparsify
from headwise.model.family import evaluating
from headwise.nn import HeadAlpha
from transformers_models import chosen_attention, inputs, make, output, sparse

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention": "entmax"}, "one of softmax, entmax15, sparsemax, alpha_entmax"),
        ({"layers": [7]}, "no attention for layers 7; there are: .*layer.0.attention.self"),
        ({"layers": r".*decoder.*"}, "decoder.*there are: .*layer.0.attention.self"),
        ({"alpha_init": 2.5}, "alpha_init"),
        ({"alpha_lr_factor": 0}, "alpha_lr_factor"),
        ({"layers": []}, "no attention for layers"),
        ({"layers": "("}, "no regular expression"),
        ({"layers": 0.7}, "layers must be whole numbers"),
        ({"layers": [0.7]}, "layers must be whole numbers"),
    ],
)
def test_wrong_arguments_leave_the_model_as_it_was(arguments, message):
    model = make("bert")
    names = list(model.state_dict())
    with pytest.raises(ValueError, match=message):
        sparsify(model, **arguments)
    assert list(model.state_dict()) == names
    assert chosen_attention(model) == "sdpa"
    sparsify(model)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("DebertaModel", {}, "DebertaModel cannot .*DisentangledSelfAttention"),
        ("BloomModel", {"n_layer": 1}, "BloomModel cannot .*BloomAttention"),
        ("FalconModel", {}, "FalconModel cannot .*FalconAttention"),
        ("MambaModel", {}, "MambaModel cannot "),
        ("DeepseekV32Model", {}, "passes indices to its attention function"),
        ("Gemma4TextModel", {}, "computes something else with attn_implementation='sdpa'"),
    ],
)
def test_other_models_are_refused_by_name(name, settings, message):
    kind = getattr(transformers, name)
    with torch.device("meta"):
        model = kind(kind.config_class(**{"num_hidden_layers": 1} | settings))
    with pytest.raises(ValueError, match=message):
        sparsify(model)


def test_repeated_calls():
    model = sparse("bert")
    before = heads(model)
    assert heads(sparsify(model)).equals(before)
    with pytest.raises(ValueError, match=r"sparse already, with .*alpha_init.*desparsify"):
        sparsify(model, alpha_init=1.5)
    assert heads(model).equals(before)


def test_two_models_on_one_config():
    first = make("bert")
    second = type(first)(first.config)
    sparsify(first)
    with pytest.raises(ValueError, match=r"in the config of another model: call .*sparsify"):
        second(**inputs("bert"))
    assert heads(sparsify(second)).equals(heads(first))
    desparsify(second)
    with pytest.raises(RuntimeError, match="attn_implementation='sdpa' was set on a sparse model"):
        first(**inputs("bert"))


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "vit", "clip"])
def test_desparsify_gives_the_model_back(family):
    model, batch = make(family), inputs(family, "right")
    before, names = output(family, model, batch), list(model.state_dict())
    config, hooks = model.config.to_dict(), _n_hooks(model)
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    sparsify(model, alpha_init=1.7)
    assert not output(family, model, batch).equal(before)
    assert desparsify(model) is model
    assert output(family, model, batch).equal(before)
    assert list(model.state_dict()) == names
    assert (model.config.to_dict(), _n_hooks(model)) == (config, hooks)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    with pytest.raises(ValueError, match="not made sparse"):
        desparsify(model)
    sparsify(model, "sparsemax")


def _n_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("layers", [[1], r".*layer\.1\..*"])
def test_layers_that_are_not_chosen_stay_softmax(layers):
    batch, dense = inputs("bert", "right"), make("bert")
    model = sparsify(copy.deepcopy(dense), layers=layers, alpha_init=2.0)
    chosen, other = (model.bert.encoder.layer[i].attention.self for i in (1, 0))
    assert isinstance(chosen.head_alpha, HeadAlpha)
    assert not list(other.head_alpha.parameters())
    dense.set_attn_implementation("eager")
    with recorded_weights(model) as recorded:
        model(**batch)
    softmax = dense(**batch, output_attentions=True).attentions[0]
    (first,), (second,) = recorded.values()
    torch.testing.assert_close(first[0], softmax[0])
    assert (second[0] == 0).float().mean() > 0.2
    assert heads(model).alpha.isna().tolist() == [True] * 4 + [False] * 4


@pytest.mark.parametrize("attention", ["entmax15", "sparsemax", "softmax"])
def test_fixed_maps_equal_their_alpha(attention):
    batch = inputs("llama", "left")
    fixed = sparsify(make("llama"), attention)
    alpha = {"entmax15": 1.5, "sparsemax": 2.0, "softmax": 1.0}[attention]
    model = sparsify(make("llama"), alpha_init=alpha)
    torch.testing.assert_close(output("llama", fixed, batch), output("llama", model, batch))
    fixed.load_state_dict(make("llama").state_dict())  # what is saved for other loaders is optional
    assert attention in str(fixed)
    devices = {x.device.type for x in sparsify(make("llama").to("meta"), attention).buffers()}
    assert devices == {"meta"}


def test_printed_model_shows_alpha():
    model = sparsify(make("bert"), layers=[0], alpha_init=1.25)
    assert "HeadAlpha(4 heads, α 1.25)" in str(model)
    assert "FixedMap(4 heads, softmax)" in str(model)
    assert "α 1 to 1." in str(sparse("bert"))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_independent(copied):
    model, batch = sparse("gpt2"), inputs("gpt2", "right")
    other, before = copied(model), output("gpt2", model, batch)
    assert output("gpt2", other, batch).equal(before)
    assert len(other(**batch, output_attentions=True).attentions) == 2
    desparsify(other)
    assert other(**batch).attentions is None
    assert output("gpt2", model, batch).equal(before)


def test_alpha_stays_float32_in_models_of_half_precision(tmp_path):
    model = sparse("llama")
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(transformers.AutoModelForCausalLM, tmp_path, dtype=torch.bfloat16)
    assert loaded.dtype is torch.bfloat16
    assert heads(loaded).equals(heads(model))
    assert {x.dtype for n, x in loaded.named_parameters() if "alpha" in n} == {torch.float32}
    loaded.save_pretrained(tmp_path / "again")
    again = from_pretrained(transformers.AutoModelForCausalLM, tmp_path / "again")
    assert heads(again).equals(heads(model))


def test_another_head_on_the_same_folder_keeps_alpha(tmp_path):
    model = sparse("bert")
    model.save_pretrained(tmp_path)
    kind = transformers.AutoModelForSequenceClassification
    loaded = from_pretrained(kind, tmp_path, num_labels=3)
    assert loaded(**inputs("bert")).logits.shape == (3, 3)
    assert heads(loaded).alpha.equals(heads(model).alpha)


def test_failed_calls_leave_no_request_for_weights():
    model, batch = sparse("gpt2"), inputs("gpt2")
    with pytest.raises(ValueError):
        model(**batch, inputs_embeds=torch.zeros(3, 24, 64), output_attentions=True)
    assert model(**batch).attentions is None


@pytest.mark.parametrize("family", ["bert", "llama", "t5", "clip", "vit"])
def test_record_measures_every_head(family):
    model = sparse(family)
    right, none = inputs(family, "right"), inputs(family)
    tables = record(model, [right, none])
    for table in (HEADS, LAYERS, DENSITY, FINDINGS):
        assert list(tables[table.name].columns) == list(table.columns)
    measured = tables["heads"]
    of_one = measured.alpha == 1
    assert of_one.sum() == len(measured) / 4
    assert measured.density[of_one].to_numpy() == pytest.approx(1)
    assert measured.density[~of_one].mean() < 0.9
    expected = heads(model).set_index(["site", "layer", "head"]).alpha.sort_index()
    assert measured.set_index(["site", "layer", "head"]).alpha.sort_index().equals(expected)


def test_recordings_see_their_own_model_and_leave_modes():
    model, other = sparse("bert"), sparse("bert")
    model.train()
    frozen = model.bert.encoder.layer[0].eval()
    with recorded_weights(model) as outer, recorded_weights(other) as inner:
        model(**inputs("bert"))
        assert not inner
        record(other, inputs("bert"))
    assert {len(calls) for calls in outer.values()} == {1}
    with ExitStack() as overlapping:
        overlapping.enter_context(evaluating(model))
        record(model, (overlapping.close() or inputs("bert") for _ in range(1)))
    assert model.training
    assert not any(module.training for module in frozen.modules())
    with pytest.raises(ValueError, match="no attention was measured"):
        record(model, [])


@pytest.mark.parametrize("layer", [0, np.int64(0)])
def test_layers_may_be_one_number(layer):
    assert sparsify(make("bert"), layers=layer).config.headwise["layers"] == [0]


def test_torchs_own_modules_are_no_models():
    with pytest.raises(TypeError, match=r"headwise\.nn\.MultiheadAttention"):
        sparsify(torch.nn.Linear(2, 2))

"""Sparse models of Transformers, saved whole, in parts and with code of their own, keep their α."""

import copy
import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import peft
import pytest
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from headwise.hf import desparsify, from_pretrained, heads, sparsify
from transformers_models import chosen_attention, draw_alpha, inputs, make, output

pytestmark = pytest.mark.slow

CODE = "from transformers import BertForMaskedLM\nclass OwnModel(BertForMaskedLM): ..."
AUTO = {"bert": "ForMaskedLM", "llama": "ForCausalLM", "clip": "", "t5": "ForSeq2SeqLM"}
LAYERS = {"bert": None, "llama": [1], "t5": r"decoder\..*", "clip": [0]}
WAYS = "whole bert, whole t5, part bert, part clip, adapter llama, code bert, disk bert"


@pytest.mark.parametrize(("way", "family"), [way.split() for way in WAYS.split(", ")])
@pytest.mark.parametrize("attention", ["alpha_entmax", "entmax15", "sparsemax"])
def test_auto_classes_load_sparse_models(attention, way, family, tmp_path, monkeypatch):
    model, batch = make(family), inputs(family)
    options = {}
    dense = output(family, model, batch)
    if way == "code":
        monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / f"own_{attention}.py").write_text(CODE)
        own = __import__(f"own_{attention}").OwnModel
        own.register_for_auto_class("AutoModelForMaskedLM")
        model.__class__, options = own, {"trust_remote_code": True}
    if way == "disk":
        places = {"bert.embeddings": "cpu", "bert.encoder": "disk", "cls": "cpu"}
        options = {"device_map": places, "offload_folder": tmp_path / "off"}
    part = {"bert": "bert", "clip": "vision_model"}[family] if way == "part" else ""
    sparsify(model.get_submodule(part), attention)
    if attention == "alpha_entmax":
        draw_alpha(model)
    if way == "adapter":
        model.save_pretrained(tmp_path / "base")
        model.name_or_path = str(tmp_path / "base")
        lora = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["head_alpha"])
        model = peft.get_peft_model(model, lora).eval()
        for x in (x for n, x in model.named_parameters() if n.endswith("default.bias")):
            torch.nn.init.constant_(x, 0.08)
    expected = output(family, model, batch)
    assert (expected - dense).abs().max() > 0.05
    model.save_pretrained(tmp_path / "saved")
    kind = getattr(transformers, f"AutoModel{AUTO[family]}")
    for load in (kind.from_pretrained, partial(from_pretrained, kind)):
        loaded, info = load(tmp_path / "saved", output_loading_info=True, **options)
        assert not {*info["missing_keys"], *info["unexpected_keys"]}
        torch.testing.assert_close(output(family, loaded, batch), expected)


@pytest.mark.parametrize("attention", ["alpha_entmax", "sparsemax"])
@pytest.mark.parametrize("family", LAYERS)
def test_folders_of_headwise_010_load(family, attention, tmp_path):
    options = {"attention": attention, "layers": LAYERS[family], "alpha_lr_factor": 20.0}
    model, batch = sparsify(make(family), **options), inputs(family)
    state = model.state_dict()
    state |= {name: torch.rand(4) / 20 for name in state if name.endswith("head_alpha.bias")}
    old = {n: x for n, x in state.items() if not n.endswith(("_alpha.factor", "_alpha.alpha"))}
    model.load_state_dict(old)
    expected = output(family, model, batch)
    desparsify(model)
    model.config.headwise = options | {"alpha_init": 1}
    model.save_pretrained(tmp_path, state_dict=old)
    for load in (type(model).from_pretrained, partial(from_pretrained, type(model))):
        loaded, info = load(tmp_path, output_loading_info=True)
        assert not {*info["missing_keys"], *info["unexpected_keys"]}
        assert output(family, loaded, batch).equal(expected)
    assert sparsify(loaded, **options) is loaded


def test_parts_and_wholes_exchange_alpha(tmp_path):
    sparsify(make("bert").bert, alpha_init=1.75, alpha_lr_factor=20).save_pretrained(tmp_path)
    pair = transformers.EncoderDecoderModel.from_encoder_decoder_pretrained(*[str(tmp_path)] * 2)
    sparsify(pair, alpha_init=1.25)  # the new cross-attentions
    alphas = heads(pair).groupby("site").alpha.mean().to_dict()
    assert alphas == {"encoder_self": 1.75, "decoder_self": 1.75, "cross": 1.25}
    pair.save_pretrained(tmp_path / "pair")
    loaded = transformers.EncoderDecoderModel.from_pretrained(tmp_path / "pair")
    assert heads(loaded).equals(heads(pair))
    loaded.encoder.save_pretrained(tmp_path / "encoder")
    encoder = transformers.AutoModel.from_pretrained(tmp_path / "encoder")
    with pytest.raises(ValueError, match="only as a part of another model"):
        desparsify(loaded.encoder)
    whole = transformers.EncoderDecoderModel(encoder=encoder, decoder=make("bert"))
    assert heads(whole).alpha.tolist() == [1.75] * 8
    desparsify(whole)  # of a dense model, the sparse part
    assert not hasattr(whole.config.encoder, "headwise")
    assert chosen_attention(whole.encoder) == "sdpa"


def test_missing_alpha_is_the_initial_one(tmp_path):
    sparsify(make("bert"), alpha_init=1.25).save_pretrained(tmp_path)
    kind = transformers.AutoModelForMaskedLM
    other = kind.from_pretrained(tmp_path, num_attention_heads=2, ignore_mismatched_sizes=True)
    assert heads(other).alpha.tolist() == [1.25] * 4
    make("bert").save_pretrained(tmp_path / "dense")
    with pytest.raises(ValueError, match=r"no sparse heads: headwise.hf.sparsify"):
        from_pretrained(kind, tmp_path / "dense")
    (tmp_path / "dense/model.safetensors").replace(tmp_path / "model.safetensors")
    loaded, info = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert heads(loaded).alpha.tolist() == [1.25] * 8
    assert {name.rpartition("head_")[2] for name in info["missing_keys"]} == {"alpha.bias"}
    assert heads(kind.from_config(loaded.config)).equals(heads(loaded))
    with pytest.warns(UserWarning, match="α is not loaded"):  # as PEFT loads
        make("bert").load_state_dict(loaded.state_dict(), strict=False)


def test_alpha_added_after_peft_is_frozen():
    model = peft.get_peft_model(make("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.warns(UserWarning, match=r"modules_to_save=\['head_alpha'\]"):
        sparsify(model)
    assert not [n for n, x in model.named_parameters() if "alpha" in n and x.requires_grad]


RXNFP = find_spec("rxnfp")  # its files alone: it imports packages that are not installed
PARTS = ("CCO", "c1ccccc1", "CC(=O)O", "CN", "Cl", "OB(O)C", "C#N", "COC", "S")


def molecules(labels, vocabulary):
    """Texts of SMILES, padded; those of label 1 contain bromine."""
    rows = []
    for label in labels:
        parts = [PARTS[i] for i in torch.randint(len(PARTS), (3,))] + ["CBr"] * label
        tokens = ["[CLS]", *re.findall("Br|Cl|.", ".".join(parts)), "[SEP]"]
        rows.append(torch.tensor([vocabulary.index(token) for token in tokens]))
    padded = pad_sequence(rows, batch_first=True)
    return {"input_ids": padded, "attention_mask": padded.ne(0), "labels": labels}


@pytest.mark.skipif(RXNFP is None, reason="rxnfp is missing")
def test_pretrained_model_learns_alpha_and_is_saved(tmp_path):
    folder = Path(RXNFP.origin).parent / "models/transformers/bert_pretrained"
    vocabulary = (folder / "vocab.txt").read_text("utf-8").splitlines()
    torch.manual_seed(0)
    dense = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    labels = torch.arange(64) % 2
    batch = molecules(labels, vocabulary)
    model = sparsify(copy.deepcopy(dense))
    with torch.no_grad():
        exact, ours = (m(**batch, output_hidden_states=True).hidden_states for m in (dense, model))
    for a, b in zip(exact, ours, strict=True):
        a, b = (x[batch["attention_mask"]] for x in (a, b))
        assert (a - b).abs().max() < 1e-5 * a.abs().max()

    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    for _ in range(12):
        model(**molecules(labels[:16], vocabulary)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    alpha = heads(model).alpha
    assert alpha.max() > 1.02
    with torch.no_grad():
        logits = model(**batch).logits
        assert (logits.argmax(-1) == labels).float().mean() > 0.9
        model.save_pretrained(tmp_path)
        loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
        assert heads(loaded).alpha.equals(alpha)
        assert torch.equal(loaded(**batch).logits, logits)

"""A small pretrained BERT of reactions, from the package rxnfp, with sparse heads."""

import copy
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from headwise.hf import heads, sparsify

RXNFP = find_spec("rxnfp")  # its files alone: it imports packages that are not installed
pytestmark = [pytest.mark.slow, pytest.mark.skipif(RXNFP is None, reason="rxnfp is missing")]
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


def test_pretrained_model_learns_alpha_and_is_saved(tmp_path):
    folder = Path(RXNFP.origin).parent / "models/transformers/bert_pretrained"
    vocabulary = (folder / "vocab.txt").read_text("utf-8").splitlines()
    torch.manual_seed(0)
    dense = BertForSequenceClassification.from_pretrained(folder).eval()
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
        loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
        assert heads(loaded).alpha.equals(alpha)
        assert torch.equal(loaded(**batch).logits, logits)

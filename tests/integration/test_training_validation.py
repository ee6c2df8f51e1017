"""What a validation measures, against the same computed anew from the run that is left."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from command_line import train_small
from headwise.data.tokenizer import BOS, EOS
from headwise.decode.translator import Translator
from headwise.track.jsonl import read_jsonl
from headwise.train import evaluation

SMOOTHING = 0.1


def lines(folder: Path, code: str) -> list[str]:
    return (folder / "text" / f"valid.{code}").read_text(encoding="utf-8").splitlines()


def last_validation(run: Path) -> dict[str, Any]:
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if "valid/loss" in row]
    return rows[-1]


def test_losses_are_means_over_the_tokens_of_the_whole_set(tmp_path: Path) -> None:
    run = train_small(tmp_path, f"loss.label_smoothing={SMOOTHING}", "trainer.valid_sentences=2")
    found = last_validation(run)
    loaded = headwise.load(str(run), checkpoint="last", device="cpu")
    loss = nll = n_tokens = 0.0
    for source, target in zip(lines(tmp_path, "de"), lines(tmp_path, "en"), strict=True):
        ids = loaded.tokenizers.target.encode([target])[0]
        read = torch.tensor([[*loaded.tokenizers.source.encode([source])[0], EOS]])
        with torch.no_grad():
            logits = loaded.model(read, torch.tensor([read.shape[1]]), torch.tensor([[BOS, *ids]]))
        log_p: Tensor = logits.logits_BTV[0].double().log_softmax(-1)
        own = -log_p.gather(1, torch.tensor([*ids, EOS])[:, None]).sum().item()
        nll += own
        loss += (1 - SMOOTHING) * own - SMOOTHING * log_p.mean(-1).sum().item()
        n_tokens += len(ids) + 1
    assert found["valid/nll"] == pytest.approx(nll / n_tokens, rel=1e-5)
    assert found["valid/loss"] == pytest.approx(loss / n_tokens, rel=1e-5)
    assert found["valid/loss"] != pytest.approx(found["valid/nll"], rel=1e-4)
    assert found["valid/perplexity"] == pytest.approx(math.exp(nll / n_tokens), rel=1e-5)


@pytest.mark.parametrize("loss", ["cross_entropy", "sparsemax"])
def test_the_first_sentences_are_translated_with_the_losses_own_map(
    loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[list[str]] = []
    maps: list[bool] = []
    score = evaluation.score_translations

    def kept(hypotheses: list[str], references: list[str], language: str) -> Any:
        scored.append(references)
        return score(hypotheses, references, language)

    class Told(Translator):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            maps.append(self.output.is_sparse)

    monkeypatch.setattr(evaluation, "score_translations", kept)
    monkeypatch.setattr(evaluation, "Translator", Told)
    train_small(tmp_path, f"loss={loss}", "trainer.valid_sentences=2")
    assert scored[0] == lines(tmp_path, "en")[:2]
    assert maps[0] == (loss == "sparsemax")

"""What a validation measures, against the same computed anew from the run that is left."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from command_line import train_small, write_corpus
from headwise.data.batching import Batch
from headwise.data.tokenizer import BOS, EOS, PAD
from headwise.decode.translator import Translator
from headwise.kernels import native, verification
from headwise.tasks import evaluation
from headwise.track.jsonl import read_jsonl

SMOOTHING = 0.1


def lines(folder: Path, code: str) -> list[str]:
    return (folder / "text" / f"valid.{code}").read_text(encoding="utf-8").splitlines()


def last_validation(run: Path) -> dict[str, Any]:
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if "valid/loss" in row]
    return rows[-1]


def test_kernels_are_verified_when_a_run_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_small(tmp_path)
    verdicts: dict[verification.Case, str | None] = {}
    monkeypatch.setattr(verification, "_VERDICTS", verdicts)
    headwise.load(str(run), device="cpu")
    assert bool(verdicts) == (native.reason_without() is None)
    assert not any(verdicts.values())


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
        log_p: Tensor = logits[0].double().log_softmax(-1)
        own = -log_p.gather(1, torch.tensor([*ids, EOS])[:, None]).sum().item()
        nll += own
        loss += (1 - SMOOTHING) * own - SMOOTHING * log_p.mean(-1).sum().item()
        n_tokens += len(ids) + 1
    assert found["valid/nll"] == pytest.approx(nll / n_tokens, rel=1e-5)
    assert found["valid/loss"] == pytest.approx(loss / n_tokens, rel=1e-5)
    assert found["valid/loss"] != pytest.approx(found["valid/nll"], rel=1e-4)
    assert found["valid/perplexity"] == pytest.approx(math.exp(nll / n_tokens), rel=1e-5)


def test_heads_are_looked_at_on_the_first_sentences_short_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[list[list[int]]] = []

    def look(model: Any, batches: list[Batch], device: torch.device) -> dict[str, Any]:
        rows = [row for batch in batches for row in batch.columns["target"].ids_BN.tolist()]
        looked_at.append(sorted([piece for piece in row if piece != PAD] for row in rows))
        return {}

    text = write_corpus(tmp_path / "text")
    targets = ["dog sees house", "dog", "cat", "house", "tree", "car"]
    (text / "valid.de").write_text("Hund\nHund sieht Haus\nKatze\nHaus\nBaum\nAuto\n", "utf-8")
    (text / "valid.en").write_text("".join(f"{line}\n" for line in targets), "utf-8")
    monkeypatch.setattr(evaluation, "head_statistics", look)
    monkeypatch.setattr(evaluation, "MAX_HEAD_PIECES", 6)
    run = train_small(tmp_path, "tokenizer=char", "trainer.head_sentences=3")
    encode = headwise.load(str(run), device="cpu").tokenizers.target.encode
    assert looked_at[0] == sorted([BOS, *ids] for ids in encode(["cat", "house", "tree"]))


@pytest.mark.parametrize(
    ("loss", "beam", "method"), [("cross_entropy", 1, "greedy"), ("sparsemax", 3, "beam")]
)
def test_the_first_sentences_are_translated_with_the_losses_own_map(
    loss: str, beam: int, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[tuple[list[str], Any]] = []
    made: list[Translator] = []
    score = evaluation.score_translations

    def kept(hypotheses: list[str], references: list[str], language: str) -> Any:
        scored.append((references, score(hypotheses, references, language)))
        return scored[-1][1]

    class Kept(Translator):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            made.append(self)

    monkeypatch.setattr(evaluation, "score_translations", kept)
    monkeypatch.setattr(evaluation, "Translator", Kept)
    given = (f"loss={loss}", "trainer.valid_sentences=2", f"trainer.valid_beam={beam}")
    run = train_small(tmp_path, *given, "decode.n_best=2")
    references, scores = scored[0]
    assert references == lines(tmp_path, "en")[:2]
    loaded = headwise.load(str(run), device="cpu").translator
    assert loaded.output.is_sparse == made[0].output.is_sparse == (loss == "sparsemax")
    search = made[0].config
    assert (search.method, search.beam, search.n_best) == (method, beam, 1)
    first = next(row for row in read_jsonl(run / "metrics.jsonl") if "valid/bleu" in row)
    for metric in ("bleu", "chrf"):
        assert first[f"valid/{metric}"] == scores[metric]["score"]


def test_a_line_break_within_a_translation_moves_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "valid.txt"
    evaluation.write_lines(path, ["a\nb", "", "c\u2028d\r"])
    assert path.read_text(encoding="utf-8") == "a b\n\nc d\n"

"""Looking at a model: loss, translations and their scores, statistics of its heads."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.analysis.collect import head_statistics
from headwise.analysis.distances import projection_distances
from headwise.config.schema import Config
from headwise.data.batch import Batch
from headwise.data.batching import evaluation_batches
from headwise.data.encoded import PreparedCorpus
from headwise.data.store import EncodedSplit
from headwise.decode.hypothesis import SearchRecord
from headwise.decode.translator import Translation, Translator
from headwise.file_names import check_file_name
from headwise.files import write_text
from headwise.losses.loss import Loss
from headwise.metrics.bleu import score_translations
from headwise.metrics.external import run_external
from headwise.model.transformer import Transformer
from headwise.track.base import HeadValues
from headwise.train.distributed import Ranks
from headwise.train.trainer import Validation

# Longer sentences are not looked at for statistics of heads, which need all weights of all layers.
MAX_HEAD_PIECES = 512


class Validator:
    """What the trainer asks for at a validation.

    The loss is taken over the whole validation set; the first `trainer.valid_sentences` are
    translated with a beam of `trainer.valid_beam`, the first `trainer.head_sentences` looked at
    for the statistics of the heads. The ranks share the work.
    """

    def __init__(
        self,
        model: Transformer,
        loss: Loss,
        prepared: PreparedCorpus,
        config: Config,
        ranks: Ranks,
    ) -> None:
        self.model, self.loss, self.ranks = model, loss, ranks
        self.config = config
        self.batches = list(evaluation_batches(prepared.valid, config.trainer.max_tokens))
        sources, references = prepared.corpus.read(config.data.valid)
        n_translated = config.trainer.valid_sentences
        self.sources, self.references = sources[:n_translated], references[:n_translated]
        beam = config.trainer.valid_beam
        method = "greedy" if beam == 1 else "beam"
        search = replace(config.decode, method=method, beam=beam, n_best=1)
        self.translator = Translator(
            model, prepared.tokenizers, search, ranks.device, loss.output_map
        )
        if model.max_source is not None:  # found out now, not after the training
            for name in dict.fromkeys((config.data.valid, *prepared.corpus.config.test)):
                self.translator.check_sources(prepared.corpus.read(name)[0], name)
        source, target = prepared.valid.source, prepared.valid.target
        self.translator.check_targets((target.lengths + 1).tolist(), config.data.valid)
        longer = np.maximum(source.lengths, target.lengths)
        short = np.flatnonzero(longer <= MAX_HEAD_PIECES)[: config.trainer.head_sentences]
        sides = ([side[i].tolist() for i in short] for side in (source, target))
        looked_at = EncodedSplit.from_lists(*sides)
        self.head_batches = list(evaluation_batches(looked_at, config.trainer.max_tokens))

    def __call__(self) -> Validation:
        """Measure the model as it is."""
        metrics = self._losses()
        if self.sources:
            hypotheses = [t.text for t in self._translate()]
            scores = score_translations(hypotheses, self.references, self.config.data.target)
            metrics["valid/bleu"] = scores["bleu"]["score"]
            metrics["valid/chrf"] = scores["chrf"]["score"]
        return Validation(metrics, self.heads())

    def heads(self) -> dict[str, HeadValues]:
        """Statistics of the heads as they are, on the first rank; nothing on the others."""
        if not self.head_batches or not self.ranks.is_main:
            return {}
        statistics = head_statistics(self.model, self.head_batches, self.ranks.device)
        distances = projection_distances(self.model)
        return {name: values for name, values in {**statistics, **distances}.items() if values}

    def _losses(self) -> dict[str, float]:
        shared = self.ranks.share(self.batches)
        sums = loss_sums(self.model, self.loss, shared, self.ranks.device)
        loss, measure, n_tokens_all = self.ranks.sum(sums).tolist()
        measure /= n_tokens_all
        metrics = {"valid/loss": loss / n_tokens_all, f"valid/{self.loss.measure}": measure}
        if self.loss.measure == "nll":
            metrics["valid/perplexity"] = math.exp(min(measure, 700.0))
        return metrics

    def _translate(self) -> list[Translation]:
        return self.ranks.gather(self.translator.translate(self.ranks.share(self.sources)))


@torch.no_grad()
def loss_sums(
    model: Transformer, loss: Loss, batches: Iterable[Batch], device: torch.device
) -> Tensor:
    """The loss, its measure and the number of target tokens, summed: (3,) in float64."""
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for batch in batches:
        batch = batch.to(device)
        states_RD = batch.scored(model.states(**model.inputs(batch)))
        found = loss.of_states(states_RD, model.output.weight, batch.targets_R)
        sums[:2] += torch.stack((found.loss, found.measure)).double()
        sums[2] += batch.n_targets
    return sums


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """One sentence a line; a line break inside of one becomes a space, so that files align."""
    write_text(path, "".join(" ".join(line.splitlines()) + "\n" for line in lines))


def search_summary(searches: Iterable[SearchRecord | None]) -> dict[str, float]:
    """What the searches for many sentences say of a sparse output (Peters et al. 2019).

    Returns:
        "exact", the share of sentences whose search dropped no hypothesis with a probability, and
        "support", the mean number of words with a probability over all steps of all hypotheses.
        Empty where nothing was recorded: a dense output, or nothing but empty lines.
    """
    known = [search for search in searches if search is not None]
    if not known:
        return {}
    return {
        "exact": sum(search.is_exact for search in known) / len(known),
        "support": sum(s.n_words for s in known) / max(sum(s.n_steps for s in known), 1),
    }


def evaluate_texts(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    name: str,
    folder: Path,
    target_language: str,
    ranks: Ranks,
    progress: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Translate, write `<name>.txt`, `.ref.txt` and `.src.txt` below `folder`, and score.

    Metrics of the user's are those of the translator's settings.

    Returns:
        The scores of a split as results.json holds them, and the hypotheses. With an output map
        that is sparse, "search" is among them: see `search_summary`.

    Raises:
        ConfigError: `name` would lead out of `folder`.
    """
    check_file_name("data.test", name)
    shown = progress and ranks.is_main and sys.stderr.isatty()
    own = translator.translate(ranks.share(list(sources)), progress=shown)
    translations = ranks.gather(own)
    hypotheses = [translation.text for translation in translations]
    scores: dict[str, Any] = score_translations(hypotheses, references, target_language)
    if ranks.is_main:
        folder.mkdir(parents=True, exist_ok=True)
        paths = {
            "hypotheses": folder / f"{name}.txt",
            "references": folder / f"{name}.ref.txt",
            "source": folder / f"{name}.src.txt",
        }
        write_lines(paths["hypotheses"], hypotheses)
        write_lines(paths["references"], references)
        write_lines(paths["source"], sources)
        scores.update(run_external(translator.config.external, paths))
    searches = search_summary(translation.search for translation in translations)
    if searches:
        scores["search"] = searches
    return scores, hypotheses

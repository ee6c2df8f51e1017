"""Evaluation of a model: loss, scores of its translations, statistics of its heads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.analysis.collect import head_statistics
from headwise.analysis.distances import projection_distances
from headwise.config.instantiate import instantiate
from headwise.config.schema import Config
from headwise.data.batch import Batch
from headwise.data.batching import evaluation_batches
from headwise.data.conversion import progress_bar
from headwise.data.digest import file_digest
from headwise.data.encoded import PreparedCorpus
from headwise.data.store import EncodedSplit
from headwise.decode.hypothesis import SearchRecord, search_name
from headwise.decode.translator import Translator
from headwise.file_names import check_file_name
from headwise.files import write_text
from headwise.losses.loss import Loss
from headwise.metrics.bleu import score_translations
from headwise.metrics.external import run_external
from headwise.metrics.metric import Measured
from headwise.model.family import Model, evaluating
from headwise.model.transformer import Transformer
from headwise.runs.folder import RunFolder
from headwise.track.base import HeadValues
from headwise.train.distributed import Ranks
from headwise.train.trainer import Validation

# Longer sentences are left out of head statistics, which need all weights of all layers.
MAX_HEAD_TOKENS = 512
HYPOTHESES = "hypotheses"  # folder of a run: translations, sources and references


class TranslationValidator:
    """Validation during training.

    The loss covers the whole validation set; the first `trainer.valid_sentences` are translated
    with a beam of `trainer.valid_beam`; the statistics of the heads use the first
    `trainer.head_sentences`. The ranks share the work.
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
        self.sources, self.references = prepared.corpus.read(config.data.valid)
        self.uses_part = 0 < config.trainer.valid_sentences < len(self.sources)
        beam = config.trainer.valid_beam
        method = "greedy" if beam == 1 else "beam"
        search = replace(config.decode, method=method, beam=beam, n_best=1)
        self.scope = search_name(search)
        self.translator = Translator(
            model, prepared.tokenizers, search, ranks.device, loss.output_map
        )
        if model.max_source is not None:  # fail before the training, not after it
            for name in dict.fromkeys((config.data.valid, *prepared.corpus.config.test)):
                self.translator.check_sources(prepared.corpus.read(name)[0], name)
        source, target = prepared.valid.source, prepared.valid.target
        self.translator.check_targets((target.lengths + 1).tolist(), config.data.valid)
        longer = np.maximum(source.lengths, target.lengths)
        rows = np.flatnonzero(longer <= MAX_HEAD_TOKENS)[: config.trainer.head_sentences]
        sides = ([side[i].tolist() for i in rows] for side in (source, target))
        inspected = EncodedSplit.from_lists(*sides)
        self.head_batches = list(evaluation_batches(inspected, config.trainer.max_tokens))

    def __call__(self, whole: bool = False) -> Validation:
        """Measure the model with its current weights; `whole`: translate all sentences."""
        measured = [measure_losses(self.model, self.loss, self.batches, self.ranks)]
        n_translated = self.config.trainer.valid_sentences
        if n_translated:
            end = n_translated if self.uses_part and not whole else None
            scope = self.scope + (f", first {end} sentences" if end else "")
            share = self.translator.translate(self.ranks.share(self.sources[:end]))
            hypotheses = [translation.text for translation in self.ranks.gather(share)]
            target = self.config.data.target
            measured.append(score_translations(hypotheses, self.references[:end], target, scope))
        return Validation(measured, self.heads)

    def heads(self) -> dict[str, HeadValues]:
        """Current statistics of the heads on the first rank; empty on the others."""
        return head_values(self.model, self.head_batches, self.ranks)


def head_values(model: Model, batches: Sequence[Batch], ranks: Ranks) -> dict[str, HeadValues]:
    """Statistics of the heads of a model on the first rank; empty on the others."""
    if not batches or not ranks.is_main:
        return {}
    statistics = head_statistics(model, batches, ranks.device)
    distances = projection_distances(model)
    return {name: values for name, values in {**statistics, **distances}.items() if values}


@torch.no_grad()
def measure_losses(
    model: Model,
    loss: Loss,
    batches: Sequence[Batch],
    ranks: Ranks,
    extra: Callable[[Tensor, Tensor], Tensor] | None = None,
    progress: bool = False,
    n_extra: int = 1,
) -> Measured:
    """Loss, its measure and target tokens of every row of a split, with the metrics of the loss.

    Args:
        batches: the whole split; each rank evaluates its share and gets all items.
        extra: logits (R, V) and targets (R,) of the scored positions -> more statistics (R, S),
            or (R,) if S is 1.
        n_extra: S.
        progress: show a bar on a terminal.
    """
    n_statistics = 3 if extra is None else 3 + n_extra
    items_NS = torch.zeros(
        sum(map(len, batches)), n_statistics, dtype=torch.float64, device=ranks.device
    )
    with evaluating(model), progress_bar("evaluating", progress, len(items_NS), " rows") as bar:
        for index in range(ranks.rank, len(batches), ranks.world_size):
            batch = batches[index].to(ranks.device)
            states_BND = model.states(**model.inputs(batch))
            states_RD, targets_R = batch.scored(states_BND), batch.targets_R
            statistics = [*model.output.rows(states_RD, targets_R, loss)]
            statistics.append(torch.ones_like(statistics[0]))
            statistics_RS = torch.stack(statistics, 1).double()
            if extra is not None:
                extra_RS = extra(model.output(states_RD), targets_R).double().view(-1, n_extra)
                statistics_RS = torch.cat((statistics_RS, extra_RS), 1)
            rows_B = torch.tensor(batch.rows, device=ranks.device)
            rows_R = rows_B[batch.scored_R // states_BND.shape[1]]
            items_NS.index_add_(0, rows_R, statistics_RS)
            bar.update(len(batch))
    return Measured(ranks.sum(items_NS).cpu().numpy(), loss.metrics)


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write one sentence per line; line breaks inside a sentence become spaces."""
    write_text(path, "".join(" ".join(line.splitlines()) + "\n" for line in lines))


def search_summary(searches: Iterable[SearchRecord | None]) -> dict[str, float]:
    """Statistics of the searches with a sparse output (Peters et al. 2019).

    Returns:
        "exact", the share of sentences whose search dropped no hypothesis of nonzero probability,
        and "support", the mean number of tokens of nonzero probability per step.
        Empty without records: a dense output, or only empty lines.
    """
    recorded = [search for search in searches if search is not None]
    if not recorded:
        return {}
    return {
        "exact": sum(search.is_exact for search in recorded) / len(recorded),
        "support": sum(s.n_possible for s in recorded) / max(sum(s.n_steps for s in recorded), 1),
    }


def evaluate_texts(
    translator: Translator,
    config: Config,
    sources: Sequence[str],
    references: Sequence[str],
    name: str,
    folder: RunFolder,
    ranks: Ranks,
    progress: bool,
    subfolder: str = "",
) -> tuple[dict[str, Any], list[str]]:
    """Translate and score sentences, and write the results to the run folder.

    Writes `<name>.txt`, `.ref.txt`, its hash `.ref.sha256` (as of `sha256sum`) and `.src.txt` to
    `hypotheses/`, and `<name>.<unit>.npz`, the statistics of every sentence, to `sums/`. External
    metrics are those of the translator's settings. The loss is left out if a reference is longer
    than the model's learned positions.

    Args:
        config: of the run.
        subfolder: below `hypotheses/` and `sums/`.

    Returns:
        The scores in the form of results.json, and the hypotheses. A sparse output map adds
        "search", see `search_summary`.

    Raises:
        ConfigError: `name` is a path outside the folder.
    """
    check_file_name("data.test", name)
    shown = progress and ranks.is_main and sys.stderr.isatty()
    share = translator.translate(ranks.share(list(sources)), progress=shown)
    translations = ranks.gather(share)
    hypotheses = [translation.text for translation in translations]
    scope = search_name(translator.config)
    measured = [score_translations(hypotheses, references, config.data.target, scope)]
    tokenizers, limit = translator.tokenizers, translator.max_positions
    ids = tokenizers.source.encode(list(sources)), tokenizers.target.encode(list(references))
    if limit is None or max(map(len, ids[1])) < limit:
        loss: Loss = instantiate(config.loss, "loss")
        split = EncodedSplit.from_lists(*ids)
        batches = list(evaluation_batches(split, config.trainer.max_tokens))
        measured.append(measure_losses(translator.model, loss, batches, ranks))
    scores: dict[str, Any] = {}
    for part in measured:
        scores |= part.scores()
    if ranks.is_main:
        for part in measured:
            folder.write_sums(Path(subfolder, name), part.unit, part.items)
        texts = folder.path / HYPOTHESES / subfolder
        texts.mkdir(parents=True, exist_ok=True)
        paths = {
            "hypotheses": texts / f"{name}.txt",
            "references": texts / f"{name}.ref.txt",
            "source": texts / f"{name}.src.txt",
        }
        write_lines(paths["hypotheses"], hypotheses)
        write_lines(paths["references"], references)
        digest = file_digest(paths["references"])
        write_text(texts / f"{name}.ref.sha256", f"{digest}  {name}.ref.txt\n")
        write_lines(paths["source"], sources)
        scores.update(run_external(translator.config.external, paths))
    searches = search_summary(translation.search for translation in translations)
    if searches:
        scores["search"] = searches
    return scores, hypotheses

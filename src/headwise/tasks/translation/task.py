"""Translation with an encoder and a decoder; evaluated by BLEU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from headwise.analysis.survey import ColumnText
from headwise.attention.place import Site
from headwise.config.data import DataConfig
from headwise.data.batch import Batch
from headwise.data.loader import Examples, Rows
from headwise.data.sources.digest import values_digest
from headwise.data.tokenizer import TokenizerPair, vocabulary_limits
from headwise.decode.hypothesis import check_decode_config, search_name
from headwise.decode.translator import Translator, check_lengths
from headwise.errors import require
from headwise.metrics.metric import Metric
from headwise.model.build import build_model, check_model, parts_of
from headwise.model.family import Model
from headwise.model.transformer import Transformer, encoder_decoder_sites
from headwise.tasks.data import Sides, Sizes, open_corpus, warn_of_small_text
from headwise.tasks.measure import measure_losses
from headwise.tasks.shown import Candidates
from headwise.tasks.task import Evaluation, Outputs, Part, Source, Task
from headwise.tasks.translation.batches import TrainingPairs, evaluation_batches
from headwise.tasks.translation.cleaning import Normaliser
from headwise.tasks.translation.corpus import (
    HYPOTHESES,
    EncodedSplit,
    ParallelCorpus,
    check_data_config,
    named_sets,
    saved_sets,
)
from headwise.tasks.translation.metrics import UNIT, score_translations, text_metrics
from headwise.tasks.translation.outputs import Translations, one_line
from headwise.tasks.translation.prepare import (
    EncodedTexts,
    EpochSplits,
    Pairs,
    PreparedCorpus,
    prepare_corpus,
)
from headwise.tasks.translation.run import TranslationRun
from headwise.tasks.translation.shown import shown_sentences
from headwise.train.distributed import Ranks

COMPILED_LENGTH_MULTIPLE = 8  # limits the recompilations of a compiled model


class Translation(Task[Pairs]):
    """Translation of sentences from a parallel corpus."""

    data = DataConfig
    searches = True
    run = TranslationRun
    command = "translate"
    data_files = (*Task.data_files, f"{HYPOTHESES}/*.src.txt", f"{HYPOTHESES}/*.ref.txt")
    references = f"{HYPOTHESES}/{{split}}.ref.sha256"

    @property
    def n_outputs(self) -> int:
        return self.config.trainer.valid_sentences

    def sites(self) -> tuple[Site, ...]:
        return encoder_decoder_sites(self.config.model)

    def metrics(self, data: Pairs | None = None) -> Sequence[Metric]:
        """See `Task.metrics`; those of text have the search as their scope."""
        scope = search_name(self.config.decode)
        return [*text_metrics(self.config.data.target, scope), *self.loss.metrics]

    def check(self) -> None:
        config = self.config
        self.check_search()
        check_data_config(config.data)
        n_tokens = config.tokenizer.max_sentence_tokens
        longest = parts_of(config).positions.max_positions
        allowed = f"above tokenizer.max_sentence_tokens={n_tokens}"
        require(longest is None or longest > n_tokens, "positions.max_positions", allowed, longest)
        sharing = config.model.share_embeddings
        allowed = "decoder or none with tokenizer.joint=false: one table needs one vocabulary"
        require(
            config.tokenizer.joint or sharing != "all", "model.share_embeddings", allowed, sharing
        )
        check_model(config, self.sites(), {"source": n_tokens + 1})  # and eos
        units = {metric.name: metric.unit for metric in self.metrics()}
        monitor = config.trainer.monitor or self.metrics()[0].name
        is_measured = units.get(monitor) != UNIT or self.n_outputs > 0
        allowed = f"at least 1 with trainer.monitor={monitor}"
        require(is_measured, "trainer.valid_sentences", allowed, self.n_outputs)

    def check_search(self) -> None:
        check_decode_config(self.config.decode)

    def sizes(self) -> Sizes:
        return vocabulary_limits(self.config.tokenizer)

    def open(self, cache: Path) -> ParallelCorpus:
        corpus: ParallelCorpus = open_corpus(self.config.data, cache)
        corpus.splits()  # located before there is a run folder
        return corpus

    def prepare(self, corpus: ParallelCorpus) -> PreparedCorpus:
        trainer = self.config.trainer
        return prepare_corpus(corpus, self.config.tokenizer, trainer.n_workers, trainer.progress)

    def model(self, sizes: Sizes, data: Pairs | None = None) -> Transformer:
        """See `Task.model`.

        Raises:
            DataError: a sentence of the validation or a test set is too long for the model.
        """
        joint = self.config.tokenizer.joint
        model = build_model(self.config, sizes["source"], sizes["target"], joint)
        if isinstance(data, PreparedCorpus):  # fail before the training, not after it
            limit, valid = model.max_source, self.config.data.valid
            for name in self.splits(data.corpus) if limit is not None else ():
                lengths = (data.encoded(name).source.lengths + 1).tolist()
                check_lengths("source", lengths, limit, split=name)
            lengths = (data.encoded(valid).target.lengths + 1).tolist()
            check_lengths("target", lengths, model.target_embedding.max_positions, split=valid)
        return model

    def examples(self, data: Pairs, ranks: Ranks, scratch: Path) -> Examples:
        assert isinstance(data, PreparedCorpus)
        config, trainer, dropout = self.config, self.config.trainer, self.config.tokenizer.dropout
        progress = trainer.progress and ranks.is_main
        settings = dropout, config.seed, scratch, trainer.n_workers, progress
        if ranks.is_main:
            warn_of_small_text(config, len(data.train), data.sizes)
        return TrainingPairs(
            EpochSplits(data, *settings) if dropout else data.train,
            trainer.max_tokens,
            config.seed,
            ranks.n_shares,
            length_multiple=COMPILED_LENGTH_MULTIPLE if trainer.compile else 1,
        )

    def batches(self, data: Pairs, part: Part) -> Sequence[Batch]:
        split = data.encoded(part.split)
        rows = _rows(split, part)
        if len(rows) < len(split):
            sides = ([side[i].tolist() for i in rows] for side in (split.source, split.target))
            split = EncodedSplit.from_lists(*sides)
        return evaluation_batches(split, self.config.trainer.max_tokens)

    def too_long(self, data: Pairs, part: Part) -> Sequence[int]:
        split = data.encoded(part.split)
        rows = _rows(split, part).tolist()
        end = rows[-1] + 1 if rows and len(rows) == part.n else len(split)
        return sorted(set(range(end)) - set(rows))

    def evaluate(
        self, model: Model, data: Pairs, part: Part, ranks: Ranks, progress: bool = False
    ) -> Evaluation:
        """See `Task.evaluate`: scores of translations, then losses.

        The loss is left out, with a note, if a reference is longer than the model's learned
        positions.
        """
        assert isinstance(model, Transformer)
        measured, outputs = [], Outputs()
        sources, references = (side[: part.n] for side in data.texts(part.split))
        n = len(sources) if part.n_outputs is None else min(part.n_outputs, len(sources))
        if n:
            translator = Translator(
                model, data.tokenizers, self.config.decode, ranks.device, self.loss.output_map
            )
            share = translator.translate(ranks.share(list(sources[:n])), progress=progress)
            sides, translations = (sources[:n], references[:n]), ranks.gather(share)
            outputs = Translations(*sides, translations)
            of_part = f", first {n} sentences" if n < len(sources) else ""
            scope = search_name(self.config.decode) + of_part
            target = self.config.data.target
            measured.append(score_translations(outputs.texts, references[:n], target, scope))
        limit = model.target_embedding.max_positions
        longest = int(data.encoded(part.split).target.lengths[: part.n].max()) + 1
        if limit is None or longest <= limit:
            batches = self.batches(data, part)
            measured.append(measure_losses(model, self.loss, batches, ranks, progress=progress))
        else:
            outputs.note = f"left out: a reference of {longest} tokens, positions for {limit}"
        return Evaluation(measured, outputs)

    def contents(self, data: Pairs, split: str) -> tuple[str, str]:
        """See `Task.contents`: sources and references as `Translations` writes them, in order.

        They are normalised, but independent of the tokens.
        """
        pairs = zip(*data.texts(split), strict=True)
        return (values_digest([*map(one_line, pair)] for pair in pairs),) * 2

    def quick(self) -> Self:
        """See `Task.quick`: `trainer.valid_beam`."""
        beam = self.config.trainer.valid_beam
        return self.changed(decode=replace(self.config.decode, beam=beam, n_best=1))

    def validates_part(self, data: Pairs) -> bool:
        return 0 < self.n_outputs < len(data.encoded(self.config.data.valid))

    def saved_tests(self, saved: Path) -> Sequence[str]:
        return [name for name in saved_sets(saved) if name != self.config.data.valid]

    def restored(self, saved: Path, splits: Sequence[str], folder: str | None = None) -> Pairs:
        """See `Task.restored`: from the run folder, or else from the corpus."""
        sets = named_sets(self.config.data, saved, splits, self.cache, folder)
        return EncodedTexts(TokenizerPair.load(saved), sets)

    def of_files(self, saved: Path, sets: Mapping[str, Sides]) -> Pairs:
        """See `Task.of_files`: with the normalisation of the corpus."""
        data = self.config.data
        normalise = Normaliser(data.cleaning.normalise, data.source, data.target)
        sides = {
            name: (list(map(normalise.source, sources)), list(map(normalise.target, references)))
            for name, (sources, references) in sets.items()
        }
        return EncodedTexts(TokenizerPair.load(saved), sides)

    def column_texts(self, model: Model, data: Pairs) -> Mapping[str, ColumnText]:
        config, pair = self.config.data, data.tokenizers
        return {
            "source": ColumnText(config.source, spelling=pair.source.id_to_piece),
            "target": ColumnText(config.target, spelling=pair.target.id_to_piece),
        }

    def shown(self, run: Any, source: Source) -> Candidates:
        """See `Task.shown`: sentences with the run's translations."""
        return shown_sentences(run, source)


def _rows(split: EncodedSplit, part: Part) -> Rows:
    """Numbers of the pairs of a part."""
    longer_N = np.maximum(split.source.lengths, split.target.lengths)
    return np.flatnonzero(longer_N <= part.longest)[: part.n]

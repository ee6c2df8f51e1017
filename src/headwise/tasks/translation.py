"""Translation with an encoder and a decoder; evaluated by BLEU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.attention.place import Site
from headwise.config.instantiate import instantiate
from headwise.config.schema import Config, DataConfig, PruneDataConfig
from headwise.data.batching import TrainingPairs
from headwise.data.bpe_dropout_epochs import EpochSplits
from headwise.data.corpus import Corpus, check_data_config, open_corpus
from headwise.data.encoded import PreparedCorpus, prepare_corpus
from headwise.data.loader import Examples
from headwise.data.tokenizer_training import vocabulary_limits
from headwise.decode.hypothesis import check_decode_config, search_name
from headwise.decode.translator import Translator
from headwise.errors import require
from headwise.losses.loss import Loss
from headwise.metrics.bleu import UNIT, text_metrics
from headwise.metrics.external import check_commands
from headwise.metrics.metric import Metric
from headwise.model.build import build_model, check_model, parts_of
from headwise.model.transformer import Transformer, encoder_decoder_sites
from headwise.runs.folder import RunFolder
from headwise.tasks.evaluation import HYPOTHESES, TranslationValidator, evaluate_texts
from headwise.tasks.reading import Inspected, Items, Reading
from headwise.tasks.task import Sizes, Task, TrainedRun
from headwise.tasks.texts import inspected_pairs
from headwise.tasks.translation_readings import chosen_sentences, readings
from headwise.tasks.translation_run import TranslationRun
from headwise.track.base import Tracker
from headwise.train.distributed import Ranks

COMPILED_LENGTH_MULTIPLE = 8  # limits the recompilations of a compiled model
MAX_LOGGED = 100  # sentences of a test set that a tracker logs


class Translation(Task[Corpus, PreparedCorpus]):
    """Translation of sentences from a parallel corpus."""

    monitor = "bleu"
    data = DataConfig
    command = "translate"
    references = f"{HYPOTHESES}/{{split}}.ref.sha256"

    def sites(self, config: Config) -> tuple[Site, ...]:
        """See `Task.sites`."""
        return encoder_decoder_sites(config.model)

    def metrics(self, config: Config) -> Sequence[Metric]:
        """See `Task.metrics`."""
        loss: Loss = instantiate(config.loss, "loss")
        return [*loss.metrics, *text_metrics(config.data.target)]

    def validation_metrics(self, config: Config) -> Sequence[Metric]:
        """See `Task.validation_metrics`: with the search."""
        scope = search_name(replace(config.decode, method="beam", beam=config.trainer.valid_beam))
        return [replace(m, scope=scope if m.unit == UNIT else "") for m in self.metrics(config)]

    def languages(self, config: Config) -> tuple[str, ...]:
        """See `Task.languages`."""
        return config.data.source, config.data.target

    def check(self, config: Config) -> None:
        """See `Task.check`."""
        check_decode_config(config.decode)
        check_commands(config.decode.external)
        check_data_config(config.data)
        n_tokens = config.tokenizer.max_sentence_tokens
        longest = parts_of(config).positions.max_positions
        allowed = f"above tokenizer.max_sentence_tokens={n_tokens}"
        require(longest is None or longest > n_tokens, "positions.max_positions", allowed, longest)
        check_model(config, self.sites(config), {"source": n_tokens + 1})  # and eos
        units = {metric.name: metric.unit for metric in self.metrics(config)}
        monitor, n_sentences = config.trainer.monitor, config.trainer.valid_sentences
        is_measured = units.get(monitor or self.monitor) != UNIT or n_sentences > 0
        allowed = f"at least 1 with trainer.monitor={monitor or self.monitor}"
        require(is_measured, "trainer.valid_sentences", allowed, n_sentences)

    def sizes(self, config: Config) -> Sizes:
        """See `Task.sizes`."""
        return vocabulary_limits(config.tokenizer)

    def open(self, config: Config, cache: Path) -> Corpus:
        """See `Task.open`."""
        return open_corpus(config.data, cache)

    def prepare(self, corpus: Corpus, config: Config, progress: bool) -> PreparedCorpus:
        """See `Task.prepare`."""
        return prepare_corpus(corpus, config.tokenizer, config.trainer.n_workers, progress)

    def model(self, config: Config, sizes: Sizes) -> Transformer:
        """See `Task.model`."""
        return build_model(config, sizes["source"], sizes["target"], config.tokenizer.joint)

    def examples(
        self, config: Config, data: PreparedCorpus, ranks: Ranks, scratch: Path
    ) -> Examples:
        """See `Task.examples`."""
        trainer, dropout = config.trainer, config.tokenizer.dropout
        progress = trainer.progress and ranks.is_main
        settings = dropout, config.seed, scratch, trainer.n_workers, progress
        return TrainingPairs(
            EpochSplits(data, *settings) if dropout else data.train,
            trainer.max_tokens,
            config.seed,
            ranks.n_shares,
            length_multiple=COMPILED_LENGTH_MULTIPLE if trainer.compile else 1,
        )

    def loaded(self, run: TrainedRun, search: Mapping[str, Any]) -> TranslationRun:
        """See `Task.loaded`."""
        return TranslationRun.from_run(run, search)

    def inspected(
        self, run: TrainedRun, data: PruneDataConfig, max_tokens: int, longest: float
    ) -> Inspected:
        """See `Task.inspected`."""
        assert isinstance(run, TranslationRun)
        return inspected_pairs(run, data, max_tokens, longest)

    def items(self, run: TrainedRun, max_items: int, path: Path | None) -> Items:
        """See `Task.items`."""
        assert isinstance(run, TranslationRun)
        return chosen_sentences(run, max_items, path)

    def readings(self, run: TrainedRun, texts: Sequence[str]) -> Iterator[tuple[int, Reading]]:
        """See `Task.readings`: the target is the run's translation."""
        assert isinstance(run, TranslationRun)
        return readings(run, texts)

    def validator(
        self, model: Any, loss: Loss, data: PreparedCorpus, config: Config, ranks: Ranks
    ) -> TranslationValidator:
        """See `Task.validator`."""
        return TranslationValidator(model, loss, data, config, ranks)

    def scorer(
        self, model: Any, loss: Loss, data: PreparedCorpus, config: Config, ranks: Ranks
    ) -> Callable[[str, RunFolder, Tracker], dict[str, Any]]:
        """See `Task.scorer`: writes hypotheses to the folder."""
        tokenizers, output = data.tokenizers, loss.output_map
        translator = Translator(model, tokenizers, config.decode, ranks.device, output)

        def score(split: str, folder: RunFolder, tracker: Tracker) -> dict[str, Any]:
            sides = data.corpus.read(split)
            progress = config.trainer.progress
            scores, hypotheses = evaluate_texts(
                translator, config, *sides, split, folder, ranks, progress
            )
            rows = list(zip(*sides, hypotheses, strict=True))[:MAX_LOGGED]
            columns = ["source", "reference", "hypothesis"]
            tracker.log_table(f"hypotheses/{split}", columns, rows)
            return scores

        return score

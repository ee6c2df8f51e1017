"""Density modelling: a decoder predicts the next token; evaluated by bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from headwise.analysis.survey import ColumnText
from headwise.attention.place import Site
from headwise.config.density_data import (
    BuiltinTextConfig,
    DensityDataConfig,
    ImageDataConfig,
    MusicDataConfig,
    TextDataConfig,
    WindowsConfig,
)
from headwise.config.instantiate import instantiate
from headwise.config.keys import with_changes
from headwise.config.schema import Config, PruneDataConfig
from headwise.data.builtin.text import BuiltinText
from headwise.data.images import ImageCorpus
from headwise.data.loader import Examples
from headwise.data.music import MusicCorpus
from headwise.data.plain_text import TextCorpus
from headwise.data.token_stream import (
    COLUMN,
    TOKENIZER,
    DensityCorpus,
    PreparedTokens,
    prepare_tokens,
)
from headwise.data.tokenizer import BOS, EOS, Tokenizer
from headwise.data.tokenizer_training import vocabulary_limits
from headwise.data.windows import EvaluationWindows, TrainingWindows
from headwise.errors import require
from headwise.files import machine_cache_dir
from headwise.losses.loss import Loss
from headwise.metrics.metric import Floats, Measured, Metric
from headwise.model.build import build_single, check_model, parts_of
from headwise.model.family import Model
from headwise.model.places import site_alone
from headwise.precision import autocast, check_precision, resolve_precision
from headwise.runs.folder import RunFolder
from headwise.tasks.density_items import (
    SITE,
    places_of,
    text_items,
    text_readings,
    value_items,
    value_readings,
)
from headwise.tasks.evaluation import measure_losses
from headwise.tasks.reading import Inspected, Items, Reading
from headwise.tasks.samples import (
    ImageSamples,
    MusicSamples,
    Samples,
    TextSamples,
    write_validation_samples,
)
from headwise.tasks.task import Sizes, Task, TrainedRun, Validator
from headwise.track.base import Tracker
from headwise.train.distributed import Ranks
from headwise.train.trainer import WriteOutputs, write_nothing

# Pairs of positions of the windows whose heads are measured, at validations and by an analysis.
VALIDATION_PAIRS, ANALYSIS_PAIRS = 2**25, 2**27
KINDS: dict[
    type[DensityDataConfig], tuple[Callable[[Any, Path], DensityCorpus], type[Samples[Any]]]
] = {
    TextDataConfig: (TextCorpus, TextSamples),
    BuiltinTextConfig: (BuiltinText, TextSamples),
    ImageDataConfig: (ImageCorpus, ImageSamples),
    MusicDataConfig: (MusicCorpus, MusicSamples),
}


def bits_per_value(sums: Floats) -> float:
    """Bits per byte or dimension, from the sums (nats, bytes)."""
    return float(sums[0] / math.log(2) / sums[1])


def density_metrics(config: Config) -> list[Metric]:
    """Metrics of the loss, with bits per byte (or dimension) first if its measure is the nll."""
    loss: Loss = instantiate(config.loss, "loss")
    (unit,) = {metric.unit for metric in loss.metrics}
    value = config.data.unit
    names = f"bits_per_{value}", f"bits per {value}"
    counts = {"n_scored": 2, "n_bytes": 3}
    windows: WindowsConfig = config.decode
    part = f"|max_windows:{windows.max_windows}" if windows.max_windows else ""
    signature = f"min_context:{windows.min_context}{part}"
    bits = Metric(names[0], "lower", bits_per_value, (1, 3), signature, unit, names[1], counts)
    return [*([bits] if loss.measure == "nll" else []), *loss.metrics]


def is_text(config: Config) -> bool:
    """Return whether the data are text."""
    data: DensityDataConfig = config.data
    return data.unit == "byte"


def n_windows(n_pairs: int, window: int) -> int:
    """Number of windows with this number of pairs of positions, at least 1."""
    return max(1, n_pairs // window**2)


def check_windows(config: Config) -> None:
    """Refuse a `decode` that is no evaluation in windows of `data.window`."""
    windows, window = config.decode, config.data.window
    is_windows = isinstance(windows, WindowsConfig)
    require(is_windows, "decode", "windows with task=density", getattr(windows, "method", windows))
    check_precision(windows.precision, "decode.precision")
    allowed = f"at least 0 and below data.window={window}"
    require(0 <= windows.min_context < window, "decode.min_context", allowed, windows.min_context)
    most = windows.max_windows
    require(most >= 0, "decode.max_windows", "at least 0 (0: all)", most)
    period = parts_of(config).positions.period
    whole = f"a multiple of the {period} values of positions.shape"
    for key, value in (("data.window", window), ("decode.min_context", windows.min_context)):
        require(period is None or value % period == 0, key, whole, value)


@dataclass(frozen=True)
class DensityRun(TrainedRun):
    """A density model with the settings of its evaluation, `config.decode`."""

    @property
    def search(self) -> dict[str, Any]:
        """See `TrainedRun.search`."""
        names = "min_context", "max_windows", "precision"
        return {name: getattr(self.config.decode, name) for name in names}


def open_corpus(data: DensityDataConfig, cache: Path) -> DensityCorpus:
    """Locate the files of a data config."""
    corpus, _ = KINDS[type(data)]
    return corpus(data, cache)


class Density(Task[DensityCorpus, PreparedTokens]):
    """Next-token prediction on text, or on other data as a sequence of bytes."""

    data = DensityDataConfig

    def monitored(self, config: Config) -> str:
        """See `Task.monitored`: bits, or the loss if the outputs are sparse."""
        return self.metrics(config)[0].name

    def sites(self, config: Config) -> tuple[Site, ...]:
        """See `Task.sites`."""
        return (site_alone(config.model, SITE, COLUMN),)

    def metrics(self, config: Config) -> Sequence[Metric]:
        """See `Task.metrics`."""
        return density_metrics(config)

    def languages(self, config: Config) -> tuple[str, ...]:
        """See `Task.languages`."""
        return (config.data.language,) if config.data.language else ()

    def check(self, config: Config) -> None:
        """See `Task.check`."""
        window = config.data.window
        require(window >= 1, "data.window", "at least 1", window)
        open_corpus(config.data, machine_cache_dir())
        fits = is_text(config) or config.tokenizer.kind == "byte"
        kind = f"byte with data={config.data.name}"
        require(fits, "tokenizer.kind", kind, config.tokenizer.kind)
        n_cls, is_masked = config.model.cls_tokens, config.data.document_mask
        allowed = "0 with data.document_mask=true: all documents would see them"
        require(not (is_masked and n_cls), "model.cls_tokens", allowed, n_cls)
        longest = parts_of(config).positions.max_positions
        allowed = f"at least data.window={window}"
        require(longest is None or longest >= window, "positions.max_positions", allowed, longest)
        check_model(config, self.sites(config), {COLUMN: window})
        check_windows(config)

    def sizes(self, config: Config) -> Sizes:
        """See `Task.sizes`."""
        return {COLUMN: vocabulary_limits(config.tokenizer)["source"]}

    def open(self, config: Config, cache: Path) -> DensityCorpus:
        """See `Task.open`."""
        return open_corpus(config.data, cache)

    def prepare(self, corpus: DensityCorpus, config: Config, progress: bool) -> PreparedTokens:
        """See `Task.prepare`."""
        n_workers = config.trainer.n_workers
        return prepare_tokens(corpus, config.tokenizer, progress, n_workers=n_workers)

    def model(self, config: Config, sizes: Sizes) -> Model:
        """See `Task.model`."""
        (site,) = self.sites(config)
        return build_single(config, sizes[COLUMN], site)

    def examples(
        self, config: Config, data: PreparedTokens, ranks: Ranks, scratch: Path
    ) -> Examples:
        """See `Task.examples`."""
        stream, trainer = data.stream(config.data.train), config.trainer
        sizes = config.data.window, trainer.max_tokens, config.seed, ranks.world_size
        return TrainingWindows(stream, BOS, *sizes, aligned=config.data.aligned)

    def batches(
        self, data: PreparedTokens, config: Config, split: str, n_items: int | None = None
    ) -> EvaluationWindows:
        """See `Task.batches`: windows of `decode.min_context`."""
        window, context = config.data.window, config.decode.min_context
        n_tokens = n_items and window + (n_items - 1) * (window - context)
        stream, most = data.stream(split).first(n_tokens), config.decode.max_windows
        return EvaluationWindows(stream, BOS, window, config.trainer.max_tokens, context, most)

    def validator(
        self, model: Model, loss: Loss, data: PreparedTokens, config: Config, ranks: Ranks
    ) -> Validator:
        """See `Task.validator`: windows side by side, which take the least time."""
        trainer, most = config.trainer, n_windows(VALIDATION_PAIRS, config.data.window)
        trainer = replace(trainer, head_sentences=min(trainer.head_sentences, most))
        decode = replace(config.decode, min_context=0)
        config = replace(config, decode=decode, trainer=trainer)
        return super().validator(model, loss, data, config, ranks)

    def measured(
        self, model: Model, loss: Loss, data: PreparedTokens, config: Config, ranks: Ranks,
        split: str, n_items: int | None = None, progress: bool = False,
    ) -> Measured:  # fmt: skip
        """See `Task.measured`; adds the number of bytes of each window."""
        windows = self.batches(data, config, split, n_items)
        with autocast(ranks.device, config.decode.precision):
            items = measure_losses(model, loss, windows, ranks, progress=progress).items
        n_bytes = [windows.stream.bytes_of(first, end) for first, end in windows.scored]
        return Measured(np.column_stack((items, n_bytes)), density_metrics(config))

    def loaded(self, run: TrainedRun, search: Mapping[str, Any]) -> DensityRun:
        """See `Task.loaded`; settings of a search are ignored."""
        names = [field.name for field in fields(WindowsConfig)]
        changes = {name: value for name, value in search.items() if name in names}
        windows = with_changes(run.config.decode, "decode", changes)
        windows.precision = resolve_precision(windows.precision, run.device)
        config = replace(run.config, decode=windows)
        check_windows(config)
        values = {field.name: getattr(run, field.name) for field in fields(TrainedRun)}
        return DensityRun(**values | {"config": config})

    def written(self, model: Model, loss: Loss, config: Config) -> WriteOutputs:
        """See `Task.written`: samples."""
        if not config.trainer.valid_samples:
            return write_nothing

        def write(folder: RunFolder, tracker: Tracker, update: int) -> None:
            samples = self.samples(config, folder)
            write_validation_samples(model, loss, samples, config, folder, tracker, update)

        return write

    def samples(self, config: Config, folder: RunFolder) -> Samples[Any]:
        """See `Task.samples`."""
        corpus = open_corpus(config.data, machine_cache_dir())
        _, samples = KINDS[type(config.data)]
        return samples(corpus, Tokenizer.load(folder.path / TOKENIZER))

    def prepared_split(self, run: TrainedRun, split: str, folder: str | None) -> PreparedTokens:
        """See `Task.prepared_split`."""
        return text_of_run(run, split, folder)

    def column_text(
        self, data: PreparedTokens, config: Config, rows: list[list[int]]
    ) -> ColumnText:
        """See `Task.column_text`."""
        if not is_text(config):
            return ColumnText("", rows, lambda _: "")
        marks, token = {BOS: "", EOS: "\n"}, data.tokenizer.id_to_piece
        return ColumnText(config.data.language or "", rows, lambda i: marks.get(i, token(i)))

    def inspected(
        self, run: TrainedRun, data: PruneDataConfig, max_tokens: int, longest: float
    ) -> Inspected:
        """See `Task.inspected`: windows, by default of at most `ANALYSIS_PAIRS` if n² of each."""
        if data.sentences is None and longest < math.inf:
            most = n_windows(ANALYSIS_PAIRS, run.config.data.window)
            data = replace(data, sentences=most)
        decode = replace(run.config.decode, min_context=0, max_windows=0)
        run = replace(run, config=replace(run.config, decode=decode))
        items = super().inspected(run, data, max_tokens, longest)
        return replace(items, unit="windows", places={COLUMN: places_of(run)})

    def items(self, run: TrainedRun, max_items: int, path: Path | None) -> Items:
        """See `Task.items`: windows of text, images, or windows of other values."""
        return (text_items if is_text(run.config) else value_items)(run, max_items, path)

    def readings(self, run: TrainedRun, texts: Sequence[Any]) -> Iterator[tuple[int, Reading]]:
        """See `Task.readings`."""
        return (text_readings if is_text(run.config) else value_readings)(run, texts)


def text_of_run(run: TrainedRun, split: str, folder: str | None = None) -> PreparedTokens:
    """A split encoded by the run's tokenizer, from `folder` or from the run's data folder."""
    data: DensityDataConfig = replace(run.config.data, dir=folder or run.config.data.dir)
    tokenizer = replace(run.config.tokenizer, kind="given", folder=str(run.folder.path))
    return prepare_tokens(open_corpus(data, machine_cache_dir()), tokenizer, splits=[split])

"""What tasks on a stream of tokens have in common: data, windows, and a model of one stack."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

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
from headwise.config.keys import with_changes
from headwise.config.schema import Config, PruneDataConfig
from headwise.data.builtin.text import BuiltinText
from headwise.data.images import ImageCorpus
from headwise.data.music import MusicCorpus
from headwise.data.plain_text import text_corpus
from headwise.data.token_stream import COLUMN, DensityCorpus, PreparedTokens, prepare_tokens
from headwise.data.tokenizer import BOS, EOS, MASK
from headwise.data.tokenizer_training import vocabulary_limits
from headwise.errors import require
from headwise.files import machine_cache_dir
from headwise.losses.loss import Loss
from headwise.model.build import build_single, check_model, parts_of
from headwise.model.family import Model
from headwise.model.places import site_alone
from headwise.precision import check_precision, resolve_precision
from headwise.tasks.reading import Inspected
from headwise.tasks.task import Sizes, Task, TrainedRun, Validator
from headwise.train.distributed import Ranks

# Pairs of positions of the windows whose heads are measured, at validations and by an analysis.
VALIDATION_PAIRS, ANALYSIS_PAIRS = 2**25, 2**27
CORPORA: dict[type[DensityDataConfig], Callable[[Any, Path], DensityCorpus]] = {
    TextDataConfig: text_corpus,
    BuiltinTextConfig: BuiltinText,
    ImageDataConfig: ImageCorpus,
    MusicDataConfig: MusicCorpus,
}
MASK_NAME = "\u2581<mask>"  # a word of its own


def is_text(config: Config) -> bool:
    """Return whether the data are text."""
    data: DensityDataConfig = config.data
    return data.unit == "byte"


def n_windows(n_pairs: int, window: int) -> int:
    """Number of windows with this number of pairs of positions, at least 1."""
    return max(1, n_pairs // window**2)


def scope_of(windows: WindowsConfig) -> str:
    """The part of a split that is scored, see `Metric`."""
    return f"{windows.max_windows} windows" if windows.max_windows else ""


def open_corpus(data: DensityDataConfig, cache: Path) -> DensityCorpus:
    """Locate the files of a data config."""
    return CORPORA[type(data)](data, cache)


@dataclass(frozen=True)
class StreamRun(TrainedRun):
    """A run with the settings of its evaluation in windows, `config.decode`."""

    @property
    def search(self) -> dict[str, Any]:
        """See `TrainedRun.search`."""
        names = "min_context", "max_windows", "precision"
        return {name: getattr(self.config.decode, name) for name in names}


class StreamTask(Task[DensityCorpus, PreparedTokens]):
    """Base class of tasks whose model, of one stack, reads windows of tokens.

    Attributes:
        site: name of its site.
    """

    data = DensityDataConfig
    site: ClassVar[str]

    def sites(self, config: Config) -> tuple[Site, ...]:
        """See `Task.sites`."""
        return (site_alone(config.model, self.site, COLUMN),)

    def languages(self, config: Config) -> tuple[str, ...]:
        """See `Task.languages`."""
        return (config.data.language,) if config.data.language else ()

    def monitored(self, config: Config) -> str:
        """See `Task.monitored`: the first metric."""
        return self.metrics(config)[0].name

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
        self.check_windows(config)

    def check_windows(self, config: Config) -> None:
        """Refuse a `decode` that is no evaluation in windows of `data.window`."""
        windows, window = config.decode, config.data.window
        fits, allowed = isinstance(windows, WindowsConfig), f"windows with task={self.name}"
        require(fits, "decode", allowed, getattr(windows, "method", windows))
        check_precision(windows.precision, "decode.precision")
        allowed = f"at least 0 and below data.window={window}"
        context, most = windows.min_context, windows.max_windows
        require(0 <= context < window, "decode.min_context", allowed, context)
        require(most >= 0, "decode.max_windows", "at least 0 (0: all)", most)
        period = parts_of(config).positions.period
        whole = f"a multiple of the {period} values of positions.shape"
        for key, value in (("data.window", window), ("decode.min_context", context)):
            require(period is None or value % period == 0, key, whole, value)

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

    def validator(
        self, model: Model, loss: Loss, data: PreparedTokens, config: Config, ranks: Ranks
    ) -> Validator:
        """See `Task.validator`: windows side by side, which take the least time."""
        trainer, most = config.trainer, n_windows(VALIDATION_PAIRS, config.data.window)
        trainer = replace(trainer, head_sentences=min(trainer.head_sentences, most))
        decode = replace(config.decode, min_context=0)
        config = replace(config, decode=decode, trainer=trainer)
        return super().validator(model, loss, data, config, ranks)

    def loaded(self, run: TrainedRun, search: Mapping[str, Any]) -> StreamRun:
        """See `Task.loaded`; settings of a search are ignored."""
        names = [field.name for field in fields(WindowsConfig)]
        changes = {name: value for name, value in search.items() if name in names}
        windows = with_changes(run.config.decode, "decode", changes)
        windows.precision = resolve_precision(windows.precision, run.device)
        config = replace(run.config, decode=windows)
        self.check_windows(config)
        values = {field.name: getattr(run, field.name) for field in fields(TrainedRun)}
        return StreamRun(**values | {"config": config})

    def prepared_split(self, run: TrainedRun, split: str, folder: str | None) -> PreparedTokens:
        """See `Task.prepared_split`: encoded by the run's tokenizer."""
        data: DensityDataConfig = replace(run.config.data, dir=folder or run.config.data.dir)
        tokenizer = replace(run.config.tokenizer, kind="given", folder=str(run.folder.path))
        return prepare_tokens(open_corpus(data, machine_cache_dir()), tokenizer, splits=[split])

    def column_text(
        self, data: PreparedTokens, config: Config, rows: list[list[int]]
    ) -> ColumnText:
        """See `Task.column_text`."""
        if not is_text(config):
            return ColumnText("", rows, lambda _: "")
        marks, token = {BOS: "", EOS: "\n", MASK: MASK_NAME}, data.tokenizer.id_to_piece
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
        return replace(super().inspected(run, data, max_tokens, longest), unit="windows")

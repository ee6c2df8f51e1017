"""What tasks on a stream of tokens have in common: data, windows, and a model of one stack."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from headwise.analysis.kinds import Places
from headwise.analysis.survey import ColumnText
from headwise.attention.place import Site
from headwise.config.data import DensityDataConfig
from headwise.config.schema import Config, DecodeConfig, WindowsConfig
from headwise.data.file_corpus import FileCorpus
from headwise.data.loader import Examples
from headwise.data.sources.digest import values_digest
from headwise.data.tokenizer import BOS, COLUMN, EOS, MASK, vocabulary_limits
from headwise.decode.hypothesis import search_name
from headwise.errors import require
from headwise.metrics.metric import Floats, Metric
from headwise.model.build import build_single, check_model, parts_of
from headwise.model.family import Model
from headwise.model.places import site_alone
from headwise.precision import autocast, check_precision
from headwise.tasks.data import Sizes, open_corpus
from headwise.tasks.shown import Candidates, Item, Shown
from headwise.tasks.stream.shown import shown_values, shown_windows
from headwise.tasks.stream.stream import PreparedTokens, prepare_tokens
from headwise.tasks.stream.windows import EvaluationWindows
from headwise.tasks.task import Evaluation, Part, Source, Task, TrainedRun
from headwise.train.distributed import Ranks

Windows = Callable[..., Any]  # stream, start id, sizes -> windows
MASK_NAME = "\u2581<mask>"  # a word of its own


def is_text(config: Config) -> bool:
    """Return whether the data are text."""
    data: DensityDataConfig = config.data
    return data.unit == "byte"


def bits_per(sums: Floats) -> float:
    """Bits per token, byte or dimension, from the sums (nats, their number)."""
    return float(sums[0] / math.log(2) / sums[1])


class StreamTask(Task[PreparedTokens]):
    """Base class of tasks whose model, of one stack, reads windows of tokens.

    Attributes:
        site: name of its site.
    """

    data = DensityDataConfig
    searches = True
    unit = "windows"
    site: ClassVar[str]

    @property
    def row_tokens(self) -> int:
        return int(self.config.data.window)

    @property
    def _window(self) -> int:
        """Tokens of a window of an evaluation."""
        window = self.config.decode.window
        return int(self.config.data.window if window is None else window)

    def sites(self) -> tuple[Site, ...]:
        return (site_alone(self.config.model, self.site, COLUMN),)

    def check(self) -> None:
        config, window = self.config, self.config.data.window
        self.open(self.cache)
        fits = is_text(config) or config.tokenizer.kind == "byte"
        kind = f"byte with data={config.data.name}"
        require(fits, "tokenizer.kind", kind, config.tokenizer.kind)
        n_cls, is_masked = config.model.cls_tokens, config.data.document_mask
        allowed = "0 with data.document_mask=true: all documents would see them"
        require(not (is_masked and n_cls), "model.cls_tokens", allowed, n_cls)
        self.check_search()
        check_model(config, self.sites(), {COLUMN: window})

    def check_search(self) -> None:
        """See `Task.check_search`: an evaluation in windows."""
        windows, positions = self.config.decode, parts_of(self.config).positions
        fits, allowed = isinstance(windows, WindowsConfig), f"windows with task={self.name}"
        is_search = isinstance(windows, DecodeConfig)
        require(fits, "decode", allowed, search_name(windows) if is_search else windows)
        check_precision(windows.precision, "decode.precision")
        longest, period = positions.max_positions, positions.period
        whole = f"a multiple of the {period} values of positions.shape"
        for key, window in (("data.window", self.row_tokens), ("decode.window", self._window)):
            fits, allowed = longest is None or longest >= window, f"at most {longest}"
            require(fits, key, f"{allowed} (positions.max_positions)", window)
            require(period is None or window % period == 0, key, whole, window)
        key = "data.window" if windows.window is None else "decode.window"
        allowed = f"at least 0 and below {key}={window}"
        context = windows.min_context
        require(0 <= context < window, "decode.min_context", allowed, context)
        require(period is None or context % period == 0, "decode.min_context", whole, context)

    def metrics(self, data: PreparedTokens | None = None) -> Sequence[Metric]:
        """See `Task.metrics`: bits (if the loss has a nll), others, and those of the loss."""
        most, (unit,) = self.config.decode.max_windows, {m.unit for m in self.loss.metrics}
        window = self.config.decode.window
        part = f"|window:{window}" if window is not None else ""
        bits, *others = self.own_metrics(unit, part + (f"|max_windows:{most}" if most else ""))
        metrics = [*([bits] if self.loss.measure == "nll" else []), *others, *self.loss.metrics]
        scope, consecutive = f"{most} windows" if most else "", not self.config.data.aligned
        return [replace(metric, scope=scope, consecutive=consecutive) for metric in metrics]

    @abstractmethod
    def own_metrics(self, unit: str, part: str) -> Sequence[Metric]:
        """Metrics besides those of the loss, bits first.

        Args:
            unit: of the items.
            part: end of the signatures.
        """

    def sizes(self) -> Sizes:
        return {COLUMN: vocabulary_limits(self.config.tokenizer)["source"]}

    def open(self, cache: Path) -> FileCorpus:
        corpus: FileCorpus = open_corpus(self.config.data, cache)
        return corpus

    def prepare(self, corpus: FileCorpus) -> PreparedTokens:
        trainer = self.config.trainer
        settings = trainer.progress, (), trainer.n_workers
        return prepare_tokens(corpus, self.config.tokenizer, *settings)

    def model(self, sizes: Sizes, data: PreparedTokens | None = None) -> Model:
        return build_single(self.config, sizes[COLUMN], *self.sites())

    @abstractmethod
    def windows(self, data: PreparedTokens) -> tuple[Windows, Windows]:
        """Classes of the windows of training and of evaluation, with their own arguments."""

    def examples(self, data: PreparedTokens, ranks: Ranks, scratch: Path) -> Examples:
        config, stream = self.config, data.stream(self.config.data.train)
        sizes = config.data.window, config.trainer.max_tokens, config.seed, ranks.n_shares
        examples: Examples = self.windows(data)[0](stream, BOS, *sizes)
        return examples

    def batches(self, data: PreparedTokens, part: Part) -> Any:
        """See `Task.batches`: windows of `decode.min_context`, an `EvaluationWindows`.

        Consecutive ones are all those of the length of training.
        """
        window, windows = self._window, self.config.decode
        if part.consecutive:
            window = self.row_tokens
            windows = replace(windows, min_context=0, max_windows=0)
        n_tokens = part.n and window + (part.n - 1) * (window - windows.min_context)
        sizes = window, self.config.trainer.max_tokens, windows.min_context, windows.max_windows
        return self.windows(data)[1](data.stream(part.split).first(n_tokens), BOS, *sizes)

    def evaluate(
        self, model: Model, data: PreparedTokens, part: Part, ranks: Ranks, progress: bool = False
    ) -> Evaluation:
        """See `Task.evaluate`; with `decode.precision`."""
        with autocast(ranks.device, self.config.decode.precision):
            return super().evaluate(model, data, part, ranks, progress)

    def contents(self, data: PreparedTokens, split: str) -> tuple[str, str]:
        """See `Task.contents`: the bytes of a split, whatever the tokens; and its windows.

        Items are the content with the vocabulary, `document_mask`, the lengths `window` and
        `min_context`, and the positions of all windows and of all documents.
        """
        windows: EvaluationWindows = self.batches(data, Part(split))
        content, stream = values_digest(data.content(split)), windows.stream
        sizes = data.vocabulary, stream.document_mask, windows.window, windows.min_context
        starts = windows.starts.tobytes(), stream.document_starts.tobytes()
        return content, values_digest([content, *sizes, *starts])

    def quick(self) -> Self:
        """See `Task.quick`: windows as in training, side by side, which take the least time."""
        return self.changed(decode=replace(self.config.decode, min_context=0, window=None))

    def restored(
        self, saved: Path, splits: Sequence[str], folder: str | None = None
    ) -> PreparedTokens:
        tokenizer = replace(self.config.tokenizer, kind="given", folder=str(saved))
        corpus = self.reopened(folder)
        return prepare_tokens(corpus, tokenizer, splits=splits)

    def places(self, model: Model) -> Places | None:
        """Places of the values; by default unknown."""
        return None

    def column_texts(self, model: Model, data: PreparedTokens) -> Mapping[str, ColumnText]:
        text = ColumnText(places=self.places(model))
        if not is_text(self.config):
            return {COLUMN: text}
        marks, token = {BOS: "", EOS: "\n", MASK: MASK_NAME}, data.tokenizer.id_to_piece
        language, names = self.config.data.language or "", lambda i: marks.get(i, token(i))
        return {COLUMN: replace(text, language=language, spelling=names)}

    def shown(self, run: Any, source: Source) -> Candidates:
        """See `Task.shown`: windows of text, images, or windows of other values."""
        if is_text(self.config):
            return shown_windows(run, source, partial(self.shown_texts, run))
        return shown_values(run, source)

    @abstractmethod
    def shown_texts(self, run: TrainedRun, items: Iterable[Item]) -> Iterator[Shown]:
        """What is shown of texts, each truncated to one window."""

"""Classification of texts and images by an encoder; evaluated by accuracy and other metrics.

Axes: R rows to score, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from headwise.analysis.kinds import Places
from headwise.analysis.survey import ColumnText
from headwise.attention.place import Site
from headwise.config.data import ImageDataConfig, LabelledDataConfig
from headwise.config.schema import Config, TokenizerConfig
from headwise.data.batch import Batch
from headwise.data.images import grid_of
from headwise.data.loader import Examples, Rows
from headwise.data.sources.digest import values_digest
from headwise.data.tokenizer import COLUMN, EOS, vocabulary_limits
from headwise.errors import require
from headwise.losses.loss import Loss
from headwise.metrics.metric import Floats, Metric
from headwise.model.build import build_classifier, check_model, parts_of
from headwise.model.classifier import Classifier, pool_of
from headwise.model.family import Model
from headwise.model.gates import head_gates
from headwise.model.patch_embedding import patch_embedding
from headwise.model.places import site_alone
from headwise.runs.folder import RunFolder
from headwise.tasks.classification.inputs import (
    ClassCorpus,
    ImageInputs,
    TrainingClasses,
    evaluation_batches,
    stratified,
)
from headwise.tasks.classification.metrics import (
    N_BEFORE,
    TOP,
    class_metrics,
    predictions,
    true_classes,
)
from headwise.tasks.classification.predict import ClassifierRun, Predictions, labels_of
from headwise.tasks.classification.prepare import (
    LABELS,
    N_VALUES,
    PreparedClasses,
    prepare_classes,
)
from headwise.tasks.classification.shown import shown_examples
from headwise.tasks.classification.text import LabelledText
from headwise.tasks.data import Sizes, open_corpus, warn_of_small_text
from headwise.tasks.shown import Candidates
from headwise.tasks.task import Evaluation, Extra, Part, Source, Task
from headwise.train.distributed import Ranks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headwise.runs.record import Record


def class_statistics(loss: Loss, logits_RC: Tensor, targets_R: Tensor) -> Tensor:
    """Statistics after those of the loss (see `metrics`), (R, 3 + 3 C)."""
    n_classes = logits_RC.shape[1]
    top_RK = logits_RC.topk(min(TOP, n_classes)).indices
    is_right_RK = top_RK == targets_R[:, None]
    true_RC, predicted_RC = one_hot(targets_R, n_classes), one_hot(top_RK[:, 0], n_classes)
    shares = is_right_RK[:, :1], is_right_RK.any(1, keepdim=True)
    probability_R1 = loss.log_probs(logits_RC).amax(1, keepdim=True).double().exp()
    per_class = true_RC * predicted_RC, true_RC, predicted_RC
    return torch.cat((*shares, probability_R1, *per_class), 1)


def class_factors(weights: Any, counts: Mapping[str, int]) -> list[float] | None:
    """Factors of the losses of classes; `balanced` ones give each class the same total, N / C.

    Args:
        weights: `data.class_weights`.
        counts: label -> number of training examples.
    """
    if weights == "balanced":
        return [sum(counts.values()) / (len(counts) * n) for n in counts.values()]
    fits = weights is None or len(weights) == len(counts)
    require(fits, "data.class_weights", f"{len(counts)} numbers: {', '.join(counts)}", weights)
    return weights and list(map(float, weights))


def max_positions(data: Any) -> int:
    """Number of positions of the longest input."""
    if isinstance(data, ImageDataConfig):
        return prod(grid_of(data.shape, data.patch))
    return int(data.max_length)


def on_patches(config: Config) -> Config:
    """The config with positions in the grid of the patches of an image, not in that of values."""
    data, positions = config.data, config.positions
    if not isinstance(data, ImageDataConfig):
        return config
    grid = grid_of(data.shape, data.patch)
    allowed = f"{grid[1]}, the patches in a row of an image"
    width = positions.get("width", grid[1])
    require(width == grid[1], "positions.width", allowed, width)
    shape = {"shape": [*grid, 1]} if "shape" in positions else {}
    return replace(config, positions={**positions, **shape})


class Classification(Task[PreparedClasses]):
    """One label for each text, pair of texts, or image.

    Args:
        config: of the run.
        encoder_lr: factor of the learning rate of weights taken by `init_from`, all but those of
            classes and CLS tokens.
        frozen_layers: with `init_from`, the embeddings and so many first layers are not trained,
            but their gates are.
    """

    data = ImageDataConfig, LabelledDataConfig
    run = ClassifierRun
    command = "predict"

    def __init__(
        self, config: Config, encoder_lr: float = 1.0, frozen_layers: int | None = None
    ) -> None:
        super().__init__(config)
        require(encoder_lr >= 0, "encoder_lr", "at least 0", encoder_lr)
        fits = frozen_layers is None or frozen_layers >= 0
        require(fits, "frozen_layers", "null or at least 0", frozen_layers)
        self.encoder_lr, self.frozen_layers = encoder_lr, frozen_layers

    @property
    def is_image(self) -> bool:
        """Whether the examples are images."""
        return isinstance(self.config.data, ImageDataConfig)

    @property
    def unit(self) -> str:
        return "images" if self.is_image else "texts"

    @property
    def row_tokens(self) -> int | None:
        """See `Task.row_tokens`: the patches of an image."""
        return max_positions(self.config.data) if self.is_image else None

    @property
    def tokenizer(self) -> TokenizerConfig | None:
        """The tokenizer: with `init_from` that of the other run; None for images."""
        config = self.config
        if self.is_image:
            return None
        if config.init_from is None or config.tokenizer.kind == "given":
            return config.tokenizer
        return replace(config.tokenizer, kind="given", folder=config.init_from)

    def sites(self) -> tuple[Site, ...]:
        return (site_alone(self.config.model, "encoder_self", COLUMN),)

    def metrics(self, data: PreparedClasses | None = None) -> Sequence[Metric]:
        """See `Task.metrics`: the top-5 accuracy needs the number of classes."""
        labels: Sequence[str] | None = self.config.data.labels if data is None else data.labels
        (unit,) = {metric.unit for metric in self.loss.metrics}
        of_loss = [
            replace(metric, signature="per example", label=f"{metric.name} per example")
            for metric in self.loss.metrics
        ]
        metrics = [*class_metrics(len(labels) if labels else None, unit), *of_loss]
        return [replace(metric, has_interval=True) for metric in metrics]

    def check(self) -> None:
        self.open(self.cache)
        config = on_patches(self.config)
        data = config.data
        pool_of(config.model)
        weights = data.class_weights
        is_list = isinstance(weights, list) and all(type(w) in (int, float) for w in weights)
        fits = weights in (None, "balanced") or is_list
        require(fits, "data.class_weights", "null, balanced or a list of numbers", weights)
        (site,), is_tuned = self.sites(), config.init_from is not None
        lr, n = self.encoder_lr, self.frozen_layers
        require(lr == 1 or is_tuned, "task.encoder_lr", "1 without init_from=RUN", lr)
        allowed = f"null, or with init_from=RUN at most {site.n_layers}, the layers of the model"
        fits = n is None or (is_tuned and n <= site.n_layers)
        require(fits, "task.frozen_layers", allowed, n)
        longest, n = parts_of(config).positions.max_positions, max_positions(data)
        allowed = f"at least the {n} positions of data={data.name}"
        require(longest is None or longest >= n, "positions.max_positions", allowed, longest)
        if self.tokenizer not in (None, config.tokenizer):
            RunFolder.existing(config.init_from or "", "init_from")  # has the tokenizer
        check_model(config, self.sites(), {COLUMN: n})

    def sizes(self) -> Sizes:
        n_ids = N_VALUES if self.tokenizer is None else vocabulary_limits(self.tokenizer)["source"]
        return {COLUMN: n_ids, LABELS: len(self.config.data.labels or ("", ""))}

    def open(self, cache: Path) -> ClassCorpus:
        options = {"labelled": True} if self.is_image else {}
        corpus: ClassCorpus = open_corpus(self.config.data, cache, **options)
        return corpus

    def prepare(self, corpus: ClassCorpus) -> PreparedClasses:
        labels, progress = self.config.data.labels, self.config.trainer.progress
        return prepare_classes(corpus, self.tokenizer, labels, progress=progress)

    def model(self, sizes: Sizes, data: PreparedClasses | None = None) -> Classifier:
        """See `Task.model`; one to train has the weights of classes, and frozen layers."""
        if data is None:
            return self._classifier(sizes)
        classes = data.split(self.config.data.train).classes[self._training_rows(data)]
        counts = dict(zip(data.labels, np.bincount(classes).tolist(), strict=True))
        model = self._classifier(sizes, class_factors(self.config.data.class_weights, counts))
        n = self.frozen_layers
        frozen = () if n is None else ("embedding.", *(f"stack.layers.{i}." for i in range(n)))
        for name, parameter in model.named_parameters():
            is_new = name.startswith("output.") or "cls" in name.split(".")
            if is_new or name.startswith(frozen):
                parameter.requires_grad_(is_new)  # else as `gates.freeze` has it
            if not is_new and self.encoder_lr != 1:
                model.lr_factors[parameter] = self.encoder_lr
        for gate in head_gates(model):
            gate.requires_grad_(True)
        return model

    def _classifier(self, sizes: Sizes, weights: Sequence[float] | None = None) -> Classifier:
        (site,) = self.sites()
        data, width = self.config.data, self.config.model.d_model
        if self.is_image:
            table: nn.Module = patch_embedding(data.patch, data.shape[2], width)
        else:
            table = nn.Embedding(sizes[COLUMN], width)
        return build_classifier(
            on_patches(self.config), table, sizes[LABELS], site, class_weights=weights
        )

    def _training_rows(self, data: PreparedClasses) -> Rows:
        """Numbers of the training examples in use, `data.label_fraction` of each class."""
        classes = data.split(self.config.data.train).classes
        return stratified(classes, self.config.data.label_fraction, self.config.seed)

    def examples(self, data: PreparedClasses, ranks: Ranks, scratch: Path) -> Examples:
        split, kept = data.split(self.config.data.train), self._training_rows(data)
        if ranks.is_main and not self.is_image:
            warn_of_small_text(self.config, len(kept), data.sizes)
        budget = self.config.trainer.max_tokens, self.config.seed, ranks.n_shares
        return TrainingClasses(split, kept, *budget)

    def batches(self, data: PreparedClasses, part: Part) -> list[Batch]:
        return evaluation_batches(data.split(part.split), self.config.trainer.max_tokens, part.n)

    def extra(self, data: PreparedClasses) -> Extra:
        return N_BEFORE - 3 + 3 * len(data.labels), partial(class_statistics, self.loss)

    def evaluate(
        self, model: Model, data: PreparedClasses, part: Part, ranks: Ranks, progress: bool = False
    ) -> Evaluation:
        """See `Task.evaluate`; with predictions."""
        (measured,) = super().evaluate(model, data, part, ranks, progress).measured
        return Evaluation([measured], Predictions(data, *predictions(measured.items)))

    def contents(self, data: PreparedClasses, split: str) -> tuple[str, str]:
        """See `Task.contents`: the names of the labels, and whole texts or the values of images."""
        stored = data.split(split)
        if isinstance(stored.inputs, ImageInputs):
            images = stored.inputs.images
            values: Any = [[data.labels[n] for n in stored.classes], images.shape, images.data]
        else:
            values = data.corpus.rows(split)
        return (values_digest(values),) * 2

    def labels(self, items: Floats) -> Floats:
        return true_classes(items)

    def restored(
        self, saved: Path, splits: Sequence[str], folder: str | None = None
    ) -> PreparedClasses:
        """See `Task.restored`: with the run's tokenizer and labels."""
        corpus, labels, tokenizer = self.reopened(folder), labels_of(saved), self.tokenizer
        if isinstance(corpus, LabelledText):
            corpus = replace(corpus, saved=labels)
        if tokenizer is not None:
            tokenizer = replace(tokenizer, kind="given", folder=str(saved))
        return prepare_classes(corpus, tokenizer, labels, splits)

    def figures(self, run: Record, name: str) -> dict[str, Figure]:
        """See `Task.figures`: the confusion matrix of each split."""
        from headwise.tasks.classification.metrics import confusion_figures

        return confusion_figures(run, name)

    def column_texts(self, model: Model, data: PreparedClasses) -> Mapping[str, ColumnText]:
        config = self.config.data
        if isinstance(config, ImageDataConfig):
            rows, columns = grid_of(config.shape, config.patch)
            places = Places(rows * columns, columns, 1, 0, rows * columns)
            return {COLUMN: ColumnText(places=places)}
        assert data.tokenizer is not None
        marks, token = {EOS: "\n"}, data.tokenizer.id_to_piece
        language, spelling = config.language or "", lambda i: marks.get(i) or token(i)
        return {COLUMN: ColumnText(language, spelling=spelling)}

    def shown(self, run: Any, source: Source) -> Candidates:
        return shown_examples(run, source)

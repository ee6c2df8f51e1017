"""Classification of texts and images by an encoder; evaluated by accuracy and other metrics.

Axes: R rows to score, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from headwise.analysis.survey import ColumnText
from headwise.attention.place import Site
from headwise.config.density_data import ImageDataConfig
from headwise.config.instantiate import instantiate
from headwise.config.labelled_data import LabelledDataConfig
from headwise.config.schema import Config, PruneDataConfig, TokenizerConfig
from headwise.data.batch import Batch
from headwise.data.class_store import LABELS, N_VALUES, PreparedClasses, prepare_classes
from headwise.data.classes import ClassCorpus, TrainingClasses, evaluation_batches, stratified
from headwise.data.labelled import LabelledText
from headwise.data.labelled_images import LabelledImages
from headwise.data.loader import Examples, Rows
from headwise.data.patches import grid_of
from headwise.data.token_stream import COLUMN
from headwise.data.tokenizer import EOS
from headwise.data.tokenizer_training import vocabulary_limits
from headwise.errors import refuse, require
from headwise.files import machine_cache_dir
from headwise.losses.loss import Loss
from headwise.metrics.classes import N_BEFORE, TOP, class_metrics, predictions
from headwise.metrics.metric import Measured, Metric, Score
from headwise.metrics.significance import scores_with_intervals
from headwise.model.build import build_classifier, check_model, parts_of
from headwise.model.classifier import Classifier, pool_of
from headwise.model.family import Model
from headwise.model.gates import head_gates
from headwise.model.patches import patch_embedding
from headwise.model.places import site_alone
from headwise.runs.folder import RunFolder
from headwise.tasks.class_items import (
    SITE,
    example_readings,
    examples_to_show,
    patch_id,
    places_of,
)
from headwise.tasks.evaluation import measure_losses
from headwise.tasks.predictions import ClassifierRun, labels_of, write_predictions
from headwise.tasks.reading import Inspected, Items, Reading
from headwise.tasks.task import Sizes, Task, TrainedRun
from headwise.train.distributed import Ranks

CORPORA: dict[type, Callable[[Any, Path], ClassCorpus]] = {
    ImageDataConfig: LabelledImages,
    LabelledDataConfig: LabelledText,
}


def class_statistics(loss: Loss, logits_RC: Tensor, targets_R: Tensor) -> Tensor:
    """Statistics after those of the loss (`headwise.metrics.classes`), (R, 3 + 3 C)."""
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


def training_rows(config: Config, data: PreparedClasses) -> Rows:
    """Numbers of the training examples in use, `data.label_fraction` of each class."""
    classes = data.split(config.data.train).classes
    return stratified(classes, config.data.label_fraction, config.seed)


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


def tokenizer_of(config: Config) -> TokenizerConfig | None:
    """The tokenizer of a run: with `init_from` that of the other run; None for images."""
    if isinstance(config.data, ImageDataConfig):
        return None
    if config.init_from is None or config.tokenizer.kind == "given":
        return config.tokenizer
    return replace(config.tokenizer, kind="given", folder=config.init_from)


class Classification(Task[ClassCorpus, PreparedClasses]):
    """One label for each text, pair of texts, or image.

    Args:
        encoder_lr: factor of the learning rate of weights taken by `init_from`, all but those of
            classes and CLS tokens.
        frozen_layers: with `init_from`, the embeddings and so many first layers are not trained,
            but their gates are.
    """

    monitor = "accuracy"
    data = tuple(CORPORA)
    command = "predict"

    def __init__(self, encoder_lr: float = 1.0, frozen_layers: int | None = None) -> None:
        require(encoder_lr >= 0, "encoder_lr", "at least 0", encoder_lr)
        fits = frozen_layers is None or frozen_layers >= 0
        require(fits, "frozen_layers", "null or at least 0", frozen_layers)
        self.encoder_lr, self.frozen_layers = encoder_lr, frozen_layers

    def sites(self, config: Config) -> tuple[Site, ...]:
        """See `Task.sites`."""
        return (site_alone(config.model, SITE, COLUMN),)

    def metrics(self, config: Config) -> Sequence[Metric]:
        """See `Task.metrics`."""
        return self._metrics(config, config.data.labels and len(config.data.labels))

    def _metrics(self, config: Config, n_classes: int | None) -> list[Metric]:
        loss: Loss = instantiate(config.loss, "loss")
        (unit,) = {metric.unit for metric in loss.metrics}
        of_loss = [
            replace(metric, signature="per example", label=f"{metric.name} per example")
            for metric in loss.metrics
        ]
        return [*class_metrics(n_classes, unit), *of_loss]

    def languages(self, config: Config) -> tuple[str, ...]:
        """See `Task.languages`."""
        return (config.data.language,) if config.data.language else ()

    def check(self, config: Config) -> None:
        """See `Task.check`."""
        self.open(config, machine_cache_dir())
        config = on_patches(config)
        data = config.data
        share = data.label_fraction
        require(0 < share <= 1, "data.label_fraction", "above 0 and at most 1", share)
        pool_of(config.model)
        weights = data.class_weights
        is_list = isinstance(weights, list) and all(type(w) in (int, float) for w in weights)
        fits = weights in (None, "balanced") or is_list
        require(fits, "data.class_weights", "null, balanced or a list of numbers", weights)
        (site,), is_tuned = self.sites(config), config.init_from is not None
        lr, n = self.encoder_lr, self.frozen_layers
        require(lr == 1 or is_tuned, "task.encoder_lr", "1 without init_from=RUN", lr)
        allowed = f"null, or with init_from=RUN at most {site.n_layers}, the layers of the model"
        fits = n is None or (is_tuned and n <= site.n_layers)
        require(fits, "task.frozen_layers", allowed, n)
        longest, n = parts_of(config).positions.max_positions, max_positions(data)
        allowed = f"at least the {n} positions of data={data.name}"
        require(longest is None or longest >= n, "positions.max_positions", allowed, longest)
        check_model(config, self.sites(config), {COLUMN: n})

    def sizes(self, config: Config) -> Sizes:
        """See `Task.sizes`."""
        n_classes = len(config.data.labels or ("", ""))
        tokenizer = tokenizer_of(config)
        n_ids = N_VALUES if tokenizer is None else vocabulary_limits(tokenizer)["source"]
        return {COLUMN: n_ids, LABELS: n_classes}

    def open(self, config: Config, cache: Path) -> ClassCorpus:
        """See `Task.open`."""
        return CORPORA[type(config.data)](config.data, cache)

    def prepare(self, corpus: ClassCorpus, config: Config, progress: bool) -> PreparedClasses:
        """See `Task.prepare`."""
        labels = config.data.labels
        return prepare_classes(corpus, tokenizer_of(config), labels, progress=progress)

    def model(self, config: Config, sizes: Sizes) -> Classifier:
        """See `Task.model`."""
        return self._classifier(config, sizes)

    def training_model(self, config: Config, data: PreparedClasses) -> Model:
        """See `Task.training_model`; with the weights of classes, and frozen layers."""
        classes = data.split(config.data.train).classes[training_rows(config, data)]
        counts = dict(zip(data.labels, np.bincount(classes).tolist(), strict=True))
        weights = class_factors(config.data.class_weights, counts)
        model = self._classifier(config, data.sizes, weights)
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

    def _classifier(
        self, config: Config, sizes: Sizes, weights: Sequence[float] | None = None
    ) -> Classifier:
        (site,) = self.sites(config)
        data, width = config.data, config.model.d_model
        if isinstance(data, ImageDataConfig):
            table: nn.Module = patch_embedding(data.patch, data.shape[2], width)
        else:
            table = nn.Embedding(sizes[COLUMN], width)
        return build_classifier(
            on_patches(config), table, sizes[LABELS], site, class_weights=weights
        )

    def examples(
        self, config: Config, data: PreparedClasses, ranks: Ranks, scratch: Path
    ) -> Examples:
        """See `Task.examples`."""
        split, kept = data.split(config.data.train), training_rows(config, data)
        budget = config.trainer.max_tokens, config.seed, ranks.n_shares
        return TrainingClasses(split, kept, *budget)

    def batches(
        self, data: PreparedClasses, config: Config, split: str, n_items: int | None = None
    ) -> list[Batch]:
        """See `Task.batches`."""
        return evaluation_batches(data.split(split), config.trainer.max_tokens, n_items)

    def measured(
        self, model: Model, loss: Loss, data: PreparedClasses, config: Config, ranks: Ranks,
        split: str, n_items: int | None = None, progress: bool = False,
    ) -> Measured:  # fmt: skip
        """See `Task.measured`."""
        batches = self.batches(data, config, split, n_items)
        n_classes = len(data.labels)
        shared = model, loss, batches, ranks, partial(class_statistics, loss), progress
        items = measure_losses(*shared, n_extra=N_BEFORE - 3 + 3 * n_classes).items
        return Measured(items, self._metrics(config, n_classes))

    def scores(self, measured: Measured) -> dict[str, Score]:
        """See `Task.scores`; with confidence intervals."""
        return scores_with_intervals(measured)

    def write_items(
        self, measured: Measured, data: PreparedClasses, split: str, folder: RunFolder
    ) -> None:
        """See `Task.write_items`: predictions and a confusion matrix."""
        write_predictions(folder, split, data, *predictions(measured.items))

    def loaded(self, run: TrainedRun, search: Mapping[str, Any]) -> ClassifierRun:
        """See `Task.loaded`; there is no search."""
        return ClassifierRun.from_run(run)

    def prepared_split(self, run: TrainedRun, split: str, folder: str | None) -> PreparedClasses:
        """See `Task.prepared_split`: encoded with the run's tokenizer and labels."""
        data = replace(run.config.data, dir=folder or run.config.data.dir)
        config = replace(run.config, data=data)
        corpus = self.open(config, machine_cache_dir())
        if split not in (known := [config.data.train, *self.splits(config, corpus)]):
            raise refuse("data.split", split, known)
        tokenizer = tokenizer_of(config)
        if tokenizer is not None:
            tokenizer = replace(tokenizer, kind="given", folder=str(run.folder.path))
        return prepare_classes(corpus, tokenizer, labels_of(run), [split])

    def column_text(
        self, data: PreparedClasses, config: Config, rows: list[list[int]]
    ) -> ColumnText:
        """See `Task.column_text`; the id of a patch of an image is `patch_id` of its values."""
        if data.tokenizer is None:
            return ColumnText("", [list(map(patch_id, row)) for row in rows], lambda _: "")
        marks, token = {EOS: "\n"}, data.tokenizer.id_to_piece
        return ColumnText(config.data.language or "", rows, lambda i: marks.get(i) or token(i))

    def inspected(
        self, run: TrainedRun, data: PruneDataConfig, max_tokens: int, longest: float
    ) -> Inspected:
        """See `Task.inspected`."""
        items = super().inspected(run, data, max_tokens, longest)
        places = places_of(run.config.data)
        return replace(items, unit="texts" if places is None else "images", places={COLUMN: places})

    def items(self, run: TrainedRun, max_items: int, path: Path | None) -> Items:
        """See `Task.items`."""
        return examples_to_show(run, max_items, path)

    def readings(self, run: TrainedRun, texts: Sequence[Any]) -> Iterator[tuple[int, Reading]]:
        """See `Task.readings`."""
        return example_readings(run, texts)

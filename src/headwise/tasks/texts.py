"""Input text of commands: named test sets and files of the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headwise.analysis.survey import ColumnText
from headwise.config.schema import DataConfig, PruneDataConfig
from headwise.data.batching import evaluation_batches
from headwise.data.corpora.text import decoded_lines, open_bytes
from headwise.data.corpus import open_corpus
from headwise.data.origins import joined_splits
from headwise.data.store import EncodedSplit
from headwise.decode.hypothesis import search_name
from headwise.errors import DataError
from headwise.file_names import check_file_name
from headwise.files import is_stream, machine_cache_dir
from headwise.losses.loss import Loss
from headwise.metrics.bleu import score_translations
from headwise.metrics.metric import Measured
from headwise.runs.folder import RunFolder
from headwise.tasks.evaluation import HYPOTHESES, measure_losses
from headwise.tasks.reading import Inspected
from headwise.tasks.task import TrainedRun
from headwise.tasks.translation_run import TranslationRun
from headwise.train.distributed import Ranks

Sides = tuple[Sequence[str], Sequence[str]]  # sources and references


def read_lines(path: Path, may_be_empty: bool = False) -> list[str]:
    """Read a file, plain or .gz, with one sentence per line."""
    if not (path.is_file() or is_stream(path)):
        raise DataError(f"{path} not found")
    with open_bytes(path) as stream:
        return list(decoded_lines(stream, str(path), may_be_empty))


def check_aligned(
    sources: Sequence[str], references: Sequence[str], source: str, reference: str
) -> None:
    """Raise `DataError` for different lengths; `source` and `reference` name them in it."""
    if len(sources) != len(references):
        raise DataError(
            f"{source} has {len(sources)} lines and {reference} {len(references)}: they must be "
            "aligned"
        )


def named_sets(run: TrainedRun, names: list[str], folder: str | None) -> dict[str, Sides]:
    """Sources and references by set, from the run folder or else from the corpus.

    Args:
        run: a run of translation.
        names: sets; empty for the test sets of the run.
        folder: of a corpus; all sets are read from it if given.

    Raises:
        DataError: a set does not exist, or its sides are not aligned.
    """
    requested = names or run.config.data.test
    if folder is not None:
        return _corpus_sets(run, requested, folder)
    saved = _saved_sets(run.folder)
    requested = requested or _saved_tests(run)
    parts = {name: joined_splits(name, saved) for name in requested}
    absent = [name for name in requested if not set(parts[name]) <= set(saved)]
    others = _corpus_sets(run, absent, None) if absent or not requested else {}
    local = {name: _saved_set(run.folder, parts[name]) for name in requested if name not in absent}
    return {name: {**local, **others}[name] for name in requested or others}


def set_to_show(run: TrainedRun) -> str:
    """The first test set of a run, or its validation set if it has none."""
    data: DataConfig = run.config.data
    return [*data.test, *_saved_tests(run), data.valid][0]


def _saved_tests(run: TrainedRun) -> list[str]:
    return [name for name in _saved_sets(run.folder) if name != run.config.data.valid]


def _saved_sets(folder: RunFolder) -> list[str]:
    """Names of the sets whose sources and references are in the run folder."""
    texts = folder.path / HYPOTHESES
    names = [path.name.removesuffix(".src.txt") for path in texts.glob("*.src.txt")]
    return sorted(name for name in names if (texts / f"{name}.ref.txt").is_file())


def _saved_set(folder: RunFolder, names: list[str]) -> Sides:
    """Concatenation of sets of the run folder."""
    both: tuple[list[str], list[str]] = [], []
    for name in names:
        sources, references = (
            read_lines(folder.path / HYPOTHESES / f"{name}.{side}.txt") for side in ("src", "ref")
        )
        check_aligned(sources, references, f"{name}.src.txt", f"{name}.ref.txt")
        both[0].extend(sources)
        both[1].extend(references)
    return both


def _corpus_sets(run: TrainedRun, test: list[str], folder: str | None) -> dict[str, Sides]:
    """Sets `test` of the run's corpus, or all of its test sets if empty."""
    data = run.config.data
    data_dir = data.dir
    data = replace(data, dir=folder or data_dir, test=test)
    if test:  # the training text may be absent
        data = replace(data, train=test[0], valid=test[0])
    try:
        corpus = open_corpus(data, machine_cache_dir())
    except DataError as error:
        if data_dir is None or folder is not None:
            raise
        named = f" {', '.join(test)}" if test else ""
        raise DataError(
            f"{error}\nThe run folder does not hold the test sets{named}; searched in the run's "
            f"data.dir={data_dir}, here {Path(data_dir).absolute()}. Set "
            "data.dir= to the folder that holds them"
        ) from error
    return {name: corpus.read(name) for name in corpus.config.test}


def inspected_pairs(
    run: TranslationRun, data: PruneDataConfig, max_tokens: int, longest: float
) -> Inspected:
    """The requested split, from the run's folder or else from its corpus; see `Task.inspected`."""
    name = data.split or run.config.data.valid
    check_file_name("data.split", name)
    sides = named_sets(run, [name], data.dir)[name]
    sources, references = (sentences[: data.sentences] for sentences in sides)
    pair, languages = run.tokenizers, run.config.data
    ids = pair.source.encode(sources), pair.target.encode(references)
    pairs = zip(range(1, len(sources) + 1), sources, references, *ids, strict=True)
    rows = [row for row in pairs if max(map(len, row[3:])) <= longest]
    if not rows:
        raise DataError(f"{name} has no sentence of up to {longest} tokens")
    n_left_out = len(sources) - len(rows)
    numbers, sources, references, source_ids, target_ids = zip(*rows, strict=True)
    split = EncodedSplit.from_lists(source_ids, target_ids)
    batches = list(evaluation_batches(split, max_tokens))

    def measure(loss: Loss) -> list[Measured]:
        hypotheses = [translation.text for translation in run.translator.translate(sources)]
        scope = search_name(run.translator.config)
        return [
            score_translations(hypotheses, references, languages.target, scope),
            measure_losses(run.model, loss, batches, Ranks(0, 1, run.device)),
        ]

    texts = {
        "source": ColumnText(languages.source, source_ids, pair.source.id_to_piece),
        "target": ColumnText(languages.target, target_ids, pair.target.id_to_piece),
    }
    return Inspected(name, batches, texts, numbers, measure, n_left_out)

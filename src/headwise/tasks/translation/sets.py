"""Named sets of sentence pairs: in a run folder, or in a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headwise.config.data import DataConfig
from headwise.data.sources.lines import read_pairs
from headwise.data.sources.origins import log_paths
from headwise.errors import DataError
from headwise.tasks.data import Sides, open_corpus
from headwise.tasks.translation.corpus import ParallelCorpus

HYPOTHESES = "hypotheses"  # folder of a run: translations, sources and references


def named_sets(
    data: DataConfig, saved: Path, names: Sequence[str], cache: Path, folder: str | None = None
) -> dict[str, Sides]:
    """Sources and references by set, from the run folder or else from the corpus.

    Args:
        data: of a run of translation.
        saved: the run folder.
        names: sets.
        cache: folder of encoded data and downloads.
        folder: of a corpus; all sets are read from it if given.

    Raises:
        DataError: a set does not exist, or its sides are not aligned.
    """
    if folder is not None:
        return _corpus_sets(data, names, cache, folder)
    there = saved_sets(saved)
    absent = [name for name in names if name not in there]
    others = _corpus_sets(data, absent, cache, None) if absent else {}
    return {name: others[name] if name in others else _saved_set(saved, name) for name in names}


def saved_sets(saved: Path) -> list[str]:
    """Names of the sets whose sources and references are in the run folder."""
    texts = saved / HYPOTHESES
    names = [path.name.removesuffix(".src.txt") for path in texts.glob("*.src.txt")]
    return sorted(name for name in names if (texts / f"{name}.ref.txt").is_file())


def _saved_set(saved: Path, name: str) -> Sides:
    files = (saved / HYPOTHESES / f"{name}.{side}.txt" for side in ("src", "ref"))
    return read_pairs(*files)


def _corpus_sets(
    data: DataConfig, names: Sequence[str], cache: Path, folder: str | None
) -> dict[str, Sides]:
    """Sets of the run's corpus, or of that in a folder."""
    data_dir = data.dir
    # the training text may be absent
    data = replace(data, dir=folder or data_dir, train=names[0], valid=names[0], test=list(names))
    data = replace(data, split=[]) if folder else data
    log_paths(data, cache, folder)
    corpus: ParallelCorpus = open_corpus(data, cache)
    try:
        corpus.splits()  # locates them
    except DataError as error:
        if data_dir is None or folder is not None:
            raise
        raise DataError(
            f"{error}\nThe run folder does not hold the test sets {', '.join(names)}; searched in "
            f"the run's data.dir={data_dir}, here {Path(data_dir).absolute()}. Set "
            "data.dir= to the folder that holds them"
        ) from error
    return {name: corpus.read(name) for name in names}

"""What `scripts/evaluate.py` and `scripts/translate.py` do with a trained run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig, OmegaConf

from headwise.config_dir import machine_cache_dir
from headwise.data.corpus import joined_splits, open_corpus
from headwise.data.digest import file_digest
from headwise.data.lines import decoded_lines, open_bytes
from headwise.data.names import check_file_name
from headwise.errors import ConfigError, DataError, HeadwiseError, require
from headwise.files import read_json, write_text
from headwise.schema import EvaluateConfig, PruneConfig, TranslateConfig
from headwise.train.distributed import Ranks
from headwise.train.evaluation import evaluate_texts
from headwise.train.loading import (
    TrainedRun,
    checkpoint_path,
    load,
    read_config,
    search_settings,
)
from headwise.train.memory import keep_freed_memory
from headwise.train.outcome import shown_score
from headwise.train.run_folder import OWN_FILES, RunFolder

PROMPT = "> "

Sides = tuple[Sequence[str], Sequence[str]]  # sources and references


def read_lines(path: Path, may_be_empty: bool = False) -> list[str]:
    """One sentence a line, plain or .gz."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    with open_bytes(path) as stream:
        return list(decoded_lines(stream, str(path), may_be_empty))


def evaluate_run(config_node: DictConfig) -> dict[str, Any]:
    """Translate and score test sets with a trained run; returns the scores by set.

    Sets scored before under the same name, with the same weights and search, stay in the file.
    """
    config = OmegaConf.to_object(config_node)
    assert isinstance(config, EvaluateConfig)
    name = config.name
    if name is not None:
        check_file_name("name", name)
        require(not name.startswith("."), "name", "a name without a . in front", name)
    if name in OWN_FILES:
        raise ConfigError(f"name={name} is a file of the run's own, {name}.json: give another")
    texts = _own_text(config)
    keep_freed_memory()
    run = load_configured(config)
    name = name or f"results-{config.checkpoint}"
    texts = _normalised(texts, run) or named_sets(run, list(config.data.test), config.data.dir)
    path = run.folder.path / f"{name}.json"
    content = _described(config, run)
    known, files = _known_scores(path, content)
    files = {split: found for split, found in files.items() if split not in texts}
    if config.data.source_file is not None:
        files |= dict.fromkeys(texts, _places(config))
    scores = {}
    for split, (sources, references) in texts.items():
        scores[split], _ = evaluate_texts(
            run.translator,
            sources,
            references,
            split,
            run.folder.hypotheses / name,
            run.config.data.target,
            run.translator.config.external,
            Ranks(0, 1, run.translator.device),
            config.progress,
        )
        for metric, found in scores[split].items():
            print(f"{split:>24}  {metric:<14} {shown_score(found)}", flush=True)
        known[split] = scores[split]
        written = {**content, **({"files": files} if files else {}), "scores": known}
        write_text(path, json.dumps(written, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {path} and {run.folder.hypotheses / name}")
    return scores


def _described(config: EvaluateConfig, run: TrainedRun) -> dict[str, Any]:
    """With what the scores were made: which weights, by content, and which search."""
    path = checkpoint_path(run.folder, config.checkpoint)
    return {
        "checkpoint": path.stem,
        "weights": content_digest(path),
        "decode": OmegaConf.to_container(OmegaConf.structured(run.translator.config)),
    }


def _places(config: EvaluateConfig) -> dict[str, str]:
    """Where own text lies: its sets are called by the file's name alone."""
    sides = {"source": config.data.source_file, "reference": config.data.reference_file}
    return {side: str(Path(str(place)).resolve()) for side, place in sides.items()}


def _known_scores(
    path: Path, content: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Scores at `path` that were made in the same way, and of which files; others make room."""
    before = read_json(path, may_lack=True)
    scores: dict[str, Any] = before.pop("scores", {})
    files: dict[str, dict[str, str]] = before.pop("files", {})
    if before == content:
        return scores, files
    if scores:
        print(
            f"{path} held scores of {', '.join(scores)} by another search or other weights: they "
            "make room (name=… keeps both)",
            flush=True,
        )
    return {}, {}


def content_digest(path: Path) -> str:
    """By which weights are known, wherever their checkpoint lies."""
    return file_digest(path)[:16]


def load_configured(config: EvaluateConfig | TranslateConfig | PruneConfig) -> TrainedRun:
    """The run that a command names, with the checkpoint, device and search it asks for."""
    own = read_config(RunFolder.existing(config.run)).decode
    settings = search_settings(own, config.decode)
    return load(config.run, config.checkpoint, config.device, settings)


def _own_text(config: EvaluateConfig) -> dict[str, Sides]:
    source, reference = config.data.source_file, config.data.reference_file
    if source is None and reference is None:
        return {}
    if source is None or reference is None:
        raise ConfigError("data.source_file and data.reference_file belong together; one is null")
    if config.data.test or config.data.dir is not None:
        raise ConfigError(
            "data.test and data.dir name sets of a corpus, data.source_file text of your own: give "
            "two commands, whose scores go into one file"
        )
    sources, references = read_lines(Path(source)), read_lines(Path(reference))
    _check_aligned(sources, references, source, reference)
    stem = Path(source).name.removesuffix(".gz")
    return {stem: (sources, references)}


def _check_aligned(
    sources: Sequence[str], references: Sequence[str], source: str, reference: str
) -> None:
    if len(sources) != len(references):
        raise DataError(
            f"{source} has {len(sources)} lines and {reference} {len(references)}: they must be "
            "aligned"
        )


def _normalised(texts: dict[str, Sides], run: TrainedRun) -> dict[str, Sides]:
    """Own text as the corpus would give it."""
    normalise = run.normaliser
    return {
        name: (list(map(normalise.source, sources)), list(map(normalise.target, references)))
        for name, (sources, references) in texts.items()
    }


def named_sets(run: TrainedRun, names: list[str], folder: str | None) -> dict[str, Sides]:
    """Sources and references of sets: those of the run from its folder, others from the corpus.

    Args:
        run: whose sets.
        names: which; empty for the run's own test sets.
        folder: where the corpus is; given, everything comes from there.

    Raises:
        DataError: a set that cannot be found, or whose sides are not aligned.
    """
    wanted = names or run.config.data.test
    if folder is not None:
        return _corpus_sets(run, wanted, folder)
    held = _held_sets(run.folder)
    wanted = wanted or _held_tests(run)
    parts = {name: joined_splits(name, held) for name in wanted}
    absent = [name for name in wanted if not set(parts[name]) <= set(held)]
    others = _corpus_sets(run, absent, None) if absent or not wanted else {}
    read = {name: _held_set(run.folder, parts[name]) for name in wanted if name not in absent}
    return {name: {**read, **others}[name] for name in wanted or others}


def set_to_show(run: TrainedRun) -> str:
    """The first test set of a run, or its validation set where it has none."""
    data = run.config.data
    return [*data.test, *_held_tests(run), data.valid][0]


def _held_tests(run: TrainedRun) -> list[str]:
    return [name for name in _held_sets(run.folder) if name != run.config.data.valid]


def _held_sets(folder: RunFolder) -> list[str]:
    """Names of the sets whose source and references lie in the run folder."""
    names = [path.name.removesuffix(".src.txt") for path in folder.hypotheses.glob("*.src.txt")]
    return sorted(name for name in names if (folder.hypotheses / f"{name}.ref.txt").is_file())


def _held_set(folder: RunFolder, names: list[str]) -> Sides:
    """Sets of the run folder, one after the other."""
    both: tuple[list[str], list[str]] = [], []
    for name in names:
        sources, references = (
            read_lines(folder.hypotheses / f"{name}.{side}.txt") for side in ("src", "ref")
        )
        _check_aligned(sources, references, f"{name}.src.txt", f"{name}.ref.txt")
        both[0].extend(sources)
        both[1].extend(references)
    return both


def _corpus_sets(run: TrainedRun, test: list[str], folder: str | None) -> dict[str, Sides]:
    """Sets of the run's corpus, where it is now; all of its test sets where none is named."""
    data = run.config.data
    own = data.dir
    data = replace(data, dir=folder or own, test=test)
    if test:  # the text that the run was trained on need not be there
        data = replace(data, train=test[0], valid=test[0])
    try:
        corpus = open_corpus(data, machine_cache_dir())
    except DataError as error:
        if own is None or folder is not None:
            raise
        named = f" {', '.join(test)}" if test else ""
        raise DataError(
            f"{error}\nThe run folder does not hold the test sets{named}, so they were looked for "
            f"in the run's own data.dir={own}, here {Path(own).expanduser().absolute()}. Name the "
            "folder that holds them with data.dir="
        ) from error
    return {name: corpus.read(name) for name in corpus.config.test}


def translate_run(config_node: DictConfig) -> None:
    """Translate a file or stdin, `buffer_size` lines at a time; at a terminal, line by line."""
    config = OmegaConf.to_object(config_node)
    assert isinstance(config, TranslateConfig)
    _check_paths(config)
    keep_freed_memory()
    run = load_configured(config)
    sources: Iterable[str]
    if config.input is not None:
        sources = read_lines(Path(config.input), may_be_empty=True)
        if config.reference is None and run.model.max_source is not None:
            run.translator.check_sources(list(map(run.normaliser.source, sources)))
    elif config.reference is None and config.output is None and sys.stdin.isatty():
        _interactive(run)
        return
    else:
        sources = decoded_lines(sys.stdin.buffer, "stdin", may_be_empty=True)
    if config.reference is not None:
        portions = iter([_scored(run, list(sources), read_lines(Path(config.reference), True))])
    else:
        shown = config.progress and sys.stderr.isatty()
        portions = _translated(run, iter(sources), config.buffer_size, shown)
    if config.output is None:
        sys.stdout.flush()
        _write(sys.stdout.buffer, portions)
    else:
        _write_output(Path(config.output), portions)


def _write(stream: IO[bytes], portions: Iterable[list[str]]) -> None:
    """Lines as soon as they come, in UTF-8 as the input is, whatever the terminal's encoding."""
    for lines in portions:
        stream.write("".join(f"{line}\n" for line in lines).encode())
        stream.flush()


def _write_output(path: Path, portions: Iterable[list[str]]) -> None:
    """All or nothing, where `path` is a file; a device or a pipe is written to as it is."""
    if path.exists() and not path.is_file():
        with open(path, "wb") as stream:
            _write(stream, portions)
    else:
        text = "".join(f"{line}\n" for lines in portions for line in lines)
        write_text(path.resolve(), text)


def _check_paths(config: TranslateConfig) -> None:
    """Refuse files that cannot be read or written, before anything is loaded."""
    require(config.buffer_size >= 1, "buffer_size", "at least 1", config.buffer_size)
    for key in ("input", "reference"):
        path = getattr(config, key)
        if path is None:
            continue
        if not Path(path).is_file():
            raise DataError(f"there is no file {key}={path}")
        if config.output is not None and Path(config.output).resolve() == Path(path).resolve():
            raise DataError(f"output={config.output} would replace {key}={path}: give another file")
    if config.output is not None and not Path(config.output).absolute().parent.is_dir():
        folder = Path(config.output).absolute().parent
        raise DataError(f"output={config.output} cannot be written: there is no folder {folder}")
    if config.output is not None and Path(config.output).is_dir():
        raise DataError(f"output={config.output} is a folder; give a file in it")


def _translated(
    run: TrainedRun, sources: Iterator[str], buffer_size: int, progress: bool
) -> Iterator[list[str]]:
    """One line a sentence; with n-best, lines of `number<TAB>score<TAB>text`. In portions."""
    first = 1
    while portion := list(islice(sources, buffer_size)):
        translations = run.translate(portion, progress, first)
        if run.translator.config.n_best == 1:
            yield [translation.text for translation in translations]
        else:
            yield [
                f"{number}\t{score:.4f}\t{text}"
                for number, translation in enumerate(translations, start=first)
                for text, score in translation.n_best
            ]
        first += len(portion)


def _scored(run: TrainedRun, sources: list[str], references: list[str]) -> list[str]:
    if len(sources) != len(references):
        raise DataError(
            f"the input has {len(sources)} lines and reference= {len(references)}; they must "
            "be aligned"
        )
    found = run.score(sources, references)
    return [f"{score.log_prob:.4f}\t{score.n_tokens}" for score in found]


def _interactive(run: TrainedRun) -> None:
    """Answer each line typed; one that cannot be translated ends nothing."""
    print("one sentence a line; Ctrl-D ends", file=sys.stderr)
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            print(file=sys.stderr)
            return
        except UnicodeDecodeError as error:
            print(f"headwise: not UTF-8 ({error})", file=sys.stderr)
            continue
        try:
            translation = run.translate([line])[0]
        except HeadwiseError as error:
            print(f"headwise: {error}", file=sys.stderr)
            continue
        for text, score in translation.n_best:
            print(f"{text}\t({score:.3f})")

"""What `scripts/evaluate.py` and `scripts/translate.py` do with a trained run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import IO, Any

import torch
from omegaconf import DictConfig, OmegaConf

from headwise.data.corpus import open_corpus
from headwise.data.lines import decoded_lines, open_bytes
from headwise.decode.translator import Translation
from headwise.errors import ConfigError, DataError, nearest
from headwise.schema import DecodeConfig, EvaluateConfig, TranslateConfig
from headwise.train.checkpoint import write_text
from headwise.train.distributed import Ranks, choose_device
from headwise.train.evaluation import evaluate_texts
from headwise.train.loading import TrainedRun, load, read_config
from headwise.train.run_folder import RunFolder

PROMPT = "> "


def search_settings(own: DecodeConfig, changes: dict[str, Any]) -> DecodeConfig:
    """The run's settings with some changed; wrong keys and types are refused."""
    names = [field.name for field in fields(DecodeConfig)]
    for key in changes:
        if key not in names:
            close = nearest(key, names)
            hint = f" Did you mean decode.{close}?" if close else ""
            raise ConfigError(f"decode.{key} is not known; allowed: {', '.join(names)}.{hint}")
    merged = OmegaConf.merge(OmegaConf.structured(own), changes)
    content = OmegaConf.to_object(merged)
    assert isinstance(content, DecodeConfig)
    return content


def read_lines(path: Path) -> list[str]:
    """One sentence a line, plain or .gz."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    with open_bytes(path) as stream:
        return list(decoded_lines(stream, str(path)))


def evaluate_run(config_node: DictConfig) -> dict[str, Any]:
    """Translate and score test sets with a trained run; returns the scores by set."""
    config = OmegaConf.to_object(config_node)
    assert isinstance(config, EvaluateConfig)
    run = _load(config, config.decode)
    texts = _own_text(config) or _named_sets(config, run)
    ranks = Ranks(0, 1, choose_device(config.device))
    name = config.name or f"results-{config.checkpoint}"
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
            ranks,
            config.progress,
        )
        for metric, found in scores[split].items():
            print(f"{split:>24}  {metric:<14} {found['score']:6.2f}  {found['signature']}")
    known = run.folder.path / f"{name}.json"
    before = json.loads(known.read_text(encoding="utf-8"))["scores"] if known.is_file() else {}
    content = {
        "checkpoint": config.checkpoint,
        "decode": OmegaConf.to_container(OmegaConf.structured(run.translator.config)),
        "scores": {**before, **scores},
    }
    write_text(known, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {known} and {run.folder.hypotheses / name}")
    return scores


def _load(config: EvaluateConfig | TranslateConfig, changes: dict[str, Any]) -> TrainedRun:
    own = read_config(RunFolder.existing(config.run)).decode
    settings = search_settings(own, changes)
    return load(config.run, config.checkpoint, config.device, settings)


def _own_text(config: EvaluateConfig) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    source, reference = config.data.source_file, config.data.reference_file
    if source is None and reference is None:
        return {}
    if source is None or reference is None:
        raise ConfigError("data.source_file and data.reference_file belong together; one is null")
    sources, references = read_lines(Path(source)), read_lines(Path(reference))
    if len(sources) != len(references) or not sources:
        raise DataError(
            f"{source} has {len(sources)} lines and {reference} {len(references)}: they must be "
            "aligned and not empty"
        )
    stem = Path(source).name.removesuffix(".gz")
    return {stem: (sources, references)}


def _named_sets(
    config: EvaluateConfig, run: TrainedRun
) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    data = run.config.data
    data = replace(data, dir=config.data.dir or data.dir, test=list(config.data.test) or data.test)
    corpus = open_corpus(data, Path(run.config.paths.cache).expanduser())
    return {name: corpus.read(name) for name in corpus.config.test}


def translate_run(config_node: DictConfig) -> None:
    """Translate a file or stdin; at a terminal, line by line."""
    config = OmegaConf.to_object(config_node)
    assert isinstance(config, TranslateConfig)
    if config.input is not None and not Path(config.input).is_file():
        raise DataError(f"there is no file input={config.input}")
    run = _load(config, config.decode)
    if config.input is None and config.reference is None and sys.stdin.isatty():
        _interactive(run)
        return
    if config.input is not None:
        sources = read_lines(Path(config.input))
    else:
        sources = list(decoded_lines(sys.stdin.buffer, "stdin"))
    if config.reference is not None:
        lines = _scored(run, sources, read_lines(Path(config.reference)))
    else:
        lines = _translated(run, sources, config.progress and sys.stderr.isatty())
    with _output(config.output) as out:
        out.writelines(f"{line}\n" for line in lines)


def _translated(run: TrainedRun, sources: list[str], progress: bool) -> list[str]:
    """One line a sentence; with n-best, lines of `number<TAB>score<TAB>text`."""
    translations = run.translate(sources, progress)
    if run.translator.config.n_best == 1:
        return [translation.text for translation in translations]
    return [
        f"{number}\t{score:.4f}\t{text}"
        for number, translation in enumerate(translations, start=1)
        for text, score in translation.n_best
    ]


def _scored(run: TrainedRun, sources: list[str], references: list[str]) -> list[str]:
    if len(sources) != len(references):
        raise DataError(
            f"the input has {len(sources)} lines and reference= {len(references)}; they must "
            "be aligned"
        )
    found = run.score(sources, references)
    return [f"{score.log_prob:.4f}\t{score.n_tokens}" for score in found]


def _interactive(run: TrainedRun) -> None:
    print("one sentence a line; Ctrl-D ends", file=sys.stderr)
    with torch.no_grad():
        while True:
            try:
                line = input(PROMPT)
            except EOFError:
                print(file=sys.stderr)
                return
            for text, score in _alternatives(run.translate([line])[0]):
                print(f"{text}\t({score:.3f})")


def _alternatives(translation: Translation) -> tuple[tuple[str, float], ...]:
    return translation.n_best


@contextmanager
def _output(path: str | None) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
    else:
        with open(path, "w", encoding="utf-8", newline="\n") as handle:
            yield handle

"""`headwise predict run=FOLDER`: the labels of new texts or pictures, by a classifier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from headwise.commands.output import check_paths, input_lines, write_blocks
from headwise.config.commands import PredictConfig
from headwise.data.file_corpus import files_below
from headwise.data.sources.tables import check_columns, table_rows, table_stem
from headwise.errors import DataError
from headwise.files import STDIN
from headwise.tasks.classification.predict import COLUMNS, ClassifierRun, tsv_line
from headwise.tasks.classification.text import Texts, texts_of
from headwise.tasks.load import load_selected


def predict(config: PredictConfig) -> None:
    """Write a line per example: prediction, probability, and text or file, separated by tabs."""
    check_paths(config.buffer_size, config.output, {"input": config.input}, may_be_folder=True)
    run: ClassifierRun = load_selected(config.run, config, "predict")
    examples: Iterator[Sequence[str]]
    if run.tokenizer is None:
        examples = _pictures(config.input)
    else:
        examples = _texts(run.columns, config.input)
    write_blocks(config.output, _blocks(run, examples, config.buffer_size))


def _blocks(
    run: ClassifierRun, examples: Iterator[Sequence[str]], buffer_size: int
) -> Iterator[list[str]]:
    yield ["\t".join((*COLUMNS, *run.columns))]
    while block := list(islice(examples, buffer_size)):
        yield [tsv_line(p, *e) for p, e in zip(run.predict(block), block, strict=True)]


def _pictures(path: str | None) -> Iterator[Sequence[str]]:
    """The file of a picture, or the files in a folder and below."""
    if path is None:
        raise DataError("set input= to a picture or a folder of pictures: the run classifies them")
    files = files_below(Path(path), "pictures") if Path(path).is_dir() else [Path(path)]
    return ((str(file),) for file in files)


def _texts(columns: Sequence[str], path: str | None) -> Iterator[Texts]:
    """The texts, or pairs, of a table, or of lines of a file or standard input."""
    if path is not None and Path(path).is_dir():
        raise DataError(f"input={path} is a folder, but the run classifies text: name a file")
    if path is not None and table_stem(Path(path)):
        return _of_table(Path(path), columns)
    return _of_lines(input_lines(path), "stdin" if path in (None, STDIN) else path, columns)


def _of_table(path: Path, columns: Sequence[str]) -> Iterator[Texts]:
    def select(name: str, of_file: Sequence[str]) -> Sequence[str]:
        check_columns(name, of_file, columns, "The run reads the columns that it was trained on.")
        return columns

    for where, record in table_rows([path], select):
        select(where, list(record))
        yield texts_of(record, columns, where)


def _of_lines(lines: Iterator[str], name: str, columns: Sequence[str]) -> Iterator[Texts]:
    for number, line in enumerate(lines, 1):
        texts = (line,) if len(columns) == 1 else tuple(line.split("\t"))
        if len(texts) != len(columns):
            raise DataError(
                f"{name}, line {number}: {len(texts)} texts; the run classifies pairs, "
                f"{' and '.join(columns)}, separated by a tab"
            )
        yield texts

"""`headwise predict run=FOLDER`: the labels of new texts or pictures, by a classifier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from headwise.commands.output import check_paths, in_blocks, input_blocks, write_blocks
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
    check_paths(config.output, {"input": config.input}, may_be_folder=True)
    run: ClassifierRun = load_selected(config.run, config, "predict")
    examples: Iterator[Sequence[Sequence[str]]]
    if run.tokenizer is None:
        examples = in_blocks(_pictures(config.input), config.buffer_size)
    else:
        examples = _texts(run.columns, config.input, config.buffer_size)
    write_blocks(config.output, _blocks(run, examples))


def _blocks(run: ClassifierRun, examples: Iterator[Sequence[Sequence[str]]]) -> Iterator[list[str]]:
    yield ["\t".join((*COLUMNS, *run.columns))]
    for block in examples:
        yield [tsv_line(p, *e) for p, e in zip(run.predict(block), block, strict=True)]


def _pictures(path: str | None) -> Iterator[Sequence[str]]:
    """The file of a picture, or the files in a folder and below."""
    if path is None:
        raise DataError("set input= to a picture or a folder of pictures: the run classifies them")
    files = files_below(Path(path), "pictures") if Path(path).is_dir() else [Path(path)]
    return ((str(file),) for file in files)


def _texts(columns: Sequence[str], path: str | None, size: int) -> Iterator[list[Texts]]:
    """The texts, or pairs, of a table, or of lines of a file or standard input, in blocks."""
    if path is not None and Path(path).is_dir():
        raise DataError(f"input={path} is a folder, but the run classifies text: name a file")
    if path is not None and table_stem(Path(path)):
        return in_blocks(_of_table(Path(path), columns), size)
    name, number = "stdin" if path in (None, STDIN) else path, count(1)
    return (
        [_of_line(line, f"{name}, line {next(number)}", columns) for line in block]
        for block in input_blocks(path, size)
    )


def _of_table(path: Path, columns: Sequence[str]) -> Iterator[Texts]:
    def select(name: str, of_file: Sequence[str]) -> Sequence[str]:
        check_columns(name, of_file, columns, "The run reads the columns that it was trained on.")
        return columns

    for where, record in table_rows([path], select):
        select(where, list(record))
        yield texts_of(record, columns, where)


def _of_line(line: str, where: str, columns: Sequence[str]) -> Texts:
    texts = (line,) if len(columns) == 1 else tuple(line.split("\t"))
    if len(texts) != len(columns):
        raise DataError(
            f"{where}: {len(texts)} texts; the run classifies pairs, "
            f"{' and '.join(columns)}, separated by a tab"
        )
    return texts

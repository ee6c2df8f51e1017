"""Writers of small sets of labelled text in their published forms, with made-up sentences."""

import csv
import io
from collections.abc import Sequence

from corpus_writers import encode_lines, write_parquet, write_zip

Rows = Sequence[tuple[str, str]]  # text, label

# rows of train and test, with the classes of the real sets
REVIEWS = (
    [("a 'fine' film , \"really\" .", "positive"), ("dull", "negative"), ("so so", "negative")],
    [("good", "positive"), ("not good", "negative")],
)
SENTENCES = (
    [("They drank the pub dry.", "acceptable"), ("*They drank the pub.", "unacceptable")],
    [('The "more" we study, the less we know.', "acceptable")],
)
NEWS = (
    [("Wall St. Bears \"Claw\" Back, Again Reuters - ultra\\cynics, again.", "Business"),
     ("Rain Wins Football is off.", "Sports"), ("Talks Begin They talk.", "World")],
    [("Probe Lands On a moon.", "Sci/Tech")],
)  # fmt: skip
QUESTIONS = (
    [("How did serfdom develop in and then leave Russia ?", "DESC:manner"),
     ("What is the sister city of Kyoto ?", "LOC:city")],
    [("How far is it from Denver to Aspen ?", "NUM:dist")],
)  # fmt: skip


def _glue(folder, name, files, form):
    members = {f"{name}/{file}": content for file, content in files.items()}
    if form == "archive":
        write_zip(folder / f"{name}.zip", members)
    for member, content in members.items() if form == "unpacked" else ():
        (folder / member).parent.mkdir(parents=True, exist_ok=True)
        (folder / member).write_bytes(content)


def _hub(folder, name, column, tables, names):
    for split, rows in tables.items():
        records = [{column: text, "label": names.index(label)} for text, label in rows]
        write_parquet(folder / name / f"{split}-00000-of-00001.parquet", records)


def write_sst2(folder, form):
    names = ["negative", "positive"]
    if form == "hub":
        return _hub(
            folder,
            "sst2",
            "sentence",
            dict(zip(("train", "validation"), REVIEWS, strict=True)),
            names,
        )
    files = {"test.tsv": encode_lines(["index\tsentence", "0\tno label"])}
    for stem, rows in zip(("train", "dev"), REVIEWS, strict=True):
        lines = [f"{text}\t{names.index(label)}" for text, label in rows]
        files[f"{stem}.tsv"] = encode_lines(["sentence\tlabel", *lines])
    return _glue(folder, "SST-2", files, form)


def write_cola(folder, form):
    names = ["unacceptable", "acceptable"]
    if form == "hub":
        tables = dict(zip(("train", "validation"), SENTENCES, strict=True))
        return _hub(folder, "cola", "sentence", tables, names)
    files = {}
    for stem, rows in zip(("train", "dev"), SENTENCES, strict=True):
        lines = [f"gj04\t{names.index(label)}\t*\t{text}" for text, label in rows]
        files[f"{stem}.tsv"] = encode_lines(lines)
    return _glue(folder, "CoLA", files, form)


def write_agnews(folder, form):
    names = ["World", "Sports", "Business", "Sci/Tech"]
    if form == "hub":
        return _hub(folder, "data", "text", dict(zip(("train", "test"), NEWS, strict=True)), names)
    below = folder / ("ag_news_csv" if form == "unpacked" else "")
    below.mkdir(parents=True, exist_ok=True)
    for stem, rows in zip(("train", "test"), NEWS, strict=True):
        table = io.StringIO()
        writer = csv.writer(table, quoting=csv.QUOTE_ALL, lineterminator="\n")
        for text, label in rows:
            words = text.split(" ")
            title, description = " ".join(words[:2]), " ".join(words[2:])
            writer.writerow([names.index(label) + 1, title, description])
        (below / f"{stem}.csv").write_text(table.getvalue(), encoding="utf-8")
    return None


def write_trec(folder, form):
    coarse = ["ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"]
    if form == "hub":
        for split, rows in zip(("train", "test"), QUESTIONS, strict=True):
            records = [
                {"text": text, "coarse_label": coarse.index(label.split(":")[0]), "fine_label": 9}
                for text, label in rows
            ]
            write_parquet(folder / "default" / split / "0000.parquet", records)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for file, rows in zip(("train_5500.label", "TREC_10.label"), QUESTIONS, strict=True):
        lines = "".join(f"{label} {text}\n" for text, label in rows)
        content = lines.replace("sister city", "sister\xf0city").encode("latin-1")
        (folder / file).write_bytes(content)


PUBLISHED = {
    "sst2": (REVIEWS, write_sst2),
    "cola": (SENTENCES, write_cola),
    "agnews": (NEWS, write_agnews),
    "trec": (QUESTIONS, write_trec),
}

"""Writers of tiny pairs and labelled texts as their publishers deliver them."""

import csv
import io

from corpus_writers import (
    encode_lines,
    iwslt_tags,
    iwslt_xml,
    sentences,
    translations,
    wmt_sgm,
    write_parquet,
    write_tar,
    write_text,
    write_zip,
)
from published_images import (
    write_packed,
)

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


def write_glue(folder, form, name, header, line, rows):
    """The tables of GLUE; `line` formats a text and its label."""
    files = {
        f"{name}/{stem}.tsv": encode_lines([*header, *(line(*row) for row in part)])
        for stem, part in zip(("train", "dev"), rows, strict=True)
    }
    if form == "archive":
        write_zip(folder / f"{name}.zip", files)
    for member, content in files.items() if form == "unpacked" else ():
        write_packed(folder / member, content)


def write_sst2(folder, form):
    def line(text, label):
        return f"{text}\t{int(label == 'positive')}"

    write_glue(folder, form, "SST-2", ["sentence\tlabel"], line, REVIEWS)


def write_cola(folder, form):
    def line(text, label):
        return f"gj04\t{int(label == 'acceptable')}\t*\t{text}"

    write_glue(folder, form, "CoLA", [], line, SENTENCES)


def write_agnews(folder, form):
    below = folder / ("ag_news_csv" if form == "unpacked" else "")
    for stem, rows in zip(("train", "test"), NEWS, strict=True):
        table = io.StringIO()
        writer = csv.writer(table, quoting=csv.QUOTE_ALL, lineterminator="\n")
        for text, label in rows:
            words = text.split(" ")
            number = TOPICS.index(label) + 1
            writer.writerow([number, " ".join(words[:2]), " ".join(words[2:])])
        write_packed(below / f"{stem}.csv", table.getvalue().encode())


def write_trec(folder, form):
    for file, rows in zip(("train_5500.label", "TREC_10.label"), QUESTIONS, strict=True):
        lines = "".join(f"{label} {text}\n" for text, label in rows)
        content = lines.replace("sister city", "sister\xf0city").encode("latin-1")
        write_packed(folder / file, content)


TOPICS = ["World", "Sports", "Business", "Sci/Tech"]
KINDS = ["ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"]
# rows, writer of the original; on the hub: path of a split, columns, splits, names of labels
LABELLED = {
    "sst2": (REVIEWS, write_sst2, "sst2/{}-00000-of-00001.parquet", ("sentence", "label"),
             ("train", "validation"), ["negative", "positive"]),
    "cola": (SENTENCES, write_cola, "cola/{}-00000-of-00001.parquet", ("sentence", "label"),
             ("train", "validation"), ["unacceptable", "acceptable"]),
    "agnews": (NEWS, write_agnews, "data/{}-00000-of-00001.parquet", ("text", "label"),
               ("train", "test"), TOPICS),
    "trec": (QUESTIONS, write_trec, "default/{}/0000.parquet", ("text", "coarse_label"),
             ("train", "test"), KINDS),
}  # fmt: skip


def write_labelled_hub(folder, name):
    parts, _, layout, (text_column, label_column), splits, names = LABELLED[name]
    for split, rows in zip(splits, parts, strict=True):
        records = [
            {text_column: text, label_column: names.index(label.split(":")[0]), "other": 9}
            for text, label in rows
        ]
        write_parquet(folder / layout.format(split), records)


TRAIN = [*sentences("s", "t", 3, "train"), ("Tom & <Jerry>", "R&D")]
VALID = sentences("s", "t", 5, "valid & <more>")
TEST = sentences("s", "t", 5, "test")
FILLER = ("x", "y")


def sides_of(pairs, source, target):
    return {source: [s for s, _ in pairs], target: [t for _, t in pairs]}


def sgm_sides(stem, source, target, pairs, reverse=False):
    """The two files of a WMT test set; `reverse` reverses the documents of the target."""
    sides = sides_of(pairs, source, target)
    return {
        f"{stem}-src.{source}.sgm": wmt_sgm(sides[source]),
        f"{stem}-ref.{target}.sgm": wmt_sgm(sides[target], reverse=reverse),
    }


def write_iwslt(folder, name="de-en.tgz", write=write_tar):
    members = {}
    for code, lines in sides_of(TRAIN, "de", "en").items():
        members[f"de-en/train.tags.de-en.{code}"] = iwslt_tags(lines)
    for year, pairs in {"dev2010": VALID, "tst2013": TEST, "tst2014": TEST[:2]}.items():
        for code, lines in sides_of(pairs, "de", "en").items():
            members[f"de-en/IWSLT17.TED.{year}.de-en.{code}.xml"] = iwslt_xml(lines, code)
    write(folder / name, members)


def write_multi30k(folder):
    tests = {"test_2016_flickr": TEST, "test_2017_flickr": TEST}
    for stem, pairs in {"train": TRAIN, "val": VALID, **tests}.items():
        write_text(folder, stem, ("de", "en"), pairs, gz=True)


def write_kftt(folder):
    members = {}
    for kind, mark in (("orig", ""), ("tok", " .")):
        for stem, pairs in {"train": TRAIN, "dev": VALID, "test": TEST, "tune": TEST}.items():
            name = f"{stem}.cln" if (kind, stem) == ("tok", "train") else stem
            for code, lines in sides_of(pairs, "ja", "en").items():
                key = f"kftt-data-1.0/data/{kind}/kyoto-{name}.{code}"
                members[key] = encode_lines([line + mark for line in lines])
    write_tar(folder / "kftt-data-1.0.tar.gz", members)


def write_wmt16(folder, file="SETIMES-en-ro.txt.zip"):
    first, second = sides_of(TRAIN[:2], "ro", "en"), sides_of(TRAIN[2:], "ro", "en")
    europarl = {
        f"training-parallel-ep-v8/europarl-v8.ro-en.{c}": encode_lines(first[c]) for c in first
    }
    write_tar(folder / "training-parallel-ep-v8.tgz", europarl)
    setimes = {f"SETIMES.en-ro.{c}": encode_lines(second[c]) for c in second}
    write_zip(folder / file, {"README": b"about\n", **setimes})
    for kind, name, pairs in (("dev", "newsdev2016", VALID), ("test", "newstest2016", TEST)):
        write_tar(folder / f"{kind}.tgz", sgm_sides(f"{kind}/{name}-roen", "ro", "en", pairs, True))


def write_wmt14_text(folder):
    """With a validation set in plain text."""
    write_wmt14(folder)
    sides = sides_of(VALID, "en", "de")
    members = {f"dev/newstest2013.{code}": encode_lines(sides[code]) for code in sides}
    write_tar(folder / "dev.tgz", members)


def write_wmt14(folder):
    parts = {
        ("training-parallel-europarl-v7.tgz", "training/europarl-v7.de-en"): TRAIN[:1],
        ("training-parallel-commoncrawl.tgz", "commoncrawl.de-en"): TRAIN[1:3],
        ("training-parallel-nc-v9.tgz", "training/news-commentary-v9.de-en"): TRAIN[3:],
    }
    for (archive, member), pairs in parts.items():
        sides = sides_of(pairs, "en", "de")
        write_tar(folder / archive, {f"{member}.{c}": encode_lines(sides[c]) for c in sides})
    for archive, stem, pairs in (
        ("dev.tgz", "dev/newstest2013", VALID),
        ("test-full.tgz", "test-full/newstest2014-deen", TEST),
    ):
        write_tar(folder / archive, sgm_sides(stem, "en", "de", pairs))


# layout on the hub, source and target language
HUB = {
    "iwslt17": ("iwslt2017-de-en/{}/0000.parquet", "de", "en"),
    "kftt": ("en-ja/{}/0000.parquet", "ja", "en"),
    "wmt16_ro_en": ("ro-en/{}-00000-of-00001.parquet", "ro", "en"),
    "wmt14_en_de": ("de-en/{}-00000-of-00001.parquet", "en", "de"),
}


def write_hub_copy(folder, name, top):
    layout, source, target = HUB[name]
    # IWSLT's test split is six sets in a row; the third and fourth would be tst2012, tst2013.
    before, after = (4701, 993 - len(TEST) + 1305) if name == "iwslt17" else (0, 0)
    test = [*[FILLER] * before, *TEST, *[FILLER] * after]
    columns = (target, source)  # in the order of wmt14 on the hub
    layout = layout if top else layout.split("/", 1)[1]
    for split, pairs in {"train": TRAIN, "validation": VALID, "test": test}.items():
        rows = translations(columns, [(t, s) for s, t in pairs])
        write_parquet(folder / layout.format(split), rows)

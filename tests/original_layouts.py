"""Writers of tiny corpora as their publishers deliver them: a row a corpus in `ORIGINALS`."""

import csv
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

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
    CIFAR10,
    idx,
    idx_labels,
    planes,
    random_images,
    write_cifar10,
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


def write_glue(folder, name, files, form):
    members = {f"{name}/{file}": content for file, content in files.items()}
    if form == "archive":
        write_zip(folder / f"{name}.zip", members)
    for member, content in members.items() if form == "unpacked" else ():
        (folder / member).parent.mkdir(parents=True, exist_ok=True)
        (folder / member).write_bytes(content)


def write_hub(folder, name, column, tables, names):
    for split, rows in tables.items():
        records = [{column: text, "label": names.index(label)} for text, label in rows]
        write_parquet(folder / name / f"{split}-00000-of-00001.parquet", records)


def write_sst2(folder, form):
    names = ["negative", "positive"]
    if form == "hub":
        return write_hub(
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
    return write_glue(folder, "SST-2", files, form)


def write_cola(folder, form):
    names = ["unacceptable", "acceptable"]
    if form == "hub":
        tables = dict(zip(("train", "validation"), SENTENCES, strict=True))
        return write_hub(folder, "cola", "sentence", tables, names)
    files = {}
    for stem, rows in zip(("train", "dev"), SENTENCES, strict=True):
        lines = [f"gj04\t{names.index(label)}\t*\t{text}" for text, label in rows]
        files[f"{stem}.tsv"] = encode_lines(lines)
    return write_glue(folder, "CoLA", files, form)


def write_agnews(folder, form):
    names = ["World", "Sports", "Business", "Sci/Tech"]
    if form == "hub":
        return write_hub(
            folder, "data", "text", dict(zip(("train", "test"), NEWS, strict=True)), names
        )
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


LABELLED = {
    "sst2": (REVIEWS, write_sst2),
    "cola": (SENTENCES, write_cola),
    "agnews": (NEWS, write_agnews),
    "trec": (QUESTIONS, write_trec),
}


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


PIXELS = {name: random_images(n, *shape) for name, n, *shape in (
    ("cifar10", 60, 32, 32, 3), ("mnist", 9, 28, 28, 1), ("imagenet64", 11, 64, 64, 3)
)}  # fmt: skip
DIGITS = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def write_mnist(folder, ending):
    for stem in ("train", "t10k"):
        write_packed(folder / f"{stem}-images-idx3-ubyte{ending}", idx(PIXELS["mnist"]))
        write_packed(folder / f"{stem}-labels-idx1-ubyte{ending}", idx_labels(DIGITS))


def write_imagenet64(folder, is_packed):
    parts = [f"train_part{1 + i // 5}_npz/train_data_batch_{i + 1}.npz" for i in range(10)]
    for part, image in zip([*parts, "val_npz/val_data.npz"], PIXELS["imagenet64"], strict=True):
        shard, name = io.BytesIO(), f"Imagenet64_{part}"
        np.savez(shard, data=planes(image[None]), labels=np.zeros(1))
        if is_packed:
            with zipfile.ZipFile(folder / f"{name.partition('/')[0]}.zip", "a") as archive:
                archive.writestr(name, shard.getvalue())
        else:
            write_packed(folder / name, shard.getvalue())


BYTES = np.random.default_rng(1).integers(0, 256, 2000).astype(np.uint8).tobytes()
WIKI = {split: f" \n = {split} = \n \n Text <unk> @-@ \n".encode() for split in ("train", "valid")}


def write_file(folder, file, ending):
    if ending == ".zip":
        write_zip(folder / f"{file}.zip", {file: BYTES})
    else:
        write_packed(folder / f"{file}{ending}", BYTES)


def write_wiki(folder, pattern):
    for split, text in WIKI.items():
        write_packed(folder / pattern.format(split), text)


def write_wiki_archive(folder, name, file):
    write_zip(folder / file, {f"{name}-raw/wiki.{s}.raw": text for s, text in WIKI.items()})


def write_folder(folder, source, target, stems, gz):
    folder.mkdir(parents=True, exist_ok=True)
    for stem, pairs in zip(stems, (TRAIN, VALID, TEST, TEST), strict=False):
        write_text(folder, stem, (source, target), pairs, gz)


def pairs_of(corpus, split):
    """A split; of the test sets in a row on the hub, the one of 993 pairs."""
    pairs = list(corpus.text(split))
    assert pairs.count(FILLER) in (0, 993 - len(TEST))
    return [pair for pair in pairs if pair != FILLER]


def labelled_rows(corpus, split):
    """The validation set is a share of the training set."""
    splits = ("train", "valid") if split == "train" else (split,)
    return sorted(row for name in splits for row in corpus.rows(name))


def images_of(corpus, split):
    images = corpus.images(split)
    rows = corpus.rows(split) if corpus.config.labels else ((image, "?") for image in images)
    return [(image.tobytes(), label) for image, label in rows]


def bytes_of(corpus, split):
    return b"".join(corpus.chunks(split))


@dataclass(frozen=True)
class Original:
    """One published corpus.

    Attributes:
        name: of `conf/data/<name>.yaml`.
        content: split -> what is read.
        forms: name -> function that writes the files into a folder.
        read: a split of an opened corpus.
        changes: settings for the small corpus.
        images: split -> numbers of the first image and of that after the last.
        missing: parts of the message where the corpus is not found.
    """

    name: str
    content: dict[str, Any]
    forms: dict[str, Callable[..., Any]]
    read: Callable[..., Any]
    changes: dict[str, Any] = field(default_factory=dict)
    images: dict[str, list[int]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def translation(name, languages, stems, archives, missing=()):
    content = dict(zip(("train", "valid", stems[2]), (TRAIN, VALID, TEST), strict=True))
    folders = {
        f"text{'.gz' * gz}": partial(write_folder, source=languages[0], target=languages[1],
                                     stems=stems, gz=gz)
        for gz in (False, True)
    }  # fmt: skip
    hub = {
        f"hub {top}": partial(write_hub_copy, name=name, top=top)
        for top in (True, False)
        if name in HUB
    }
    return Original(name, content, {**archives, **folders, **hub}, pairs_of, missing=missing)


def labelled(name, missing):
    rows, write = LABELLED[name]
    content = {
        split: sorted(((text,), label.split(":")[0]) for text, label in part)
        for split, part in zip(("train", "test"), rows, strict=True)
    }
    forms = {form: partial(write, form=form) for form in ("archive", "unpacked", "hub")}
    changes = {"valid_fraction": 0.5}
    return Original(name, content, forms, labelled_rows, changes, missing=missing)


def images(name, forms, images, names, missing):
    content = {
        split: [(PIXELS[name][i].tobytes(), names[i]) for i in range(*numbers)]
        for split, numbers in images.items()
    }
    cut = {split: numbers for split, numbers in images.items() if split != "test"}
    if name == "imagenet64":
        cut = {}
    return Original(name, content, forms, images_of, images=cut, missing=missing)


def text(name, file, archive, shares, missing):
    starts = [0, *(len(BYTES) * end // 100 for end in shares)]
    splits = zip(("train", "valid", "test"), starts, starts[1:], strict=False)
    forms = {
        "archive" if ending == archive else f"file{ending}": partial(
            write_file, file=file, ending=ending
        )
        for ending in ("", ".gz", ".zip")
    }
    return Original(
        name, {split: BYTES[i:end] for split, i, end in splits}, forms, bytes_of, missing=missing
    )


def wiki(name, file):
    forms = {
        "raw": partial(write_wiki, pattern="wiki.{}.raw"),
        "packed": partial(write_wiki, pattern="{}.txt.gz"),
        "archive": partial(write_wiki_archive, name=name, file=file),
    }
    return Original(name, WIKI, forms, bytes_of, {"test": []}, missing=(f"put {file} into",))


ORIGINALS = [
    translation(
        "multi30k", ("de", "en"), ["train", "valid", "test_2016_flickr", "test_2017_flickr"],
        {"archive": write_multi30k},
    ),
    translation(
        "iwslt17", ("de", "en"), ["train", "valid_dev2010", "test_tst2013", "test_tst2014"],
        {"archive": write_iwslt, "zip": partial(write_iwslt, name="de-en.zip", write=write_zip)},
        ("data.dir=FOLDER with train.de, train.en, valid_dev2010.de, valid_dev2010.en",
         "HEADWISE_DATA=FOLDER with such a folder named ted_iwslt_de_en",
         "IWSLT/iwslt2017 could not be loaded from the Hugging Face Hub (no network)",
         "put de-en.tgz or de-en.zip"),
    ),
    translation("kftt", ("ja", "en"), ["train", "valid", "test", "tune"], {"archive": write_kftt}),
    translation(
        "wmt16_ro_en", ("ro", "en"), ["train", "valid", "test_newstest2016"],
        {"archive": write_wmt16, "other name": partial(write_wmt16, file="en-ro.txt.zip")},
    ),
    translation(
        "wmt14_en_de", ("en", "de"), ["train", "valid_newstest2013", "test_newstest2014"],
        {"archive": write_wmt14},
    ),
    labelled("sst2", ("data.dir=FOLDER with train.tsv", "nyu-mll/glue could", "put SST-2.zip or")),
    labelled("cola", ("data.dir=FOLDER with train.tsv", "put CoLA.zip or")),
    labelled("agnews", ("data.dir=FOLDER with train.tsv", "put train.csv or")),
    labelled("trec", ("data.dir=FOLDER with train.tsv", "put train_5500.label")),
    images(
        "cifar10", {"archive": partial(write_cifar10, images=PIXELS["cifar10"], per_batch=10)},
        {"train": [0, 43], "valid": [43, 50], "test": [50, 60]},
        [CIFAR10[i // 10] for i in range(60)], ("put cifar-10-binary.tar.gz into",),
    ),
    images(
        "mnist",
        {"archive": partial(write_mnist, ending=".gz"), "plain": partial(write_mnist, ending="")},
        {"train": [0, 3], "valid": [3, 9], "test": [0, 9]}, list(map(str, DIGITS)),
        ("put train-images-idx3-ubyte.gz or train-images-idx3-ubyte into",),
    ),
    images(
        "imagenet64",
        {"zip": partial(write_imagenet64, is_packed=True),
         "unpacked": partial(write_imagenet64, is_packed=False)},
        {"train": [0, 10], "valid": [10, 11]}, "?" * 11,
        ("put Imagenet64_train_part1_npz.zip into",),
    ),
    text("enwik8", "enwik8", ".zip", (90, 95, 100), ("put enwik8.zip into",)),
    text("text8", "text8", ".zip", (90, 95, 100), ("put text8.zip into",)),
    text("tinyshakespeare", "tinyshakespeare.txt", "", (90, 100), ("put tinyshakespeare.txt",)),
    wiki("wikitext2", "wikitext-2-raw-v1.zip"),
    wiki("wikitext103", "wikitext-103-raw-v1.zip"),
]  # fmt: skip

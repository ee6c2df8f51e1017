"""Published corpora in every form in which they are found: a row a corpus in `ORIGINALS`."""

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from corpus_writers import write_text, write_zip
from original_layouts import (
    FILLER,
    HUB,
    LABELLED,
    TEST,
    TRAIN,
    VALID,
    write_hub_copy,
    write_iwslt,
    write_kftt,
    write_labelled_hub,
    write_multi30k,
    write_wmt14,
    write_wmt14_text,
    write_wmt16,
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
    rows, write = LABELLED[name][:2]
    content = {
        split: sorted(((text,), label.split(":")[0]) for text, label in part)
        for split, part in zip(("train", "test"), rows, strict=True)
    }
    forms = {form: partial(write, form=form) for form in ("archive", "unpacked")}
    forms["hub"] = partial(write_labelled_hub, name=name)
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
        {"archive": write_wmt14, "plain text": write_wmt14_text},
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

"""Every kind of data on little content: how its files are written, opened, prepared and read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corpus_writers import encode_lines, open_named_corpus, write_text
from fake_corpora import pairs_of
from headwise.config.schema import TokenizerConfig
from headwise.data.builtin import BuiltinCorpus
from headwise.data.tokenizer import N_SPECIALS
from headwise.tasks.classification.prepare import prepare_classes
from headwise.tasks.stream.music import from_mu_law, write_wav
from headwise.tasks.stream.stream import prepare_tokens
from headwise.tasks.translation.prepare import prepare_corpus
from published_images import random_images, write_pictures

SPLITS = ("train", "valid", "test")
SIZES = dict(zip(SPLITS, (60, 20, 9), strict=True))
SMALL = {f"n_{split}": n for split, n in SIZES.items()}
SHAPE = [4, 6, 3]
BYTES = TokenizerConfig(kind="byte")
BPE = TokenizerConfig(kind="bpe", vocab_size=300)


def pairs(split):
    return pairs_of(SIZES[split], SPLITS.index(split))


def lines(split):
    return encode_lines([source for source, _ in pairs(split)])


def rows(split):
    return [(pair, str(number % 3)) for number, pair in enumerate(pairs(split))]


def single_rows(split):
    return [((text,), label) for (text, _), label in rows(split)]


def images(split):
    return random_images(SIZES[split], *SHAPE, seed=SPLITS.index(split)).tolist()


def labelled_images(split):
    names = [str(number * 3 // SIZES[split]) for number in range(SIZES[split])]
    return list(zip(images(split), names, strict=True))


def codes(split):
    return random_images(SIZES[split], *SHAPE, seed=SPLITS.index(split)).tobytes()


def built_in(split):
    return list(BuiltinCorpus("de", "en", **SMALL).pairs(split))


def built_in_lines(split):
    return encode_lines([target for _, target in built_in(split)])


def write_nothing(folder, split, content):
    """The data are generated."""


def write_pairs(folder, split, content):
    folder.mkdir(exist_ok=True)
    write_text(folder, split, ("de", "en"), content, gz=False)


def write_lines(folder, split, content):
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.txt").write_bytes(content)


def write_column(folder, split, content):
    write_rows(folder, split, [((line,), "") for line in content.decode().splitlines()])


def write_rows(folder, split, content):
    folder.mkdir(exist_ok=True)
    table = ["\t".join((label, *texts, "-")[:3]) for texts, label in content]
    (folder / f"{split}.tsv").write_bytes(encode_lines(["label\ttext\tsecond", *table]))


def write_images(folder, split, content):
    write_pictures(folder, {split: np.array(content, np.uint8)})


def write_classes(folder, split, content):
    by_class = {}
    for image, name in content:
        by_class.setdefault(name, []).append(image)
    (folder / split).mkdir(parents=True, exist_ok=True)
    write_pictures(folder / split, {n: np.array(many, np.uint8) for n, many in by_class.items()})


def write_music(folder, split, content):
    (folder / split).mkdir(parents=True, exist_ok=True)
    if content:
        samples = from_mu_law(np.frombuffer(content, np.uint8))
        write_wav(folder / split / "a.wav", samples, 12_000)


def read_pairs(data, split):
    encoded = data.encoded(split) if split == "test" else getattr(data, split)
    sides = (encoded.source, data.tokenizers.source), (encoded.target, data.tokenizers.target)
    return list(zip(*(tokenizer.decode(list(ids)) for ids, tokenizer in sides), strict=True))


def read_bytes(data, split):
    return b"".join(data.content(split))


def read_images(data, split):
    return np.frombuffer(read_bytes(data, split), np.uint8).reshape(-1, *SHAPE).tolist()


def batch_of(data, split):
    """The column and the labels of a split."""
    examples = data.split(split)
    batch = examples.batch(np.arange(len(examples)))
    return batch.columns["tokens"], [data.labels[number] for number in batch.targets_R.tolist()]


def read_rows(data, split):
    column, labels = batch_of(data, split)
    texts = [bytes(max(i - N_SPECIALS, 0) for i in ids).decode() for ids in column.items()]
    return [(tuple(text.split("\0")), label) for text, label in zip(texts, labels, strict=True)]


def read_classes(data, split):
    column, labels = batch_of(data, split)
    images = column.ids_BN.reshape(-1, *SHAPE).tolist()  # patches are pixels
    return list(zip(images, labels, strict=True))


def prepared_pairs(corpus, tokenizer, **options):
    return prepare_corpus(corpus, tokenizer, progress=False, **options)


def prepared_images(corpus, tokenizer):
    return prepare_classes(corpus, None)


@dataclass(frozen=True)
class DataKind:
    """One kind of data.

    Attributes:
        choice: of `data=`.
        content: split -> what is written and read.
        write: a split of content, into a folder.
        read: a split of prepared data.
        prepare: a corpus, with a tokenizer.
        changes: settings of the small data.
        others: other settings, each of which makes other data for a run.
        packages: whose version is part of the data.
        missing: words of the message without the file of a split.
        empty: words of the message without content.
        processes: whether several processes encode it.
    """

    name: str
    choice: str
    content: Callable[[str], Any]
    write: Callable[..., None]
    read: Callable[..., Any]
    prepare: Callable[..., Any] = prepare_tokens
    changes: dict[str, Any] = field(default_factory=dict)
    others: tuple[dict[str, Any], ...] = ()
    packages: tuple[str, ...] = ()
    missing: str = "train"
    empty: str = "is empty"
    processes: bool = False

    def fill(self, folder, **content):
        """Write all splits, some of them with other content."""
        for split in SPLITS:
            self.write(folder, split, content.get(split, self.content(split)))
        return folder

    @property
    def has_files(self):
        return self.write is not write_nothing

    def corpus(self, folder, cache, **changes):
        labelled = self.prepare is prepared_images
        place = {"dir": str(folder)} if self.has_files else {}
        settings = {"test": ["test"], **place, **self.changes, **changes}
        return open_named_corpus(cache, self.choice, labelled, **settings)

    def prepared(self, folder, cache, tokenizer=BYTES, options=None, **changes):
        return self.prepare(self.corpus(folder, cache, **changes), tokenizer, **(options or {}))


GENERATOR = {"_target_": "headwise.data.builtin.BuiltinCorpus", **SMALL}
PIXELS = {"shape": SHAPE, "patch": 1, "window": 72}

KINDS = [
    DataKind(
        "translation", "files", pairs, write_pairs, read_pairs, prepared_pairs,
        {"source": "de", "target": "en"},
        ({"source": "en", "target": "de"}, {"max_train_pairs": 7}, {"cleaning": {"max_words": 3}}),
        missing=r"train\.de", processes=True,
    ),
    DataKind(
        "translation of limited lengths", "files", pairs, write_pairs, read_pairs, prepared_pairs,
        {"source": "de", "target": "en", "cleaning": {"max_target_moses_tokens": 40}},
        packages=("sacremoses",), missing=r"train\.de",
    ),
    DataKind(
        "text", "text", lines, write_lines, read_bytes,
        others=({"documents": "line"},), missing=r"train\.txt", processes=True,
    ),
    DataKind(
        "column", "text", lines, write_column, read_bytes,
        changes={"column": "text"}, others=({"documents": "line"},),
        missing=r"train\.tsv",
    ),
    DataKind(
        "images", "images", images, write_images, read_images,
        changes={"shape": SHAPE, "window": 72}, packages=("pillow",), empty="is empty; it must have"
    ),
    DataKind(
        "music", "music", codes, write_music, read_bytes,
        others=({"sample_rate": 6000},), packages=("soxr", "soundfile"),
        empty="is empty; it must have folders of audio",
    ),
    DataKind(
        "labelled text", "labelled", single_rows, write_rows, read_rows, prepare_classes,
        changes={"max_length": 500}, others=({"max_length": 7}, {"text": "second"}),
        missing=r"train\.tsv",
    ),
    DataKind(
        "labelled pairs", "labelled", rows, write_rows, read_rows, prepare_classes,
        changes={"pair": "second", "max_length": 500}, others=({"pair": None},),
        missing=r"train\.tsv",
    ),
    DataKind(
        "pictures", "image_folder", labelled_images, write_classes, read_classes, prepared_images,
        changes=PIXELS, packages=("pillow",), empty="is empty; it must have a folder of pictures",
    ),
    DataKind(
        "built-in pairs", "builtin", built_in, write_nothing, read_pairs, prepared_pairs,
        {"origins": [GENERATOR]}, ({"origins": [GENERATOR | {"seed": 2}]},),
    ),
    DataKind(
        "built-in text", "builtin_text", built_in_lines, write_nothing, read_bytes,
        changes=SMALL, others=({"seed": 2},),
    ),
]  # fmt: skip

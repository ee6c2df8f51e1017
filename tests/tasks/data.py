"""The small data of the cases."""

import math
import random

import numpy as np
from PIL import Image

from command_line import write_text_corpus
from guide import DOCS, blocks_of
from headwise.tasks.stream.music import mu_law
from published_images import random_images, write_pictures, write_wav

SHAPE = (4, 5, 3)  # of images to model
VALUES = math.prod(SHAPE)
RATE = 12_000
WORDS = ["red", "blue", "round", "flat", "small", "big"]
KINDS = {"animal": ["dog", "cat", "cow"], "plant": ["oak", "fern"], "thing": ["cup", "pen"]}
N_TEXTS = {"train": 90, "valid": 30, "test": 21}
PICTURE = (8, 12, 3)
BARS = ["left", "middle", "right"]
LENGTH, N_ROWS = 8, 21  # of the guide's task


def write_texts(folder):
    folder.mkdir()
    write_text_corpus(folder)


def write_images(folder):
    folder.mkdir()
    for i, (split, n) in enumerate((("train", 12), ("valid", 3), ("test", 5))):
        np.save(folder / f"{split}.npy", random_images(n, *SHAPE, seed=i) // 16)


def pieces(split):
    """Samples (N, 1) of each piece of music."""
    generator = np.random.default_rng([*split.encode()])
    return [generator.uniform(-1, 1, (n, 1)).round(2) for n in (50, 41, 32)]


def codes(split):
    """μ-law codes (N,) of each piece of music."""
    samples = ((np.rint(piece * 32767) / 32768).astype(np.float32) for piece in pieces(split))
    return [mu_law(of_piece).flatten() for of_piece in samples]


def write_music(folder):
    for split in ("train", "valid", "test"):
        for i, samples in enumerate(pieces(split)):
            write_wav(folder / split / f"{i}.wav", samples, RATE)


def rows(split):
    """(label, text, second text) of three classes."""
    chosen, table = random.Random(split), []
    for number in range(N_TEXTS[split]):
        label = list(KINDS)[number % 3]
        words = [*chosen.choices(WORDS, k=chosen.randint(1, 4)), chosen.choice(KINDS[label])]
        table.append((label, " ".join(words), f"the {words[-1]}, number {number}"))
    return table


def write_rows(path, table):
    lines = ["label\ttext\tother", *map("\t".join, table)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_labelled(folder):
    folder.mkdir()
    for split in N_TEXTS:
        write_rows(folder / f"{split}.tsv", rows(split))


def bars(n, column, seed):
    """Pictures with a bright bar in one of three columns of patches."""
    images = np.random.default_rng(seed).integers(0, 100, (n, *PICTURE), np.uint8)
    images[:, :, 4 * column : 4 * column + 4] += 100
    return images


def pictures(split):
    """Class -> pictures."""
    seed, n = {"train": (0, 20), "valid": (10, 4), "test": (20, 3)}[split]
    return {name: bars(n, i, seed + i) for i, name in enumerate(BARS)}


def write_bars(folder):
    for split in ("train", "valid", "test"):
        write_pictures(folder / split, pictures(split))


def majority_bits(split):
    """Bits (N_ROWS, LENGTH) of the guide's task."""
    seeds = [[*split.encode(), row] for row in range(N_ROWS)]
    return np.stack([np.random.default_rng(seed).integers(2, size=LENGTH) for seed in seeds])


def write_own_task(folder):
    """The files of the guide's task."""
    for block in blocks_of(DOCS / "your-own-task.md"):
        if block.title is not None:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text, encoding="utf-8")
    return folder


def write_inputs(folder):
    """Files that a user may give to a command, by mistake."""
    for name, text in {
        "text.txt": "left\n",
        "blank.txt": "\n",
        "single.tsv": "label\ttext\nx\ty\n",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "latin.txt").write_bytes("Häuschen".encode("latin-1"))
    for name, shape in {"small": (4, 4, 3), "grey": (4, 5), "right": (4, 5, 3)}.items():
        Image.fromarray(random_images(1, *shape)[0]).save(folder / f"{name}.png")
    for name, n_samples in {"long": 20, "empty": 0}.items():
        write_wav(folder / f"{name}.wav", np.zeros((n_samples, 1)), RATE)
    write_pictures(folder / "wide", {"": np.zeros((1, 8, 8, 3), np.uint8)})
    (folder / "empty").mkdir()

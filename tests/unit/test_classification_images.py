"""Labels of the published sets of images and of folders; patches, shifts and flips."""

import copy
import unicodedata
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from headwise.commands.predict import _pictures
from headwise.config.data import ImageDataConfig
from headwise.config.folders import composed
from headwise.data.patches import augmented, patches
from headwise.errors import DataError
from headwise.model.patch_embedding import Patches, Pixels, patch_embedding
from headwise.tasks.classification.images import LabelledImages
from headwise.tasks.classification.prepare import prepare_classes
from published_images import (
    CIFAR10,
    random_images,
    write_cifar10,
    write_idx,
    write_idx_labels,
    write_pictures,
)

MNIST = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"


def corpus(path, name, **changes):
    data = OmegaConf.to_object(composed(f"data={name}").data)
    assert isinstance(data, ImageDataConfig)
    data = copy.deepcopy(replace(data, **{"dir": str(path), **changes}))
    return LabelledImages(data, path / "cache")


def mnist(path, labels, suffix=""):
    """The set of MNIST, with three images for training and the other of nine for validation."""
    write_idx(path / MNIST[0], random_images(9, 28, 28, 1))
    write_idx_labels(path / (MNIST[1] + suffix), labels)
    found = corpus(path, "mnist")
    for split, numbers in (("train", [0, 3]), ("valid", [3, 9])):
        found.config.splits[split][0]["images"] = numbers
    return found


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_has_the_label_of_every_image(tmp_path, suffix):
    images, labels = random_images(9, 28, 28, 1), [3, 1, 4, 1, 5, 9, 2, 6, 5]
    labelled = mnist(tmp_path, labels, suffix)
    for split, part in (("train", slice(3)), ("valid", slice(3, 9))):
        pictures, names = zip(*labelled.rows(split), strict=True)
        assert np.array_equal(pictures, images[part])
        assert list(names) == list(map(str, labels[part]))
    before = labelled.identity("train")
    write_idx_labels(tmp_path / (MNIST[1] + suffix), labels[::-1])
    assert labelled.identity("train") != before


def test_cifar10_has_the_names_of_its_classes(tmp_path):
    images = random_images(12, 32, 32, 3)
    write_cifar10(tmp_path, images, per_batch=2)
    labelled = corpus(tmp_path, "cifar10")
    labelled.config.splits["train"][0]["images"] = [1, 8]
    pictures, names = zip(*labelled.rows("train"), strict=True)
    assert np.array_equal(pictures, images[1:8])
    assert list(names) == [CIFAR10[i // 2] for i in range(1, 8)]
    assert [name for _, name in labelled.rows("test")] == ["dog", "dog"]


def folder(path, **changes):
    changes = {"shape": [4, 6, 3], "patch": 2, **changes}
    return corpus(path, "images", **changes)  # window: of other images, which is no error here


def test_a_folder_has_a_folder_per_class(tmp_path):
    images = random_images(5, 4, 6, 3)
    write_pictures(tmp_path / "train", {"cat": images[:2], "dog/brown": images[2:]})
    rows = list(folder(tmp_path).rows("train"))
    assert [name for _, name in rows] == ["cat", "cat", "dog", "dog", "dog"]
    assert np.array_equal([image for image, _ in rows], images)


@pytest.mark.parametrize(
    ("renames", "labels"),
    [
        (["cat/0001.png dog/0001.png"], {"cat": 1, "dog": 2}),
        (["cat x", "dog cat", "x dog"], {"cat": 1, "dog": 2}),
    ],
)
def test_corrected_labels_are_read(tmp_path, renames, labels):
    images = random_images(1, 4, 6, 3)
    for split in ("train", "valid", "test"):
        write_pictures(tmp_path / split, {"cat": images[[0, 0]], "dog": images})
    before = folder(tmp_path).hashes()
    prepare_classes(folder(tmp_path), None)
    for split, (old, new) in product(("train", "valid", "test"), map(str.split, renames)):
        (tmp_path / split / old).rename(tmp_path / split / new)
    assert not {*before} & {*folder(tmp_path).hashes()}  # another run
    assert prepare_classes(folder(tmp_path), None).report["splits"]["train"] == labels


def test_links_are_followed_and_hidden_names_are_left_out(tmp_path):
    images = random_images(3, 4, 6, 3)
    write_pictures(tmp_path / "pool", {"a": images[:2], "b": images[2:]})
    write_pictures(tmp_path / "train", {"dog": images[:1], ".ipynb_checkpoints": images})
    write_pictures(tmp_path / "train" / "dog", {".cache": images, "below": images[2:]})
    (tmp_path / "train" / "cat").symlink_to(tmp_path / "pool" / "a")
    (tmp_path / "train" / "dog" / "link.png").symlink_to(tmp_path / "pool" / "b" / "0000.png")
    (tmp_path / "train" / "dog" / "loop").symlink_to(tmp_path / "train")
    rows = list(folder(tmp_path).rows("train"))
    assert [name for _, name in rows] == ["cat", "cat", "dog", "dog", "dog"]
    assert np.array_equal([image for image, _ in rows], images[[0, 1, 0, 2, 2]])
    files = folder(tmp_path).files("train")
    assert [file for (file,) in _pictures(str(tmp_path / "train"))] == list(map(str, files))
    (tmp_path / "train" / "dog" / "lost.png").symlink_to(tmp_path / "lost")
    with pytest.raises(DataError, match=r"lost\.png cannot be read: No such file"):
        folder(tmp_path).files("train")


def fewer_labels(path):
    mnist(path, [1, 2])


def more_labels(path):
    write_idx(path / "t10k-images-idx3-ubyte.gz", random_images(2, 28, 28, 1))
    write_idx_labels(path / "t10k-labels-idx1-ubyte", [1, 2, 3])


def no_labels(path):
    mnist(path, [1] * 9)
    (path / MNIST[1]).unlink()


def images_as_labels(path):
    mnist(path, [1] * 9)
    write_idx(path / f"{MNIST[1]}.gz", random_images(9, 28, 28, 1))


@pytest.mark.parametrize(
    ("change", "split", "message"),
    [
        (fewer_labels, "train", "labels-idx1-ubyte is truncated|too few labels"),
        (more_labels, "test", "another number of labels than there are images"),
        (no_labels, "train", r"put train-labels-idx1-ubyte\.gz or train-labels-idx1-ubyte into"),
        (images_as_labels, "train", "has no labels: its magic number is 2051, not 2049"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_labels_of_mnist_are_refused(tmp_path, change, split, message):
    change(tmp_path)
    labelled = corpus(tmp_path, "mnist")
    labelled.config.splits["train"][0]["images"] = [0, 3]
    with pytest.raises(DataError, match=message) as refusal:
        list(labelled.rows(split))
    assert "\n" not in str(refusal.value)


def test_pictures_outside_of_a_class_are_refused(tmp_path):
    write_pictures(tmp_path, {"train": random_images(1, 4, 6, 3)})
    with pytest.raises(DataError, match=r"0000\.png must be in a folder named after its class"):
        list(folder(tmp_path).rows("train"))
    message = r"has no valid: a folder of pictures per class\. Splits there: train; move a part"
    with pytest.raises(DataError, match=message):
        list(folder(tmp_path).rows("valid"))
    (tmp_path / "train" / "wolf").mkdir()
    with pytest.raises(DataError, match="wolf is empty; it must have pictures of this class"):
        folder(tmp_path).files("train")


def test_unknown_class_is_named_with_its_picture(tmp_path):
    images = random_images(3, 4, 6, 3)
    write_pictures(tmp_path / "train", {"cat": images, "dog": images})
    write_pictures(tmp_path / "valid", {"cat": images, "wolf": images})
    with pytest.raises(DataError, match=r"valid/wolf/0000\.png: unknown label 'wolf'; known are c"):
        prepare_classes(folder(tmp_path, test=[]), None)


def test_patches_are_the_values_of_squares_row_by_row():
    images = random_images(2, 4, 6, 3)
    cut = patches(images, 2)
    assert cut.shape == (2, 6, 12)
    for number in range(6):
        top, left = 2 * (number // 3), 2 * (number % 3)
        square = images[:, top : top + 2, left : left + 2]
        assert np.array_equal(cut[:, number], square.reshape(2, -1))


def shifts(images, **changes):
    """The row and column of the brightest pixel of augmented images, from that of `images`."""
    rows = np.arange(len(images))
    settings = {"shift": 2, "flip": False, "seed": [1, 1], "rows": rows, **changes}
    return [
        (int(row) - 3, int(column) - 4)
        for image in augmented(images, **settings)
        for row, column, _ in zip(*image.nonzero(), strict=True)
    ]


def test_shifts_and_flips_are_drawn_by_seed_epoch_and_row():
    images = np.zeros((200, 8, 9, 1), np.uint8)
    images[:, 3, 4] = 1
    drawn = shifts(images)
    assert set(drawn) == {(i, j) for i in range(-2, 3) for j in range(-2, 3)}
    assert shifts(images) == drawn != shifts(images, seed=[1, 2])
    assert drawn[50:60] == shifts(images[:10], rows=np.arange(50, 60))
    assert np.array_equal(augmented(images, 0, False, [1, 1], np.arange(200)), images)
    images = random_images(200, 4, 6, 3)
    flipped = augmented(images, 0, True, [1, 1], np.arange(200))
    is_flipped = (flipped == images[:, :, ::-1]).all((1, 2, 3))
    assert 60 < is_flipped.sum() < 140
    assert (flipped[~is_flipped] == images[~is_flipped]).all()


def test_a_shift_moves_zeros_in():
    images = np.full((50, 4, 4, 1), 9, np.uint8)
    sums = augmented(images, 3, False, [1, 1], np.arange(50)).sum((1, 2, 3))
    assert set(sums.tolist()) <= {9 * i * j for i in range(1, 5) for j in range(1, 5)}
    assert sums.min() < 9 * 16


def test_patches_are_mapped_linearly_and_pixels_by_value():
    values = torch.from_numpy(patches(random_images(2, 4, 4, 3), 2))
    linear = patch_embedding(2, 3, 8)
    assert isinstance(linear, Patches)
    black, white = linear(torch.zeros(1, 1, 12)), linear(torch.full((1, 1, 12), 255))
    expected = black + (white - black) * 0.2
    torch.testing.assert_close(linear(torch.full((1, 1, 12), 51)), expected)
    assert linear(values).shape == (2, 4, 8)
    pixels = patch_embedding(1, 3, 8)
    assert isinstance(pixels, Pixels)
    red, green, blue = torch.randn(3, 256, 8)
    pixels.weight.data = torch.cat((red, green, blue))
    states = pixels(torch.tensor([[[255, 0, 7]]], dtype=torch.uint8))
    torch.testing.assert_close(states, (red[255] + green[0] + blue[7])[None, None])


def test_classes_of_folders_are_the_same_in_every_normal_form(tmp_path):
    """A copy of a folder from macOS is the same data, in the same order."""
    images = random_images(2, 4, 6, 3)
    for form in ("NFC", "NFD"):
        names = [unicodedata.normalize(form, name) for name in ("cafz", "café")]
        for split in ("train", "valid", "test"):
            write_pictures(tmp_path / form / split, dict.fromkeys(names, images))
    composed_, decomposed = (folder(tmp_path / form) for form in ("NFC", "NFD"))
    assert composed_.hashes() == decomposed.hashes()
    rows = [(image.tobytes(), label) for image, label in composed_.rows("train")]
    assert rows == [(image.tobytes(), label) for image, label in decomposed.rows("train")]
    assert prepare_classes(decomposed, None).labels == ["cafz", "café"]

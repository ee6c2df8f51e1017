"""Images of every published format and of folders, value by value."""

import base64
import copy
import functools
import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from headwise.config.data import ImageDataConfig
from headwise.config.folders import composed
from headwise.data.images import ImageCorpus
from headwise.data.sources.pictures import picture
from headwise.errors import DataError
from published_images import planes, random_images, write_cifar10, write_idx

COLOUR = tuple(map(int, random_images(1, 4, 4, 3)[0, 0, 0]))
DEEP = base64.b64decode(  # one pixel of three channels of 16 bits, as png
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABEAIAAADA54+dAAAAD0lEQVR4nGNgYGRiZmEFAAAqABAazIwkAAAAAElFTkSu"
    "QmCC"
)


@functools.cache
def data_config(name):
    data = OmegaConf.to_object(composed(f"data={name}").data)
    assert isinstance(data, ImageDataConfig)
    return data


def corpus(path, name="images", **changes):
    data = copy.deepcopy(data_config(name))
    return ImageCorpus(replace(data, **{"dir": str(path), **changes}), path / "cache")


def values(images, split):
    height, width, channels = images.config.shape
    content = b"".join(images.chunks(split))
    return np.frombuffer(content, np.uint8).reshape(-1, height, width, channels)


def save(image, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image.squeeze()).save(path)


def test_cifar10_has_the_published_splits(tmp_path):
    images = random_images(60, 32, 32, 3)
    write_cifar10(tmp_path, images, per_batch=10)
    cifar10 = corpus(tmp_path, "cifar10")
    numbers = [cifar10.config.splits[split][0]["images"] for split in ("train", "valid")]
    assert numbers == [[0, 48_000], [48_000, 50_000]]
    with pytest.raises(DataError, match=r"tar.gz has too few images for 0 to 48000"):
        list(cifar10.chunks("train"))
    for split, numbers in (("train", [0, 43]), ("valid", [43, 50])):
        cifar10.config.splits[split][0]["images"] = numbers
        assert np.array_equal(values(cifar10, split), images[slice(*numbers)])
    assert np.array_equal(values(cifar10, "test"), images[50:])
    assert cifar10.identity("train") != cifar10.identity("valid")


def test_mnist_is_grey(tmp_path):
    images = random_images(9, 28, 28, 1)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    mnist = corpus(tmp_path, "mnist")
    assert [part["images"] for part in mnist.config.splits["valid"]] == [[55_000, 60_000]]
    mnist.config.splits["valid"][0]["images"] = [6, 9]
    assert np.array_equal(values(mnist, "valid"), images[6:])
    with pytest.raises(DataError, match=r"put t10k-images-idx3-ubyte\.gz or t10k-images"):
        mnist.files("test")
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images[:, :20])
    with pytest.raises(DataError, match=r"image 1 has the shape \[20,28,1\]"):
        list(mnist.chunks("test"))


@pytest.mark.parametrize("is_packed", [False, True])
def test_imagenet64_reads_shards_in_order(tmp_path, is_packed):
    images, archives = random_images(11, 64, 64, 3), {}
    for i in range(10):
        shard = io.BytesIO()
        np.savez(shard, data=planes(images[i : i + 1]), labels=np.zeros(1))
        archives[f"train_part{1 + i // 5}_npz/train_data_batch_{i + 1}.npz"] = shard.getvalue()
    shard = io.BytesIO()
    np.savez_compressed(shard, data=planes(images[10:]))
    archives["val_npz/val_data.npz"] = shard.getvalue()
    for name, content in archives.items():
        folder, file = name.split("/")
        if is_packed:
            with zipfile.ZipFile(tmp_path / f"Imagenet64_{folder}.zip", "a") as archive:
                archive.writestr(f"Imagenet64_{folder}/{file}", content)
        else:
            (tmp_path / f"Imagenet64_{folder}").mkdir(exist_ok=True)
            (tmp_path / f"Imagenet64_{folder}" / file).write_bytes(content)
    imagenet64 = corpus(tmp_path, "imagenet64")
    assert np.array_equal(values(imagenet64, "train"), images[:10])
    assert np.array_equal(values(imagenet64, "valid"), images[10:])


def test_folders_of_pictures_and_arrays_are_read_without_loss(tmp_path):
    images = random_images(4, 6, 5, 3)
    for image, name in zip(images, ("a/1.png", "a/2.bmp", "b.png", "c.webp"), strict=True):
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, **({"lossless": True} if ".webp" in name else {}))
    (tmp_path / "train" / ".hidden").write_text("no picture", encoding="utf-8")
    np.save(tmp_path / "valid.npy", images)
    folder = corpus(tmp_path, shape=[6, 5, 3], window=90)
    assert np.array_equal(values(folder, "train"), images)
    assert np.array_equal(values(folder, "valid"), images)
    np.save(tmp_path / "test.npy", images[..., 0])
    grey = corpus(tmp_path, shape=[6, 5, 1], window=30)
    assert np.array_equal(values(grey, "test"), images[..., :1])
    before = folder.identity("train")
    save(images[1], tmp_path / "train" / "b.png")
    assert folder.identity("train") != before


def test_palettes_and_bitmaps_are_read_without_loss(tmp_path):
    (tmp_path / "train").mkdir()
    image = random_images(1, 4, 4, 3)[0]
    Image.fromarray(image).quantize(256).save(tmp_path / "train" / "palette.png")
    expected = np.asarray(Image.open(tmp_path / "train" / "palette.png").convert("RGB"))
    read = values(corpus(tmp_path, shape=[4, 4, 3], window=48), "train")
    assert np.array_equal(read[0], expected)


@pytest.mark.parametrize("name", ["a.png", "a.tiff", "a.webp"])
def test_pictures_are_upright(tmp_path, name):
    image, exif = random_images(1, 4, 6, 3)[0], Image.Exif()
    exif[0x112] = 6  # to be turned by 90 degrees clockwise
    Image.fromarray(np.rot90(image)).save(tmp_path / name, exif=exif, lossless=True)
    assert np.array_equal(picture(tmp_path / name), image)


def test_what_hides_nothing_is_read(tmp_path):
    image = Image.fromarray(random_images(1, 4, 4, 3)[0])
    image.quantize(8).save(tmp_path / "a.gif", transparency=200)  # a colour that does not occur
    image.save(tmp_path / "b.png", exif=b"Exif\0\0no exif")
    image.save(tmp_path / "c.mpo", save_all=True, append_images=[image])
    assert {picture(path).shape for path in tmp_path.iterdir()} == {(4, 4, 3)}
    (tmp_path / "d.pbm").write_bytes(b"P1 2 1\n1 0\n")
    assert picture(tmp_path / "d.pbm").tolist() == [[[0], [255]]]


def other_size(path):
    save(random_images(1, 4, 5, 3)[0], path / "train" / "z.png")


def text(path):
    (path / "train" / "z.png").write_text("no picture", encoding="utf-8")


def truncated(path):
    save(random_images(1, 4, 4, 3)[0], path / "train" / "z.png")
    whole = (path / "train" / "z.png").read_bytes()
    (path / "train" / "z.png").write_bytes(whole[: len(whole) // 2])


def grey(path):
    save(random_images(1, 4, 4, 1)[0], path / "train" / "z.png")


def transparent(path):
    save(random_images(1, 4, 4, 4)[0], path / "train" / "z.png")


def sixteen_bits(path):
    Image.fromarray(np.ones((4, 4), np.uint16)).save(path / "train" / "z.png")


def saved(kind="PNG", n=1, n_colours=0, **options):
    """A change that saves images as frames of z.png."""
    image, *more = map(Image.fromarray, random_images(n, 4, 4, 3))
    image = image.quantize(n_colours) if n_colours else image
    options |= {"save_all": True, "append_images": more} if more else {}
    return lambda path: image.save(path / "train" / "z.png", kind, **options)


def written(content):
    """A change that writes z.png."""
    return lambda path: (path / "train" / "z.png").write_bytes(content)


def no_pictures(path):
    (path / "train" / "a.png").unlink()


def no_folder(path):
    no_pictures(path)
    (path / "train").rmdir()


def floats(path):
    np.save(path / "train.npy", np.zeros((2, 4, 4, 3)))


def no_array(path):
    (path / "train.npy").write_bytes(b"no array")


def half_an_array(path):
    np.save(path / "train.npy", random_images(3, 4, 4, 3))
    whole = (path / "train.npy").read_bytes()
    (path / "train.npy").write_bytes(whole[:-50])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_size, r"z.png has the shape \[4,5,3\], but data.shape=\[4, 4, 3\]"),
        (text, "z.png is not a picture that can be read"),
        (truncated, "z.png is not a picture that can be read"),
        (grey, r"z.png has the shape \[4,4,1\]"),
        (transparent, "z.png must be grey or RGB .* got Pillow's mode RGBA with 4 channels"),
        (sixteen_bits, "z.png must be grey or RGB with 8 bits"),
        (
            written(DEEP),
            "z.png must be .*, got another number of bits. Convert it, for example with magick",
        ),
        (written(b"P6 4 4 1000\n" + bytes(96)), "z.png must be .*, got another number of bits"),
        (saved("SGI", bpc=2), "z.png must be .*, got another number of bits"),
        (saved(n_colours=8, transparency=0), "z.png must be .*, got transparent pixels"),
        (saved(transparency=COLOUR), "z.png must be .*, got transparent pixels"),
        *((saved(kind, 3), "z.png .*, got several frames") for kind in ("GIF", "PNG", "TIFF")),
        (no_pictures, "train is empty; it must have folders of pictures"),
        (no_folder, "has no train: folders of pictures, or arrays"),
        (floats, r"train.npy must be uint8 of shape \(N, H, W, C\) .* got float64"),
        (no_array, "train.npy is damaged or not a .npy file"),
        (half_an_array, "train.npy is truncated after image 1"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_bad_images_are_refused(tmp_path, change, message):
    save(random_images(1, 4, 4, 3)[0], tmp_path / "train" / "a.png")
    change(tmp_path)
    with pytest.raises(DataError, match=message) as refusal:
        list(corpus(tmp_path, shape=[4, 4, 3], window=48).chunks("train"))
    assert "\n" not in str(refusal.value)


def test_missing_data_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    with pytest.raises(DataError, match=r"set data\.dir=FOLDER, with train, valid, test: folders"):
        corpus(tmp_path, dir=None).files("train")
    np.save(tmp_path / "train.npy", random_images(2, 4, 4, 3))
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path.parent))
    assert corpus(tmp_path, dir=None, folder=tmp_path.name).files("train")

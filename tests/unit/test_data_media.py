"""Pictures and music of users, value by value; patches, and random changes of pictures."""

import sys
import unicodedata
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image

from corpus_writers import open_named_corpus
from headwise.data.file_corpus import files_below
from headwise.data.images import augmented, patches
from headwise.data.sources.pictures import picture
from headwise.errors import DataError
from headwise.model.patch_embedding import Patches, Pixels, patch_embedding
from headwise.tasks.classification.prepare import prepare_classes
from headwise.tasks.stream.music import from_mu_law, mu_law, read_codes, write_wav
from published_images import random_images, write_pictures
from published_images import write_wav as write_audio
from small_blocks import small_blocks

__all__ = ["small_blocks"]  # a fixture
SPLITS = ("train", "valid", "test")


def values(path, split, *shape):
    """The images of a split of a folder."""
    sizes = {"shape": list(shape), "window": int(np.prod(shape))}
    corpus = open_named_corpus(path.parent, "images", dir=str(path), **sizes)
    return np.array(list(corpus.images(split)))


def folder(path, **changes):
    """A folder of pictures in a folder a class."""
    changes = {"shape": [4, 6, 3], "patch": 2, **changes}
    return open_named_corpus(path, "image_folder", True, dir=str(path), **changes)


def test_folders_of_pictures_and_arrays_are_read_without_loss(tmp_path):
    images = random_images(4, 6, 5, 3)
    for image, name in zip(images, ("a/1.png", "a/2.bmp", "b.png", "c.webp"), strict=True):
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, **({"lossless": True} if ".webp" in name else {}))
    (tmp_path / "train" / ".hidden").write_text("no picture", encoding="utf-8")
    np.save(tmp_path / "valid.npy", images)
    np.save(tmp_path / "test.npy", images[..., 0])
    for split in ("train", "valid"):
        assert np.array_equal(values(tmp_path, split, 6, 5, 3), images)
    assert np.array_equal(values(tmp_path, "test", 6, 5, 1), images[..., :1])


def test_palettes_and_bitmaps_are_read_without_loss(tmp_path):
    (tmp_path / "train").mkdir()
    image = random_images(1, 4, 4, 3)[0]
    Image.fromarray(image).quantize(256).save(tmp_path / "train" / "palette.png")
    expected = np.asarray(Image.open(tmp_path / "train" / "palette.png").convert("RGB"))
    read = values(tmp_path, "train", 4, 4, 3)
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
    for split in SPLITS:
        write_pictures(tmp_path / split, {"cat": images[[0, 0]], "dog": images})
    before = folder(tmp_path).hashes()
    prepare_classes(folder(tmp_path), None)
    for split, (old, new) in product(SPLITS, map(str.split, renames)):
        (tmp_path / split / old).rename(tmp_path / split / new)
    assert not {*before} & {*folder(tmp_path).hashes()}  # another run
    assert prepare_classes(folder(tmp_path), None).report["splits"]["train"] == labels


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("images", "folders of pictures"),
        ("music", "folders of audio"),
        ("image_folder", "a folder"),
    ],
)
def test_missing_folder_says_what_to_put_where(tmp_path, name, content):
    corpus = open_named_corpus(tmp_path, name, name == "image_folder")
    with pytest.raises(
        DataError, match=rf"set data\.dir=FOLDER, with train, valid, test: {content}"
    ):
        corpus.files("train")


def test_class_without_pictures_is_refused(tmp_path):
    write_pictures(tmp_path / "train", {"cat": random_images(1, 4, 6, 3)})
    (tmp_path / "train" / "wolf").mkdir()
    with pytest.raises(DataError, match="wolf is empty; it must have pictures of this class"):
        folder(tmp_path).files("train")


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
    assert files_below(tmp_path / "train", "pictures") == files  # as they are predicted
    (tmp_path / "train" / "dog" / "lost.png").symlink_to(tmp_path / "lost")
    with pytest.raises(DataError, match=r"lost\.png cannot be read: No such file"):
        folder(tmp_path).files("train")


def test_unknown_class_is_named_with_its_picture(tmp_path):
    images = random_images(3, 4, 6, 3)
    write_pictures(tmp_path / "train", {"cat": images, "dog": images})
    write_pictures(tmp_path / "valid", {"cat": images, "wolf": images})
    with pytest.raises(DataError, match=r"valid/wolf/0000\.png: unknown label 'wolf'; known are c"):
        prepare_classes(folder(tmp_path, test=[]), None)


def test_classes_of_folders_are_the_same_in_every_normal_form(tmp_path):
    """A copy of a folder from macOS is the same data, in the same order."""
    images = random_images(2, 4, 6, 3)
    for form in ("NFC", "NFD"):
        names = [unicodedata.normalize(form, name) for name in ("cafz", "café")]
        for split in SPLITS:
            write_pictures(tmp_path / form / split, dict.fromkeys(names, images))
    composed_, decomposed = (folder(tmp_path / form) for form in ("NFC", "NFD"))
    assert composed_.hashes() == decomposed.hashes()
    rows = [(image.tobytes(), label) for image, label in composed_.rows("train")]
    assert rows == [(image.tobytes(), label) for image, label in decomposed.rows("train")]
    assert prepare_classes(decomposed, None).labels == ["cafz", "café"]


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


# Music

RATE = 12_000


def codes(folder):
    corpus = open_named_corpus(folder, "music", dir=str(folder))
    return [np.frombuffer(piece, np.uint8) for piece in corpus.chunks("train")]


def write_tone(path, seconds):
    write_audio(path, tone(seconds, RATE)[:, None], RATE)


def tone(seconds, rate, hertz=440):
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def samples(code):
    """The inverse of mu-law, in float64."""
    compressed = 2 * code.astype(float) / 255 - 1
    return np.sign(compressed) * (256 ** np.abs(compressed) - 1) / 255


def test_written_codes_are_read_again(tmp_path):
    code = np.arange(256, dtype=np.uint8)
    np.testing.assert_allclose(from_mu_law(code), samples(code), atol=1e-6)
    write_wav(tmp_path / "a.wav", from_mu_law(code), RATE)
    assert read_codes(tmp_path / "a.wav", RATE) == code.tobytes()


def test_mu_law_codes_have_the_precision_of_the_formula():
    x = np.linspace(-1, 1, 4001, dtype=np.float32)
    code = mu_law(x)
    assert (code[0], code[2000], code[-1]) == (0, 128, 255)
    assert (np.diff(code.astype(int)) >= 0).all()
    # half of a code: the derivative of the inverse is at most ln(256) (|x| + 1 / 255)
    assert (np.abs(samples(code) - x) <= 1.02 * np.log(256) / 255 * (np.abs(x) + 1 / 255)).all()
    assert mu_law(np.array([-3, 3], np.float32)).tolist() == [0, 255]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("ending", ["wav", "flac", "ogg"])
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_formats_and_rates_give_the_same_tone(tmp_path, ending, rate):
    soundfile = pytest.importorskip("soundfile")
    left, right = tone(1.5, rate), tone(1.5, rate, 660)
    (tmp_path / "train").mkdir()
    soundfile.write(tmp_path / "train" / f"a.{ending}", np.column_stack((left, right)), rate)
    (code,) = codes(tmp_path)
    expected = (tone(1.5, RATE) + tone(1.5, RATE, 660)) / 2
    assert abs(len(code) - len(expected)) <= 1
    inside = slice(500, len(expected) - 500)  # filters differ at the ends
    error = samples(code)[inside] - expected[inside]
    assert np.abs(error).max() < 0.03
    assert error.std() < 0.01


def test_pieces_are_read_in_the_order_of_their_names(tmp_path):
    for name, seconds in {"b/2.wav": 0.1, "a.wav": 0.2, "b/1.wav": 0.3}.items():
        write_tone(tmp_path / "train" / name, seconds)
    assert [len(code) for code in codes(tmp_path)] == [2400, 3600, 1200]


def test_links_to_pieces_are_followed(tmp_path):
    write_tone(tmp_path / "pool" / "a.wav", 0.1)
    write_tone(tmp_path / "train" / ".trash" / "b.wav", 0.2)
    (tmp_path / "train" / "album").symlink_to(tmp_path / "pool")
    assert [len(code) for code in codes(tmp_path)] == [1200]


@pytest.mark.parametrize("ending", ["wav", "aiff", "au", "flac", "ogg", "mp3"])
def test_audio_that_is_not_delivered_whole_is_refused(tmp_path, ending):
    soundfile, path = pytest.importorskip("soundfile"), tmp_path / "train" / f"a.{ending}"
    path.parent.mkdir()
    soundfile.write(path, tone(5, 24_000), 24_000)
    assert len(codes(tmp_path)[0]) == 5 * RATE
    whole = path.read_bytes()
    start, middle = len(whole) * 6 // 10, whole[: len(whole) // 2]
    damaged = [whole[:start], whole[:-100], middle + bytes(400) + whole[len(middle) + 400 :]]
    for content in damaged[: 3 if ending in ("flac", "ogg", "mp3") else 2]:
        path.write_bytes(content)
        message = rf"a\.{ending} is (cut short or damaged: only|not audio)"
        with pytest.raises(DataError, match=message):
            codes(tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_samples_that_are_no_numbers_are_refused(tmp_path, value):
    soundfile = pytest.importorskip("soundfile")
    (tmp_path / "train").mkdir()
    signal = tone(0.1, RATE)
    signal[100] = value
    soundfile.write(tmp_path / "train" / "a.wav", signal, RATE, subtype="DOUBLE")
    with pytest.raises(DataError, match=r"a\.wav has samples that are NaN or infinite"):
        codes(tmp_path)


def test_peak_above_1_is_refused_unless_a_codec_adds_it(tmp_path):
    soundfile, signal = pytest.importorskip("soundfile"), np.sign(tone(0.1, RATE))
    (tmp_path / "train").mkdir()
    soundfile.write(tmp_path / "train" / "a.ogg", signal, RATE)
    assert soundfile.read(tmp_path / "train" / "a.ogg")[0].max() > 1
    assert len(codes(tmp_path)) == 1
    soundfile.write(tmp_path / "train" / "b.wav", 3 * signal, RATE, subtype="FLOAT")
    with pytest.raises(DataError, match=r"b\.wav has a peak of 3,.*volume=0\.33 NEW"):
        codes(tmp_path)


def test_unknown_size_of_a_stream_is_no_cut(tmp_path):
    path = tmp_path / "train" / "a.wav"
    write_tone(path, 0.1)
    whole = path.read_bytes()  # then as ffmpeg writes to a pipe
    path.write_bytes(whole[:4] + b"\xff" * 4 + whole[8:40] + b"\xff" * 4 + whole[44:])
    assert [len(code) for code in codes(tmp_path)] == [1200]


def test_missing_packages_are_named(tmp_path, monkeypatch):
    write_audio(tmp_path / "train" / "a.wav", tone(0.1, 44_100)[:, None], 44_100)
    for package in ("soxr", "soundfile"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(DataError, match=rf"by {package}, which is missing: pip install 'head"):
            codes(tmp_path)

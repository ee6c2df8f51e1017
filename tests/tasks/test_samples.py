"""`headwise sample` and the samples of validations: text, images (png) and music (wav)."""

from __future__ import annotations

import os
import re
import wave
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from headwise.config.data import ImageDataConfig
from headwise.data.images import ImageCorpus
from headwise.data.tokenizer import BYTE_MODEL, Tokenizer
from headwise.tasks.stream.music import mu_law, read_codes
from headwise.tasks.stream.samples import BACKGROUND, GAP, ImageSamples, grid
from headwise.track.base import Tracker
from headwise.train.checkpoint import load_checkpoint
from published_images import random_images, write_wav
from tasks.data import RATE, SHAPE, codes
from tasks.scores import MUSIC_WINDOW, WINDOW
from tasks.trained import TrainedCase

UPDATES = 6, 12


class Sampled(NamedTuple):
    """A case, a run of it, and the samples that its validations sent to the tracker."""

    case: TrainedCase
    run: Path
    logged: list[Any]


@pytest.fixture(scope="module")
def sampled(trained, tmp_path_factory):
    """Name of a case and settings -> its run."""
    runs = {}

    def train(name, *changes):
        if name not in runs:
            logged = []
            with pytest.MonkeyPatch.context() as patch:
                for kind in ("log_table", "log_image", "log_audio"):
                    patch.setattr(Tracker, kind, lambda _, *values: logged.append(values))
                run = trained(name).train(tmp_path_factory.mktemp(name), *changes)
            runs[name] = Sampled(trained(name), run, logged)
        return runs[name]

    return train


@pytest.fixture
def text(sampled):
    return sampled("text", "trainer.valid_samples=3")


@pytest.fixture
def images(sampled):
    return sampled("images")


@pytest.fixture
def music(sampled):
    return sampled("music", "attention=linear", "loss=entmax15", "trainer.monitor=loss")


def numbered(written):
    parts = re.split(r"^==== sample (\d+) ====\n", written, flags=re.M)[1:]
    return dict(zip(map(int, parts[::2]), parts[1::2], strict=True))


def tiles(path, n, width=SHAPE[1]):
    """The first tiles (H, W, C) of a grid whose file is checked in its whole."""
    with Image.open(path) as opened:
        assert opened.format == "PNG"
        image = np.atleast_3d(np.asarray(opened))
    n_columns, height = int(np.ceil(np.sqrt(n))), SHAPE[0]
    places = [divmod(number, n_columns) for number in range(n)]
    corners = [(GAP + i * (height + GAP), GAP + j * (width + GAP)) for i, j in places]
    parts = [image[y : y + height, x : x + width] for y, x in corners]
    np.testing.assert_array_equal(grid(parts), image)
    return parts


def test_samples_of_text_are_printed_and_written(headwise, text, tmp_path):
    run, options = f"run={text.run}", ("prompt=Häus", "length=40", "seed=3")
    printed = headwise.ok("sample", run, *options, "n=5", "batch_size=2").out
    written = (text.run / "samples" / "best-seed3-prompt.txt").read_bytes().decode()
    assert printed == written
    samples = numbered(written)
    assert list(samples) == [1, 2, 3, 4, 5]
    assert all(sample.startswith("Häus") and len(sample) > 20 for sample in samples.values())
    assert len(set(samples.values())) == 5
    prompt, output = tmp_path / "prompt.txt", tmp_path / "out.txt"
    prompt.write_text("Häus", encoding="utf-8")
    from_file = (run, f"prompt_file={prompt}", *options[1:], f"output={output}")
    headwise.ok("sample", *from_file, "n=3", "max_tokens=1")
    assert numbered(output.read_bytes().decode()) == {k: samples[k] for k in (1, 2, 3)}
    reader, writer = os.pipe()
    os.write(writer, b"H\xc3\xa4us")
    os.close(writer)
    from_pipe = (run, f"prompt_file=/dev/fd/{reader}", *options[1:], "output=-")
    assert numbered(headwise.ok("sample", *from_pipe, "n=1").out) == {1: samples[1]}
    short = headwise.ok("sample", run, "n=1", "precision=fp32", "top_k=3", "top_p=0.9")
    assert len(numbered(short.out)[1]) <= WINDOW + 1


def test_validations_write_and_log_samples_of_text(text, tmp_path):
    files = sorted((text.run / "samples").glob("update_*"))
    assert [file.name for file in files] == [f"update_{update:08d}.txt" for update in UPDATES]
    expected = []
    for update, file in zip(UPDATES, files, strict=True):
        samples = numbered(file.read_bytes().decode())
        assert list(samples) == [1, 2, 3]
        rows = [(update, number, sample[:-1]) for number, sample in samples.items()]
        expected.append(("samples", ("update", "sample", "text"), rows))
    assert [table for table in text.logged if table[0] == "samples"] == expected
    without = text.case.train(tmp_path, "trainer.valid_samples=0")
    assert not (without / "samples").exists()
    runs = (text.run, without)
    first, second = (load_checkpoint(r / "checkpoints" / "last.pt")["model"] for r in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_validations_write_and_log_samples_of_images_and_music(images, music):
    names = [f"update_{update:08d}" for update in UPDATES]
    grids = [images.run / "samples" / f"{name}.png" for name in names]
    logged = [("samples", *pair) for pair in zip(grids, UPDATES, strict=True)]
    assert [values for values in images.logged if values[0] == "samples"] == logged
    assert all(len(tiles(path, 2)) == 2 for path in grids)
    sounds = [
        (f"samples/{number}", music.run / "samples" / f"{name}-{number}.wav", update)
        for name, update in zip(names, UPDATES, strict=True)
        for number in (1, 2)
    ]
    assert [values for values in music.logged if values[0].startswith("samples")] == sounds
    assert all(len(read_codes(path, RATE)) == MUSIC_WINDOW for _, path, _ in sounds)


def test_images_do_not_depend_on_the_batch(headwise, images, tmp_path):
    options, output = (f"run={images.run}", "seed=5"), tmp_path / "other.png"
    assert headwise.ok("sample", *options, "n=5", "batch_size=2").out == ""
    samples = tiles(images.run / "samples" / "best-seed5.png", 5)
    assert len({sample.tobytes() for sample in samples}) == 5
    headwise.ok("sample", *options, "n=3", "batch_size=3", f"output={output}")
    np.testing.assert_array_equal(tiles(output, 3), samples[:3])
    # the rest of an image that is not drawn is grey
    headwise.ok("sample", *options, "n=1", "length=35", f"output={output}")
    (part,) = tiles(output, 1)
    assert (part.flatten()[:35] == samples[0].flatten()[:35]).all()
    assert (part.flatten()[35:] == BACKGROUND).all()


@pytest.mark.parametrize("given", ["file", "split"])
@pytest.mark.parametrize("n_given", [30, 16])
def test_given_halves_are_completed(headwise, images, tmp_path, given, n_given):
    originals = np.load(images.case.data("test.npy"))
    Image.fromarray(originals[0]).save(tmp_path / "a.png")
    prompt = {"file": f"prompt_file={tmp_path}/a.png", "split": "prompt_split=test"}[given]
    length = [] if n_given == 30 else [f"prompt_length={n_given}"]
    output = tmp_path / "out.png"
    options = prompt, "n=3", "batch_size=2", f"output={output}", *length
    headwise.ok("sample", f"run={images.run}", *options)
    for i, pair in enumerate(tiles(output, 3, 2 * SHAPE[1])):
        original = originals[0 if given == "file" else i].flatten()
        shown, completed = (part.flatten() for part in np.hsplit(pair, 2))
        assert (shown[:n_given] == original[:n_given]).all()
        assert (shown[n_given:] == BACKGROUND).all()
        assert (completed[:n_given] == original[:n_given]).all()
        assert (completed[n_given:] != original[n_given:]).any()


def test_music_continues_a_sound(headwise, music, tmp_path):
    sound = np.linspace(-1, 1, 12, dtype=np.float32)
    write_wav(tmp_path / "sound.wav", np.repeat(sound[:, None], 2, axis=1), RATE)
    given = mu_law(sound).tobytes()
    options = f"run={music.run}", "length=30", f"prompt_file={tmp_path}/sound.wav"
    headwise.ok("sample", *options, "n=3", "batch_size=2", f"output={tmp_path}/out.wav")
    files = [tmp_path / f"out-{number}.wav" for number in (1, 2, 3)]
    samples = [read_codes(file, RATE) for file in files]
    assert len(set(samples)) == 3
    assert all(sample[:12] == given and len(sample) == 42 for sample in samples)
    with wave.open(str(files[0])) as file:
        assert file.getparams()[:4] == (1, 2, RATE, 42)
    headwise.ok("sample", *options, "n=1", f"output={tmp_path}/one.wav")
    assert (tmp_path / "one.wav").read_bytes() == files[0].read_bytes()
    printed = headwise.ok("sample", f"run={music.run}", "n=1", "prompt_split=valid")
    assert "shortest" not in printed.err
    for name, n_samples in (("a", 5), ("b", 9)):
        write_wav(music.case.data("two") / f"{name}.wav", np.zeros((n_samples, 1)), RATE)
    printed = headwise.ok("sample", f"run={music.run}", "n=2", "prompt_split=two", "length=1")
    assert "every prompt has 5 tokens, as many as the shortest piece" in printed.err + printed.out
    half = MUSIC_WINDOW // 2
    continued = read_codes(music.run / "samples" / "best-seed1-prompt.wav", RATE)
    assert continued[:half] == codes("valid")[0][:half].tobytes()
    assert len(continued) == MUSIC_WINDOW


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "L"), (3, "RGB")])
def test_samples_of_any_channels_are_pictures(tmp_path, channels, mode):
    image = random_images(1, 4, 5, channels)[0]
    config = ImageDataConfig(name="images", shape=list(image.shape), window=image.size)
    samples = ImageSamples(ImageCorpus(config, tmp_path), Tokenizer(BYTE_MODEL))
    (path,) = samples.write([samples.ids(image.tobytes())], tmp_path / "grid.png")
    with Image.open(path) as opened:
        inside = np.atleast_3d(np.asarray(opened))[GAP:-GAP, GAP:-GAP]
        assert opened.mode == mode
    expected = np.concatenate([image[..., :1], image[..., 1:]], axis=1) if channels == 2 else image
    np.testing.assert_array_equal(inside, expected)

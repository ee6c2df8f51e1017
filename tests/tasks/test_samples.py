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

from command_line import assert_rejected
from headwise.commands.sample import _prompts
from headwise.config.commands import SampleConfig
from headwise.config.data import ImageDataConfig, MusicDataConfig
from headwise.data.images import ImageCorpus
from headwise.data.tokenizer import BYTE_MODEL, Tokenizer
from headwise.tasks.stream.music import MusicCorpus, mu_law, read_codes
from headwise.tasks.stream.samples import BACKGROUND, GAP, ImageSamples, MusicSamples, grid
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
    half = MUSIC_WINDOW // 2
    continued = read_codes(music.run / "samples" / "best-seed1-prompt.wav", RATE)
    assert continued[:half] == codes("valid")[0][:half].tobytes()
    assert len(continued) == MUSIC_WINDOW


def test_the_shortest_piece_sets_the_prompts(tmp_path, caplog):
    write_wav(tmp_path / "two" / "a.wav", np.zeros((5, 1)), RATE)
    write_wav(tmp_path / "two" / "b.wav", np.zeros((9, 1)), RATE)
    config = MusicDataConfig(name="music", dir=str(tmp_path), window=MUSIC_WINDOW)
    samples = MusicSamples(MusicCorpus(config, tmp_path), Tokenizer(BYTE_MODEL))
    with caplog.at_level("INFO"):
        prompts = _prompts(SampleConfig(n=2, prompt_split="two"), samples)
    assert [len(row) for row in prompts] == [5, 5]
    assert "every prompt has 5 tokens, as many as the shortest piece" in caplog.text


BAD_TEXT = {
    "n=0": "n must be at least 1, got 0",
    "batch_size=0": "batch_size must be at least 1",
    "length=0": "length must be null or at least 1",
    "temperature=0": "temperature must be above 0 (top_k=1 is greedy)",
    "top_k=0": "top_k must be",
    "top_p=1.5": "top_p must be",
    "precision=bf16": "precision must be one of fp32, fp64; got 'bf16'",
    "prompt=": "prompt= is an empty prompt",
    "prompt=aaaaaaaaaaaaaaaa": "the prompt has 16 tokens; at most 15 fit",
    "prompt_file=nowhere.txt": "prompt_file=nowhere.txt cannot be read",
    "prompt_file=latin.txt": "prompt_file=latin.txt is not UTF-8",
    "prompt=a prompt_file=latin.txt": "prompt_file must be null with prompt=",
    "prompt_split=valid": "prompt_split must be null with text; set prompt or prompt_file",
    "prompt=Haus prompt_length=5": "prompt_length must be at most 4, the tokens of the prompt, got",
    "output=.": "output=. is a folder",
    "output=no/such.txt": "folder",
    "temprature=1": "temperature",
}
BAD_IMAGES = {
    "prompt=a": "prompt must be null with data=images; set prompt_file or prompt_split",
    "prompt_file=nowhere.png": "prompt_file=nowhere.png cannot be read",
    "prompt_file=text.txt": "text.txt is not a picture that can be read",
    "prompt_file=small.png": "small.png has the shape [4, 4, 3] (rows, columns, channels), but",
    "prompt_file=grey.png": "grey.png has the shape [4, 5, 1] (rows, columns, channels), but",
    "prompt_file=right.png prompt_split=test": "prompt_split must be null with prompt_file=",
    "prompt_file=right.png prompt_length=60": "at most 59 fit before a drawn one (an image has",
    "prompt_file=right.png prompt_length=61": "prompt_length must be at most 60, the tokens of",
    "output=o.jpg": "output must be a .png file with this data, got 'o.jpg'",
    "prompt_length=0": "prompt_length must be null or at least 1",
    "prompt_length=5": "prompt_length must be null without prompt, prompt_file, prompt_split",
    "prompt_split=nowhere": "has no nowhere",
    "prompt_split=test n=6": "n must be at most the 5 documents of prompt_split=test, got 6",
    "prompt_split=test n=5 length=31": "length must be null or at most 30, the values",
}
BAD_MUSIC = {
    "prompt_file=long.wav": f"the prompt has {MUSIC_WINDOW} tokens; at most {MUSIC_WINDOW - 1}",
    "prompt_file=empty.wav": "prompt_file=empty.wav is an empty prompt",
    "prompt_file=text.txt": "text.txt is not audio that can be read",
}


@pytest.mark.parametrize(
    ("name", "bad"), [("text", BAD_TEXT), ("images", BAD_IMAGES), ("music", BAD_MUSIC)]
)
def test_bad_input_is_refused_in_one_message(headwise, request, tmp_path, monkeypatch, name, bad):
    run = request.getfixturevalue(name).run
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("no picture", encoding="utf-8")
    Path("latin.txt").write_bytes("Häuschen".encode("latin-1"))
    for picture, shape in {"small": (4, 4, 3), "grey": (4, 5), "right": (4, 5, 3)}.items():
        Image.fromarray(random_images(1, *shape)[0]).save(f"{picture}.png")
    write_wav(Path("long.wav"), np.zeros((MUSIC_WINDOW, 1)), RATE)
    write_wav(Path("empty.wav"), np.zeros((0, 1)), RATE)
    for settings, message in bad.items():
        refusal = headwise("sample", f"run={run}", *settings.split())
        assert refusal.code in (1, 2)
        assert_rejected(refusal, refusal.code, message)


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

"""`headwise sample` and the samples of validations on images (png) and music (wav)."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command_line import CommandLine, assert_rejected, composer, run_folders
from headwise.commands.sample import _prompts
from headwise.commands.train import train
from headwise.config.commands import SampleConfig
from headwise.config.data import ImageDataConfig, MusicDataConfig
from headwise.config.register import typed
from headwise.data.images import ImageCorpus
from headwise.data.tokenizer import BYTE_MODEL, Tokenizer
from headwise.tasks.stream.music import MusicCorpus, mu_law, read_codes
from headwise.tasks.stream.samples import BACKGROUND, GAP, ImageSamples, MusicSamples, grid
from headwise.track.base import Tracker
from published_images import random_images, write_wav

SHAPE, WINDOW, RATE = (4, 5, 3), 20, 12_000
SMALL = [
    "model=tiny", "model.layers=1", "model.d_model=16", "model.n_heads=2", "model.d_ff=32",
    "trainer.max_tokens=120", "trainer.max_updates=4", "trainer.validate_every=2",
    "trainer.save_every=4", "trainer.average=0", "trainer.head_sentences=0",
    "trainer.precision=fp32", "scheduler.warmup_updates=2", "tracker=none", "data.test=[]",
]  # fmt: skip


class Run:
    """A trained run, and what its validations sent to the tracker."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.data, self.logged = folder, []
        all_overrides = [
            *SMALL, f"data.dir={folder}", f"paths.cache={folder}/cache",
            f"paths.outputs={folder}/outputs", *overrides,
        ]  # fmt: skip
        with composer() as make, pytest.MonkeyPatch.context() as patch:
            for kind in ("log_image", "log_audio"):
                patch.setattr(Tracker, kind, lambda _, *logged: self.logged.append(logged))
            train(typed(make(all_overrides)), all_overrides)
        (self.path,) = run_folders(folder / "outputs")
        self.samples = self.path / "samples"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("images")
    for i, (split, n) in enumerate((("train", 12), ("valid", 3), ("test", 5))):
        np.save(folder / f"{split}.npy", random_images(n, *SHAPE, seed=i))
    shape = f"data.shape={list(SHAPE)}".replace(" ", "")
    return Run(folder, "data=images", shape, "data.window=60", "positions=data_dims")


@pytest.fixture(scope="module")
def music(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder, generator = tmp_path_factory.mktemp("music"), np.random.default_rng(1)
    for split, n in (("train", 90), ("valid", 41)):
        write_wav(folder / split / "a.wav", generator.uniform(-1, 1, (n, 1)), RATE)
    settings = f"data.window={WINDOW}", "attention=linear", "loss=entmax15", "trainer.monitor=loss"
    return Run(folder, "data=music", *settings)


def tiles(path: Path, n: int, width: int = SHAPE[1]) -> list[Any]:
    """The first tiles (H, W, C) of a grid whose file is checked in its whole."""
    with Image.open(path) as opened:
        assert opened.format == "PNG"
        image = np.atleast_3d(np.asarray(opened))
    n_columns, height = int(np.ceil(np.sqrt(n))), SHAPE[0]
    places = [divmod(number, n_columns) for number in range(n)]
    corners = [(GAP + i * (height + GAP), GAP + j * (width + GAP)) for i, j in places]
    found = [image[y : y + height, x : x + width] for y, x in corners]
    np.testing.assert_array_equal(grid(found), image)
    return found


def test_images_do_not_depend_on_the_batch(headwise: CommandLine, images: Run) -> None:
    options = f"run={images.path}", "seed=5"
    printed = headwise.ok("sample", *options, "n=5", "batch_size=2").out
    assert printed == ""
    samples = tiles(images.samples / "best-seed5.png", 5)
    assert len({sample.tobytes() for sample in samples}) == 5
    output = images.data / "other.png"
    headwise.ok("sample", *options, "n=3", "batch_size=3", f"output={output}")
    np.testing.assert_array_equal(tiles(output, 3), samples[:3])
    # the rest of an image that is not drawn is grey
    headwise.ok("sample", *options, "n=1", "length=35", f"output={output}")
    (part,) = tiles(output, 1)
    assert (part.flatten()[:35] == samples[0].flatten()[:35]).all()
    assert (part.flatten()[35:] == BACKGROUND).all()


@pytest.mark.parametrize("given", ["file", "split"])
@pytest.mark.parametrize("n_given", [30, 16])
def test_given_halves_are_completed(
    headwise: CommandLine, images: Run, tmp_path: Path, given: str, n_given: int
) -> None:
    originals = np.load(images.data / "test.npy")
    Image.fromarray(originals[0]).save(tmp_path / "a.png")
    prompt = {"file": f"prompt_file={tmp_path}/a.png", "split": "prompt_split=test"}[given]
    length = [] if n_given == 30 else [f"prompt_length={n_given}"]
    output = tmp_path / "out.png"
    options = prompt, "n=3", "batch_size=2", f"output={output}", *length
    headwise.ok("sample", f"run={images.path}", *options)
    pairs = tiles(output, 3, 2 * SHAPE[1])
    for i, pair in enumerate(pairs):
        original = originals[0 if given == "file" else i].flatten()
        shown, completed = (part.flatten() for part in np.hsplit(pair, 2))
        assert (shown[:n_given] == original[:n_given]).all()
        assert (shown[n_given:] == BACKGROUND).all()
        assert (completed[:n_given] == original[:n_given]).all()
        assert (completed[n_given:] != original[n_given:]).any()


def test_music_continues_a_sound(headwise: CommandLine, music: Run, tmp_path: Path) -> None:
    sound = np.linspace(-1, 1, 12, dtype=np.float32)
    write_wav(tmp_path / "sound.wav", np.repeat(sound[:, None], 2, axis=1), RATE)
    given = mu_law(sound).tobytes()
    options = f"run={music.path}", "length=30", f"prompt_file={tmp_path}/sound.wav"
    headwise.ok("sample", *options, "n=3", "batch_size=2", f"output={tmp_path}/out.wav")
    files = [tmp_path / f"out-{number}.wav" for number in (1, 2, 3)]
    samples = [read_codes(file, RATE) for file in files]
    assert len(set(samples)) == 3
    assert all(sample[:12] == given and len(sample) == 42 for sample in samples)
    with wave.open(str(files[0])) as file:
        assert file.getparams()[:4] == (1, 2, RATE, 42)
    headwise.ok("sample", *options, "n=1", f"output={tmp_path}/one.wav")
    assert (tmp_path / "one.wav").read_bytes() == files[0].read_bytes()
    printed = headwise.ok("sample", f"run={music.path}", "n=1", "prompt_split=valid")
    assert "shortest" not in printed.err
    start = read_codes(music.data / "valid" / "a.wav", RATE)[: WINDOW // 2]
    continued = read_codes(music.samples / "best-seed1-prompt.wav", RATE)
    assert (continued[: WINDOW // 2], len(continued)) == (start, WINDOW)


def test_the_shortest_piece_sets_the_prompts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_wav(tmp_path / "two" / "a.wav", np.zeros((5, 1)), RATE)
    write_wav(tmp_path / "two" / "b.wav", np.zeros((9, 1)), RATE)
    samples = MusicSamples(
        MusicCorpus(MusicDataConfig(name="music", dir=str(tmp_path), window=WINDOW), tmp_path),
        Tokenizer(BYTE_MODEL),
    )
    config = SampleConfig(n=2, prompt_split="two")
    with caplog.at_level("INFO"):
        assert [len(row) for row in _prompts(config, samples)] == [5, 5]
    assert "every prompt has 5 tokens, as many as the shortest piece" in caplog.text


def test_validations_write_and_log_samples(images: Run, music: Run) -> None:
    updates = (2, 4)
    names = [f"update_{update:08d}" for update in updates]
    grids = [images.samples / f"{name}.png" for name in names]
    assert images.logged == [("samples", *pair) for pair in zip(grids, updates, strict=True)]
    assert all(len(tiles(path, 2)) == 2 for path in grids)
    sounds = [
        (f"samples/{number}", music.samples / f"{name}-{number}.wav", update)
        for name, update in zip(names, updates, strict=True)
        for number in (1, 2)
    ]
    assert music.logged == sounds
    assert all(len(read_codes(path, RATE)) == WINDOW for _, path, _ in sounds)


BAD = {
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


def test_bad_prompts_are_refused_in_one_message(
    headwise: CommandLine, images: Run, music: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("no picture", encoding="utf-8")
    for name, shape in {"small": (4, 4, 3), "grey": (4, 5), "right": (4, 5, 3)}.items():
        Image.fromarray(random_images(1, *shape)[0]).save(f"{name}.png")
    cases = [(images, bad, message) for bad, message in BAD.items()]
    write_wav(Path("long.wav"), np.zeros((WINDOW, 1)), RATE)
    write_wav(Path("empty.wav"), np.zeros((0, 1)), RATE)
    cases += [
        (music, "prompt_file=long.wav", f"the prompt has {WINDOW} tokens; at most {WINDOW - 1}"),
        (music, "prompt_file=empty.wav", "prompt_file=empty.wav is an empty prompt"),
        (music, "prompt_file=text.txt", "text.txt is not audio that can be read"),
    ]
    for run, bad, message in cases:
        refusal = headwise("sample", f"run={run.path}", *bad.split())
        assert_rejected(refusal, refusal.code or -1, message)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "L"), (3, "RGB")])
def test_samples_of_any_channels_are_pictures(tmp_path: Path, channels: int, mode: str) -> None:
    image = random_images(1, 4, 5, channels)[0]
    config = ImageDataConfig(name="images", shape=list(image.shape), window=image.size)
    samples = ImageSamples(ImageCorpus(config, tmp_path), Tokenizer(BYTE_MODEL))
    ids = samples.ids(image.tobytes())
    (path,) = samples.write([ids], tmp_path / "grid.png")
    with Image.open(path) as opened:
        inside = np.atleast_3d(np.asarray(opened))[GAP:-GAP, GAP:-GAP]
        assert opened.mode == mode
    expected = np.concatenate([image[..., :1], image[..., 1:]], axis=1) if channels == 2 else image
    np.testing.assert_array_equal(inside, expected)

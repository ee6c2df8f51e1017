"""Audio files as 8-bit mu-law codes of one channel at one sample rate."""

import functools
import sys
from dataclasses import replace

import numpy as np
import pytest
from omegaconf import OmegaConf

from headwise.config.data import MusicDataConfig
from headwise.config.folders import composed
from headwise.errors import DataError
from headwise.tasks.stream import music
from headwise.tasks.stream.music import MusicCorpus, from_mu_law, mu_law, read_codes, write_wav
from published_images import write_wav as write_audio

RATE = 12_000


@functools.cache
def data_config():
    data = OmegaConf.to_object(composed("data=music").data)
    assert isinstance(data, MusicDataConfig)
    return data


def corpus(folder):
    return MusicCorpus(replace(data_config(), dir=str(folder)), folder / "cache")


def codes(folder):
    return [np.frombuffer(piece, np.uint8) for piece in corpus(folder).chunks("train")]


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


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg"])
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_formats_and_rates_give_the_same_tone(tmp_path, ending, rate, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    monkeypatch.setattr(music, "BLOCK", 5000)
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
    pieces = {"b/2.wav": tone(0.1, RATE), "a.wav": tone(0.2, RATE), "b/1.wav": tone(0.3, RATE)}
    for name, piece in pieces.items():
        write_audio(tmp_path / "train" / name, piece[:, None], RATE)
    assert [len(code) for code in codes(tmp_path)] == [2400, 3600, 1200]


def test_links_to_pieces_are_followed(tmp_path):
    write_audio(tmp_path / "pool" / "a.wav", tone(0.1, RATE)[:, None], RATE)
    write_audio(tmp_path / "train" / ".trash" / "b.wav", tone(0.2, RATE)[:, None], RATE)
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
    write_audio(path, tone(0.1, RATE)[:, None], RATE)
    whole = path.read_bytes()  # then as ffmpeg writes to a pipe
    path.write_bytes(whole[:4] + b"\xff" * 4 + whole[8:40] + b"\xff" * 4 + whole[44:])
    assert [len(code) for code in codes(tmp_path)] == [1200]


def test_bad_audio_is_refused(tmp_path, monkeypatch):
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="train is empty; it must have folders of audio files"):
        codes(tmp_path)
    path = tmp_path / "train" / "a.wav"
    path.write_text("no audio", encoding="utf-8")
    with pytest.raises(DataError, match=r"a.wav is not audio that can be read") as refusal:
        codes(tmp_path)
    assert "\n" not in str(refusal.value)
    write_audio(path, tone(0.1, 44_100)[:, None], 44_100)
    for package in ("soxr", "soundfile"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(DataError, match=rf"by {package}, which is missing: pip install 'head"):
            codes(tmp_path)

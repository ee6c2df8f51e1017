"""Music as documents: one channel, resampled, an 8-bit mu-law code per sample."""

from __future__ import annotations

import re
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from headwise.config.data import MusicDataConfig
from headwise.data.file_corpus import FileCorpus
from headwise.errors import DataError
from headwise.files import replacing

MU = 255
BLOCK = 2**20  # frames read at once
HEADER = 64  # bytes, at most, of the containers that libsndfile reads
UNKNOWN = 2**31 - 2**16  # bytes; larger sizes in headers stand for unknown ones
OGG_CUT = re.compile("reports a hole|after the last page|end-of-stream", re.IGNORECASE)

Audio = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]


def mu_law(samples: Audio) -> Codes:
    """Codes 0 to 255 of samples from -1 to 1; differences of small ones are kept best."""
    magnitudes = np.log1p(MU * np.minimum(np.abs(samples), 1)) / np.log1p(MU)
    codes: Codes = np.rint((np.copysign(magnitudes, samples) + 1) / 2 * MU).astype(np.uint8)
    return codes


def from_mu_law(codes: Codes) -> Audio:
    """Samples from -1 to 1 of codes; `mu_law` maps them to the same codes."""
    values = 2 * codes.astype(np.float32) / MU - 1
    samples: Audio = np.copysign(np.expm1(np.abs(values) * np.log1p(MU)) / MU, values)
    return samples


def read_codes(path: Path, sample_rate: int) -> bytes:
    """An audio file as mu-law codes of one channel.

    Raises:
        DataError: a file that is not audio, is cut short or damaged, or a package is missing.
    """
    return b"".join(mu_law(samples).tobytes() for samples in _resampled(path, sample_rate))


def write_wav(path: Path, samples: Audio, sample_rate: int) -> None:
    """Write samples (N,) from -1 to 1 as 16-bit audio of one channel, atomically."""
    with replacing(path) as temporary, wave.open(str(temporary), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)  # bytes
        file.setframerate(sample_rate)
        file.writeframes(np.rint(samples * 32767).astype("<i2").tobytes())


@dataclass(frozen=True)
class MusicCorpus(FileCorpus):
    """Audio files (wav, flac, ogg) below `train/`, `valid/` and test sets, one piece each."""

    samples: ClassVar[str] = "headwise.tasks.stream.samples.MusicSamples"

    config: MusicDataConfig

    def files(self, split: str) -> list[Path]:
        return self.files_of_folder(split, "folders of audio files (wav, flac, ogg)")

    def packages(self, splits: Sequence[str]) -> Sequence[str]:
        return "soundfile", "soxr"

    def settings(self, split: str) -> Any:
        return self.config.sample_rate

    def chunks(self, split: str) -> Iterator[bytes]:
        """See `FileCorpus.chunks`.

        Raises:
            DataError: a file that is not audio, or a package is missing.
        """
        for path in self.files(split):
            yield read_codes(path, self.config.sample_rate)


def _resampled(path: Path, sample_rate: int) -> Iterator[Audio]:
    """Blocks of the mean of the channels of an audio file at another sample rate."""
    soundfile = _package("soundfile")
    try:
        with soundfile.SoundFile(path) as sound:
            mono = _mono(sound, path)
            if sound.samplerate == sample_rate:
                yield from mono
                return
            rates = sound.samplerate, sample_rate
            stream = _package("soxr").ResampleStream(*rates, num_channels=1, dtype="float32")
            for samples in mono:
                yield stream.resample_chunk(samples)
            yield stream.resample_chunk(np.zeros(0, np.float32), last=True)
    except soundfile.SoundFileError as error:
        raise DataError(f"{path} is not audio that can be read: {error}") from error


def _mono(sound: Any, path: Path) -> Iterator[Audio]:
    """Blocks of the mean of the channels; a `DataError` if the decoder does not deliver all.

    Codecs with losses exceed 1 a little, which is cut; samples in floating point may be on any
    scale and are refused.
    """
    n_frames, peak = 0, 0.0
    # not `blocks`, whose last block has uninitialised values after what the decoder delivers
    while len(block := sound.read(BLOCK, dtype="float32", always_2d=True)):
        if not np.isfinite(block).all():
            raise DataError(f"{path} has samples that are NaN or infinite")
        n_frames += len(block)
        peak = max(peak, np.abs(mono := block.mean(axis=1)).max())
        yield mono
    if peak > 1 and sound.subtype in ("FLOAT", "DOUBLE"):
        raise DataError(
            f"{path} has a peak of {peak:.3g}, but samples are from -1 to 1: scale it, for example "
            f"with ffmpeg -i OLD -af volume={0.99 / peak:.3g} NEW"
        )
    if n_frames < sound.frames or _is_cut(sound.extra_info):
        raise DataError(
            f"{path} is cut short or damaged: only {n_frames / sound.samplerate:.2f} s can be "
            "read. Copy it again, or remove it"
        )


def _is_cut(log: str) -> bool:
    """Whether libsndfile says that a file ends before its header, or has a gap; it reads the rest.

    Sizes in headers may count the header itself; those of pipes are unknown.
    """
    sizes = re.findall(r"(\d+) \(should be (\d+)\)", log)
    is_short = any(int(actual) + HEADER < int(size) < UNKNOWN for size, actual in sizes)
    return is_short or bool(OGG_CUT.search(log))


def _package(name: str) -> Any:
    """An optional package."""
    try:
        return import_module(name)
    except ImportError as error:
        raise DataError(
            f"music is read by {name}, which is missing: pip install 'headwise[music]'"
        ) from error

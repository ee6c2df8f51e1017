"""The config of `scripts/sample.py`, and the keys of every command that loads a run."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from headwise.config.text_and_paths import path
from headwise.files import STDIN, STDOUT


@dataclass
class RunSelection:
    """Keys of every command that loads a run."""

    checkpoint: str = "auto"  # auto, best, last, average, update_<n>, average_<n> (of the last n)
    device: str = "auto"
    progress: bool = True


@dataclass
class SampleConfig(RunSelection):
    """`scripts/sample.py`: draw samples from a density model."""

    run: str = path(MISSING)  # its folder
    n: int = 16  # samples
    length: int | None = None  # tokens of each after the prompt; null: up to data.window
    prompt: str | None = None  # text at the beginning of each sample
    prompt_file: str | None = path(stream=STDIN)  # a text, picture or audio file with the prompt
    prompt_split: str | None = None  # sample i continues image or piece i of this split
    prompt_length: int | None = None  # only its first tokens; null: all, half of an image
    temperature: float = 1.0  # below 1: more probable tokens
    top_k: int | None = None  # draw from the k most probable tokens; null: all
    top_p: float = 1.0  # draw from the most probable tokens with this probability together
    seed: int = 1  # with the number of a sample: its random numbers
    batch_size: int = 16  # samples computed together; affects time and memory alone
    precision: str = "fp64"  # fp64, or fp32: faster, and may depend on the batch
    output: str | None = path(stream=STDOUT)  # a file; null: in samples/ of the run

"""`headwise sample run=FOLDER`: draw samples from a density model."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from headwise.config.instantiate import instantiate
from headwise.config.sampling import SampleConfig
from headwise.data.conversion import progress_bar
from headwise.decode.sampling import Sampling, draw_samples
from headwise.errors import DataError, refuse, require
from headwise.files import check_output
from headwise.model.single import SingleStack
from headwise.tasks.loading import load_selected
from headwise.tasks.samples import Samples, samples_path

PRECISIONS = ("fp64", "fp32")

log = logging.getLogger(__name__)


def sample(config: SampleConfig) -> None:
    """Draw samples batch by batch, print each batch, and write all to one file."""
    sampling = _sampling(config)
    text = _prompt_text(config)
    if config.output is not None:
        check_output(config.output)
    run = load_selected(config.run, config)
    samples = run.task.samples(run.config, run.folder)
    prompt = _prompt(text, samples)
    n_tokens = config.length or samples.window - len(prompt)
    if len(prompt) + n_tokens > samples.window:
        log.info("longer than data.window=%d: see `length` in --help", samples.window)
    model = run.model.double() if config.precision == "fp64" else run.model
    assert isinstance(model, SingleStack)
    output_map = instantiate(run.config.loss, "loss").output_map
    settings = n_tokens, sampling, samples.window, samples.barred
    rows: list[list[int]] = []
    with progress_bar("sample", config.progress, config.n * n_tokens, " tokens") as bar:
        for first in range(1, config.n + 1, config.batch_size):
            numbers = range(first, min(first + config.batch_size, config.n + 1))
            prompts = [prompt] * len(numbers)
            batch = draw_samples(model, output_map, prompts, numbers, *settings, bar.update)
            sys.stdout.buffer.write(samples.shown(batch, first).encode())
            sys.stdout.buffer.flush()
            rows += batch
    stem = f"{run.checkpoint.stem}-seed{config.seed}"
    path = Path(config.output) if config.output else samples_path(run.folder, stem, samples)
    samples.write(rows, path.resolve())
    log.info("written to %s", path)


def _sampling(config: SampleConfig) -> Sampling:
    """Check the settings and return those of the draws."""
    for key in ("n", "batch_size"):
        require(getattr(config, key) >= 1, key, "at least 1", getattr(config, key))
    length = config.length
    require(length is None or length >= 1, "length", "null or at least 1", length)
    if config.precision not in PRECISIONS:
        raise refuse("precision", config.precision, PRECISIONS)
    return Sampling(config.temperature, config.top_k, config.top_p, config.seed)


def _prompt_text(config: SampleConfig) -> str | None:
    """Text of the prompt; None without."""
    both = config.prompt is not None and config.prompt_file is not None
    require(not both, "prompt_file", "null with prompt=", config.prompt_file)
    text, origin = config.prompt, "prompt"
    if config.prompt_file is not None:
        origin = f"prompt_file={config.prompt_file}"
        try:
            text = Path(config.prompt_file).read_bytes().decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{origin} is not UTF-8 ({error})") from error
        except OSError as error:
            raise DataError(f"{origin} cannot be read: {error.strerror}") from error
    if text == "":
        raise DataError(f"{origin} is empty; without a prompt, samples are of the data")
    return text


def _prompt(text: str | None, samples: Samples) -> list[int]:
    """Ids of the prompt, fewer than the model reads at once."""
    ids = [] if text is None else samples.prompt(text)
    if len(ids) >= samples.window:
        raise DataError(
            f"the prompt has {len(ids)} tokens; at most {samples.window - 1} fit before a drawn "
            f"one into the model's context (data.window={samples.window}): shorten it"
        )
    return ids

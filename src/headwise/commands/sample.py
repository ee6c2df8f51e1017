"""`headwise sample run=FOLDER`: draw samples from a density model."""

from __future__ import annotations

import logging
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from headwise.config.commands import SampleConfig
from headwise.data.loader import windows_per_batch
from headwise.decode.sampling import Sampling, draw_samples
from headwise.errors import DataError, refuse, require
from headwise.files import STDOUT, check_output, is_stream
from headwise.progress import progress_bar
from headwise.runs.folder import RunFolder
from headwise.tasks.load import load_selected
from headwise.tasks.stream.samples import Samples, samples_path

PRECISIONS = ("fp64", "fp32")
PROMPTS = ("prompt", "prompt_file", "prompt_split")

log = logging.getLogger(__name__)


def sample(config: SampleConfig) -> None:
    """Draw samples batch by batch, print each batch of text, and write all to files."""
    sampling = _sampling(config)
    _check_prompt(config)
    if config.output is not None:
        check_output(config.output)
    else:
        RunFolder.existing(config.run).check_writable("set output=FILE, or ")
    run = load_selected(config.run, config, "sample")
    samples: Samples[Any] = run.task.samples(run.folder)
    output = config.output or ""
    fits = not output or is_stream(output) or Path(output).suffix.lower() == samples.suffix
    require(fits, "output", f"a {samples.suffix} file with this data", config.output)
    is_one = not is_stream(output) or samples.suffix != ".wav" or config.n == 1
    require(is_one, "n", f"1 with music and output={output}", config.n)
    prompts = _prompts(config, samples)
    n_prompt = len(prompts[0])
    n_tokens = samples.n_tokens(n_prompt, config.length)
    longest = min(n_prompt + n_tokens, samples.size)
    n_rows = windows_per_batch(config.max_tokens or sys.maxsize, longest)
    batch_size = min(config.batch_size, n_rows)
    if n_prompt + n_tokens > samples.size:
        log.info("longer than data.window=%d: see `length` in --help", samples.size)
    model = run.model.double() if config.precision == "fp64" else run.model
    output_map = run.task.loss.output_map
    rows: list[list[int]] = []
    with progress_bar("sample", config.progress, config.n * n_tokens, " tokens") as bar:
        settings = {"advance": bar.update, **samples.settings}
        for first in range(0, config.n, batch_size):
            of_batch = prompts[first : first + batch_size]
            numbers = range(first + 1, first + 1 + len(of_batch))
            batch = draw_samples(
                model, output_map, of_batch, numbers, n_tokens, sampling, **settings
            )
            sys.stdout.buffer.write(samples.shown(batch, first + 1).encode())
            sys.stdout.buffer.flush()
            rows += batch
    if output == STDOUT and samples.suffix == ".txt":  # it is printed
        return
    stem = f"{run.checkpoint.stem}-seed{config.seed}" + ("-prompt" if n_prompt else "")
    path = Path(output) if output else samples_path(run.folder, stem, samples)
    for written in samples.write(rows, path if is_stream(path) else path.resolve(), n_prompt):
        log.info("written to %s", written)


def _sampling(config: SampleConfig) -> Sampling:
    """Check the settings and return those of the draws."""
    if config.precision not in PRECISIONS:
        raise refuse("precision", config.precision, PRECISIONS)
    return Sampling(config.temperature, config.top_k, config.top_p, config.seed)


def _check_prompt(config: SampleConfig) -> None:
    """Refuse two prompts, and a file that cannot be read."""
    chosen = _chosen(config)
    for key in chosen[1:]:
        require(False, key, f"null with {chosen[0]}=", getattr(config, key))
    need = f"null without {', '.join(PROMPTS)}"
    require(bool(chosen) or not config.prompt_length, "prompt_length", need, config.prompt_length)
    if config.prompt_file is not None and not is_stream(config.prompt_file):
        try:
            open(config.prompt_file, "rb").close()
        except OSError as error:
            message = f"prompt_file={config.prompt_file} cannot be read: {error.strerror}"
            raise DataError(message) from error


def _chosen(config: SampleConfig) -> list[str]:
    """Keys of the prompts that are set."""
    return [key for key in PROMPTS if getattr(config, key) is not None]


def _prompts(config: SampleConfig, samples: Samples[Any]) -> list[list[int]]:
    """Ids of the prompt of each sample, all of one length, fewer than those of a sample."""
    rows = [samples.ids(content) for content in _contents(config, samples)]
    if not rows:
        return [[]] * config.n
    shortest = min(map(len, rows))
    if shortest == 0:
        (key,) = _chosen(config)
        raise DataError(
            f"{key}={getattr(config, key)} is an empty prompt; without a prompt, samples are of "
            "the data"
        )
    length = config.prompt_length or samples.prompt_length or shortest
    allowed = f"at most {shortest}, the tokens of the prompt"
    require(length <= shortest, "prompt_length", allowed, length)
    if length >= samples.size:
        raise DataError(
            f"the prompt has {length} tokens; at most {samples.size - 1} fit before a drawn one "
            f"({samples.limit}): shorten it, or set prompt_length"
        )
    if shortest < max(map(len, rows)):
        log.info("every prompt has %d tokens, as many as the shortest piece", length)
    return [row[:length] for row in rows] * (config.n // len(rows))


def _contents(config: SampleConfig, samples: Samples[Any]) -> list[bytes]:
    """The prompt for all samples, one for each, or none."""
    if config.prompt is not None:
        return [samples.prompt(config.prompt)]
    if config.prompt_file is not None:
        return [samples.read(Path(config.prompt_file))]
    if config.prompt_split is None:
        return []
    length = config.prompt_length or samples.size // 2
    documents = samples.documents(config.prompt_split)
    contents = [document[:length] for document in islice(documents, config.n)]
    allowed = f"at most the {len(contents)} documents of prompt_split={config.prompt_split}"
    require(len(contents) == config.n, "n", allowed, config.n)
    return contents

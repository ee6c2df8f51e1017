"""Commands in this process, and the small run that their tests share."""

from __future__ import annotations

import copy
import functools
import json
import logging
import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from headwise import cli
from headwise.config.register import config_dir, register, typed

WORDS = {
    "Hund": "dog", "Katze": "cat", "Haus": "house", "Baum": "tree", "Auto": "car", "Kind": "child",
    "sieht": "sees", "findet": "finds", "kennt": "knows",
}  # fmt: skip
# Two updates of the smallest model there is, without W&B.
SMALL = (
    "data=files", "data.source=de", "data.target=en", "tokenizer.vocab_size=60",
    "model.d_model=16", "model.n_heads=2", "model.d_ff=32", "model.encoder_layers=1",
    "model.decoder_layers=1", "trainer=debug", "trainer.progress=false", "trainer.precision=fp32",
    "decode.beam=2", "decode.max_length_extra=3", "tracker=none",
)  # fmt: skip


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs `headwise COMMAND …` as a user would, but without a new process."""

    def __init__(self, streams, patch):
        self._streams, self._patch = streams, patch

    def __call__(self, command, *arguments):
        self._streams.readouterr()
        code = exit_code(self._patch, command, *arguments)
        out, err = self._streams.readouterr()
        return CommandResult(code, out, err)

    def ok(self, command, *arguments):
        """Run a command that must succeed."""
        result = self(command, *arguments)
        assert result.code == 0, result
        return result


def exit_code(patch, command, *arguments):
    """Run a command in this process and return its exit code."""
    patch.setenv("HYDRA_FULL_ERROR", "0")
    compose_once(patch)
    patch.setattr(sys, "argv", ["headwise", command, *arguments])
    GlobalHydra.instance().clear()
    with _restored_logging():
        try:
            cli.main()
        except SystemExit as exit_error:
            return int(exit_error.code or 0)
    return 0


def compose_once(patch):
    """Skip Hydra's second composition, which only reads hydra.mode."""
    patch.setattr("hydra._internal.hydra.Hydra.get_mode", lambda *_, **__: None)


def assert_rejected(result, code, *expected):
    """Assert that stderr is one message of headwise that contains every `expected` text."""
    assert result.code == code, result
    assert "Traceback" not in result.out + result.err
    lines = result.err.splitlines()
    assert lines, result
    assert lines[0].startswith("headwise: ")
    assert sum(line.startswith("headwise: ") for line in lines) == 1
    for text in expected:
        assert text in "\n".join(lines), result.err


@contextmanager
def _restored_logging():
    """Restore the handlers: Hydra's hold captured streams, which are closed after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:], root.level = handlers, level
        logging.getLogger("hydra").handlers.clear()


@contextmanager
def composer():
    """Yield a function from overrides to the composed config."""
    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):

        @functools.cache
        def cached_compose(name, overrides):
            return compose(name, overrides=list(overrides))

        def make(overrides, name="train"):
            return copy.deepcopy(cached_compose(name, tuple(overrides)))

        yield make


def write_corpus(folder, n_train=200, seed=1):
    """German-English sentences of three words: train, valid, test_a and test_b."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = random.Random(seed)
    nouns, verbs = list(WORDS)[:6], list(WORDS)[6:]
    for split, n_pairs in (("train", n_train), ("valid", 6), ("test_a", 5), ("test_b", 4)):
        sentences = [
            [chosen.choice(nouns), chosen.choice(verbs), chosen.choice(nouns)]
            for _ in range(n_pairs)
        ]
        source = "".join(" ".join(words) + "\n" for words in sentences)
        target = "".join(" ".join(WORDS[word] for word in words) + "\n" for words in sentences)
        (folder / f"{split}.de").write_text(source, encoding="utf-8")
        (folder / f"{split}.en").write_text(target, encoding="utf-8")
    return folder


def break_alignment(text):
    """Shorten the target side of the training text and return its file name."""
    (text / "train.en").write_text("one line\n", encoding="utf-8")
    return "train.en"


def without_hashes(path):
    """Rewrite a results file as version 0.1.0 had it, and return its content before."""
    content, old = read_json(path), read_json(path)
    for entry in (entry for scores in old["scores"].values() for entry in scores.values()):
        del entry["content"], entry["items"]
    path.write_text(json.dumps(old))
    return content


def write_text_corpus(folder):
    """Text in one language, for density modelling: train, valid and test."""
    for split, n in (("train", 40), ("valid", 3), ("test", 2)):
        lines = "".join(f"Zeile {i}: der Hund sieht das {i}. Häuschen.\n" for i in range(n))
        (folder / f"{split}.txt").write_text(lines, encoding="utf-8")
    return folder


def small_overrides(folder, *more):
    """The command line of the small run on `folder/text`, written to `folder/outputs`."""
    paths = (f"data.dir={folder / 'text'}", f"paths.outputs={folder / 'outputs'}")
    return [*SMALL, *paths, *more]


def train_with(overrides):
    """Train a run in this process and return its folder."""
    from headwise.commands.train import train

    with composer() as make:
        run = train(typed(make(overrides)), list(overrides))
    assert run is not None
    return run


def train_small(folder, *more):
    """Train the small run in this process and return its folder."""
    if not (folder / "text").is_dir():
        write_corpus(folder / "text")
    return train_with(small_overrides(folder, *more))


def run_folders(outputs):
    """Every run folder below `outputs`."""
    return sorted(path.parent for path in outputs.glob("*/*/config.yaml"))


def read_json(path):
    """Content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_results(run, name="results-auto"):
    """The results file of an evaluation."""
    return read_json(run / f"{name}.json")


def change_config(run, **changes):
    """Write dotted keys into the run's config.yaml, as if edited by hand."""
    config = OmegaConf.load(run / "config.yaml")
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    OmegaConf.save(config, run / "config.yaml")


def write_sentence(folder, split):
    """Write a split of one sentence pair; create the folder if it is missing."""
    folder.mkdir(exist_ok=True)
    for code, line in (("de", "Hund sieht Haus"), ("en", "dog sees house")):
        (folder / f"{split}.{code}").write_text(f"{line}\n", encoding="utf-8")


def page_data(run):
    """The data of the page of a run."""
    page = (run / "page.html").read_text(encoding="utf-8")
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])

"""What a run keeps of its config: fingerprint, folder, identity, environment."""

import getpass
import os
import pwd
import runpy
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from headwise.config.instantiate import as_container
from headwise.config.register import typed
from headwise.config.schema import TokenizerConfig
from headwise.data.tokenizer import TokenizerPair
from headwise.data.tokenizer_training import train_tokenizer
from headwise.errors import ConfigError, RunError
from headwise.files import machine_cache_dir
from headwise.runs import environment
from headwise.runs.environment import complete_environment
from headwise.runs.folder import N_DIGITS, RunFolder, fingerprint, slug
from headwise.tasks.check import identity


@pytest.fixture(scope="module")
def fingerprint_of(make):
    """Map overrides to a fingerprint."""
    return lambda *overrides: fingerprint(as_container(make(overrides)), {})


def test_fingerprint_ignores_settings_without_effect(fingerprint_of):
    overrides = (
        "paths.outputs=/elsewhere",
        "tracker=none",
        "+tracker.project=other",
        "experiment_name=other",
        "data.dir=/elsewhere",
        "data.test=[valid]",
        "data.tasks=[translation,density]",
        "trainer.device=cuda",
        "trainer.n_workers=3",
        "trainer.log_every=7",
        "trainer.max_updates=99999",
        "decode.max_tokens=512",
        "decode.n_best=2",
        "trainer.compile=true",
        "trainer.head_sentences=7",
        "data.vocab_size=2000",  # the default value
        "seed=1",
        "init_from=/a/run",  # its weights are in the fingerprint
    )
    assert fingerprint_of(*overrides) == fingerprint_of()


@pytest.mark.parametrize(
    "override",
    [
        "attention=softmax",
        "attention@sites.cross=softmax",
        "model.lr=0.5",  # the optimizer follows it
        "data.vocab_size=1000",  # the tokenizer follows it
        "trainer.validate_every=7",
        "decode.beam=10",
        "seed=2",
    ],
)
def test_fingerprint_depends_on_settings_of_the_run(fingerprint_of, override):
    assert fingerprint_of(override) != fingerprint_of()


def test_fingerprint_ignores_suggestions(fingerprint_of):
    text = ("data=text", "data.stride=8", "data.label_smoothing=0.0")
    other = ("data=text", "data.stride=9", "data.label_smoothing=0.2", "loss.label_smoothing=0.0")
    assert fingerprint_of(*text) == fingerprint_of(*other)
    strided = "pattern=strided"
    assert fingerprint_of(*text, strided) != fingerprint_of(*other, strided)


def test_fingerprint_depends_on_max_updates_of_cosine_schedules(fingerprint_of):
    cosine = "scheduler=cosine"
    assert fingerprint_of(cosine, "trainer.max_updates=99") != fingerprint_of(
        cosine, "trainer.max_updates=100"
    )


def test_order_of_overrides_does_not_matter(fingerprint_of):
    overrides = ["attention=softmax", "seed=3", "model.dropout=0.2"]
    assert fingerprint_of(*overrides) == fingerprint_of(*reversed(overrides))
    assert slug(overrides) == slug(reversed(overrides))


IDENTITY, SETTINGS = "0123456789abcdef", {"seed": 3, "trainer": {"max_updates": 4}}


@pytest.fixture
def started(tmp_path):
    """A run of `SETTINGS` that has started."""
    folder = RunFolder.locate(tmp_path, ["seed=3"], IDENTITY, SETTINGS)
    folder.make()
    folder.describe(SETTINGS, ["seed=3"])
    folder.write_json("data.json", {"identity": IDENTITY})
    return folder


def test_copy_beside_a_run_is_not_resumed(started):
    def located(*more, identity=IDENTITY):
        settings = {**SETTINGS, "trainer": {"max_updates": 9}}
        return RunFolder.locate(run.parent, ["seed=3", *more], identity, settings).path

    run = started.path
    assert located("trainer.accumulate=1") == run
    assert located(identity="f" * N_DIGITS) != run
    backup = shutil.copytree(run, run.parent / f"backup-{run.name}")  # before it by name
    assert located() == run
    with pytest.raises(RunError, match="are copies of one run"):
        located("trainer.accumulate=1")
    shutil.rmtree(run)
    assert located() == backup


def test_folder_of_another_run_is_refused_whatever_its_name_says(started):
    started.write_json("data.json", {"identity": "f" * N_DIGITS})  # of another text
    with pytest.raises(RunError, match="but another identity"):
        RunFolder.locate(started.path.parent, ["seed=3"], IDENTITY, SETTINGS)
    started.describe({**SETTINGS, "seed": 4}, [])
    with pytest.raises(RunError, match="but another seed"):
        RunFolder.locate(started.path.parent, ["seed=3"], IDENTITY, SETTINGS)


def test_text_tokenizers_and_varied_costs_are_part_of_the_identity(make, tmp_path):
    def of(text, *swept, folder=None):
        given = ("tokenizer=given", f"tokenizer.folder={folder}") if folder else ()
        config = make(["trainer.max_updates=7", "model.recompute=true", *given])
        corpus = SimpleNamespace(hashes=lambda: [text])
        return identity(typed(config), as_container(config), corpus, swept)

    def of_words(words, folder):
        sizes = TokenizerConfig(kind="char", vocab_size=99)
        tokenizer = train_tokenizer(iter([words] * 9), sizes)
        folder.mkdir(exist_ok=True)
        TokenizerPair(tokenizer, tokenizer, joint=True).save(folder)
        return of("a", folder=folder)["identity"]

    swept = of("a", "trainer.max_updates", "model.recompute", "seed", "paths.outputs", "data.dir")
    assert swept.pop("swept") == {"model.recompute": True, "trainer.max_updates": 7}
    one = of_words("ab cd", tmp_path / "one")
    assert of_words("ab cd", tmp_path / "other") == one, "the content, not the folder"
    another = of_words("ab ce", tmp_path / "one")
    identities = {of("a")["identity"], of("b")["identity"], swept["identity"], one, another}
    assert len(identities) == 5


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "run"),
        (["tracker=none", "paths.outputs=/x", "experiment=demo", "hydra/launcher=x"], "run"),
        (["data.test=[a,b]", "~tracker.tags"], "run"),
        (["sites.cross.chunk_size=8", "+attention.chunk_size=8", "decode.max_tokens=9"], "run"),
        (["seed=1", "attention=softmax"], "attention-softmax_seed-1"),
        (["seed=1", "model=tiny", "seed=2"], "model-tiny_seed-2"),
        (["attention@sites.cross=softmax"], "attention-sites.cross-softmax"),
        (["trainer.device=cpu", "trainer=cpu"], "trainer-cpu"),
        (["optimizer.betas=[0.9,0.98]"], "optimizer.betas-0.9-0.98"),
    ],
)
def test_slug_lists_the_overrides(overrides, expected):
    assert slug(overrides) == expected


@pytest.mark.parametrize("letter", ["x", "ä", "語", "🜚"])
def test_slug_fits_into_a_file_name(letter, tmp_path):
    overrides = [f"+attention.note{i}='{letter * 90},=+/ {letter}'" for i in range(5)]
    name = slug(overrides)
    assert len(f"{name}-01234567".encode()) <= 120
    assert not set(name) & set("=,+/' @\\\0\n")
    (tmp_path / name).mkdir()


def test_folder_without_a_run_is_named(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RunError, match=f"init_from={folder} holds no run"):
            RunFolder.existing(folder, "init_from")


def test_fingerprint_depends_on_save_every_only_with_averaging():
    def of(average, save_every):
        return fingerprint({"trainer": {"average": average, "save_every": save_every}}, {})

    assert of(0, 100) == of(0, 200)
    assert of(5, 100) != of(5, 200)


@pytest.fixture
def nameless(monkeypatch):
    """A user without an entry in the database of users, as in many containers."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError("uid not found")))
    return monkeypatch


def test_user_without_a_name_gets_one(nameless):
    nameless.setenv("HOME", "/home/x")
    complete_environment()
    assert getpass.getuser() == f"uid{os.getuid()}"


def test_user_without_a_home_is_rejected(nameless):
    nameless.setenv("HOME", "")
    with pytest.raises(ConfigError, match="set HOME=FOLDER"):
        complete_environment()


def test_figures_need_no_backend_of_a_notebook(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    complete_environment()
    assert os.environ["MPLBACKEND"] == "agg"


@pytest.mark.parametrize("name", ["HEADWISE_CACHE", "HEADWISE_DATA", "HEADWISE_NATIVE"])
def test_empty_variables_are_unset(monkeypatch, name):
    monkeypatch.setenv(name, "")
    assert machine_cache_dir() != Path()
    complete_environment()
    assert name not in os.environ


@pytest.fixture
def checkout(tmp_path):
    """Runs git in a repository that has one commit of one file."""

    def git(*arguments):
        identity = ("-c", "user.name=n", "-c", "user.email=e@f", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    shutil.copy(environment.__file__, tmp_path / "mine.py")
    git("add", "mine.py")
    git("commit", "-qm", "mine")
    return git


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commit_is_that_of_the_checkout_with_the_file(checkout, tmp_path):
    def commit_of(module):
        return runpy.run_path(str(module))["git_commit"]()

    (tmp_path / ".venv").mkdir()
    installed = shutil.copy(environment.__file__, tmp_path / ".venv")
    assert commit_of(installed) is None  # a virtual environment inside a user's repository
    expected = {"commit": checkout("rev-parse", "HEAD"), "changed": True}
    assert commit_of(tmp_path / "mine.py") == expected

"""A kind of data of a user: a class with a dataclass of its settings, and a yaml."""

import pytest

from command_line import assert_rejected, read_json, run_folders
from headwise.runs.record import Record

CODE = '''
from dataclasses import dataclass

from headwise.config.data import DensityDataConfig
from headwise.data.file_corpus import FileCorpus


@dataclass
class VerseConfig(DensityDataConfig):
    ending: str = "txt"


class Verses(FileCorpus):
    """Lines of SPLIT.ENDING, in upper case; each is a document."""

    config: VerseConfig

    def files(self, split):
        return [self.folder / f"{split}.{self.config.ending}"]

    def settings(self, split):
        return "upper case"

    def chunks(self, split):
        return self.path(split).read_bytes().upper().splitlines(keepends=True)
'''
YAML = """
defaults:
  - /schema/{module}.Verses@_here_
  - _self_
  - override /task@_global_.task: density
  - override /decode@_global_.decode: windows
  - override /tokenizer@_global_.tokenizer: byte
name: verses
licence: none
window: 16
"""
MODEL = (
    "model.d_model=16", "model.n_heads=2", "model.d_ff=32", "model.encoder_layers=1",
    "model.decoder_layers=1", "trainer=debug", "trainer.progress=false", "tracker=none",
    "trainer.precision=fp32",
)  # fmt: skip


@pytest.fixture
def verses(tmp_path, monkeypatch, request):
    """The arguments that select the data."""
    module = f"verses_{request.node.name.removeprefix('test_')}"
    (tmp_path / f"{module}.py").write_text(CODE)
    (tmp_path / "choices" / "data").mkdir(parents=True)
    (tmp_path / "choices" / "data" / "verses.yaml").write_text(YAML.format(module=module))
    for split, n in (("train", 20), ("valid", 4), ("test", 3)):
        (tmp_path / f"{split}.poem").write_text("Der Mond ist aufgegangen\n" * n)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HEADWISE_PLUGINS", module)
    paths = f"data.dir={tmp_path}", f"paths.outputs={tmp_path}/outputs"
    return ["--config-dir", f"{tmp_path}/choices", "data=verses", *paths, *MODEL]


def test_own_data_are_trained_on_and_evaluated(headwise, tmp_path, verses, monkeypatch):
    headwise.ok("train", *verses, "data.ending=poem")
    (run,) = run_folders(tmp_path / "outputs")
    assert read_json(run / "data.json")["train"]["bytes"] == 20 * 25
    config = Record(run).config
    assert (type(config.data).__name__, config.data.ending) == ("VerseConfig", "poem")
    headwise.ok("evaluate", f"run={run}", "data.test=[valid]")
    headwise.ok("sample", f"run={run}", "n=1", "length=5")
    monkeypatch.delenv("HEADWISE_PLUGINS")
    assert_rejected(headwise("evaluate", f"run={run}"), 2, "data._target_", "HEADWISE_PLUGINS")


def test_settings_of_own_data_are_checked(headwise, verses):
    message = "Did you mean data.ending?"
    assert_rejected(headwise("train", *verses, "data.endings=poem"), 2, message)
    assert_rejected(headwise("train", *verses, "data.window=few"), 2, "data.window")

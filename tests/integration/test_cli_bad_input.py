"""Wrong input is rejected before data is read, with one message, an exit code, no traceback."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from command_line import (
    CommandLine,
    assert_rejected,
    break_alignment,
    read_json,
    run_folders,
    small_overrides,
    write_corpus,
)
from headwise import records
from slow_marks import slow_but

# override -> part of the message with the correction
CONFIG_ERRORS = {
    # unknown keys, at every level
    "trainr.max_updates=3": "Did you mean trainer.max_updates?",
    "attention@sites.cros=softmax": "attention@sites.cross",
    "atention=softmax": "Did you mean attention?",
    "tracker=none tracker.project=x": "tracker=wandb, which has tracker.project",
    "pattern=window pattern.strid=3": "pattern=fixed|strided, which has pattern.stride",
    "optimizer._target_=torch.optim.SGD optimizer.momentm=0": "Did you mean +optimizer.momentum?",
    # no key=value
    "seed": "'seed' is not key=value",
    # removed keys and groups
    "~tracker": "set tracker=…",
    "~data.train": "Error merging override ~data.train",
    "trainer.max_updates=1,2": "--multirun",
    # types
    "trainer.max_updates=abc": "trainer.max_updates=abc",
    "data.source=null": "data.source: null is not text; put it in quotes",
    "data.test=['a',1e3]": "data.test[1] must be text, got 1000.0 (float): put it in quotes",
    # ranges
    "trainer.valid_sentences=0": "at least 1 with trainer.monitor=bleu",
    "model.encoder_layers=10000000": "model.encoder_layers must be from 1 to 1000",
    "seed=1\udcff": "seed=1? is not UTF-8",
    "model.n_heads=3": "divisor of model.d_model=16",
    # choices
    "attention=sofmax": "Did you mean attention=softmax?",
    "experiment=correia2019": "experiment=correia2019/iwslt17|kftt|wmt14_en_de|wmt16_ro_en?",
    "trainer.device=gpu": "trainer.device=cuda",
    "tokenizer.joint=false": "model.share_embeddings",
    "data.valid=../valid": "data.valid",
    "sites.cross=softmax": "attention@sites.cross=softmax",
    "attention@sites.cross=linformer tokenizer.max_sentence_tokens=300": "cross.max_length=301",
    "attention=mixed attention.choices=3": "a mapping or null",
    "attention.instead.decoder_self=sofmax attention=linformer": "Did you mean softmax?",
    "+attention.instead={self:softmax}": "encoder_self",
    "repulsion.layers=[1]": "repulsion=spos|svgd",
    "attention=linear scaling=length": "scaling_sites",
    "attention@sites.decoder_self=linformer": "Choose another",
    "activation._target_=headwise.model.blocks.PreNorm": "must be a Activation, got PreNorm",
    # targets and commands
    "attention._target_=os.system": "HEADWISE_PLUGINS",
}

# of the same kinds, or rare
MORE_CONFIG_ERRORS = {
    "attention=null": "attention must be one of",
    "data.test=[[a]]": "a list of text",
    "seed=99999999999999999999": "below 2^63",
    "trainer.max_updates=99999999999999999999": "trainer.max_updates must be below 2^53",
    "attention.alpha_init=3": "in (1.01, 2.0)",
    "model=multi30k": "Did you mean data=multi30k?",
    "experiment=correia2019/shared": "Could not find 'experiment/correia2019/shared'",
    "data.target=../../etc/passwd": "data.target",
    "experiment_name=a/b": "experiment_name must be a plain name",
    "loss.alpha=1.3": "loss=entmax",
    "attention=linformer model.cls_tokens=60": "attention.max_length=",
    "init=scaled": "model.share_embeddings",
}


@pytest.mark.parametrize("override", [*CONFIG_ERRORS, *slow_but(MORE_CONFIG_ERRORS)])
def test_invalid_setting_is_rejected(override: str, headwise: CommandLine, tmp_path: Path) -> None:
    arguments = small_overrides(tmp_path)  # its data.dir does not exist
    overrides = [override] if override.startswith("+") else override.split()
    message = {**CONFIG_ERRORS, **MORE_CONFIG_ERRORS}[override]
    assert_rejected(headwise("train", *arguments, *overrides), 2, message)
    assert not (tmp_path / "outputs").exists()


def test_variables_of_jobs_are_set_in_the_shell(headwise: CommandLine) -> None:
    result = headwise("train", "-m", "+hydra.job.env_set.WANDB_API_KEY=secret", "seed=1,2")
    assert_rejected(result, 2, "set the variable in the shell")
    assert "=secret" not in result.out + result.err


def break_encoding(text: Path) -> str:
    lines = (text / "train.de").read_bytes().splitlines(keepends=True)
    lines[2] = b"caf\xe9\n"
    (text / "train.de").write_bytes(b"".join(lines))
    return "train.de, line 3: not UTF-8 (byte 0xe9"


def empty_training_text(text: Path) -> str:
    for code in ("de", "en"):
        (text / f"train.{code}").write_text("", encoding="utf-8")
    return "train"


def remove_validation_text(text: Path) -> str:
    for code in ("de", "en"):
        (text / f"valid.{code}").unlink()
    return "valid"


def break_test_set(text: Path) -> str:
    (text / "test_b.en").write_text("one line\n", encoding="utf-8")
    return "test_b.en"


@pytest.mark.parametrize(
    "break_text",
    [break_alignment, break_encoding, empty_training_text, remove_validation_text, break_test_set],
)
def test_invalid_text_is_rejected(break_text: Any, headwise: CommandLine, tmp_path: Path) -> None:
    message = break_text(write_corpus(tmp_path / "text"))
    assert_rejected(headwise("prepare", *small_overrides(tmp_path)), 1, message)


@pytest.mark.parametrize(
    ("split", "code", "message"),
    [
        ("valid", "en", "target line 2 of valid has"),
        ("test_b", "de", "source line 2 of test_b has"),
    ],
)
def test_line_longer_than_positions_is_rejected_before_training(
    split: str, code: str, message: str, headwise: CommandLine, tmp_path: Path
) -> None:
    path = write_corpus(tmp_path / "text") / f"{split}.{code}"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[1] = " ".join([lines[1]] * 40)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    limited = ["positions=learned", "positions.max_positions=50"]
    arguments = small_overrides(tmp_path, *limited, "tokenizer.max_sentence_tokens=40")
    assert_rejected(headwise("train", *arguments), 1, message, "at most 50")
    (folder,) = run_folders(tmp_path / "outputs")
    assert not list((folder / "checkpoints").iterdir())


def test_target_as_long_as_positions_is_accepted(headwise: CommandLine, tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "text") / "valid.en"
    lines = path.read_text(encoding="utf-8").splitlines()
    (tmp_path / "text" / "test_b.en").write_text(f"{' '.join(lines[:1] * 40)}\n" * 4)
    path.write_text("\n".join([" ".join(lines[:1] * 20), *lines[1:]]) + "\n", encoding="utf-8")
    limited = ["positions=learned", "tokenizer.max_sentence_tokens=40"]
    short = headwise("train", *small_overrides(tmp_path, *limited, "positions.max_positions=50"))
    (n_tokens,) = re.findall(r"has (\d+) tokens with eos", short.err)
    long_enough = small_overrides(tmp_path, *limited, f"positions.max_positions={n_tokens}")
    logged = headwise.ok("train", *long_enough).out
    (results,) = tmp_path.glob("outputs/*/*/results.json")
    scores = read_json(results)["scores"]
    assert {name for name in scores if "loss" in scores[name]} == {"valid", "test_a"}
    note = scores["test_b"]["note"]["loss"]  # longer than the positions
    assert f"positions for {n_tokens}" in note
    assert note in logged
    assert "test_b/note" not in records(results.parent)


def test_prepare_checks_tokenizer_before_data(headwise: CommandLine, tmp_path: Path) -> None:
    result = headwise("prepare", *small_overrides(tmp_path, "tokenizer.character_coverage=2"))
    assert_rejected(result, 2, "tokenizer.character_coverage", "in [0.98, 1]", "got 2")


@pytest.mark.parametrize(
    ("command", "advice"),
    [("train", " Lower trainer.max_tokens"), ("sample", " Lower max_tokens."), ("page", "")],
)
def test_out_of_memory_is_reported_with_keys_of_the_command(
    headwise: CommandLine, command: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **others: object) -> None:
        raise RuntimeError("can't allocate memory: you tried")

    monkeypatch.setattr(f"headwise.commands.{command}.{command}", fail)
    result = headwise(command, *([] if command == "train" else ["run=x"]))
    assert_rejected(result, 1, f"out of memory (can't allocate memory: you tried).{advice}")
    assert ("Lower" in result.err) == bool(advice)


def test_unexpected_errors_have_a_traceback(
    headwise: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr("headwise.commands.train.checked_task", fail)
    result = headwise("train", *small_overrides(tmp_path))
    assert (result.code, "Traceback" in result.err) == (1, True)
    assert "LookupError: a defect" in result.err


# command -> exit code, parts of the message; RUN is a trained run, TEXT its corpus
REJECTED_COMMANDS = {
    # no settings
    "evaluate --run x": (2, "set keys as key=value", "run=…"),
    "translate run=outputs/a outputs/b": (2, "is not key=value", "part of 'run=outputs/a'"),
    "train -m hydra/launcher=joblib": (2, "was removed: use hydra/launcher=submitit_local"),
    "train trainer.gradient_sum=flat": (2, "trainer.gradient_sum was removed: gradients"),
    "train activation=relu,silu -m": (2, "activation=silu was removed: use activation=gelu"),
    "train task.whole_words=true": (2, "task.whole_words was removed: task=masked_lm chooses"),
    "train attention": (2, "is not key=value", "choose attention=alpha_entmax|"),
    "train data=none": (2, "data must be a DataConfig with task=translation"),
    "train data=files": (2, "data.source is missing: set data.source=…"),
    "trian": (2, "Did you mean train?"),
    "evaluate run=RUN output=RUN/config.yaml": (1, "config.yaml: File exists"),
    "runs ~runs": (2, "set runs=…"),
    "train -m seed=1,2 hydra.job.chdir=true": (2, "hydra.job.chdir must be false in a sweep"),
    # no run
    "evaluate": (2, "run is missing: set run=…"),
    "evaluate run=TEXT": (1, "run=TEXT holds no run: no config.yaml there"),
    "analyze runs=[RUN/checkpoints]": (1, "checkpoints holds no run"),
    # searches and checkpoints
    "evaluate run=RUN decode.method=greedy": (2, "use decode=greedy or decode.beam=1"),
    "evaluate run=RUN decode.beem=3": (2, "Did you mean decode.beam?"),
    "evaluate run=RUN checkpoint=bset": (1, "checkpoint=best?"),
    "evaluate run=RUN device=gpu": (2, "device=gpu is not supported, use device=cuda"),
    # evaluate
    "evaluate run=RUN data.test=[test_c]": (1, "test_a, test_b"),
    "evaluate run=RUN data.source_file=/nowhere": (2, "data.reference_file"),
    "evaluate run=RUN data={test:[test_a],source_file:a,reference_file:b}": (2, "two commands"),
    "evaluate run=RUN data.dir=/nonexistent": (1, "/nonexistent"),
    "evaluate run=RUN decode.external={a:b}": (2, "was removed: run the command on the files in"),
    "evaluate run=RUN name=results": (2, "is reserved for results.json"),
    # translate
    "translate run=RUN input=TEXT/valid.de reference=TEXT/train.en": (1, "6 source lines"),
    "translate run=RUN input=TEXT/valid.de output=TEXT": (1, "is a folder"),
    "translate run=RUN input=TEXT/valid.de buffer_size=0": (
        2, "buffer_size must be at least 1, got 0"
    ),
    # prune
    "prune run=RUN by=gate": (2, "by must be one of gates, importance", "Did you mean gates?"),
    "prune run=RUN by=gates": (1, "has no gates", "gates=hard_concrete"),
    "prune run=RUN fraction=0": (2, "fraction must be in (0, 1]", "got 0"),
    "prune run=RUN sites=[crss]": (2, "sites must be one of", "Did you mean cross?"),
    "prune run=RUN keep={cross:[[9]]}": (2, "keep.cross", "1 to 2"),
    "prune run=RUN output=there": (2, "output needs fraction, keep or by=gates"),
    "prune run=RUN fraction=0.5 keep={cross:[[1]]}": (2, "fraction and keep cannot be combined"),
    # analyze
    "analyze run=RUN positional_share=1.5": (2, "positional_share must be in (0, 1]", "got 1.5"),
    "analyze run=RUN runs=[elsewhere]": (2, "run and runs cannot be given together"),
    # table, figures, page, compare
    "table": (2, "study is missing: set study=… (alpha_settings, an2020, "),
    "table heads=true runs=[x]": (2, "heads=… needs study=NAME"),
    "table study=correia2019 seeds=[1,1]": (2, "seeds must be one or more different numbers"),
    "table study=correia2019 rows=[softmaxx]": (2, "Did you mean softmax?"),
    "table study=correia2019 runs=outputs/x": (2, "runs must be a list: set runs=[outputs/x]"),
    "table study=correia2019 'overrides=[\"a=b\"]'": (2, "does not compose"),
    "figures": (2, "run is missing: set run=… or runs=[FOLDER,…]"),
    "compare run=RUN": (2, "other is missing: set other=…"),
    "page run=RUN other=RUN": (2, "must be another run"),
    "page run=RUN output=page.txt": (2, "output=page.txt must be an html or json file"),
    "page run=RUN sentences=nowhere.de": (1, "sentences=nowhere.de not found"),
}  # fmt: skip

MORE_REJECTED_COMMANDS = {
    "analyze": (2, "run is missing: set run=… or runs=[FOLDER,…]"),
    "evaluate run=RUN checkpoint=../../x": (1, "it has auto"),
    "evaluate run=RUN name=.hidden": (2, ".hidden"),
    "translate run=RUN input=TEXT/valid.de reference=/nowhere.en": (1, "reference=/nowhere.en"),
    "prune run=RUN data.split=../valid": (2, "../valid"),
    "table study=correia2018": (2, "Did you mean study=correia2019?"),
    "figures runs=[x] sentence=a": (2, "sentence=… needs run=FOLDER"),
}  # fmt: skip


@pytest.mark.parametrize("line", [*REJECTED_COMMANDS, *slow_but(MORE_REJECTED_COMMANDS)])
def test_invalid_command_is_rejected(line: str, headwise: CommandLine, trained: Path) -> None:
    def fill_in(text: str) -> str:
        text = text.replace("RUN", str(trained))
        return text.replace("TEXT", str(trained.parents[2] / "text"))

    before = sorted(trained.parent.rglob("*"))
    code, *messages = {**REJECTED_COMMANDS, **MORE_REJECTED_COMMANDS}[line]
    assert_rejected(headwise(*shlex.split(fill_in(line))), code, *map(fill_in, map(str, messages)))
    assert sorted(trained.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "line",
    ["evaluate run={}", "runs runs=[{}]", "train experiment={}", "train experiment_name={}",
     "train tokenizer=given tokenizer.folder={}"],
)  # fmt: skip
def test_long_names_are_rejected(line: str, headwise: CommandLine) -> None:
    result = headwise(*line.format("ä" * 128).split())
    assert_rejected(result, result.code or -1)


def test_config_of_another_version_is_rejected(headwise: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("sed: 1\n", encoding="utf-8")
    assert_rejected(headwise("evaluate", f"run={tmp_path}"), 1, "config.yaml", "version")
    for text in ("a: [1\n", "data: 3\n"):
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        assert_rejected(headwise("evaluate", f"run={tmp_path}"), 1, "config.yaml", "broken")


def test_unwritable_output_folder_is_named(headwise: CommandLine, tmp_path: Path) -> None:
    write_corpus(tmp_path / "text")
    (tmp_path / "file").touch()
    settings = [o for o in small_overrides(tmp_path) if not o.startswith("paths.outputs")]
    result = headwise("train", *settings, f"paths.outputs={tmp_path}/file")
    assert_rejected(result, 1, f"{tmp_path}/file", "paths.outputs")

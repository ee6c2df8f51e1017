"""Wrong input: one clear message, an exit code, no traceback, and refused before data is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_line import (
    CommandLine,
    refused,
    run_folders,
    small_overrides,
    spoil_alignment,
    write_corpus,
)

# override -> the part of the message that says what to type
CONFIG_ERRORS = {
    # unknown keys, at every level
    "trainr.max_updates=3": "Did you mean trainer.max_updates?",
    "trainer.max_updats=3": "Did you mean trainer.max_updates?",
    "data.cleaning.max_word=3": "Did you mean data.cleaning.max_words?",
    "attention@sites.cros=softmax": "attention@sites.cross",
    "atention=softmax": "Did you mean attention?",
    "+sed=3": "Did you mean seed?",
    "+attention.alpa_init=1.3": "Did you mean attention.alpha_init?",
    "+loss.smoothing=0.1": "label_smoothing",
    # no key=value
    "seed": "'seed' is not key=value",
    "~attention": "attention is missing",
    "attention=null": "attention must be one of",
    "trainer.max_updates=1,2": "--multirun",
    # types
    "trainer.max_updates=abc": "trainer.max_updates=abc",
    "scheduler.warmup_updates=soon": "scheduler.warmup_updates must be of type int",
    "data.test=[[a]]": "a list, each of it text",
    "data.test=${seed}": "a list, each of it text",
    # ranges
    "seed=99999999999999999999": "below 2^63",
    "trainer.max_updates=0": "trainer.max_updates must be at least 1, got 0",
    "model.n_heads=3": "divisor of model.d_model=16",
    "model.dropout=1": "[0, 1)",
    "attention.alpha_init=3": "in (1.01, 2.0)",
    "decode.length_penalty=300": "in [-10, 10]",
    "decode.beam=0": "decode.beam must be at least 1, got 0",
    # choices
    "attention=sofmax": "Did you mean attention=softmax?",
    "model=multi30k": "Did you mean data=multi30k?",
    "model.norm=prre": "Did you mean pre?",
    "trainer.device=gpu": "trainer.device=cuda",
    "trainer.precision=fp16": "bf16, fp32",
    "experiment_name=../up": "'../up'",
    "tokenizer.kind=bppe": "Did you mean bpe?",
    "tokenizer.joint=false": "model.share_embeddings",
    "data.cleaning.normalise=[comma]": "romanian_comma_below",
    "data.max_train_pairs=0": "null or at least 1, got 0",
    "sites.cross=softmax": "attention@sites.cross=softmax",
    "attention@sites.cross=linformer tokenizer.max_sentence_pieces=300": "cross.max_length=301",
    "attention=mixed attention.choices=3": "null or a mapping",
    "attention=mixed attention.choices={ymish:{foo:1}}": "attention.choices.ymish.foo",
    "attention.instead.decoder_self=sofmax attention=linformer": "Did you mean softmax?",
    "+attention.instead={self:softmax}": "encoder_self",
    "+attention.instead=softmax": "site: choice",
    "loss.alpha=1.3": "loss=entmax",
    "repulsion.layers=[1]": "repulsion=spos|svgd",
    "repulsion=svgd repulsion.layers=[9]": "repulsion.layers",
    "pattern=fixed pattern.combine=heads pattern.heads=[locl]": "local?",
    "pattern=fixed model.register_tokens=2": "pattern@pattern_sites.encoder_self=none",
    "attention=linear scaling=length": "scaling_sites",
    "attention=linear pattern=fixed": "pattern_sites",
    "attention=linformer model.register_tokens=60": "attention.max_length=",
    "attention@sites.decoder_self=linformer": "Choose another",
    "model=deep model.share_embeddings=all": "model.share_embeddings",
    "model.heads={cross:[[9]]}": "from 1 to 2",
    "+decode.external.search='x {hypotheses}'": "decode.external.search",
    # targets and commands
    "attention._target_=os.system": "HEADWISE_PLUGINS",
    "+decode.external.comet='comet {hypothesis}'": "{hypotheses}?",
}


@pytest.mark.parametrize("override", CONFIG_ERRORS)
def test_a_wrong_setting_is_refused_before_data_is_read(
    override: str, headwise: CommandLine, tmp_path: Path
) -> None:
    arguments = small_overrides(tmp_path)  # whose data.dir does not exist
    overrides = [override] if override.startswith("+") else override.split()
    refused(headwise("train", *arguments, *overrides), 2, CONFIG_ERRORS[override])
    assert not (tmp_path / "outputs").exists()


def spoil_encoding(text: Path) -> str:
    lines = (text / "train.de").read_bytes().splitlines(keepends=True)
    lines[2] = b"caf\xe9\n"
    (text / "train.de").write_bytes(b"".join(lines))
    return "train.de, line 3: not UTF-8 (byte 0xe9"


def spoil_by_emptying(text: Path) -> str:
    for code in ("de", "en"):
        (text / f"train.{code}").write_text("", encoding="utf-8")
    return "train"


def spoil_by_removing(text: Path) -> str:
    for code in ("de", "en"):
        (text / f"valid.{code}").unlink()
    return "valid"


@pytest.mark.parametrize(
    "spoil", [spoil_alignment, spoil_encoding, spoil_by_emptying, spoil_by_removing]
)
@pytest.mark.parametrize("command", ["train", "prepare"])
def test_broken_data_is_told_as_it_is(
    command: str, spoil: object, headwise: CommandLine, tmp_path: Path
) -> None:
    assert callable(spoil)
    wanted = spoil(write_corpus(tmp_path / "text"))
    refused(headwise(command, *small_overrides(tmp_path)), 1, wanted)


@pytest.mark.parametrize(
    ("split", "code", "told"),
    [
        ("valid", "en", "target line 2 of valid has"),
        ("valid", "de", "source line 2 of valid has"),
        ("test_b", "de", "source line 2 of test_b has"),
    ],
)
def test_a_line_beyond_the_positions_is_found_before_training(
    split: str, code: str, told: str, headwise: CommandLine, tmp_path: Path
) -> None:
    path = write_corpus(tmp_path / "text") / f"{split}.{code}"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[1] = " ".join([lines[1]] * 40)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    limited = ["model.positions=learned", "model.max_positions=50"]
    arguments = small_overrides(tmp_path, *limited, "tokenizer.max_sentence_pieces=40")
    refused(headwise("train", *arguments), 1, told, "at most 50")
    (folder,) = run_folders(tmp_path / "outputs")
    assert not list((folder / "checkpoints").iterdir())


def test_a_target_as_long_as_the_positions_is_taken(headwise: CommandLine, tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "text") / "valid.en"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([" ".join(lines[:1] * 20), *lines[1:]]) + "\n", encoding="utf-8")
    limited = ["model.positions=learned", "tokenizer.max_sentence_pieces=40"]
    short = headwise("train", *small_overrides(tmp_path, *limited, "model.max_positions=50"))
    (told,) = re.findall(r"has (\d+) pieces with eos", short.err)
    enough = small_overrides(tmp_path, *limited, f"model.max_positions={told}")
    assert headwise("train", *enough).code == 0


def test_prepare_checks_the_tokenizer_before_data(headwise: CommandLine, tmp_path: Path) -> None:
    ended = headwise("prepare", *small_overrides(tmp_path, "tokenizer.character_coverage=2"))
    refused(ended, 2, "tokenizer.character_coverage", "in [0.98, 1]", "got 2")


def test_out_of_memory_says_what_to_lower(
    headwise: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] can't allocate memory: you tried")

    monkeypatch.setattr("headwise.train.trainer.Trainer.run", fail)
    write_corpus(tmp_path / "text")
    ended = headwise("train", *small_overrides(tmp_path))
    refused(ended, 1, "out of memory", "Lower trainer.max_tokens", "can't allocate memory")


def test_a_defect_of_ours_keeps_its_traceback(
    headwise: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr("headwise.commands.train.check", fail)
    ended = headwise("train", *small_overrides(tmp_path))
    assert ended.code == 1
    assert "Traceback" in ended.err
    assert "LookupError: a defect" in ended.err


@pytest.fixture(scope="module")
def run(trained: Path) -> Path:
    """The run itself, in which nothing here writes."""
    return trained


OF_BOTH = {
    "decode.beem=3": (2, "Did you mean decode.beam?"),
    "++decode.beem=3": (2, "Did you mean decode.beam?"),
    "decode.beam=abc": (2, "decode.beam"),
    "decode.method=beams": (2, "Did you mean beam?"),
    "checkpint=last": (2, "Did you mean checkpoint?"),
    "checkpoint=bset": (1, "checkpoint=best?"),
    "checkpoint=update_99": (1, "checkpoint=update_00000002?"),
    "checkpoint=../../x": (1, "there are"),
    "device=gpu": (2, "device must be one of auto, cpu, cuda"),
}
OF_EVALUATE = {
    "data.test=[test_c]": (1, "test_a, test_b"),
    "data.source_file=/nowhere": (2, "data.reference_file"),
    "data={test: [test_a], source_file: a, reference_file: b}": (2, "two commands"),
    "data.tets=[test_a]": (2, "Did you mean data.test?"),
    "data.dir=/nonexistent": (1, "/nonexistent"),
    "decode.external={comet: 'comet {hypothesis}'}": (2, "{hypotheses}?"),
    "name=results": (2, "results.json: give another"),
    "name=a/b": (2, "a/b"),
    "name=.hidden": (2, ".hidden"),
}


@pytest.mark.parametrize("override", [*OF_BOTH, *OF_EVALUATE])
def test_evaluate_and_translate_refuse_as_clearly(
    override: str, headwise: CommandLine, run: Path
) -> None:
    refused(headwise("evaluate", f"run={run}", override), *{**OF_BOTH, **OF_EVALUATE}[override])
    if override in ("decode.beem=3", "checkpoint=bset"):
        refused(headwise("translate", f"run={run}", override), *OF_BOTH[override])


@pytest.mark.parametrize("command", ["evaluate", "prune", "translate"])
def test_a_folder_that_is_no_run(command: str, headwise: CommandLine, run: Path) -> None:
    refused(headwise(command), 2, "run is missing: give run=…")
    refused(headwise(command, f"run={run.parent}"), 1, f"Did you mean run={run}?")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["input=/nowhere.de"], "input=/nowhere.de"),
        (["input={text}/valid.de", "reference=/nowhere.en"], "reference=/nowhere.en"),
        (["input={text}/valid.de", "reference={text}/train.en"], "6 lines"),
        (["input={text}/valid.de", "output=/nowhere/out.en"], "no folder /nowhere"),
        (["input={text}/valid.de", "output={text}"], "is a folder"),
    ],
)
def test_translate_refuses(
    arguments: list[str], wanted: str, headwise: CommandLine, run: Path
) -> None:
    text = run.parents[2] / "text"
    filled = [argument.format(text=text) for argument in arguments]
    refused(headwise("translate", f"run={run}", *filled), 1, wanted)


def test_a_config_of_another_version_is_refused(headwise: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("sed: 1\n", encoding="utf-8")
    refused(headwise("evaluate", f"run={tmp_path}"), 1, "config.yaml", "version")
    (tmp_path / "config.yaml").write_text("a: [1\n", encoding="utf-8")
    refused(headwise("evaluate", f"run={tmp_path}"), 1, "config.yaml", "broken")


NO_SETTINGS = {
    "translate run=x --input=a.de": ("settings are written key=value", "input=a.de"),
    "evaluate --run x": ("settings are written key=value", "run=…"),
    "translate run=outputs/a outputs/b": ("is not key=value", "belongs to 'run=outputs/a'"),
    "train attention": ("is not key=value", "choose attention=alpha_entmax|"),
    "train -m seed=1, 2": ("'2' is not key=value", "belongs to 'seed=1,'"),
    "train data=files": ("data.source is missing: give data.source=…",),
    "trian": ("Did you mean train?",),
}


@pytest.mark.parametrize("line", NO_SETTINGS)
def test_what_is_no_setting_is_refused_in_our_words(line: str, headwise: CommandLine) -> None:
    refused(headwise(*line.split()), 2, *NO_SETTINGS[line])


def test_a_place_that_cannot_be_written_is_named(headwise: CommandLine, tmp_path: Path) -> None:
    write_corpus(tmp_path / "text")
    (tmp_path / "file").touch()
    given = [o for o in small_overrides(tmp_path) if not o.startswith("paths.outputs")]
    ended = headwise("train", *given, f"paths.outputs={tmp_path}/file")
    refused(ended, 1, f"{tmp_path}/file", "paths.outputs")

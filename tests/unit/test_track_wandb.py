"""W&B is a copy of the logs: it never prompts, blocks or ends a training."""

import json
import logging
import os
import subprocess
import sys
import textwrap
from unittest.mock import Mock

import numpy as np
import pytest

from headwise.errors import ConfigError
from headwise.runs.folder import RunFolder
from headwise.runs.log import RunLog
from headwise.track.base import Tracker, head_metrics
from headwise.track.wandb_tracker import WandbTracker, choose_mode
from published_images import write_wav

RUN = "alpha_entmax-seed1"
HEADS = {
    "alpha": {"encoder_self": [[1.25, 1.5], [2.0, None]]},
    "density": {"cross": [[], [0.5, 0.75]]},
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home folder without keys, so that the machine's settings have no effect."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        if name != "WANDB_SERVICE":
            monkeypatch.delenv(name)
    monkeypatch.delenv("NETRC", raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(folder))
    return folder


@pytest.fixture(scope="module", autouse=True)
def _end_service():
    yield
    if "wandb" in sys.modules:
        import wandb

        wandb.teardown()


def make(tmp_path, tracker, group="sweep"):
    run_dir = tmp_path / RUN
    run_dir.mkdir(exist_ok=True)
    tracker.start(run_dir, group, {"seed": 1})
    return tracker


def log_everything(tracker, image=None):
    tracker.log(10, {"train/loss": 3.5})
    tracker.log_heads(10, HEADS)
    tracker.log_table("valid/hypotheses", ["source", "hypothesis"], [("ein Hund", "a dog")])
    if image is not None:
        tracker.log_image("figures/alpha", image)
        tracker.log_image("samples", image, 10)
        audio = image.with_name("1.wav")
        write_wav(audio, np.zeros((8, 1)), 12_000)
        tracker.log_audio("samples/1", audio, 10)
    tracker.summary({"test/bleu": 33.0})
    tracker.finish("finished")


def inspected(file):
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


class FakeRun:
    """Stand-in for wandb's run; `log` and `finish` raise `error`."""

    dir, url = "run/wandb/offline/files", "https://example.invalid"

    def __init__(self, error=None):
        self.error, self.rows, self.exit_code = error, [], -1
        self.summary = {}

    def define_metric(self, *_, **__): ...

    def log(self, row):
        if self.error is not None:
            raise self.error
        self.rows.append(row)

    def finish(self, exit_code):
        self.exit_code = exit_code
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("mode", "environment", "expected"),
    [
        (None, None, None),
        (None, "disabled", "disabled"),
        (None, "dryrun", "offline"),
        ("offline", "online", "offline"),
    ],
)
def test_mode_is_config_then_environment(mode, environment, expected, monkeypatch):
    if environment is not None:
        monkeypatch.setenv("WANDB_MODE", environment)
    assert choose_mode(mode) == expected


def test_with_a_key_a_run_is_online(tmp_path, monkeypatch):
    import wandb

    calls = []
    monkeypatch.setattr(wandb, "init", lambda **arguments: calls.append(arguments) or FakeRun())
    for mode in (None, "online", "offline"):
        make(tmp_path, WandbTracker(mode=mode))
    assert [call["mode"] for call in calls] == ["online", "online", "offline"]
    # a resumed run keeps its id; a new run in a folder of that name gets another
    first, resumed, offline = (call["settings"].run_id for call in calls)
    assert first == resumed == offline
    assert [call["settings"].resume for call in calls] == ["allow", "allow", None]
    (tmp_path / RUN / "wandb-id.txt").unlink()
    make(tmp_path, WandbTracker())
    assert calls[-1]["settings"].run_id.startswith("seed1-")
    assert calls[-1]["settings"].run_id != first


def test_invalid_settings_are_rejected(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "ofline")
    with pytest.raises(ConfigError, match=r"WANDB_MODE.*offline"):
        WandbTracker().check()
    WandbTracker(mode="offline").check()  # then the environment is not read


@pytest.mark.parametrize(
    ("variable", "setting", "default", "config"),
    [
        ("WANDB_PROJECT", "project", "headwise", {"project": "mine"}),
        ("WANDB_RUN_GROUP", "run_group", "sweep", {"group": "mine"}),
        ("WANDB_TAGS", "run_tags", None, {"tags": ["mine"]}),
        ("WANDB_NAME", "run_name", RUN, {}),
    ],
)
def test_keys_precede_variables_and_these_our_defaults(
    variable, setting, default, config, tmp_path,
    monkeypatch
):  # fmt: skip
    import wandb

    seen = []

    def init(settings, **_):
        seen.append(getattr(settings, setting))
        return FakeRun()

    monkeypatch.setattr(wandb, "init", init)
    make(tmp_path, WandbTracker(mode="online"))
    monkeypatch.setenv(variable, "must")
    make(tmp_path, WandbTracker(mode="online"))
    make(tmp_path, WandbTracker(mode="online", **config))
    lists = setting == "run_tags"
    expected = [default, "must", "mine" if config else "must"]
    assert seen == [(value,) if lists and value else value for value in expected]


@pytest.mark.parametrize(
    ("config", "variables", "expected"),
    [
        ({"project": "a/b"}, {}, r"tracker\.project .*'a/b': cannot contain characters .* found"),
        ({}, {"WANDB_PROJECT": "p" * 129}, "WANDB_PROJECT .*: exceeded 128 characters"),
        ({"tags": ["ok", "t" * 65]}, {}, r"tracker\.tags .* 65 characters\. Tags must be"),
        ({}, {"WANDB_BASE_URL": "https://wandb.ai"}, "WANDB_BASE_URL .* did you mean https"),
    ],
)
def test_what_wandb_refuses_is_refused_with_its_reason(config, variables, expected, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=expected) as refused:
        WandbTracker(**config).check()
    assert "\n" not in str(refused.value)
    WandbTracker(mode="disabled", **config).check()


def test_none_and_disabled_write_nothing(tmp_path):
    for tracker in (Tracker(tags=["of an experiment"]), WandbTracker(mode="disabled")):
        log_everything(make(tmp_path, tracker))
    assert list((tmp_path / RUN).iterdir()) == []


def test_heads_are_numbered_from_one_and_missing_values_omitted():
    assert head_metrics(HEADS) == {
        "alpha/encoder_self/layer1/head1": 1.25,
        "alpha/encoder_self/layer1/head2": 1.5,
        "alpha/encoder_self/layer2/head1": 2.0,
        "attention/density/cross/layer2/head1": 0.5,
        "attention/density/cross/layer2/head2": 0.75,
    }
    # after pruning heads keep their numbers; values of a wrong number of heads are omitted
    head_numbers = {"encoder_self": [[2, 5], [3, 4]], "cross": [[], [1, 2, 4]]}
    assert head_metrics(HEADS, head_numbers) == {
        "alpha/encoder_self/layer1/head2": 1.25,
        "alpha/encoder_self/layer1/head5": 1.5,
        "alpha/encoder_self/layer2/head3": 2.0,
    }


def test_offline_run_contains_everything(tmp_path, monkeypatch):
    from PIL import Image

    image = tmp_path / "alpha.png"
    Image.new("RGB", (8, 8)).save(image)
    monkeypatch.setenv("WANDB_MODE", "disabled")  # the config has priority
    log_everything(make(tmp_path, WandbTracker(mode="offline", tags=["t"])), image)
    (file,) = (tmp_path / RUN / "wandb").glob("offline-run-*/run-*.wandb")
    output = inspected(file)
    for text in (
        "train/loss", "alpha/encoder_self/layer1/head2", "alpha/encoder_self/histogram",
        "attention/density/cross/layer2/head1", "valid/hypotheses", "figures/alpha", "test/bleu",
        "sweep", RUN, "update", "samples/1", "audio-file", "image-file",
    ):  # fmt: skip
        assert text in output, text


def test_online_run_without_network_falls_back_to_offline_with_one_warning(
    tmp_path, monkeypatch, caplog
):
    import wandb

    modes, run = [], FakeRun()

    def init(**arguments):
        modes.append(arguments["mode"])
        assert arguments["settings"].init_timeout == 7
        if arguments["mode"] == "online":
            raise wandb.errors.CommError("no route\nto host")
        return run

    monkeypatch.setattr(wandb, "init", init)
    tracker = make(tmp_path, WandbTracker(mode="online", init_timeout=7))
    assert modes == ["online", "offline"]
    assert tracker.is_active
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == [
        "W&B is not reachable (CommError: no route to host); this run is logged offline"
    ]
    tracker.log(1, {"train/loss": 1.0})
    tracker.finish("failed")
    assert run.rows == [{"update": 1, "train/loss": 1.0}]
    assert run.exit_code == 1
    assert run.summary["status"] == "failed"


@pytest.mark.parametrize("error", [ConnectionResetError("service died"), OSError(28, "full")])
@pytest.mark.parametrize("starts", [True, False])
def test_error_disables_wandb_once(
    error, starts, tmp_path, monkeypatch,
    caplog
):  # fmt: skip
    import wandb

    run = FakeRun(error=error)
    init = Mock(return_value=run, side_effect=None if starts else error)
    monkeypatch.setattr(wandb, "init", init)
    tracker = make(tmp_path, WandbTracker(mode="offline"))
    log_everything(tracker)
    assert not tracker.is_active
    assert run.exit_code == (0 if starts else -1)
    assert sum("W&B logging stopped" in record.getMessage() for record in caplog.records) == 1
    run.error = ZeroDivisionError()  # a defect
    init.side_effect = None
    with pytest.raises(ZeroDivisionError):
        make(tmp_path, WandbTracker(mode="offline")).log(1, {})


def test_no_prompt_on_a_terminal(tmp_path):
    pty = pytest.importorskip("pty")
    program = f"""
        from pathlib import Path
        from headwise.track.wandb_tracker import WandbTracker
        tracker = WandbTracker(mode="online")
        tracker.start(Path({str(tmp_path)!r}), None, {{}})
        tracker.log(1, {{"train/loss": 1.0}})
        tracker.finish("finished")
    """
    master_end, terminal_end = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"} | {"TERM": "xterm"}
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=False, timeout=60,
        stdin=terminal_end, stdout=subprocess.DEVNULL, stderr=terminal_end, env=environment,
    )  # fmt: skip
    assert process.returncode == 0, os.read(master_end, 4000).decode()
    os.close(terminal_end)
    os.close(master_end)
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1


def test_newest_folder_of_a_resumed_offline_run_has_each_update_once(tmp_path):
    for n_lines, updates in (0, range(1, 6)), (3, range(4, 8)), (5, range(6, 13)):
        tracker = make(tmp_path, WandbTracker(mode="offline"))
        records = RunLog(RunFolder(tmp_path / RUN), tracker)
        records.rewind(n_lines or -1, n_lines, n_lines)
        for update in updates:
            records.log(update, {"train/loss": 1 / update, "train/lr": float("nan")})
            records.log_heads(update, {"alpha": {"cross": [[1 + 1 / update]]}})
        records.close()
        tracker.finish("interrupted")
        *_, file = sorted(tmp_path.glob("*/wandb/offline-run-*/*.wandb"), key=os.path.getmtime)
        if n_lines == 3:
            file.with_suffix(".wandb.synced").touch()
    assert len(list(tmp_path.glob("*/wandb/offline-run-*"))) == 2  # one was uploaded
    content = [json.loads(line) for line in inspected(file).splitlines()]
    (start,) = (record["run"] for record in content if "run" in record)
    assert start["run_id"] == (tmp_path / RUN / "wandb-id.txt").read_text().strip()
    rows = [record["history"]["item"] for record in content if "history" in record]
    for name in ("train/loss", "alpha/cross/layer1/head1"):
        assert sorted(row["update"] for row in rows if name in row) == list(range(1, 13)), name

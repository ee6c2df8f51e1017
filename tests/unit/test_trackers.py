"""Trackers mirror a run: what is logged is read back equal, and an error never ends a training."""

import json
import logging
import os
import subprocess
import sys
import textwrap
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

from headwise.errors import ConfigError
from headwise.runs.folder import RunFolder
from headwise.runs.log import RunLog
from headwise.track.base import Tracker, head_metrics
from headwise.track.jsonl import read_jsonl
from headwise.track.tensorboard_tracker import TensorBoardTracker
from headwise.track.wandb_tracker import WandbTracker, choose_mode
from published_images import write_wav

RUN = "alpha_entmax-seed1"
OFFLINE = "wandb/offline-run-*"
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


# Readers: the run folder -> {tag: [(update, value)]} in order, other tags, and the summary.


def of_records(run):
    """The values in the files of the run, by the names that trackers give them."""
    scalars = {}
    for record in (r for name in ("metrics", "heads") for r in read_jsonl(run / f"{name}.jsonl")):
        values = {**record, **head_metrics({"alpha": record.pop("alpha", {})})}
        for tag in filter(lambda tag: "/" in tag, values):
            scalars.setdefault(tag, []).append((record["update"], values[tag]))
    return scalars, set(), {}


def of_tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), {"scalars": 0, "histograms": 0})
    tags = events.Reload().Tags()
    others = {tag.removesuffix("/text_summary") for tag in tags["tensors"]}
    scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
    ((update, bleu),) = scalars.pop("summary/test/bleu")
    assert update == 9
    histograms = events.Histograms("alpha/cross/histogram")
    assert [(e.step, e.histogram_value.num) for e in histograms] == [(u, 3) for u in range(10)]
    return scalars, {*others, *tags["images"], *tags["histograms"]}, {"test/bleu": bleu}


def of_wandb(run):
    """Of the newest folder, which has all updates of the run."""
    *_, file = sorted(run.glob(f"{OFFLINE}/*.wandb"), key=os.path.getmtime)
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    content = [json.loads(line) for line in text.splitlines()]
    (start,) = (record["run"] for record in content if "run" in record)
    assert start["run_id"] == (run / "wandb-id.txt").read_text().strip()
    assert (start["display_name"], start["run_group"]) == (RUN, "sweep")
    assert start["tags"] == ["of an experiment"]
    (end,) = (record["exit"] for record in content if "exit" in record)
    assert end.get("exit_code", 0) == 0
    scalars, others, summary = {}, set(), {}
    for row in (record["history"]["item"] for record in content if "history" in record):
        names = {name.removesuffix("._type") for name in row if name.endswith("._type")}
        others |= names
        for name, value in row.items():
            if "/" in name and name.partition(".")[0] not in names:
                scalars.setdefault(name, []).append((row["update"], float(value)))
    for values in (record["summary"]["update"] for record in content if "summary" in record):
        summary |= {name: values[name] for name in {"test/bleu", "status"} & values.keys()}
    return scalars, others, summary


SHOWN = {"alpha/cross/histogram", "figures/alpha", "hypotheses/test"}
BLEU = {"test/bleu": 33.0}
TAGS = {"tags": ["of an experiment"]}
# The tracker, its reader, and what that returns beside scalars.
TRACKERS = {
    "records": (Tracker, of_records, set(), {}),
    "tensorboard": (TensorBoardTracker, of_tensorboard, {"config", *SHOWN}, BLEU),
    "wandb": (
        partial(WandbTracker, mode="offline"), of_wandb,
        {"samples", "samples/1", *SHOWN}, {"status": "finished", **BLEU},
    ),
}  # fmt: skip


def process(tmp_path, tracker, n_lines, updates=()):
    """Log updates as a process that resumes with `n_lines` of each record."""
    make(tmp_path, tracker)
    records = RunLog(RunFolder(tmp_path / RUN), tracker)
    records.rewind(n_lines - 1, n_lines, n_lines)
    for update in updates:
        records.log(update, {"train/loss": 1 / (1 + update), "train/lr": float("nan")})
        alpha = {"cross": [[1 + 1 / (1 + update), None], [1.5, 2.0]]}
        records.log_heads(update, {"alpha": alpha})
    records.close()
    return tracker


@pytest.mark.parametrize("name", TRACKERS)
def test_resumed_run_holds_what_its_records_hold_once_each(tmp_path, name, monkeypatch):
    from PIL import Image

    make_tracker, read, others, summary = TRACKERS[name]
    is_wandb = name == "wandb"
    monkeypatch.setenv("WANDB_MODE", "disabled")  # the config has priority
    # killed before a checkpoint, after that of update 4, after the last update
    for n_lines, updates in (0, range(4)), (0, range(7)), (5, range(5, 10)):
        tracker = process(tmp_path, make_tracker(**TAGS), n_lines, updates)
        if is_wandb:  # else it is killed
            tracker.finish("interrupted")
        if n_lines == 5:
            for file in tmp_path.glob(f"{RUN}/{OFFLINE}/*.wandb"):
                file.with_suffix(".wandb.synced").touch()  # it was uploaded
    tracker = process(tmp_path, make_tracker(**TAGS), 10)
    image, audio = tmp_path / "alpha.png", tmp_path / "1.wav"
    Image.new("RGBA", (8, 8)).save(image)
    write_wav(audio, np.zeros((8, 1)), 12_000)
    tracker.log_table("hypotheses/test", ["source", "hypothesis"], [["ein Hund", "a|dog"]])
    tracker.log_image("figures/alpha", image)
    if is_wandb:
        tracker.log_image("samples", image, 10)
    tracker.log_audio("samples/1", audio, 10)
    tracker.summary({"test/bleu": 33.0})
    tracker.finish("finished")

    logged, *rest = read(tmp_path / RUN)
    expected, *_ = of_records(tmp_path / RUN)
    logged.pop("train/lr", None)  # nan, which the record omits
    assert logged.keys() == expected.keys()
    for tag, values in expected.items():
        assert [update for update, _ in values] == list(range(10))
        assert logged[tag] == [(u, pytest.approx(v, rel=1e-7)) for u, v in values], tag
    assert rest == [others, summary]
    assert len(list(tmp_path.glob(f"{RUN}/{OFFLINE}"))) == 2 * is_wandb  # one was uploaded


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
    for tracker in (Tracker(**TAGS), WandbTracker(mode="disabled")):
        make(tmp_path, tracker)
        tracker.log(10, {"train/loss": 3.5})
        tracker.log_heads(10, HEADS)
        tracker.finish("finished")
    assert list((tmp_path / RUN).iterdir()) == []


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


def test_tensorboard_folder_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "tensorboard").write_text("a file")
    process(tmp_path, TensorBoardTracker(), 0, range(2)).finish("finished")
    assert caplog.text.count("TensorBoard logging stopped") == 1


def test_missing_tensorboard_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"headwise\[tensorboard\]"):
        TensorBoardTracker().check()


@pytest.mark.parametrize("error", [ConnectionResetError("service died"), OSError(28, "full")])
@pytest.mark.parametrize("starts", [True, False])
def test_error_disables_wandb_once(error, starts, tmp_path, monkeypatch, caplog):
    import wandb

    run = FakeRun(error=error)
    init = Mock(return_value=run, side_effect=None if starts else error)
    monkeypatch.setattr(wandb, "init", init)
    tracker = make(tmp_path, WandbTracker(mode="offline"))
    tracker.log(10, {"train/loss": 3.5})
    tracker.log_heads(10, HEADS)
    tracker.log_table("valid/hypotheses", ["source"], [("ein Hund",)])
    tracker.summary({"test/bleu": 33.0})
    tracker.finish("finished")
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
    assert len(list(tmp_path.glob(OFFLINE))) == 1

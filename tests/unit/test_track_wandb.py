"""W&B is a mirror: it never asks, never hangs, never ends a training."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.config.schema import TrackerConfig
from headwise.errors import ConfigError
from headwise.track import NullTracker, check_tracker, make_tracker
from headwise.track.base import head_metrics, head_name
from headwise.track.wandb_tracker import WandbTracker, choose_mode

RUN = "alpha_entmax-seed1"
HEADS = {
    "alpha": {"encoder_self": [[1.25, 1.5], [2.0, None]]},
    "density": {"cross": [[], [0.5, 0.75]]},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without keys, so that the machine's own settings play no part."""
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
def _end_service() -> Iterator[None]:
    yield
    if "wandb" in sys.modules:
        import wandb

        wandb.teardown()


def make(tmp_path: Path, config: TrackerConfig, group: str | None = "sweep") -> Any:
    run_dir = tmp_path / RUN
    run_dir.mkdir(exist_ok=True)
    return make_tracker(config, run_dir, group, {"seed": 1})


def use(tracker: Any, image: Path | None = None) -> None:
    tracker.log(10, {"train/loss": 3.5})
    tracker.log_heads(10, HEADS)
    tracker.log_table("valid/hypotheses", ["source", "hypothesis"], [["ein Hund", "a dog"]])
    if image is not None:
        tracker.log_image("figures/alpha", image)
    tracker.summary({"test/bleu": 33.0})
    tracker.finish("finished")


class FakeRun:
    """Stands for wandb's run; `log` fails from the given call on."""

    dir, url = "run/wandb/offline/files", "https://example.invalid"

    def __init__(self, fails: Exception | None = None) -> None:
        self.fails, self.rows, self.exit_code = fails, [], -1
        self.summary: dict[str, Any] = {}

    def define_metric(self, *_: object, **__: object) -> None: ...

    def log(self, row: dict[str, Any]) -> None:
        if self.fails is not None:
            raise self.fails
        self.rows.append(row)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code
        if self.fails is not None:
            raise self.fails


@pytest.mark.parametrize(
    ("mode", "environment", "expected"),
    [
        (None, None, None),
        (None, "", None),
        (None, "disabled", "disabled"),
        (None, "dryrun", "offline"),
        ("offline", "online", "offline"),
    ],
)
def test_mode_is_config_then_environment(
    mode: str | None, environment: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment is not None:
        monkeypatch.setenv("WANDB_MODE", environment)
    assert choose_mode(mode) == expected


def test_without_a_key_a_run_is_offline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path, TrackerConfig()).finish("finished")
    assert len(list((tmp_path / RUN / "wandb").glob("offline-run-*"))) == 1
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_with_a_key_a_run_is_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(wandb, "init", lambda **given: calls.append(given) or FakeRun())
    for mode in (None, "online", "offline"):
        make(tmp_path, TrackerConfig(mode=mode))
    assert [call["mode"] for call in calls] == ["online", "online", "offline"]
    # a resumed run joins its own; one that begins anew in a folder of that name does not
    first, resumed, offline = (call.get("id") for call in calls)
    assert first == resumed != offline is None
    assert [call.get("resume") for call in calls] == ["allow", "allow", None]
    (tmp_path / RUN / "wandb-id.txt").unlink()
    make(tmp_path, TrackerConfig())
    assert calls[-1]["id"].startswith("seed1-")
    assert calls[-1]["id"] != first


def test_wrong_settings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"tracker\.kind.*wandb.*Did you mean wandb"):
        make(tmp_path, TrackerConfig(kind="wandbb"))
    with pytest.raises(ConfigError, match=r"tracker\.mode.*Did you mean offline"):
        check_tracker(TrackerConfig(mode="ofline"))
    with pytest.raises(ConfigError, match=r"tracker\.init_timeout"):
        check_tracker(TrackerConfig(init_timeout=0))
    monkeypatch.setenv("WANDB_MODE", "ofline")
    with pytest.raises(ConfigError, match=r"WANDB_MODE.*offline"):
        check_tracker(TrackerConfig())
    check_tracker(TrackerConfig(mode="offline"))  # the environment is not asked then


def test_none_and_disabled_keep_nothing(tmp_path: Path) -> None:
    for config in (TrackerConfig(kind="none"), TrackerConfig(mode="disabled")):
        tracker = make(tmp_path, config)
        use(tracker)
        assert isinstance(tracker, NullTracker)
    assert list((tmp_path / RUN).iterdir()) == []


def test_heads_are_named_from_one_and_absent_ones_left_out() -> None:
    assert head_name("alpha", "cross", 2, 3) == "alpha/cross/layer2/head3"
    assert head_metrics(HEADS) == {
        "alpha/encoder_self/layer1/head1": 1.25,
        "alpha/encoder_self/layer1/head2": 1.5,
        "alpha/encoder_self/layer2/head1": 2.0,
        "attention/density/cross/layer2/head1": 0.5,
        "attention/density/cross/layer2/head2": 0.75,
    }
    # where heads were pruned the others keep their numbers; what is of other heads is left out
    kept = {"encoder_self": [[2, 5], [3, 4]], "cross": [[], [1, 2, 4]]}
    assert head_metrics(HEADS, kept) == {
        "alpha/encoder_self/layer1/head2": 1.25,
        "alpha/encoder_self/layer1/head5": 1.5,
        "alpha/encoder_self/layer2/head3": 2.0,
    }


def test_an_offline_run_holds_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    image = tmp_path / "alpha.png"
    Image.new("RGB", (8, 8)).save(image)
    monkeypatch.setenv("WANDB_MODE", "disabled")  # what the config says comes first
    use(make(tmp_path, TrackerConfig(mode="offline", tags=["t"])), image)
    (file,) = (tmp_path / RUN / "wandb").glob("offline-run-*/run-*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    for piece in (
        "train/loss", "alpha/encoder_self/layer1/head2", "alpha/encoder_self/histogram",
        "attention/density/cross/layer2/head1", "valid/hypotheses", "figures/alpha", "test/bleu",
        "sweep", RUN, "update",
    ):  # fmt: skip
        assert piece in shown, piece


def test_without_a_network_an_online_run_falls_back_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    modes, run = [], FakeRun()

    def init(**arguments: Any) -> FakeRun:
        modes.append(arguments["mode"])
        assert arguments["group"] == "sweep"
        assert arguments["settings"].init_timeout == 7
        if arguments["mode"] == "online":
            raise wandb.errors.CommError("no route\nto host")
        return run

    monkeypatch.setattr(wandb, "init", init)
    tracker = make(tmp_path, TrackerConfig(mode="online", init_timeout=7))
    assert modes == ["online", "offline"]
    assert tracker.is_on
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == [
        "W&B is not reachable (CommError: no route); this run is logged offline"
    ]
    tracker.log(1, {"train/loss": 1.0})
    tracker.finish("failed")
    assert run.rows == [{"update": 1, "train/loss": 1.0}]
    assert run.exit_code == 1
    assert run.summary["status"] == "failed"


@pytest.mark.parametrize("error", [ConnectionResetError("service died"), OSError(28, "full")])
def test_an_error_while_logging_turns_it_off_once(
    error: OSError,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import wandb

    run = FakeRun(fails=error)
    monkeypatch.setattr(wandb, "init", lambda **_: run)
    tracker = make(tmp_path, TrackerConfig(mode="offline"))
    use(tracker)
    assert not tracker.is_on
    assert run.exit_code == 0
    assert sum("W&B logging stopped" in record.getMessage() for record in caplog.records) == 1


def test_a_defect_of_ours_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setattr(wandb, "init", lambda **_: FakeRun(fails=ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        make(tmp_path, TrackerConfig(mode="offline")).log(1, {})


def test_training_survives_without_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def init(**_: Any) -> None:
        raise PermissionError(13, "not writable")

    monkeypatch.setattr(wandb, "init", init)
    tracker = make(tmp_path, TrackerConfig(mode="online"))
    assert isinstance(tracker, WandbTracker)
    assert not tracker.is_on
    use(tracker)


def test_no_question_on_a_terminal(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    program = f"""
        from pathlib import Path
        from headwise.config.schema import TrackerConfig
        from headwise.track import make_tracker
        folder = Path({str(tmp_path)!r})
        tracker = make_tracker(TrackerConfig(mode="online"), folder, None, {{}})
        tracker.log(1, {{"train/loss": 1.0}})
        tracker.finish("finished")
    """
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs, env=environment,
    )  # fmt: skip
    os.close(theirs)
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() == 0, os.read(ours, 4000).decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1

"""Searches (`hydra/sweeper=optuna`): trials in a journal, which several processes share.

A searcher is a process that takes trials and runs their jobs. It holds the lock of a file in
`searchers/` of the sweep's folder. A trial whose searcher is gone, and whose run no process is
training, is adopted by another searcher.
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from headwise.commands.sweep import SEARCHERS
from headwise.config.schema import Config
from headwise.errors import ConfigError, refuse
from headwise.files import is_locked, lock, locked, replacing, write_text
from headwise.seed import derived_seed
from headwise.tasks.check import monitored
from headwise.tasks.task import task_of
from headwise.track.jsonl import read_if_exists

JOURNAL = "journal.log"
MAX_TRIALS = 1_000_000  # a job's number: trial + MAX_TRIALS * index of its seed
CLASSES: dict[str, dict[str, Callable[..., Any]]] = {  # key -> choices
    "sampler": {"tpe": TPESampler, "random": RandomSampler, "grid": GridSampler},
    "pruner": {"none": NopPruner, "median": MedianPruner, "halving": SuccessiveHalvingPruner},
}
Settings = Mapping[str, Any]  # conf/hydra/sweeper/optuna.yaml
Space = Mapping[str, BaseDistribution]


class JournalLock(JournalFileOpenLock):
    """Locks a journal for writing, and removes an incomplete last line.

    The lock ends with its process. A process that is killed while it writes leaves an incomplete
    line; Optuna could not read the journal once another line follows.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def acquire(self) -> bool:
        """Wait for the lock, then repair the journal."""
        self._file: IO[bytes] = open(self._path, "rb+")  # noqa: SIM115
        lock(self._file, wait=True)
        n_bytes = self._file.seek(0, 2)
        self._file.seek(max(n_bytes - 1, 0))
        if n_bytes and self._file.read() != b"\n":
            self._file.seek(0)
            self._file.truncate(self._file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Release the lock."""
        self._file.close()


def open_study(folder: Path, settings: Settings, direction: Any = None) -> Study:
    """Create or load the study of a search.

    Args:
        folder: of the sweep, for the journal.
        settings: of the search.
        direction: of a new study, maximize or minimize; None: minimize.

    Raises:
        ConfigError: the pruner is wrong.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = folder / JOURNAL
    folder.mkdir(parents=True, exist_ok=True)
    path.touch()
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path), JournalLock(path))),
        study_name=settings["study_name"],
        direction=direction,
        load_if_exists=True,
        sampler=RandomSampler(),  # `Searcher.ask` samples
        pruner=_chosen(settings, "pruner"),
    )


def _chosen(settings: Settings, key: str, **options: Any) -> Any:
    """The sampler or the pruner of a search."""
    choices, name = CLASSES[key], settings[key]
    if name not in choices:
        raise refuse(f"hydra.sweeper.{key}", name, choices)
    try:
        return choices[name](**options, **(settings[f"{key}_options"] or {}))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"hydra.sweeper.{key}_options: {error}") from error


@dataclass
class Searcher:
    """Takes the trials of a study, those of searchers that are gone first.

    Attributes:
        study: of the search.
        folder: of the sweep.
        settings: of the search.
        space: searched key -> distribution of its values.
    """

    study: Study
    folder: Path
    settings: Settings
    space: Space

    def __post_init__(self) -> None:
        self._n_trials = self.settings["n_trials"]
        self._sampler(0)  # raises errors of its options
        if self.settings["sampler"] == "grid":
            self._n_trials = min(math.prod(map(len, self._choices().values())), self._n_trials)

    def _choices(self) -> dict[str, tuple[Any, ...]]:
        for key, values in self.space.items():
            if not hasattr(values, "choices"):
                raise ConfigError(f"hydra.sweeper.sampler=grid needs a list or range for {key}")
        return {key: values.choices for key, values in self.space.items()}  # type: ignore[attr-defined]

    def _sampler(self, number: int) -> BaseSampler:
        """The sampler of a trial: with one seed for all, searchers would sample equal points."""
        seed = self.settings["sampler_seed"]
        # a sum would repeat the values of a search with a neighbouring seed
        options: dict[str, Any] = {"seed": derived_seed(seed, number) % 2**32}
        if self.settings["sampler"] == "grid":  # whose order depends on the seed
            options = {"seed": seed, "search_space": self._choices()}
        sampler: BaseSampler = _chosen(self.settings, "sampler", **options)
        return sampler

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Hold the lock of this searcher within the block."""
        path = self.folder / SEARCHERS / secrets.token_hex(8)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w") as handle:
            lock(handle, wait=True)
            self._name = path.name
            yield

    def ask(self, n: int) -> list[Trial]:
        """Up to `n` trials, with values of all keys; empty at the end of the search.

        Raises:
            ConfigError: the study has other values of a key.
        """
        with locked(self.folder / "ask.lock"):
            known = self.study.get_trials(deepcopy=False)
            gone = [trial for trial in known if self._is_abandoned(trial)][:n]
            n_new = min(n - len(gone), self._n_trials - len(known))
            new = [self.study.ask() for _ in range(n_new)]
            return [self._sampled(trial) for trial in (*gone, *new)]

    def _sampled(self, trial: Any) -> Trial:
        """A trial, registered as run by this searcher; samples the values that it lacks."""
        plain, self.study.sampler = self.study.sampler, self._sampler(trial.number)
        sampled = Trial(self.study, trial._trial_id)
        sampled.set_user_attr("searcher", self._name)
        try:
            for name, distribution in self.space.items():
                sampled._suggest(name, distribution)
        except ValueError as error:
            study = f"the study {self.study.study_name} has other values of {name}"
            raise ConfigError(f"hydra.sweeper.study_name: {study}: {error}") from error
        finally:
            self.study.sampler = plain
        return sampled

    def _is_abandoned(self, trial: FrozenTrial) -> bool:
        """Whether no process runs a trial.

        A trial without a searcher was cut off in `ask`. Without locks no process counts as gone.
        """
        attributes = trial.user_attrs
        searcher = attributes.get("searcher")
        locks = [] if searcher is None else [self.folder / SEARCHERS / searcher]
        locks += [Path(run) / ".lock" for name, run in attributes.items() if "run_" in name]
        return trial.state is TrialState.RUNNING and all(is_locked(p) is False for p in locks)


class RunningTrial:
    """The trial of a job.

    Args:
        study: of the search.
        number: of the job.
    """

    def __init__(self, study: Study, number: int) -> None:
        seed, self._number = divmod(number, MAX_TRIALS)
        self._study, self._run, self._is_first = study, f"run_{seed + 1}", seed == 0
        self._trial = Trial(study, self._frozen()._trial_id)

    def _frozen(self) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[self._number]

    def start(self, run: Path) -> None:
        """Record the folder of the run."""
        self._trial.set_user_attr(self._run, str(run.absolute()))

    def should_stop(self, update: int, score: float) -> bool:
        """Report a validation; whether the pruner stops the trial, at runs of its first seed."""
        if not self._is_first:
            return False
        if update not in self._frozen().intermediate_values:  # else before the job was resumed
            self._trial.report(score, update)
        return self._trial.should_prune()

    def value(self, config: Config, run: Path | None) -> float | None:
        """The best validation of a run, NaN if there is none; None after a dry run."""
        if run is None:
            return None
        self.start(run)  # it may have been finished before
        metric, lines = monitored(task_of(config)), read_if_exists(run / "metrics.jsonl")
        scores = [line[name] for line in lines if (name := f"valid/{metric.name}") in line]
        return max(scores, key=lambda score: metric.sign * score, default=math.nan)


def write_outputs(study: Study, folder: Path) -> None:
    """Write the trials as a table, and Optuna's plots if there are two different values."""
    from matplotlib import pyplot, style
    from optuna.importance import PedAnovaImportanceEvaluator
    from optuna.visualization import matplotlib as plots

    from headwise.plots.style import failure_as_warning  # imports seaborn

    write_text(folder / "trials.csv", study.trials_dataframe().to_csv(index=False))
    finished = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    if len({trial.value for trial in finished}) < 2:
        return
    evaluator = PedAnovaImportanceEvaluator()  # others need scikit-learn
    drawings: dict[str, Callable[[Study], Any]] = {
        "history": plots.plot_optimization_history,
        "importances": partial(plots.plot_param_importances, evaluator=evaluator),
        "parallel_coordinates": plots.plot_parallel_coordinate,
    }
    with style.context({"text.parse_math": False}, after_reset=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        for name, draw in drawings.items():
            with failure_as_warning(name):
                figure = draw(study).figure
                for kind in ("png", "svg"):
                    with replacing(folder / f"{name}.{kind}") as temporary:
                        figure.savefig(temporary, format=kind, bbox_inches="tight")
            pyplot.close("all")

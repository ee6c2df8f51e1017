"""`hydra/sweeper=optuna`: a search by Optuna's ask and tell, in jobs of the configured launcher."""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from headwise.config.register import typed
from headwise.errors import ConfigError, Interrupted, require
from headwise.files import check_file_name
from headwise.runs.folder import PATHS, digest

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import Trial

    from headwise.config.schema import Config

log = logging.getLogger(__name__)


class OptunaSweeper(Sweeper):
    """Runs trials until a study has `n_trials`.

    Args:
        search: the keys of conf/hydra/sweeper/optuna.yaml.
    """

    def __init__(self, **search: Any) -> None:
        self.search = search

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Create the launcher.

        Raises:
            ConfigError: Optuna is not installed.
        """
        if find_spec("optuna") is None:
            raise ConfigError("hydra/sweeper=optuna is an extra: pip install 'headwise[optuna]'")
        self.config, self.loader = config, hydra_context.config_loader
        self.folder: Path = task_function.sweep.folder  # type: ignore[attr-defined]
        context: dict[str, Any] = {"hydra_context": hydra_context, "task_function": task_function}
        self.launch = Plugins.instance().instantiate_launcher(**context, config=config).launch

    def sweep(self, arguments: list[str]) -> None:
        """Run trials, write the outputs of the study and print its best trial.

        Raises:
            ConfigError: a setting of the search is invalid.
        """
        from headwise.commands.search import Searcher, open_study, write_outputs
        from headwise.tasks.check import checked_task, identity, monitored

        for key in ("n_trials", "n_jobs"):
            n = self.search[key]
            require(isinstance(n, int) and n >= 1, f"hydra.sweeper.{key}", "at least 1", n)
        config: Any = copy.deepcopy(self.config)
        with open_dict(config):
            del config["hydra"]  # what jobs get
        settings: Config = typed(config)
        task = checked_task(settings)
        metric = monitored(task)
        direction = "maximize" if metric.better == "higher" else "minimize"
        space, seeds, fixed = self._parse(arguments)
        corpus = task.open(task.cache)
        length = ["trainer.max_updates"]  # finished trials are not trained for longer
        run = identity(settings, asdict(settings), corpus, length)["identity"]
        of_params = sorted({*fixed} - {*arguments})  # the others are in the settings
        chosen = self.search["study_name"]  # whose space may change
        searched = None if chosen else sorted((key, repr(values)) for key, values in space.items())
        name = f"{chosen or 'search'}-{digest([run, of_params, seeds, searched])}"
        check_file_name("hydra.sweeper.study_name", name)
        study = open_study(self.folder, self.search | {"study_name": name}, direction)
        searcher = Searcher(study, self.folder, self.search, space)
        self._record(study, seeds, fixed)
        fixed = [*fixed, f"hydra.sweeper.study_name={name}"]
        with searcher.registered():
            while trials := searcher.ask(self.search["n_jobs"]):
                self._run(study, trials, seeds, fixed)
        write_outputs(study, self.folder)
        states = Counter(trial.state.name.lower() for trial in study.get_trials(deepcopy=False))
        counts = ", ".join(f"{n} {state}" for state, n in states.items())
        log.info("%s: %s; plots and trials.csv in %s", name, counts, self.folder)
        if states["complete"]:
            best, values = study.best_trial, " ".join(_overrides(study.best_trial))
            log.info("best %s %.6g of trial %d: %s", metric.name, best.value, best.number, values)

    def _record(self, study: Study, seeds: Sequence[str], fixed: Sequence[str]) -> None:
        """Record the finished jobs of a study, and no others, for the table of the sweep."""
        from headwise.commands.search import MAX_TRIALS
        from headwise.commands.sweep import Sweep

        sweep = Sweep(self.folder.name, self.folder)
        sweep.begin(study.study_name)
        for trial in study.get_trials(deepcopy=False):
            for index, seed in enumerate([[seed] for seed in seeds] or [[]]):
                run = (
                    trial.user_attrs.get(f"run_{index + 1}") if trial.state.is_finished() else None
                )
                number = index * MAX_TRIALS + trial.number
                if run is not None and not sweep.read(number):
                    sweep.record(number, [*fixed, *_overrides(trial), *seed], Path(run), None)

    def _parse(
        self, arguments: list[str]
    ) -> tuple[dict[str, BaseDistribution], list[str], list[str]]:
        """Searched keys with their values, seeds of each trial as overrides, other overrides."""
        parser = OverridesParser.create(self.loader)
        params = [f"{key}={values}" for key, values in self.search["params"].items()]
        given = {o.get_key_element(): o for o in parser.parse_overrides([*params, *arguments])}
        fixed = [str(o.input_line) for o in given.values() if not o.is_sweep_override()]
        searched = {key: o for key, o in given.items() if o.is_sweep_override()}
        seed = searched.pop("seed", None)
        seeds = [f"seed={value}" for value in seed.sweep_string_iterator()] if seed else []
        if not searched:
            raise ConfigError(
                "nothing to search: give a key several values, such as model.dropout=0.1,0.3 or "
                "'optimizer.lr=tag(log,interval(1e-4,1e-2))'"
            )
        for key in (key.lstrip("+") for key in searched):
            if key in ("data", "init_from") or key.startswith(PATHS):
                raise ConfigError(
                    f"{key} cannot be searched: a search is of one text and one origin, and "
                    "continues while they are the same. Sweep over it: without hydra/sweeper=optuna"
                )
        return {key: _distribution(o) for key, o in searched.items()}, seeds, fixed

    def _run(
        self, study: Study, trials: Sequence[Trial], seeds: Sequence[str], fixed: Sequence[str]
    ) -> None:
        """Run the jobs of trials, one seed after the other, and tell their results.

        A trial that is stopped or fails with one seed is not run with the next.
        """
        from optuna.trial import TrialState

        from headwise.commands.search import MAX_TRIALS

        scores: dict[int, list[float]] = {trial.number: [] for trial in trials}
        for index, seed in enumerate([[seed] for seed in seeds] or [[]]):
            for group in _consecutive([trial for trial in trials if trial.number in scores]):
                jobs = [[*fixed, *_overrides(trial), *seed] for trial in group]
                returns = self.launch(jobs, index * MAX_TRIALS + group[0].number)
                for trial, job in zip(group, returns, strict=True):
                    if isinstance(job._return_value, Interrupted):
                        raise job._return_value  # the next search resumes the trial
                    value = job.return_value if job.status is JobStatus.COMPLETED else math.nan
                    if value is not None and math.isfinite(value):
                        scores[trial.number].append(value)
                        continue
                    state = TrialState.PRUNED if value is None else TrialState.FAIL
                    study.tell(trial.number, state=state)
                    del scores[trial.number]
        for number, values in scores.items():
            study.tell(number, fmean(values))
            log.info("trial %d: %.6g", number, fmean(values))


def _overrides(trial: Any) -> list[str]:
    return [f"{key}={value}" for key, value in trial.params.items()]


def _consecutive(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """Yield trials with consecutive numbers together: a launcher numbers its jobs like this."""
    for _, group in itertools.groupby(enumerate(trials), lambda item: item[1].number - item[0]):
        yield [trial for _, trial in group]


def _distribution(override: Override) -> BaseDistribution:
    """The values of a searched key: a list or range of choices, or an interval.

    Raises:
        ConfigError: the interval is empty, or has an unknown tag.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if override.is_discrete_sweep():
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    sweep: Any = override.value()
    require(sweep.tags <= {"log"}, f"{override.key_or_group}: tag", "log", ", ".join(sweep.tags))
    kind = IntDistribution if isinstance(sweep.start, int) else FloatDistribution
    try:
        return kind(sweep.start, sweep.end, log=bool(sweep.tags))
    except ValueError as error:
        raise ConfigError(f"{override.input_line} cannot be searched: {error}") from error

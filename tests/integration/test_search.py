"""Searches: Optuna's trials in jobs, shared and resumed by several processes."""

import errno
import fcntl
import math
import threading
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf, open_dict
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from command_line import run_folders, small_overrides, write_corpus
from headwise.commands.search import MAX_TRIALS, RunningTrial, Searcher, open_study
from headwise.commands.sweep import Sweep
from headwise.config.register import config_dir
from headwise.errors import ConfigError
from headwise.runs.folder import RunFolder
from hydra_plugins.headwise.optuna import OptunaSweeper

SPACE = {
    "optimizer.lr": FloatDistribution(1e-4, 1e-2, log=True),
    "attention": CategoricalDistribution(["softmax", "entmax15"]),
}


def settings(**changes):
    defaults = OmegaConf.load(config_dir() / "hydra" / "sweeper" / "optuna.yaml")
    content = OmegaConf.to_container(defaults)
    del content["_target_"]
    return {**content, "study_name": "study", **changes}


@pytest.fixture
def searchers(tmp_path):
    """Starts searchers; `stop` of one ends it, as its process's death would."""
    with ExitStack() as running:

        def start(space=SPACE, **changes):
            study = open_study(tmp_path, settings(**changes))
            searcher = Searcher(study, tmp_path, settings(**changes), space)
            alive = running.enter_context(ExitStack())
            alive.enter_context(searcher.registered())
            searcher.stop = alive.close
            return searcher

        yield start


def numbers(trials):
    return [trial.number for trial in trials]


def test_values_depend_on_the_seed_of_the_search_and_the_number_of_the_trial(searchers):
    """Searchers that run at the same time, and searches of neighbouring seeds, share no values."""
    one, two = (searchers(sampler="random", n_trials=10) for _ in range(2))
    while (trials := one.ask(1)) and (others := two.ask(1)):
        for trial in (*trials, *others):
            one.study.tell(trial.number, trial.params["optimizer.lr"])
    known = two.study.get_trials()
    assert numbers(known) == list(range(10))
    assert {trial.state for trial in known} == {TrialState.COMPLETE}
    again = searchers(study_name="same", sampler="random").ask(10)
    assert [trial.params for trial in again] == [trial.params for trial in known]
    first_seed = settings()["sampler_seed"]
    for seed in (first_seed + 1, first_seed + 2):
        known += searchers(study_name=str(seed), sampler_seed=seed, sampler="random").ask(5)
    assert len({trial.params["optimizer.lr"] for trial in known}) == 20


def test_grid_runs_every_combination_once(searchers):
    space = {name: CategoricalDistribution(list("abc")) for name in ("x", "y")}
    one, two = (searchers(space, sampler="grid") for _ in range(2))
    asked = [trial for _ in range(6) for searcher in (one, two) for trial in searcher.ask(2)]
    assert len(asked) == len({tuple(trial.params.items()) for trial in asked}) == 9
    one.study.tell(asked[-1].number, 1.0)
    with pytest.raises(ConfigError, match="grid needs a list or range for"):
        searchers(sampler="grid")


def test_trial_of_a_searcher_that_is_gone_is_adopted(searchers, tmp_path):
    one, two = searchers(), searchers()
    (trial,) = one.ask(1)
    (other,) = two.ask(1)
    assert other.number == 1, "the first searcher is alive"
    run = RunFolder(tmp_path / "run")
    run.make()
    RunningTrial(one.study, trial.number).start(run.path)
    one.stop()
    with run.claimed():  # its job is still running, for example in a queue
        assert numbers(two.ask(1)) == [2]
    adopted, new = two.ask(2)
    assert (adopted.number, adopted.params, new.number) == (0, trial.params, 3)
    assert numbers(searchers().ask(1)) == [4], "it has a searcher again"


def test_trial_cut_off_while_asking_is_adopted(searchers):
    killed = searchers()
    killed.study.ask()
    (trial,) = searchers().ask(1)
    assert trial.number == 0
    assert trial.params.keys() == SPACE.keys()
    uninterrupted = searchers(study_name="other").ask(1)[0]
    assert trial.params == uninterrupted.params


def test_trial_is_not_adopted_on_a_file_system_without_locks(searchers, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOSYS, "none")))
    assert [numbers(searcher.ask(1)) for searcher in (searchers(), searchers())] == [[0], [1]]


def test_job_of_an_adopted_trial_waits_for_its_run(tmp_path):
    """A job may start in a queue after its trial was adopted."""
    run = RunFolder(tmp_path / "run")
    run.make()
    with ExitStack() as other:
        other.enter_context(run.claimed())
        ended = threading.Event()
        other.callback(ended.set)  # before the lock is released
        threading.Timer(0.3, other.close).start()
        with run.claimed(wait=True):
            assert ended.is_set()


@pytest.mark.parametrize("n_cut", [1, 2, 40])
def test_journal_with_an_incomplete_last_line_is_repaired(searchers, tmp_path, n_cut):
    searcher, reader = searchers(), searchers()
    for number in range(3):
        searcher.study.tell(searcher.ask(1)[0].number, float(number))
    journal = tmp_path / "journal.log"
    content = journal.read_bytes()
    journal.write_bytes(content + content.splitlines(keepends=True)[-1][:-n_cut])
    reader.study.tell(reader.ask(1)[0].number, 3.0)
    for study in (reader.study, open_study(tmp_path, settings())):
        assert [trial.value for trial in study.trials] == [0.0, 1.0, 2.0, 3.0]


def test_pruner_stops_bad_trials_at_validations(searchers, tmp_path):
    changes = {"pruner": "median", "pruner_options": {"n_startup_trials": 2}}
    searcher = searchers(**changes)

    def job(number):
        return RunningTrial(open_study(tmp_path, settings(**changes)), number)

    for score in (1.0, 2.0):
        (trial,) = searcher.ask(1)
        assert not job(trial.number).should_stop(100, score)
        searcher.study.tell(trial.number, score)
    (trial,) = searcher.ask(1)
    assert not job(trial.number + MAX_TRIALS).should_stop(100, 9.0), "only the first seed stops"
    assert job(trial.number).should_stop(100, 9.0)
    assert job(trial.number).should_stop(100, 9.0), "again, after it was resumed"
    assert searcher.study.get_trials()[2].intermediate_values == {100: 9.0}


class Sweeps:
    """Runs the sweeper with jobs that return given values.

    Attributes:
        jobs: number and overrides of each job.
    """

    def __init__(self, folder, config):
        self.folder, self.config = folder, config
        self.jobs = []
        with open_dict(config):
            config.hydra = {}

    def __call__(self, *arguments, job=lambda _: 1.0, **changes):
        def launch(jobs, first):
            returns = []
            for number, overrides in enumerate(jobs, first):
                values = dict(override.split("=", 1) for override in overrides)
                self.jobs.append((number, values))
                value = job(values)
                failed = isinstance(value, Exception)
                returns.append(
                    JobReturn(status=JobStatus.FAILED if failed else JobStatus.COMPLETED)
                )
                returns[-1].return_value = value
            return returns

        sweeper = OptunaSweeper(**settings(**changes))
        sweeper.config, sweeper.folder, sweeper.launch = self.config, self.folder, launch
        sweeper.loader = GlobalHydra.instance().config_loader()
        sweeper.sweep(list(arguments))

    def study(self):
        return open_study(self.folder, settings(study_name=self.names()[-1]))

    def names(self):
        """The study of each job."""
        return [values["hydra.sweeper.study_name"] for _, values in self.jobs]


@pytest.fixture
def sweeps(tmp_path, make, monkeypatch):
    monkeypatch.setattr("headwise.commands.search.write_outputs", lambda study, folder: None)
    return Sweeps(tmp_path, make([]))


def test_failed_and_pruned_jobs_end_their_trial_alone(sweeps):
    outcomes = iter([1.0, RuntimeError(), math.nan, None, math.inf, 3.0])

    arguments = ("optimizer.lr=interval(0.1,0.2)", "model=tiny")
    sweeps(*arguments, job=lambda _: next(outcomes), n_trials=6)
    states = [trial.state.name for trial in sweeps.study().trials]
    assert states == ["COMPLETE", "FAIL", "FAIL", "PRUNED", "FAIL", "COMPLETE"]
    assert sweeps.study().best_value == 3.0, "BLEU is maximised"
    assert [number for number, _ in sweeps.jobs] == list(range(6))
    assert all(values["model"] == "tiny" for _, values in sweeps.jobs)
    sweeps(*arguments, n_trials=7)
    assert len(sweeps.jobs) == 7, "a search that is continued runs the missing trials"


def test_seeds_are_repeated_and_averaged(sweeps):
    def job(values):
        lr, seed = float(values["optimizer.lr"]), int(values["seed"])
        return math.nan if lr > 0.15 and seed == 2 else lr + seed

    space = "optimizer.lr=0.1,0.2"
    sweeps(space, "seed=1,2,3", job=job, n_jobs=2, sampler="grid")
    assert [number for number, _ in sweeps.jobs[:4]] == [0, 1, MAX_TRIALS, MAX_TRIALS + 1]
    assert len(sweeps.jobs) == 5, "not the third seed of the failed trial"
    values = {t.params["optimizer.lr"]: t.value for t in sweeps.study().trials}
    assert values == {"0.1": pytest.approx(2.1), "0.2": None}


def test_interrupted_trials_resume_with_their_values(sweeps):
    def stop(values):
        if len(sweeps.jobs) == 3:
            raise KeyboardInterrupt
        return 1.0

    layers = "model.encoder_layers=int(interval(1,9))"
    arguments = ("optimizer.lr=tag(log,interval(1e-4,1e-1))", layers)
    with pytest.raises(KeyboardInterrupt):
        sweeps(*arguments, job=stop, n_trials=4)
    sweeps(*arguments, n_trials=4)
    assert [number for number, _ in sweeps.jobs] == [0, 1, 2, 2, 3]
    assert sweeps.jobs[2] == sweeps.jobs[3]
    assert 1 <= int(sweeps.jobs[0][1]["model.encoder_layers"]) <= 9
    assert [trial.state for trial in sweeps.study().trials] == [TrialState.COMPLETE] * 4


REFUSED = [  # argument, changed settings of the search -> words of the message
    ("model=tiny", {}, "nothing to search"),
    ("seed=1,2", {}, "nothing to search"),
    ("optimizer.lr=tag(lgo,interval(1,2))", {}, "optimizer.lr: tag must be log, got 'lgo'"),
    ("optimizer.lr=tag(log,interval(0,2))", {}, "cannot be searched"),
    ("data.dir=a,b", {}, "data.dir cannot be searched"),
    ("init_from=a,b", {}, "init_from cannot be searched"),
    ("+data.files.train=a,b", {}, "data.files.train cannot be searched"),
    ("optimizer.lr=1,2", {"sampler": "tpee"}, "Did you mean tpe?"),
    ("optimizer.lr=1,2", {"pruner": "mean"}, "hydra.sweeper.pruner must be one of"),
    ("optimizer.lr=1,2", {"sampler_options": {"n": 1}}, "hydra.sweeper.sampler_options: "),
    ("optimizer.lr=1,2", {"n_trials": 0}, "hydra.sweeper.n_trials must be at least 1"),
    ("optimizer.lr=1,2", {"study_name": "a/b"}, "hydra.sweeper.study_name"),
]


@pytest.mark.parametrize(("argument", "changes", "message"), REFUSED)
def test_wrong_settings_are_refused_before_a_job(sweeps, argument, changes, message):
    with pytest.raises(ConfigError) as error:
        sweeps(argument, **changes)
    assert message in str(error.value)
    assert sweeps.jobs == []


def test_search_of_other_text_is_another_one(sweeps, make, tmp_path, monkeypatch):
    write_corpus(tmp_path / "text")
    sweeps = Sweeps(sweeps.folder, make(small_overrides(tmp_path)))

    def n_jobs(study_name=None):
        sweeps("optimizer.lr=0.1,0.2", n_trials=2, study_name=study_name)
        return len(sweeps.jobs)

    assert [n_jobs(), n_jobs(), n_jobs("mine"), n_jobs("mine")] == [2, 2, 4, 4]
    write_corpus(tmp_path / "text", seed=9)
    assert n_jobs() == 6
    sweeps.config.trainer.max_updates += 1  # as in an edited yaml
    assert n_jobs() == 8, "longer trainings are other trials"
    assert n_jobs("mine") == 10
    kinds = [name.rpartition("-")[0] for name in dict.fromkeys(sweeps.names())]
    assert kinds == ["search", "mine", "search", "search", "mine"]


def test_table_of_a_search_is_of_the_runs_on_its_text(sweeps, make, tmp_path):
    write_corpus(tmp_path / "text")
    sweeps = Sweeps(sweeps.folder, make(small_overrides(tmp_path)))
    sweep = Sweep("sweep", sweeps.folder)

    def job(values):
        number, run = sweeps.jobs[-1][0], tmp_path / f"run{len(sweeps.jobs)}"
        study = open_study(sweeps.folder, settings(study_name=values["hydra.sweeper.study_name"]))
        RunningTrial(study, number).start(run)
        sweep.record(number, [], run, None)
        return 1.0

    def runs(seed):
        write_corpus(tmp_path / "text", seed=seed)
        sweeps("optimizer.lr=0.1,0.2", job=job, n_trials=2, study_name=None)
        return [Path(record["run"]).name for record in sweep.jobs()]

    assert runs(seed=1) == ["run1", "run2"]
    assert runs(seed=9) == ["run3", "run4"]
    assert runs(seed=1) == ["run1", "run2"], "not trained again"


def test_other_values_in_the_same_study_are_rejected(sweeps):
    sweeps("model=tiny,small", n_trials=2)
    with pytest.raises(ConfigError, match=r"the study study-\w+ has other values of model"):
        sweeps("model=tiny,base", n_trials=3)


@pytest.fixture
def arguments(tmp_path):
    """The common part of a search's command line."""
    write_corpus(tmp_path / "text")
    return [
        "-m", *small_overrides(tmp_path), "hydra/sweeper=optuna", "hydra.sweeper.sampler=grid",
        "scheduler=constant", "norm=post", "trainer.monitor=loss", "trainer.max_updates=4",
        "trainer.validate_every=2",
    ]  # fmt: skip


@pytest.mark.slow
def test_search_by_command(headwise, arguments, tmp_path):
    arguments = [*arguments, "optimizer.lr=1e-3,1e-2,1e30"]
    result = headwise("train", *arguments, "hydra.sweeper.n_trials=2")
    assert len(run_folders(tmp_path / "outputs")) == 2
    result = headwise("train", *arguments)
    assert result.code == 1, "as in a sweep: a job failed"
    assert len(run_folders(tmp_path / "outputs")) == 3
    (folder,) = (path for path in (tmp_path / "outputs" / "sweeps").iterdir() if path.is_dir())
    assert f"2 complete, 1 fail; plots and trials.csv in {folder}" in result.out
    (best,) = (line for line in result.out.splitlines() if line.startswith("best loss "))
    assert best.endswith(": optimizer.lr=0.01")
    assert "| optimizer.lr=1e+30 | – | – | – | 0 (1 failed) |" in result.out
    (name,) = (line.partition(":")[0] for line in result.out.splitlines() if "2 complete" in line)
    study = open_study(folder, settings(study_name=name))
    assert study.direction.name == "MINIMIZE"
    runs = {trial.user_attrs["run_1"] for trial in study.trials}
    assert runs == {str(path) for path in run_folders(tmp_path / "outputs")}
    plots = ("history", "importances", "parallel_coordinates")
    assert {f"{plot}.png" for plot in plots} <= {path.name for path in folder.iterdir()}
    assert (folder / "trials.csv").read_text().count("\n") == 4
    again = headwise("train", *arguments)
    assert "training in" not in again.out
    assert "2 complete, 1 fail" in again.out


@pytest.mark.slow
def test_pruned_run_is_listed_and_resumes_by_a_plain_command(headwise, arguments, tmp_path):
    pruner = ["hydra.sweeper.pruner=median", "hydra.sweeper.pruner_options={n_startup_trials: 1}"]
    order = "hydra.sweeper.sampler_seed=2"  # the better one first
    result = headwise.ok("train", *arguments, *pruner, order, "optimizer.lr=1e-9,1e-2")
    assert "1 complete, 1 pruned" in result.out
    assert "0 (1 pruned)" in result.out
    assert "stopped by the pruner of the search at update 2 with loss" in result.err
    listed = headwise.ok("runs", f"runs=[{tmp_path / 'outputs'}]").out
    assert "2 runs: 1 finished, 1 pruned" in listed or "1 pruned, 1 finished" in listed
    plain = [a for a in arguments[1:] if not a.startswith("hydra")]
    assert "run folder" in headwise.ok("train", *plain, "optimizer.lr=1e-9").out
    assert len(run_folders(tmp_path / "outputs")) == 2

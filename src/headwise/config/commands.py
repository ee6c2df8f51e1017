"""The configs of the commands, all but training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from headwise.config.fields import bounded, path
from headwise.errors import ConfigError, unset
from headwise.files import STDIN, STDOUT

N_RESAMPLES = 10_000  # with 1,000, a p-value of 0.01 varies from 0.007 to 0.014


@dataclass
class Loading:
    """Keys of every command that may load a run."""

    checkpoint: str = "auto"  # auto, best, last, average or update_<n>
    device: str = "auto"


@dataclass
class Batching(Loading):
    """Keys of the commands that apply a run to many items."""

    max_tokens: int | None = None  # of a batch, padded; affects memory, time; null: as in training


@dataclass
class TableConfig(Batching):
    """`headwise table`: the tables of a study, or of a sweep."""

    study: Any = None  # a yaml of conf/study; see `headwise.studies.study.Study`; null: a sweep
    runs: list[str] = path(list)  # folders, globs or the folder of a sweep; empty: of the study
    rows: list[str] | None = None  # null: all of the study
    columns: list[str] | None = None  # null: all of the study
    baseline: str | None = None  # a row, or a part of its name; null: the study's, or softmax
    seeds: list[int] | None = None  # null: those of the study
    overrides: list[str] = field(default_factory=list)  # added to every recipe: ["data.dir=FOLDER"]
    n_resamples: int = bounded(N_RESAMPLES, 1)  # of the intervals over items
    launch: bool = False  # train missing runs first
    heads: bool = False  # analyse the heads of the runs, as tables
    output: str | None = path()  # null: outputs/tables/<study>


@dataclass
class RunOrRuns(Loading):
    """Keys of the commands that take one run or several."""

    run: str | None = path()  # folder of a run
    runs: list[str] = path(list)  # several runs instead: folders or globs

    def check_runs(self) -> None:
        """Raise `ConfigError` unless either `run` or `runs` is given."""
        if self.run is None and not self.runs:
            raise unset("run", " or runs=[FOLDER,…]")
        if self.run is not None and self.runs:
            raise ConfigError("run and runs cannot be given together; give one of them")


@dataclass
class FiguresConfig(RunOrRuns):
    """`headwise figures`: figures for print, of one run or of several."""

    sentence: str | None = None  # draw the attention of all heads of `run` on it
    output: str | None = path()  # null: outputs/figures, or in the run folder


@dataclass
class PageConfig(Loading):
    """`headwise page`: one HTML file to inspect the heads of a run."""

    run: str = path(MISSING)  # folder of a run
    other: str | None = path()  # a second run
    n_sentences: int = bounded(20, 1)  # number of sentences on the page
    sentences: str | None = path(stream=STDIN)  # a file; null: from a test set of the run
    output: str | None = path()  # null: in the run folder; FILE.json: what the page shows, as data


@dataclass
class CompareConfig:
    """`headwise compare`: paired tests between two runs."""

    run: str = path(MISSING)  # folder of a run
    other: str = path(MISSING)  # the run that it is compared with
    n_resamples: int = bounded(N_RESAMPLES, 1)  # of the intervals over items
    output: str | None = path()  # a file; null: print only


@dataclass
class RunsConfig:
    """`headwise runs`: a table of runs."""

    runs: list[str] = path(lambda: ["outputs"])  # folders, globs or archives
    where: str | None = None  # a query of pandas: status == "finished" and seed < 3
    sort: str | None = None  # a column; -column: descending
    format: str = "table"  # table, csv, json; the last two have all scores
    export: str | None = path()  # folder of an archive to write with the listed runs
    overwrite: bool = False  # replace an archive that `export` names


@dataclass
class RunSelection(Batching):
    """Keys of the commands that apply one run."""

    run: str = path(MISSING)  # its folder
    progress: bool = True


@dataclass
class SampleConfig(RunSelection):
    """`headwise sample`: draw samples from a density model."""

    n: int = bounded(16, 1)  # samples
    length: int | None = bounded(None, 1)  # tokens of each after the prompt; null: to data.window
    prompt: str | None = None  # text at the beginning of each sample
    prompt_file: str | None = path(stream=STDIN)  # a text, picture or audio file with the prompt
    prompt_split: str | None = None  # sample i continues image or piece i of this split
    prompt_length: int | None = bounded(None, 1)  # its first tokens; null: all, half of an image
    temperature: float = 1.0  # below 1: more probable tokens
    top_k: int | None = None  # draw from the k most probable tokens; null: all
    top_p: float = 1.0  # draw from the most probable tokens with this probability together
    seed: int = 1  # with the number of a sample: its random numbers
    batch_size: int = bounded(16, 1)  # samples computed together; affects time and memory alone
    precision: str = "fp64"  # fp64, or fp32: faster, and may depend on the batch
    output: str | None = path(stream=STDOUT)  # a file; null: in samples/ of the run


@dataclass
class PredictConfig(RunSelection):
    """`headwise predict`: label the texts of a file or of stdin, or pictures."""

    input: str | None = path(stream=STDIN)  # lines, table, picture or a folder of them; null: stdin
    output: str | None = path(stream=STDOUT)  # a file; null writes to stdout
    buffer_size: int = bounded(10_000, 1)  # texts or pictures labelled at a time; of a pipe at most


@dataclass
class SearchSelection(RunSelection):
    """Keys of commands that load a run and translate."""

    decode: dict[str, Any] = field(default_factory=dict)  # overrides of the search of the run


@dataclass
class EvaluateDataConfig:
    """The text to score on."""

    test: list[str] = field(default_factory=list)  # names; empty: the test sets of the run
    dir: str | None = path()  # folder of the corpus, if it differs from that of the run
    source_file: str | None = path(stream=STDIN)  # one sentence per line; needs reference_file
    reference_file: str | None = path(stream=STDIN)


@dataclass
class EvaluateConfig(SearchSelection):
    """`headwise evaluate`: score a run on test sets or other text."""

    scaling: Any = None  # replaces that of the run, at all sites; needs name; null: as in training
    data: EvaluateDataConfig = field(default_factory=EvaluateDataConfig)
    name: str | None = None  # of the results file; null: results-<checkpoint>
    output: str | None = path()  # folder of the results; null: the run folder


@dataclass
class TranslateConfig(SearchSelection):
    """`headwise translate`: translate a file, stdin, or lines typed at a terminal."""

    input: str | None = path(stream=STDIN)  # a file; null reads stdin
    output: str | None = path(stream=STDOUT)  # a file; null writes to stdout
    reference: str | None = path(stream=STDIN)  # score these translations instead (forced decoding)
    buffer_size: int = bounded(10_000, 1)  # lines translated at a time; of a pipe at most


@dataclass
class PruneDataConfig:
    """The text to measure heads on."""

    split: str | None = None  # null: the run's validation set
    dir: str | None = path()  # folder of the corpus, if it differs from that of the run
    sentences: int | None = bounded(1000, 1)  # the first N; null: all


@dataclass
class PruneConfig(SearchSelection):
    """`headwise prune`: measure the importance of heads, and remove heads."""

    by: str = "importance"  # importance (Michel et al. 2019), gates (Voita et al. 2019)
    fraction: float | None = bounded(None, above=0, high=1)  # of the heads of `sites` to remove
    keep: Any = None  # heads to keep, as model.heads: site -> layers -> numbers of heads
    sites: list[str] | None = None  # sites to remove heads from; null: all sites of the model
    table: bool = False  # scores with 0, 10, ... 100 % of the heads masked
    ablation: bool = False  # scores without each head, and with only the best head of each layer
    output: str | None = path()  # folder of the new run; null: next to the old one
    data: PruneDataConfig = field(default_factory=PruneDataConfig)


@dataclass
class AnalyzeDataConfig(PruneDataConfig):
    """The text to analyse heads on."""

    sentences: int | None = bounded(None, 1)  # null: all, of a density model 2^27 pairs of tokens


@dataclass
class AnalyzeConfig(RunOrRuns, Batching):
    """`headwise analyze`: tables of measures of the heads of a run."""

    data: AnalyzeDataConfig = field(default_factory=AnalyzeDataConfig)
    offsets: int = bounded(5, 1)  # relative positions -N to N that are analysed
    positional_share: float = bounded(0.9, above=0, high=1)  # of queries (Voita et al. 2019)
    merge_score: float = bounded(0.8, above=0, high=1)  # of merging heads (Correia et al. 2019)
    question_weight: float = bounded(0.8, above=0, high=1)  # at words of interrogation heads
    rare_share: float = bounded(0.5, above=0, high=1)  # of sentences (Voita et al. 2019)
    importance: bool = True  # of heads (Michel et al. 2019); needs a backward pass over the text
    overwrite: bool = False  # repeat an existing analysis
    progress: bool = True
    output: str = path("outputs/analysis")  # folder of the comparison of runs=

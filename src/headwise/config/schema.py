"""The whole configuration as dataclasses.

Values that users choose are here and in `conf/`; runtime objects (devices, tensors) never are.
Plain groups are typed: a wrong key or type is rejected when the config is composed. Groups whose
yaml has a `_target_` are open: their constructors check the arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, cast

from omegaconf import MISSING, DictConfig, OmegaConf

from headwise.config.commands import CompareConfig, FiguresConfig, PageConfig, TableConfig
from headwise.config.density_data import (
    BuiltinTextConfig,
    ImageDataConfig,
    MusicDataConfig,
    TextDataConfig,
    WindowsConfig,
)
from headwise.config.labelled_data import LabelledDataConfig, PredictConfig
from headwise.config.listing import RunsConfig
from headwise.config.no_data import NoDataConfig
from headwise.config.sampling import RunSelection, SampleConfig
from headwise.config.text_and_paths import expand_paths, install, path
from headwise.files import STDIN, STDOUT

SITES = ("encoder_self", "decoder_self", "cross")
SITE_NAMES = {
    "encoder_self": "encoder self-attention",
    "decoder_self": "decoder self-attention",
    "cross": "cross-attention",
}
SITE_SIDES = {"encoder_self": "encoder", "decoder_self": "decoder", "cross": "decoder"}
SITE_KINDS = {"encoder_self": "self", "decoder_self": "causal", "cross": "cross"}
# Groups that can be chosen for each site -> the key of these choices.
SITE_GROUPS = {"attention": "sites", "pattern": "pattern_sites", "scaling": "scaling_sites"}


@dataclass
class CleaningConfig:
    """Filters of training pairs; validation and test sets are never filtered.

    A pair is dropped if a side is empty, a limit is exceeded, or the ratio of the lengths in
    white-space words is above `max_ratio`. Limits of 0 are off.
    """

    max_words: int = 0  # white-space words, both sides
    max_source_characters: int = 0  # of a sentence
    max_target_characters: int = 0  # of its translation
    max_target_moses_tokens: int = 0  # the rule of KFTT's cleaned English side (40)
    max_ratio: float = 0.0  # longer side / shorter side, in white-space words
    normalise: list[str] = field(default_factory=list)  # e.g. [romanian_comma_below]


@dataclass
class DataConfig:
    """A parallel corpus with named splits; see `headwise.data.corpus`."""

    _target_: str = "headwise.config.schema.DataConfig"
    tasks: list[str] = field(default_factory=lambda: ["translation"])  # tasks that use it
    name: str = MISSING  # name of the corpus, as in data=
    source: str = MISSING  # language code of the input side
    target: str = MISSING  # language code of the output side
    dir: str | None = path()  # a folder of local text, used instead of downloads
    folder: str | None = None  # folder name under $HEADWISE_DATA
    files: dict[str, list[str]] = path(dict)  # split -> alternative file stems
    train: str = "train"  # a split, or several: a+b
    valid: str = "valid"  # a split, or several
    test: list[str] = field(default_factory=list)  # test sets, scored at the end of a run
    origins: list[Any] = field(default_factory=list)  # tried in order if no folder is set
    cleaning: CleaningConfig = field(default_factory=CleaningConfig)
    vocab_size: int = 32000  # suggested for a text of this size
    max_updates: int = 100_000  # suggested for a text of this size
    warmup_updates: int = 4000  # suggested for a text of this size
    max_train_pairs: int | None = None  # keep the first N pairs after cleaning
    licence: str = MISSING
    notes: str = ""


@dataclass
class TokenizerConfig:
    """SentencePiece segmentation, trained on the training split, or loaded from `folder`."""

    kind: str = "bpe"  # bpe, unigram, char, byte, or given
    folder: str | None = path()  # with kind=given: a run, or any folder with a tokenizer.model
    vocab_size: int = 32000  # tokens, the four special ones included
    joint: bool = True  # one model for both languages
    character_coverage: float = 1.0  # share of the text in the alphabet; the rest is unknown
    byte_fallback: bool = False  # unknown characters as bytes
    dropout: float = 0.0  # BPE-dropout on training text; 0 is off
    max_training_sentences: int = 2_000_000  # a seeded sample of a larger corpus
    max_sentence_tokens: int = 250  # training pairs with a longer side are dropped


@dataclass
class ModelConfig:
    """A Transformer (Vaswani et al. 2017): encoder and decoder, or one of them alone."""

    name: str = MISSING  # tiny, small, base, big or deep, by model=
    encoder_layers: int = MISSING  # layers of the encoder
    decoder_layers: int = MISSING  # layers of the decoder
    d_model: int = MISSING  # width
    n_heads: int = MISSING  # at each site
    d_ff: int = MISSING  # hidden width of the feed-forward block
    share_embeddings: str = "all"  # all (source, target, output), decoder (target, output), none
    dropout: float = 0.1  # of embeddings and of the output of each sublayer
    attention_dropout: float = 0.1  # of the attention weights
    activation_dropout: float = 0.1  # inside the feed-forward block
    recompute: bool = False  # activation checkpointing: recompute blocks in the backward pass
    cls_tokens: int = 0  # learned vectors in front of the source, or of the one column
    pool: str | None = None  # of classifiers: concat, mean, first; null: CLS tokens joined, or mean
    heads: Any = None  # site -> layers -> numbers of the heads left by pruning; null: all
    layers: int | None = None  # of a model with one stack; null: encoder_layers or decoder_layers
    qk_width: int | None = None  # of all query or all key heads; null: d_model, as the values
    lr: float = 7e-4  # peak learning rate suggested for this size


@dataclass
class TrainerConfig:
    """The training loop."""

    max_updates: int = 100_000  # steps of the optimizer
    max_tokens: int = 4096  # padded tokens of the longer side of a batch, per rank
    accumulate: int = 1  # batches per update
    clip_norm: float = 0.0  # maximum norm of the gradient; 0 is off
    precision: str = "auto"  # fp32, bf16 (autocast), or auto: bf16 where it is native
    device: str = "auto"  # auto, cpu, cuda
    threads: int | None = None  # CPU threads of torch; null leaves its default
    gradient_sum: str = "overlapped"  # over ranks: overlapped (with the backward pass), or flat
    compile: bool = False  # compile the model with torch.compile
    log_every: int = 50  # updates between log lines
    validate_every: int = 1000  # updates between validations
    save_every: int = 1000  # updates between checkpoints
    keep: int = 5  # numbered checkpoints kept in addition to best and last
    monitor: str | None = None  # metric of `best` and early stopping; null: that of the task (bleu)
    patience: int = 0  # validations without improvement before stopping; 0 is off
    average: int = 0  # average the last N numbered checkpoints at the end; 0 is off
    valid_beam: int = 1  # beam of translations at validations; decode.beam is for the end
    valid_sentences: int = 1000  # sentences translated at each validation; the loss uses all
    valid_samples: int = 2  # samples drawn from a density model at each validation; 0: none
    head_sentences: int = 200  # sentences for density etc. at each validation; 0: none
    n_workers: int | None = None  # processes for encoding; null: the number of cores
    progress: bool = True  # a progress bar in a terminal, else lines; false: neither


@dataclass
class DecodeConfig:
    """Search and scoring."""

    _target_: str = "headwise.config.schema.DecodeConfig"
    method: str = "beam"  # beam or greedy
    beam: int = 5  # hypotheses per sentence
    length_penalty: float = 1.0  # score / length^penalty
    n_best: int = 1  # translations per sentence, at most the beam
    max_length_ratio: float = 1.5  # hypothesis length limit: ratio * source + extra
    max_length_extra: int = 50  # see max_length_ratio, in tokens
    max_tokens: int = 16384  # padded source tokens of a decoding batch, times the beam
    precision: str = "fp32"  # fp32, bf16 (autocast: scores differ), or auto as in training
    external: dict[str, str] = field(default_factory=dict)  # metric name -> command


@dataclass
class TrackerConfig:
    """Weights & Biases; the jsonl files of the run folder are always written."""

    kind: str = "wandb"  # wandb or none
    project: str | None = None  # of W&B; null: WANDB_PROJECT, else headwise
    entity: str | None = None  # of W&B: user or team; null: WANDB_ENTITY, else its default
    mode: str | None = None  # online, offline, disabled; null: WANDB_MODE, else by the API key
    tags: list[str] = field(default_factory=list)  # of the run, for W&B; none: WANDB_TAGS
    group: str | None = None  # null: WANDB_RUN_GROUP, else the sweep's name
    init_timeout: int = 20  # seconds before an online run falls back to offline


@dataclass
class PathsConfig:
    """Folders."""

    outputs: str = path("outputs")  # run folders
    cache: str = path(MISSING)  # encoded corpora, tokenizers, downloads


@dataclass
class SitesConfig:
    """One choice per attention site; null: the choice for all sites."""

    encoder_self: Any = None
    decoder_self: Any = None
    cross: Any = None


@dataclass
class Config:
    """The config of training, composed from `conf/train.yaml`."""

    task: Any = MISSING
    attention: Any = MISSING
    sites: SitesConfig = field(default_factory=SitesConfig)
    pattern: Any = MISSING
    pattern_sites: SitesConfig = field(default_factory=SitesConfig)
    scaling: Any = MISSING
    scaling_sites: SitesConfig = field(default_factory=SitesConfig)
    positions: Any = MISSING
    norm: Any = MISSING
    activation: Any = MISSING
    init: Any = MISSING
    gates: Any = MISSING
    repulsion: Any = MISSING
    loss: Any = MISSING
    data: Any = MISSING
    tokenizer: TokenizerConfig = MISSING
    model: ModelConfig = MISSING
    optimizer: Any = MISSING
    scheduler: Any = MISSING
    trainer: TrainerConfig = MISSING
    decode: Any = MISSING
    tracker: TrackerConfig = MISSING
    paths: PathsConfig = MISSING
    experiment_name: str = "default"  # folder of the run, under outputs
    seed: int = 1  # of weights, dropout and order
    init_from: str | None = path()  # another run, whose weights initialise the model
    dry_run: bool = False  # print parameters, memory and FLOPs, then stop


@dataclass
class SearchSelection(RunSelection):
    """Keys of commands that load a run and translate."""

    decode: dict[str, Any] = field(default_factory=dict)  # overrides of the search of the run


@dataclass
class EvaluateConfig(SearchSelection):
    """`scripts/evaluate.py`: score a run on test sets or other text."""

    run: str = path(MISSING)  # run folder
    data: EvaluateDataConfig = field(default_factory=lambda: EvaluateDataConfig())
    name: str | None = None  # of the results file; null: results-<checkpoint>
    output: str | None = path()  # folder of the results; null: the run folder


@dataclass
class EvaluateDataConfig:
    """The text to score on."""

    test: list[str] = field(default_factory=list)  # names; empty: the test sets of the run
    dir: str | None = path()  # folder of the corpus, if it differs from that of the run
    source_file: str | None = path(stream=STDIN)  # one sentence per line; needs reference_file
    reference_file: str | None = path(stream=STDIN)


@dataclass
class TranslateConfig(SearchSelection):
    """`scripts/translate.py`: translate a file, stdin, or lines typed at a terminal."""

    run: str = path(MISSING)
    input: str | None = path(stream=STDIN)  # a file; null reads stdin
    output: str | None = path(stream=STDOUT)  # a file; null writes to stdout
    reference: str | None = path(stream=STDIN)  # score these translations instead (forced decoding)
    buffer_size: int = 10_000  # lines that are read, sorted by length and translated at a time


@dataclass
class PruneDataConfig:
    """The text to measure heads on."""

    split: str | None = None  # null: the run's validation set
    dir: str | None = path()  # folder of the corpus, if it differs from that of the run
    sentences: int | None = 1000  # the first N; null: all


@dataclass
class PruneConfig(SearchSelection):
    """`scripts/prune.py`: measure the importance of heads, and remove heads."""

    run: str = path(MISSING)  # run folder
    by: str = "importance"  # importance (Michel et al. 2019), gates (Voita et al. 2019)
    fraction: float | None = None  # of the heads of `sites` to remove; null: remove none
    keep: Any = None  # heads to keep, as model.heads: site -> layers -> numbers of heads
    sites: list[str] | None = None  # sites to remove heads from; null: all sites of the model
    table: bool = False  # scores with 0, 10, ... 100 % of the heads masked
    ablation: bool = False  # scores without each head, and with only the best head of each layer
    output: str | None = path()  # folder of the new run; null: next to the old one
    data: PruneDataConfig = field(default_factory=PruneDataConfig)


@dataclass
class AnalyzeDataConfig(PruneDataConfig):
    """The text to analyse heads on."""

    sentences: int | None = None  # first N; null: all, of a density model 2^27 pairs of positions


@dataclass
class AnalyzeConfig(RunSelection):
    """`scripts/analyze.py`: tables of measures of the heads of a run."""

    run: str | None = path()  # run folder
    runs: list[str] = path(list)  # several runs: folders or globs
    data: AnalyzeDataConfig = field(default_factory=AnalyzeDataConfig)
    offsets: int = 5  # relative positions -N to N that are analysed
    positional_share: float = 0.9  # minimum share of queries, positional head (Voita et al. 2019)
    merge_score: float = 0.8  # minimum score of a merging head (Correia et al. 2019)
    question_weight: float = 0.8  # minimum weight at question words of an interrogation head
    rare_share: float = 0.5  # minimum share of sentences of a rare-words head (Voita et al. 2019)
    importance: bool = True  # of heads (Michel et al. 2019); needs a backward pass over the text
    overwrite: bool = False  # repeat an existing analysis
    output: str = path("outputs/analysis")  # folder of the comparison of runs=


KINDS: dict[str, type] = {  # command -> dataclass
    "train": Config,
    "evaluate": EvaluateConfig,
    "translate": TranslateConfig,
    "predict": PredictConfig,
    "sample": SampleConfig,
    "prune": PruneConfig,
    "analyze": AnalyzeConfig,
    "table": TableConfig,
    "figures": FiguresConfig,
    "page": PageConfig,
    "compare": CompareConfig,
    "runs": RunsConfig,
}

# Dataclasses of open groups, which a yaml selects by /schema/NAME@_here_ in its defaults list.
SCHEMAS: dict[str, type] = {
    "parallel": DataConfig,
    "text": TextDataConfig,
    "builtin_text": BuiltinTextConfig,
    "images": ImageDataConfig,
    "music": MusicDataConfig,
    "labelled": LabelledDataConfig,
    "no_data": NoDataConfig,
    "search": DecodeConfig,
    "windows": WindowsConfig,
}
UNCHOSEN = ("schema", "shared")  # groups that only other yamls use
C = TypeVar("C")


def typed(node: DictConfig, kind: type[C] = Config) -> C:  # type: ignore[assignment]
    """A composed config as the dataclass of its command; `~` in paths is expanded."""
    return expand_paths(cast(C, OmegaConf.to_object(node)))


@cache
def register() -> None:
    """Register the dataclasses with Hydra as `COMMAND_schema` and `schema/NAME`."""
    from hydra._internal.hydra import Hydra
    from hydra.core.config_store import ConfigStore

    install()
    groups = Hydra.list_all_config_groups  # for --help
    Hydra.list_all_config_groups = (  # type: ignore[method-assign]
        lambda *parts: [group for group in groups(*parts) if group not in UNCHOSEN]
    )
    # Hydra would copy all of it at every composition, and for --help once a group
    ConfigStore.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]
    for command, kind in KINDS.items():
        ConfigStore.instance().store(f"{command}_schema", kind)
    for name, kind in SCHEMAS.items():
        ConfigStore.instance().store(name, kind, group="schema")

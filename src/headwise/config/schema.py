"""The whole configuration as dataclasses.

Values that users choose are here and in `conf/`; runtime objects (devices, tensors) never are.
Plain groups are typed: a wrong key or type is rejected when the config is composed. Groups whose
yaml has a `_target_` are open: their constructors check the arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from headwise.config.fields import bounded, path

MOST = 2**53  # counts below it are exact as float64

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
class TokenizerConfig:
    """SentencePiece segmentation, trained on the training split, or loaded from `folder`."""

    kind: str = "bpe"  # bpe, unigram, char, byte, or given
    folder: str | None = path()  # with kind=given: a run, or any folder with a tokenizer.model
    vocab_size: int = 32000  # tokens, the four special ones included
    joint: bool = True  # one model for both languages
    character_coverage: float = bounded(1.0, 0.98, 1)  # share of the text in the alphabet
    byte_fallback: bool = False  # unknown characters as bytes
    dropout: float = bounded(0.0, 0, below=1)  # BPE-dropout on training text; 0 is off
    max_training_sentences: int = bounded(2_000_000, 1)  # a seeded sample of a larger corpus
    max_sentence_tokens: int = bounded(250, 1)  # training pairs with a longer side are dropped


@dataclass
class ModelConfig:
    """A Transformer (Vaswani et al. 2017): encoder and decoder, or one of them alone."""

    name: str = MISSING  # tiny, small, base, big or deep, by model=
    encoder_layers: int = bounded(MISSING, 1, 1000)  # layers of the encoder
    decoder_layers: int = bounded(MISSING, 1, 1000)  # layers of the decoder
    d_model: int = bounded(MISSING, 1)  # width
    n_heads: int = bounded(MISSING, 1)  # at each site
    d_ff: int = bounded(MISSING, 1)  # hidden width of the feed-forward block
    share_embeddings: str = "all"  # all (source, target, output), decoder (target, output), none
    dropout: float = bounded(0.1, 0, below=1)  # of embeddings and of the output of sublayers
    attention_dropout: float = bounded(0.1, 0, below=1)  # of the attention weights
    activation_dropout: float = bounded(0.1, 0, below=1)  # inside the feed-forward block
    recompute: bool = False  # activation checkpointing: recompute blocks in the backward pass
    cls_tokens: int = bounded(0, 0)  # learned vectors in front of the source or only column
    pool: str | None = None  # of classifiers: concat, mean, first; null: CLS tokens joined, or mean
    heads: Any = None  # site -> layers -> numbers of the heads left by pruning; null: all
    layers: int | None = bounded(None, 1, 1000)  # of one stack; null: encoder_ or decoder_layers
    qk_width: int | None = bounded(None, 1)  # of all query or key heads; null: d_model, as values
    lr: float = 7e-4  # peak learning rate suggested for this size


@dataclass
class TrainerConfig:
    """The training loop."""

    max_updates: int = bounded(100_000, 1, below=MOST)  # steps of the optimizer
    max_tokens: int = bounded(4096, 1, below=MOST)  # padded, of a batch's longer side, per rank
    accumulate: int = bounded(1, 1, below=MOST)  # batches per update
    clip_norm: float = bounded(0.0, 0)  # maximum norm of the gradient; 0 is off
    precision: str = "auto"  # fp32, bf16 (autocast), or auto: bf16 where it is native
    device: str = "auto"  # auto, cpu, cuda
    threads: int | None = bounded(None, 1)  # CPU threads of torch; null leaves its default
    compile: bool = False  # compile the model with torch.compile
    log_every: int = bounded(50, 1, below=MOST)  # updates between log lines
    validate_every: int = bounded(1000, 1, below=MOST)  # updates between validations
    save_every: int = bounded(1000, 1, below=MOST)  # updates between checkpoints
    keep: int = bounded(5, 0)  # numbered checkpoints kept in addition to best and last
    monitor: str | None = None  # metric of `best` and early stopping; null: that of the task (bleu)
    patience: int = bounded(0, 0)  # validations without improvement before stopping; 0 is off
    average: int = bounded(0, 0)  # average the last N numbered checkpoints at the end; 0 is off
    valid_beam: int = bounded(1, 1, below=MOST)  # at validations; decode.beam is for the end
    valid_sentences: int = bounded(1000, 0)  # translated at each validation; the loss uses all
    valid_samples: int = bounded(2, 0)  # drawn from a density model at each validation; 0: none
    head_sentences: int = bounded(200, 0)  # sentences for density etc. at each validation; 0: none
    n_workers: int | None = bounded(None, 1)  # processes for encoding; null: the number of cores
    progress: bool = True  # a progress bar in a terminal, else lines; false: neither


@dataclass
class DecodeConfig:
    """Search and scoring."""

    _target_: str = "headwise.config.schema.DecodeConfig"
    beam: int = bounded(5, 1)  # hypotheses per sentence; 1: greedy search
    length_penalty: float = bounded(1.0, -10, 10)  # score / length^penalty
    n_best: int = bounded(1, 1)  # translations per sentence, at most the beam
    max_length_ratio: float = bounded(1.5, 0, below=math.inf)  # length limit: ratio*source+extra
    max_length_extra: int = bounded(50, 0)  # see max_length_ratio, in tokens
    max_tokens: int = bounded(16384, 1)  # padded source tokens of a batch, times the beam
    precision: str = "fp32"  # fp32, bf16 (autocast: scores differ), or auto as in training


@dataclass
class WandbConfig:
    """Weights & Biases; the jsonl files of the run folder are always written."""

    _target_: str = "headwise.track.wandb_tracker.WandbTracker"
    project: str | None = None  # of W&B; null: WANDB_PROJECT, else headwise
    entity: str | None = None  # of W&B: user or team; null: WANDB_ENTITY, else its default
    mode: str | None = None  # online, offline, disabled; null: WANDB_MODE, else by the API key
    tags: list[str] = field(default_factory=list)  # of the run, for W&B; none: WANDB_TAGS
    group: str | None = None  # null: WANDB_RUN_GROUP, else the sweep's name
    init_timeout: int = bounded(20, 1)  # seconds before an online run falls back to offline


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
    tracker: Any = MISSING
    paths: PathsConfig = MISSING
    experiment_name: str = "default"  # folder of the run, under outputs
    seed: int = bounded(1, 0, below=2**63)  # of weights, dropout and order
    init_from: str | None = path()  # another run, whose weights initialise the model
    dry_run: bool = False  # print parameters, FLOPs, minutes and memory, then stop


UNCHOSEN = ("schema", "shared")  # groups that only other yamls use


@dataclass
class WindowsConfig:
    """Evaluation of a density model in windows."""

    _target_: str = "headwise.config.schema.WindowsConfig"
    min_context: int = bounded(0, 0)  # tokens before every scored one; 0: windows side by side
    window: int | None = bounded(None, 1)  # tokens of a window; null: data.window, as in training
    max_windows: int = bounded(0, 0)  # score only so many, evenly spaced; 0: the whole split
    precision: str = "fp32"  # fp32, bf16 (autocast: bits differ), or auto as in training

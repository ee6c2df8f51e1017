"""Write the generated tables of the guide, between their markers in the pages.

    python docs/generate.py [PAGE.md …]

Settings: every key of a training. Defaults are those of `python train.py`; numbers are the
bounds and meanings the comments of `headwise.config.schema`, and `headwise.runs.folder`
decides which keys are part of a run's fingerprint. Keys of open groups (attention, loss and the
like) are in the yamls of their choices. Commands and corpora: from `conf/`. Variants: formulas
from the first lines of `conf/attention/`, and capabilities from the classes. Results: cells of the
tables that `headwise table` made of the records in `results/` (a test makes those again), and what
no such table has, from the records themselves.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf

from headwise.attention.attention import Attention, ScoreAttention
from headwise.attention.build import AttentionFactory, unsupported_sites
from headwise.attention.cache import KeyValueCache
from headwise.attention.place import Place
from headwise.cli import COMMANDS, CONFIGS
from headwise.config import schema
from headwise.config.data import (
    CleaningConfig,
    DataConfig,
    LabelledDataConfig,
    SequenceConfig,
    TextDataConfig,
)
from headwise.config.fields import bounds_in_words
from headwise.config.register import composed, config_dir, group_choices, group_node
from headwise.config.schema import SITE_KINDS, SITE_NAMES
from headwise.markdown import markdown_table
from headwise.runs.archive import find_records
from headwise.runs.folder import NOT_IN_FINGERPRINT, comparable
from headwise.runs.record import Record

GROUPS = {  # key of a group -> its class
    "": schema.Config,
    "trainer": schema.TrainerConfig,
    "model": schema.ModelConfig,
    "tokenizer": schema.TokenizerConfig,
    "decode": schema.DecodeConfig,
    "data": DataConfig,
    "data.cleaning": CleaningConfig,
    "tracker": schema.WandbConfig,
    "paths": schema.PathsConfig,
}
OTHER_DATA: dict[str, dict[str, type]] = {  # choice of data -> its groups with other keys
    "data=text": {"data": TextDataConfig, "decode": schema.WindowsConfig},
    "data=labelled": {"data": LabelledDataConfig},
    "data=copy": {"data": SequenceConfig},
}
# Set by the yamls of `data`, not by users.
CORPUS_KEYS = ("tasks", "files", "origins", "licence", "notes")
MAX_SOURCES = 4  # of a corpus that are shown
N_HEADS, HEAD_DIM = 8, 4  # arbitrary: the capabilities do not depend on them
HEADER = (
    "`attention=`",
    *(f"{SITE_NAMES[s]}{' (causal)' * (kind == 'causal')}" for s, kind in SITE_KINDS.items()),
    "decoding cache",
    "fused, or no scores",
    "weights",
    "patterns, scalings",
    "rotary, ALiBi",
    "max positions",
)


def keys_of(kind: type, values: DictConfig) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, value, numbers and meaning of each key of a group, without its subgroups."""
    source = "".join(map(inspect.getsource, kind.__mro__[:-1]))
    plain = OmegaConf.to_container(values, resolve=False)
    assert isinstance(plain, dict)
    for field in dataclasses.fields(kind):
        name = field.name
        is_group = isinstance(plain[name], dict) and plain[name]
        if not is_group and name not in CORPUS_KEYS and name[0] != "_":
            comment = re.search(rf"^    {name}: [^#\n]*  # (.*)$", source, re.MULTILINE)
            meaning = comment[1] if comment else ""
            yield name, _yaml(plain[name]), bounds_in_words(field), meaning


def _yaml(value: Any) -> str:
    return str(OmegaConf.to_yaml({"key": value}, resolve=False))[len("key: ") :].strip()


def settings_tables() -> str:
    """Return the tables, one per group of keys."""
    parts = [_open_groups(composed())]
    parts += [_table(composed(), group, kind, "") for group, kind in GROUPS.items()]
    for data, kinds in OTHER_DATA.items():
        config = composed(data)
        parts += [_table(config, group, kind, f" with `{data}`") for group, kind in kinds.items()]
    return "\n\n".join(parts)


def _open_groups(config: DictConfig) -> str:
    """A sentence on the keys that have no table."""
    names = [str(n) for n in config if OmegaConf.is_dict(config[n]) and n not in GROUPS]
    out = [key for key in NOT_IN_FINGERPRINT if key.split(".")[0] in names]
    listed, without = (", ".join(f"`{key}`" for key in keys) for keys in (names, out))
    return f"All keys of {listed} are in the fingerprint, except {without}."


def _table(config: DictConfig, group: str, kind: type, condition: str) -> str:
    """The table of one group of keys."""
    values = OmegaConf.select(config, group) if group else config
    prefix = f"{group}." if group else ""
    keys = comparable(cast(dict[str, Any], OmegaConf.to_container(config, resolve=False)))
    rows = [
        (
            f"`{prefix}{name}`",
            f"`{v}`",
            numbers,
            "in" if f"{prefix}{name}" in keys else "out",
            words,
        )
        for name, v, numbers, words in keys_of(kind, values)
    ]
    about = (inspect.getdoc(kind) or "").split("\n\n")[0]
    title = f"`{group}`{condition}" if group else "A run"
    table = markdown_table(("key", "default", "numbers", "fingerprint", ""), rows, numeric=False)
    return f"### {title}\n\n{' '.join(about.split())}\n\n{table}"


def help_of_commands() -> str:
    """Return what each command prints for `--help`, without its keys."""
    parts = []
    for command in COMMANDS:
        if command not in CONFIGS:  # else it has the help of another
            saved = OmegaConf.load(config_dir() / f"{command}.yaml")
            template = cast(Any, OmegaConf.to_container(saved))["hydra"]["help"]["template"]
            paragraphs = [p.strip() for p in template.split("\n\n")]
            shown = "\n\n".join(
                p for p in paragraphs if not p.startswith(("All keys", "Groups", "$"))
            )
            parts.append(f"## {command}\n\n```text\n{shown}\n```")
    return "\n\n".join(parts)


def attentions_by_site(name: str) -> dict[str, Attention]:
    """Return the variant's attention at each site that supports it."""
    node = group_node("attention", name)
    softmax = group_node("attention", "softmax")
    unsupported = unsupported_sites(node, "attention")
    return {
        site: AttentionFactory({"attention": softmax}, {"attention": {site: node}})(
            Place(site, 1, N_HEADS, HEAD_DIM)
        )
        for site in SITE_KINDS
        if site not in unsupported
    }


def capability_row(name: str) -> tuple[str, ...]:
    """Return one row of the table."""
    attentions = attentions_by_site(name)
    instead = group_node("attention", name).get("instead", {})
    by_site = [
        "yes" if s in attentions else f"no ({instead.get(s, 'rejected')})" for s in SITE_KINDS
    ]
    by_scores = [a for a in attentions.values() if isinstance(a, ScoreAttention)]
    has_no_scores = not by_scores
    limits = {a.max_keys for a in attentions.values()} - {None}
    return (
        name,
        *by_site,
        _cache(attentions),
        "yes" if has_no_scores else _fused(by_scores),
        ", ".join(dict.fromkeys(a.forms_weights for a in attentions.values())),
        "no" if has_no_scores else "yes",
        _positions(attentions) if has_no_scores else "yes",
        ", ".join(f"{n} (max_length)" for n in sorted(n for n in limits if n is not None)) or "any",
    )


def _fused(attentions: list[ScoreAttention]) -> str:
    return "yes" if all(a.normaliser.is_fused for a in attentions) else "no"


def _positions(attentions: dict[str, Attention]) -> str:
    return "rotary" if any(a.rotates for a in attentions.values()) else "no"


def _cache(attentions: dict[str, Attention]) -> str:
    growing = [a for site, a in attentions.items() if SITE_KINDS[site] == "causal"]
    if not growing:
        return "cross only"
    cache = growing[0].make_cache(static=False)
    return "keys, values" if isinstance(cache, KeyValueCache) else "constant state"


def formula_row(name: str) -> tuple[str, ...]:
    """Return name, formula and source, from the comment in the first line of the yaml."""
    text = (config_dir() / "attention" / f"{name}.yaml").read_text(encoding="utf-8")
    match = re.match(r"# (.+?)(?: \(([^()]+)\))?\n", text)
    formula, source = match.groups(default="") if match else ("", "")
    return f"`{name}`", formula, source


def formulas() -> str:
    """Return the variants of `conf/attention/` and their formulas as a markdown table."""
    rows = map(formula_row, group_choices("attention"))
    return markdown_table(("choice", "weights", "source"), rows, numeric=False)


def capabilities() -> str:
    """Return the capabilities of the variants as a markdown table."""
    return markdown_table(HEADER, map(capability_row, group_choices("attention")), numeric=False)


ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
Values = dict[str, str]


def published_table(name: str) -> Path:
    """Return the file of a published table: in `docs/table1/` where the guide shows it whole."""
    whole = ROOT / "docs/table1" / name
    return whole if whole.is_file() else ROOT / "tests/golden" / name


def published(study: str) -> dict[str, dict[str, Values]]:
    """Return row -> column -> the values of a study's table.

    They are `score`, `difference` to one of the rows with its intervals over `seeds` and over
    `items`, and the statistics of heads by their names in the table.
    """
    text = re.sub(r" \(\d+\)", "", published_table(f"{study}.md").read_text(encoding="utf-8"))
    cells: dict[str, dict[str, Values]] = defaultdict(dict)
    for number, section in enumerate(text.split("\n## ")[1:]):
        title = section.partition("\n")[0]
        lines = [line[2:-2].split(" | ") for line in section.splitlines() if line[:2] == "| "]
        for label, *values in lines[2:]:
            if title.startswith("Difference"):
                column, row = re.split(" [↑↓], ", label, maxsplit=1)
                shown = [value.replace(" to ", ", ") for value in values]
                cells[row][column] |= zip(("difference", "seeds", "items"), shown, strict=False)
                if shown[0].startswith("**"):
                    cells[row][column]["score"] = f"**{cells[row][column]['score']}**"
            for head, value in zip(lines[0][1:], values, strict=True):
                if number == 0:
                    cells[label][head.partition(":")[0]] = {"score": value}
                elif title.startswith("Heads, ") and title[7:] in cells[head]:
                    cells[head][title[7:]][label] = value
    return cells


def compared(
    study: str, formats: Values, columns: str = "", rows: str = "", by_column: bool = False
) -> str:
    """Return a table with rows and columns of a study's table.

    Args:
        study: its name.
        formats: addition to the head of a column -> template of its cells. Where none has the
            score, it stands in the row that the others are compared with.
        columns, rows: patterns of the beginnings of those that are shown.
        by_column: whether the columns of the study are the rows.
    """
    cells = published(study)
    shown = [row for row in cells if re.match(rows, row)]
    of_study = [column for column in next(iter(cells.values())) if re.match(columns, column)]
    lines, titles = (of_study, shown) if by_column else (shown, of_study)
    by_head = {}
    for title, (addition, template) in itertools.product(titles, formats.items()):
        of_line = [cells[title][n] if by_column else cells[n][title] for n in lines]
        texts = [_filled(template, values, "{score}" in formats.values()) for values in of_line]
        if any(texts):
            own = addition and len(titles) == 1
            by_head[addition if own else ", ".join(filter(None, (title, addition)))] = texts
    return markdown_table(("", *by_head), zip(lines, *by_head.values(), strict=True))


def _filled(template: str, values: Values, has_score: bool) -> str:
    if "{difference}" in template and "difference" not in values and not has_score:
        return values["score"]
    text = template.format_map(defaultdict(str, values))
    return " ".join(text.replace("** **", " ").removesuffix(" –").split())


def variants(corpus: str, *splits: str) -> str:
    """Return scores, costs and statistics of heads of the variants on a corpus.

    Args:
        corpus: end of the name of its folder in `results/`.
        splits: its test sets.
    """
    folder = RESULTS / f"variants_{corpus}"
    runs, step = (json.loads((folder / f).read_text("utf-8")) for f in ("runs.json", "step.json"))
    rows = []
    for name in group_node("study", "variants")["rows"]:
        of_seeds = list(runs[name].values())
        row = [name]
        for split in splits:
            scores = [run["scores"][split]["bleu"] for run in of_seeds]
            deviation = f" ± {np.std(scores, ddof=1):.2f}" if len(scores) > 1 else ""
            row.append(f"{np.mean(scores):.2f}{deviation}")
        softmax, costs = step["variants"]["softmax"], step["variants"][name]
        row += [f"{softmax['seconds'] / costs['seconds']:.2f}"]
        row += [f"{costs['bytes'] / softmax['bytes']:.2f}" if "loss" not in name else "–"]
        for statistic in ("density", "diversity"):
            of_sites = ([run[statistic][site] for run in of_seeds] for site in SITE_KINDS)
            row.append(" / ".join(f"{np.mean(values):.2f}" for values in of_sites))
        rows.append(row)
    return markdown_table(("", *splits, "tokens/s", "memory", "density", "diversity"), rows)


def times_and_densities() -> str:
    """Return times of an update relative to dense softmax, and densities of α-entmax."""
    densities = defaultdict(list)
    for run in find_records([str(RESULTS / "child2019_small")], Record):
        chosen = dict(text.split("=", 1) for text in run.part("overrides"))
        if run.results is not None and chosen["attention"] == "alpha_entmax":
            key = chosen["experiment"].rpartition("/")[2], chosen.get("pattern", "none")
            densities[key].append(run.results.heads["density"]["decoder_self"])
    text = (RESULTS / "benchmarks/child2019_small.json").read_text(encoding="utf-8")
    measured, rows = json.loads(text)["seconds"], []
    for row, choice in group_node("study", "child2019_small")["rows"].items():
        pattern, rule = row.replace("dense", "none").split("_")
        cells = [choice["label"]]
        for corpus, seconds in measured.items():
            of_runs = np.array(densities[corpus, pattern], float)
            density = f"{of_runs.mean():.2f}" if rule == "alpha" else ""
            cells += [f"{seconds[row] / seconds['dense_softmax']:.2f}", density]
        rows.append(cells)
    head = ("", *(f"{corpus}: {what}" for corpus in measured for what in ("time", "density")))
    return markdown_table(head, rows)


def kftt_scores() -> str:
    """Return validation losses and the score of the runs of KFTT on a GPU."""
    rows = []
    for run in find_records([str(RESULTS / "kftt_gpu")], Record):
        losses = {m["update"]: m["valid/nll"] for m in run.part("metrics") if "valid/nll" in m}
        bleu = run.json("results-best.json")["scores"]["test"]["bleu"]["score"]
        shown = (f"{losses[update]:.2f}" for update in (500, 1000, 1500))
        rows.append((run.folder.name, *shown, f"{bleu:.2f} (update {max(losses):,})"))
    head = (
        "`attention=`",
        "validation NLL at update 500",
        "1,000",
        "1,500",
        "BLEU of the test set",
    )
    return markdown_table(head, sorted(rows, reverse=True))


def multi30k_scores() -> str:
    """Return the scores of the runs of Multi30k."""
    rows = []
    for name in ("softmax", "alpha_entmax"):
        path = RESULTS / "multi30k_small" / name / "results.json"
        scores = json.loads(path.read_text(encoding="utf-8"))["scores"]
        rows.append((name, *(f"{of_split['bleu']['score']:.2f}" for of_split in scores.values())))
    return markdown_table(("`attention=`", *scores), rows)


def recorded(*names: str) -> list[dict[str, Any]]:
    """Return records of `results/benchmarks/`."""
    folder = RESULTS / "benchmarks"
    return [json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names]


def in_words(values: Iterable[float]) -> str:
    """Return the range of ratios; small ones as fractions."""
    shown = [f"1/{1 / v:.0f}" if v < 0.1 else f"{v:.2f}" for v in sorted(values)]
    return " to ".join(dict.fromkeys((shown[0], shown[-1]))) if shown else "–"


def cpu_ratios() -> str:
    """Return the ratios of `python -m benchmarks` on two processors."""
    files = recorded("threads_1", "threads_2", "avx2_threads_1", "avx2_threads_2")
    rows = [
        (
            label,
            *(in_words(f["value"] for f in d["figures"] if re.match(k, f["name"])) for d in files),
        )
        for label, k in CPU_RATIOS.items()
    ]
    ends = ("AVX-512, one thread", "two threads", "AVX2, one thread", "two threads")
    return markdown_table(("", *ends), rows)


def gpu_attention() -> str:
    """Return times of attention on a GPU, forward and backward, as multiples of FlashAttention."""
    (record,) = recorded("gpu_attention")
    rows = []
    for row in sorted(record["rows"], key=lambda r: (r["keys"], r["causal"], r["segments"])):
        parts = [f"{row['keys']:,} keys", "causal" * row["causal"], "segments" * row["segments"]]
        label = f"{', '.join(filter(None, parts))}: {100 * row['live']:.0f} % of the blocks"
        rows.append((label, *_ratios(row, *MAPS, "adasplash, α = 1.5")))
    return markdown_table(("", *MAPS, "adasplash 0.2.2, α = 1.5"), rows)


def gpu_patterns() -> str:
    """Return the same with patterns, as multiples of FlashAttention without one."""
    (record,) = recorded("gpu_patterns")
    rows = [
        (
            f"{row['keys']:,} positions, {row['pattern']}: {100 * row['live']:.0f} %",
            *_ratios(row, "softmax", *MAPS, "flex, softmax"),
        )
        for row in sorted(record["rows"], key=lambda r: r["keys"])
    ]
    return markdown_table(("", "softmax", *MAPS, "softmax by FlexAttention"), rows)


def _ratios(row: dict[str, Any], *names: str) -> list[str]:
    ratios = row["ratios"]
    shown = (ratios.get(f"{name}, with backward", ratios.get(name)) for name in names)
    return ["–" if value is None else f"{value:.2f}" for value in shown]


def gpu_rows() -> str:
    """Return times of maps on a GPU as multiples of torch's softmax."""
    (record,) = recorded("gpu_rows")
    names = [*MAPS, *(f"{name}, torch alone" for name in MAPS)]
    rows = [(row["of"], *_ratios(row, *names)) for row in record["rows"] if row["of"][:3] == "map"]
    return markdown_table(("", *names), rows)


def gpu_training() -> str:
    """Return speed, time and memory of an update on a GPU."""
    (record,) = recorded("gpu_training")
    rows = [
        (
            row["attention"],
            f"{row['tokens_per_second']:,.0f}",
            f"{row['to_softmax']:.2f}",
            f"{row['own_bytes'] / 2**30:.1f}",
        )
        for row in record["rows"]
    ]
    return markdown_table(("", "target tokens/s", "update, of softmax", "memory, GiB"), rows)


def own_models() -> str:
    """Return times of attention in models of Transformers, relative to torch's and to bisection."""
    (record,) = recorded("own_models")
    rows = [
        (
            label,
            *(f"{s[name] / s['sdpa']:.2f}" for name in ("1.5-entmax", "α-entmax")),
            f"1/{s['α-entmax, 50 bisections'] / s['α-entmax']:.0f}",
        )
        for label, s in record["seconds"].items()
    ]
    return markdown_table(
        ("", "1.5-entmax / sdpa", "α-entmax / sdpa", "α-entmax / bisection"), rows
    )


def peers(*names: str) -> str:
    """Return times of other toolkits as multiples of headwise with softmax in float32.

    Args:
        names: benchmarks; several are the same with one thread and with more.
    """
    by_label: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for record in recorded(*names):
        for row in record["rows"]:
            label = f"{row['what']}, {row['model']}, {row['sentences']} × {row['length']} words"
            seconds = row["seconds"]
            for name in PEERS:
                if name in seconds:
                    ratio = seconds[name] / seconds["headwise, softmax, fp32"]
                    by_label[label][name].append(f"{ratio:.2f}")
    shown = [name for name in PEERS if any(name in row for row in by_label.values())]
    rows = [
        (label, *(" / ".join(row[name]) for name in shown))
        for label, row in by_label.items()
        if not (label.startswith("search") and " 1 ×" in label)  # measured anew as "sentence"
    ]
    return markdown_table(("", *(PEERS[name] for name in shown)), rows)


MAPS = ("learned α", "α = 1.5", "α = 2")
SHORT = r"\((64|32), \d, (30|32|64), "
CPU_RATIOS = {  # label -> pattern of the figures
    "map, α-entmax / softmax, 30 to 64 keys": rf"α-entmax / softmax, f\+b, {SHORT}",
    "256 keys": r"α-entmax / softmax, f\+b, \(8, 8, 256",
    "1,024 keys": r"α-entmax / softmax, f\+b, \(2, 8, 1024",
    "α-entmax / `entmax_bisect`, 30 to 64 keys": rf"α-entmax / entmax_bisect\(50\), {SHORT}",
    "attention, α-entmax / fused softmax, 4,096 keys": r"α-entmax / softmax \(sdpa\)",
    "training step, α-entmax / softmax": "α-entmax's step / softmax's",
    "training step in bf16 / its matmuls": "softmax's step / its products, .*bf16",
    "beam 5, sentences/s, cached / recomputing the prefix": "cached / recomputed",
}
PEERS = {  # name in the records -> head of the column
    "headwise, alpha_entmax, fp32": "headwise, α-entmax",
    "headwise, alpha_entmax, bf16": "α-entmax in bf16",
    "fairseq": "fairseq 0.12.2",
    "OpenNMT-py": "OpenNMT-py 3.5.1",
    "JoeyNMT": "JoeyNMT 2.3.0",
    "transformers (Marian)": "Marian of transformers 5.23",
    "CTranslate2": "CTranslate2 4.8.5",
}


def corpora() -> str:
    """Return the choices of `data` as a table for each task that is their default."""
    titles = {
        "translation": "Translation",
        "sequence": "Synthetic sequences",
        "density": "Language models, images, music",
        "classification": "Classification",
    }
    rows: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name in group_choices("data"):
        data = cast(dict[str, Any], OmegaConf.to_container(composed(f"data={name}").data))
        if data.get("tasks"):  # not `none`
            text = (config_dir() / "data" / f"{name}.yaml").read_text(encoding="utf-8")
            about = re.match(r"# (.*?)\.?(?:: data=.*)?\n", text)
            folder, sources = data.get("folder"), [*dict.fromkeys(_sources(data))]
            left_out = ["…"] if len(sources) > MAX_SOURCES else []
            has_address = re.search(r"'(url|repo)': ", str(data)) is not None
            row = (
                f"`{name}`",
                about[1] if about else "",
                ", ".join(f"`{task}`" for task in data["tasks"][1:]),
                f"`{folder}`" if folder else "",
                ("no", "yes")[has_address] if folder else "",
                ", ".join(sources[:MAX_SOURCES] + left_out),
                data.get("licence") or "",
            )
            rows[data["tasks"][0]].append(row)
    header = (
        "`data=`", "content", "other tasks", "below `HEADWISE_DATA`", "downloaded", "files",
        "licence",
    )  # fmt: skip
    return "\n\n".join(
        f"## {titles[task]}: `task={task}`\n\n{markdown_table(header, rows[task], numeric=False)}"
        for task in sorted(rows, reverse=True)
    )


def _sources(settings: Any) -> Iterator[str]:
    """Names of original files, and of datasets of the Hub, in settings of data."""
    if isinstance(settings, list):
        for part in settings:
            yield from _sources(part)
    elif isinstance(settings, dict):
        if "repo" in settings:
            yield f"{settings['repo']} (Hub)"
        if settings.get("file"):
            yield f"`{settings['file']}`"
        if isinstance(settings.get("files"), list):  # of an archive, with its names in order
            yield f"`{settings['files'][0]}`"
        for name in ("origins", "archives", "downloads"):
            parts = settings.get(name) or []
            yield from _sources([*parts.values()] if isinstance(parts, dict) else parts)


SCORES = {"": "{score}"}
DIFFERENCES = {"": "{difference} {seeds}"}
BOTH = {"difference, over seeds": "{difference} {seeds}", "over items": "{items}"}
ALL = SCORES | BOTH
TURNS = {f"turn: {s}": f"{{number of α that turn and rise, {s}}}" for s in SITE_NAMES.values()}
RISE = {"rise": "{rise of an α from its lowest value, largest, encoder self-attention}"}
ENCODER = "encoder self-attention layer"
GRADIENTS = {f"layer {n}": f"{{relative gradient of queries, {ENCODER} {n}}}" for n in (1, 2, 3)}
HEADS = {"effective": "{effective heads}", "diversity": f"{{diversity, {ENCODER} 2}}"}

PAGES: dict[str, dict[str, Callable[[], str]]] = {  # tables by the name of their markers
    "settings.md": {"settings": settings_tables},
    "commands.md": {"help": help_of_commands},
    "corpora.md": {"corpora": corpora},
    "variants.md": {"formulas": formulas, "capabilities": capabilities},
    "variants-compared.md": {
        "builtin": partial(variants, "builtin", "test"),
        "multi30k": partial(variants, "multi30k", "test_2016_flickr", "test_2017_flickr"),
    },
    "results.md": {"multi30k": multi30k_scores, "kftt": kftt_scores},
    "speed.md": {
        "cpu_ratios": cpu_ratios,
        "own_models": own_models,
        "peers": partial(
            peers, *(f"peers_{w}_threads_{n}" for w in ("step", "search") for n in (1, 2))
        ),
        "searches": partial(peers, "peers_sentence_avx2", "peers_search_avx2"),
        "gpu_attention": gpu_attention,
        "gpu_patterns": gpu_patterns,
        "gpu_rows": gpu_rows,
        "gpu_training": gpu_training,
    },
    "table1.md": {
        "bleu": partial(compared, "correia2019_long", ALL),
        "turn": partial(compared, "alpha_settings", ALL | TURNS | RISE),
    },
    "patterns-compared.md": {
        "scores": partial(compared, "child2019_small", SCORES),
        "differences": partial(compared, "child2019_small", BOTH, rows="(?!dense, softmax)"),
        "times": times_and_densities,
    },
    "lengths.md": {
        "scores": partial(compared, "length", SCORES, "copy|flip-flop"),
        "recall": partial(compared, "length", SCORES, "recall", "NAPE"),
    },
    "encoders-compared.md": {
        "fine_tuning": partial(compared, "fine_tuning", ALL, "origin|spam", by_column=True),
        "yubert": partial(compared, "yubert", SCORES),
        "gradients": partial(compared, "yubert", GRADIENTS, "masked tokens, origin"),
        "label_fractions": partial(compared, "label_fractions", DIFFERENCES, by_column=True),
        "cls_tokens": partial(compared, "cls_tokens", DIFFERENCES, "origin|spam"),
        "how_many_heads": partial(compared, "how_many_heads", DIFFERENCES),
        "effective_heads": partial(compared, "how_many_heads", HEADS),
        "repulsion_layers": partial(compared, "repulsion_layers", DIFFERENCES),
        "repulsion_dropout": partial(compared, "repulsion_dropout", DIFFERENCES),
    },
}


def with_part(text: str, name: str, content: str) -> str:
    """Return `text` with `content` between its markers `<!-- name -->` and `<!-- /name -->`."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = text.partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        raise SystemExit(f"no {begin} … {end} in the file")
    return f"{before}{begin}\n{content}\n{end}{after}"


def main() -> None:
    """Update the pages that are named, or all."""
    for name in sys.argv[1:] or PAGES:
        page = Path(__file__).with_name(name)
        text = page.read_text(encoding="utf-8")
        for marker, content in PAGES[name].items():
            text = with_part(text, marker, content())
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

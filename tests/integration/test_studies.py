"""Studies: recipes of the papers that can be trained, refused contents, the published tables.

The tables, from the records in `results/`, are equal in every character.
The text of the tables is in `docs/table1/` where the guide shows it whole, else in `tests/golden/`.
After a change of the text that is meant, write the files again:

    WRITE_TABLES=1 .venv/bin/python -m pytest -n 0 tests/integration/test_studies.py
"""

import functools
import re
from itertools import combinations

import pytest
from docs.generate import published_table
from omegaconf import OmegaConf

from golden_files import assert_golden
from guide import DOCS, ROOT
from headwise.attention.build import completed
from headwise.attention.fixed import Fixed
from headwise.attention.place import Place
from headwise.config.register import group_choices, typed
from headwise.config.schema import TokenizerConfig
from headwise.data.tokenizer import TokenizerPair
from headwise.data.tokenizer_training import train_tokenizer
from headwise.errors import ConfigError
from headwise.runs.archive import archived
from headwise.studies.study import (
    Cell,
    check_metrics,
    read_study,
    recipe,
    recipes,
    selected,
)
from headwise.tasks.check import checked_task


@pytest.fixture(scope="module", autouse=True)
def _compose_once(make):
    """Let commands, too, compose the same overrides once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydra.compose", lambda name, overrides: make(overrides, name))
        yield


def study_of(make, name):
    return read_study(make([f"study={name}"], "table").study)


@pytest.mark.parametrize(
    ("corpus", "validate_every", "attention"),
    [
        ("iwslt17", 5000, "softmax"),
        ("kftt", 5000, "entmax15"),
        ("wmt16_ro_en", 10000, "alpha_entmax"),
        ("wmt14_en_de", 10000, "softmax"),
    ],
)
def test_recipes_have_the_papers_settings(make, corpus, validate_every, attention):
    config = make([f"experiment=correia2019/{corpus}", f"attention={attention}"])
    assert config.attention == make([f"attention={attention}"]).attention
    assert config.data.name == corpus
    model, trainer = config.model, config.trainer
    sizes = (model.encoder_layers, model.decoder_layers, model.n_heads, model.d_model, model.d_ff)
    assert sizes == (6, 6, 8, 512, 2048)
    parts = (config.norm, config.activation, config.init, config.positions)
    names = [part._target_.rpartition(".")[2] for part in parts]
    assert names == ["PreNorm", "ReLU", "Glorot", "Sinusoidal"]
    assert {model.dropout, model.attention_dropout, model.activation_dropout} == {0.1}
    assert config.loss.label_smoothing == 0.1
    assert (list(config.optimizer.betas), config.optimizer.weight_decay) == ([0.9, 0.998], 0)
    peak = config.scheduler.factor * config.scheduler.d_model**-0.5 * 20000**-0.5
    assert config.scheduler._target_.endswith("Noam")
    assert config.scheduler.warmup_updates == 20000
    assert peak == pytest.approx(6.25e-4)
    assert (trainer.max_tokens * trainer.accumulate, trainer.clip_norm) == (8192, 0)
    assert (trainer.validate_every, trainer.patience > 0) == (validate_every, True)
    tokenizer = config.tokenizer
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.joint) == ("bpe", 32000, True)


@pytest.mark.parametrize(
    ("corpus", "weight", "step", "tokens"),
    [("iwslt14_de_en", 0.01, 0.01, 4096), ("wmt14_en_de", 0.01, 0.1, 4096 * 16)],
)
def test_repulsion_settings(make, corpus, weight, step, tokens):
    (cell,) = (c for c in study_of(make, "an2020").cells if (c.row, c.column) == ("svgd", corpus))
    config = make(list(cell.overrides))
    assert (config.repulsion.weight, config.repulsion.step_size) == (weight, step)
    assert config.trainer.max_tokens * config.trainer.accumulate == tokens


@pytest.mark.parametrize(
    ("recipe", "sizes", "pattern", "window", "rate", "epochs"),
    [
        ("enwik8", (30, 8, 512, 2048), ("Fixed", 128, 32), 12288, 0.4, 80),
        ("cifar10", (128, 2, 256, 512), ("Strided", 96, None), 3072, 0.25, 120),
        ("imagenet64", (48, 16, 512, 2048), ("Strided", 128, None), 12288, 0.01, 70),
    ],
)
def test_density_recipes_have_the_papers_settings(
    make, recipe, sizes, pattern, window, rate, epochs
):
    config = typed(make([f"experiment=child2019/{recipe}"]))
    model, trainer = config.model, config.trainer
    assert (model.layers, model.n_heads, model.d_model, model.d_ff) == sizes
    assert model.qk_width == (128 if recipe == "cifar10" else None)
    chosen = completed("pattern", config.pattern)
    name = chosen["_target_"].rpartition(".")[2]
    assert (name, chosen["stride"], chosen.get("summary_cells")) == pattern
    assert chosen["combine"] == "merged"
    assert (model.dropout, model.attention_dropout, model.recompute) == (rate, 0.0, True)
    assert model.share_embeddings == "none"
    assert config.data.window == trainer.max_tokens == window
    parts = (config.norm, config.activation, config.init, config.optimizer, config.scheduler)
    names = [part["_target_"].rpartition(".")[2] for part in parts]
    assert names == ["PreNorm", "QuickGELU", "Scaled", "AdamW", "Cosine"]
    assert (config.optimizer["weight_decay"], config.optimizer["lr"]) == (0.01, 3.5e-4)
    assert (config.scheduler["warmup_updates"], trainer.clip_norm) == (5000, 1.0)
    values = {"enwik8": 9e7, "cifar10": 48_000 * 3072, "imagenet64": 1_281_167 * 12288}[recipe]
    trained = trainer.max_updates * trainer.accumulate * window
    assert trained == pytest.approx(epochs * values, rel=1e-4)


@pytest.mark.parametrize(
    ("overrides", "stride", "cells"),
    [
        ([], 8, 2),
        (["pattern.stride=16"], 16, 4),
        (["data=cifar10"], 96, 24),
        (["experiment=child2019/enwik8", "pattern.summary_cells=8"], 128, 8),
    ],
)
def test_stride_is_suggested_by_the_data(make, overrides, stride, cells):
    config = typed(make([*overrides, "pattern=fixed"]))
    settings = completed("pattern", config.pattern)
    assert (settings["stride"], settings["summary_cells"]) == (stride, cells)
    assert Fixed(Place("decoder_self", 1, 2, 8), stride=stride).summary_cells == stride // 4
    with pytest.raises(ConfigError, match="summary_cells must be between 1 and"):
        Fixed(Place("decoder_self", 1, 2, 8), stride=stride, summary_cells=0)


# Studies whose rows are no groups -> the settings that distinguish their rows.
OF_ROWS = {
    "alpha_settings": {"model.attention_dropout", "optimizer.lr"},
    "cls_tokens": {"model.cls_tokens", "model.pool"},
    "fine_tuning": {"init_from"},
    "how_many_heads": {"model.n_heads"},
    "variants": {"model.cls_tokens"},
    "repulsion_dropout": {"model.dropout", "model.attention_dropout"},
    "yubert": {"positions._target_", "positions.base"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", group_choices("study"))
def test_every_study_has_recipes_that_can_be_trained(make, name, tmp_path):
    tokenizer = train_tokenizer(iter(["ab cd"] * 9), TokenizerConfig(kind="char", vocab_size=99))
    TokenizerPair(tokenizer, tokenizer, joint=True).save(tmp_path)
    (tmp_path / "config.yaml").touch()  # of a run
    study = study_of(make, name)
    assert study.name == name
    of_cells = recipes(study.cells)
    configs = {}
    for one in of_cells:
        key = one.overrides, one.cell.init is None
        if key not in configs:
            config = make(one.overrides)
            config.init_from = None if one.cell.init is None else str(tmp_path)
            config.trainer.device, config.trainer.precision = "cpu", "fp32"
            configs[key] = typed(config)
            checked_task(configs[key])
        column = study.columns[one.cell.column]
        assert column.test in configs[key].data.test
        for n_updates in re.findall(r"([\d,]+) updates", column.note or ""):
            assert int(n_updates.replace(",", "")) == one.max_updates, one.cell
    for one, other in combinations(of_cells, 2):
        if one.cell.overrides == other.cell.overrides:  # one run, scored on several sets
            continue
        keys = {*one.decisive, *other.decisive}
        differing = {k for k in keys if one.decisive.get(k) != other.decisive.get(k)}
        assert differing, (one.cell, other.cell)
        groups = {key.partition(".")[0] for key in differing - OF_ROWS.get(name, set())}
        if one.cell.column == other.cell.column:  # they differ in the row only
            assert groups <= {"attention", "pattern", "repulsion"} | (
                {"loss", "scaling", "scaling_sites"}
                if name == "variants"
                else {"scaling", "positions"}
                if name == "length"
                else set()
            )


# -- contents -------------------------------------------------------------------------------------

VALID = {
    "name": "mine",
    "title": "t",
    "metrics": {"bleu": "BLEU"},
    "baseline": "a",
    "rows": {
        "a": {"label": "A", "overrides": ["attention=softmax"]},
        "b": {"overrides": ["attention=entmax15"]},
        "others": {},
    },
    "columns": {
        "c": {
            "label": "C",
            "test": "test",
            "overrides": ["model.dropout=0.2"],
            "paper": {"values": {"a": 1.0, "others": 0.5}, "mark": "OK"},
        },
        "d": {
            "label": "D",
            "test": "test",
            "overrides": [],
            "init": "c",
            "rows": {"a": ["model.dropout=0.3"]},
        },
    },
}


def changed(change):
    content = OmegaConf.to_container(OmegaConf.create(VALID))
    change(content)
    return content


def test_cells_have_the_overrides_of_column_and_row():
    study = read_study(OmegaConf.create(VALID))
    assert study.labels == {"a": "A", "b": "b", "others": "others"}
    assert study.cells == [
        Cell("a", "c", ("model.dropout=0.2", "attention=softmax")),
        Cell("b", "c", ("model.dropout=0.2", "attention=entmax15")),
        Cell("a", "d", ("attention=softmax", "model.dropout=0.3"), "c"),
    ]
    only = read_study(changed(lambda s: s["columns"]["c"].update(rows={"b": []})))
    assert only.cells[-1].init is None  # there is no run of `a` to start from


def test_a_part_of_a_study_has_the_runs_that_others_start_from():
    study = read_study(OmegaConf.create(VALID))
    part = selected(study, ["a"], ["d"])
    assert [(cell.row, cell.column) for cell in part.cells] == [("a", "c"), ("a", "d")]
    assert part.baseline == "a"
    assert selected(study, ["b"], ["c"]).baseline is None
    with pytest.raises(ConfigError, match="rows must be one of a, b, others"):
        selected(study, ["z"], None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("title"), "study.*title"),
        (lambda s: s.update(name="../x"), "study.name"),
        (lambda s: s.pop("metrics"), "study.metrics is missing"),
        (lambda s: s.update(baseline="z"), "study.baseline must be one of a, b"),
        (lambda s: s.update(seeds=[1, 1]), "study.seeds"),
        (lambda s: s["columns"]["d"].update(rows={"z": []}), "study.columns.d.rows must be one of"),
        (lambda s: s["columns"]["d"].update(init="z"), "study.columns.d.init must be one of c, d"),
        (
            lambda s: s["columns"]["c"]["paper"].update(mark="sure"),
            "study.columns.c.paper.mark must be one of OK",
        ),
        (
            lambda s: s["columns"]["c"]["paper"]["values"].update(z=1.0),
            "study.columns.c.paper.values must be one of a, b",
        ),
        (lambda s: s["columns"].update(e={"label": "E"}), "study.columns.e needs overrides, paper"),
        (lambda s: s["rows"]["b"]["overrides"].append("seed=1"), "must not set seed"),
        (lambda s: s["columns"]["c"].update(test=None), "it needs a test"),
    ],
)
def test_contradictions_are_rejected(change, message):
    with pytest.raises(ConfigError, match=message):
        read_study(OmegaConf.create(changed(change)))


CELL = Cell("a", "c", ("attention=softmax",))


def test_error_of_a_recipe_names_its_cell(make):
    with pytest.raises(ConfigError, match=r"a × c does not compose \(attention=softmax a=b\)"):
        recipe(CELL, ["a=b"])


def test_equal_overrides_are_composed_once(make, monkeypatch):
    composed = []
    monkeypatch.setattr(
        "hydra.compose", lambda _, overrides: composed.append(overrides) or make(overrides)
    )
    cells = [CELL, Cell("a", "d", CELL.overrides), Cell("a", "e", CELL.overrides, "c")]
    of_cells = recipes(cells, ["seed=2"])
    assert [one.cell for one in of_cells] == cells
    assert len(composed) == 2
    assert [one.decisive["init_from"] for one in of_cells] == [False, False, True]


def test_metric_that_no_recipe_measures_is_rejected(make):
    study = read_study(OmegaConf.create({**VALID, "metrics": {"chr": "chrF"}}))
    with pytest.raises(ConfigError, match=r"study.metrics must be one of .*Did you mean chrf"):
        check_metrics(study, [recipe(CELL)])


def test_auto_settings_do_not_identify_a_recipe(make):
    assert "trainer.precision" not in recipe(CELL).decisive
    assert recipe(CELL, ["trainer.precision=bf16"]).decisive["trainer.precision"] == "bf16"
    assert recipe(CELL, ["trainer=gpu"]).decisive["trainer.precision"] == "bf16"
    assert "seed" not in recipe(CELL).decisive


# -- published tables -----------------------------------------------------------------------------

ENCODERS = ("heads=true", "runs=[results/encoder_small,results/how_many_heads,results/mnist]")
LONG = ("heads=true", "runs=[results/correia2019_long]")
# Table -> the other arguments of the command that README.md or a page of docs/ gives for it.
TABLES = {
    "five_tasks": (
        "runs=[results/correia2019_long,results/child2019_small,results/encoder_small,results/mnist]",
    ),
    "child2019_small": ("runs=[results/child2019_small]",),
    "correia2019_long": LONG,
    "alpha_settings": LONG,
    "yubert": ENCODERS,
    "fine_tuning": ENCODERS,
    "cls_tokens": ENCODERS,
    "how_many_heads": ENCODERS,
    "repulsion_layers": ENCODERS,
    "repulsion_dropout": ENCODERS,
    "label_fractions": ENCODERS,
    # docs/lengths.md has none of the intervals over items, which more draws make exact
    "length": ("runs=[results/length]", "n_resamples=100"),
}


@functools.cache  # several tables are of the same runs
def read_once(folder, kind):
    return [*archived(folder, kind)]


# Page -> the tables that its figures are in; docs/generate.py writes the rest of its tables.
CITED = {
    "README.md": ["five_tasks"],
    "docs/results.md": ["five_tasks"],
    "docs/reproducing-a-paper.md": [*TABLES],
    "docs/table1.md": ["correia2019_long", "alpha_settings"],
    "docs/patterns-compared.md": ["child2019_small"],
    "docs/lengths.md": ["length"],
    "docs/encoders-compared.md": [table for table in TABLES if TABLES[table] is ENCODERS],
}
INTERVAL = r"\[-?[\d.]+, -?[\d.]+\]"
FIGURE, NUMBER = rf"{INTERVAL}|[\d.]+ ± [\d.]+", r"-?\d+\.\d+"
GENERATED_OR_CODE = re.compile(r"^<!-- (\w+) -->.*?^<!-- /\1 -->|^```.*?^```|`.*?`", re.M | re.S)


def plain(text):
    """Intervals and numbers in one form, whatever the text is."""
    return text.replace("−", "-").replace("+", "").replace(" to ", ", ")


@pytest.mark.parametrize("page", CITED)
def test_figures_in_pages_are_those_of_published_tables(page):
    tables = [published_table(f"{name}.md").read_text("utf-8") for name in CITED[page]]
    golden = plain("".join(tables))
    text = plain(GENERATED_OR_CODE.sub("", (ROOT / page).read_text("utf-8")))
    rows = "".join(re.findall(r"^\|.*", text, re.M))
    cited = {*re.findall(FIGURE, text), *re.findall(NUMBER, rows)}
    assert len(cited) >= 3
    assert cited <= {*re.findall(FIGURE, golden), *re.findall(NUMBER, golden)}
    bold, bold_there = (set(re.findall(rf"\*\*({INTERVAL})\*\*", t)) for t in (text, golden))
    assert CITED[page] != ["five_tasks"] or bold == bold_there & cited


def test_command_of_the_table_of_results_is_that_of_the_test():
    command = ["headwise table study=five_tasks", *map(repr, TABLES["five_tasks"])]
    assert " ".join(command) in " ".join((DOCS / "results.md").read_text("utf-8").split())


def test_summary_of_speed_has_ratios_of_its_tables():
    page = (DOCS / "speed.md").read_text(encoding="utf-8")
    summary = page.partition("## In short")[2].partition("\n## ")[0]
    ratio = r"\d+\.\d\d|1/\d+"
    tables = re.findall(r"^<!-- (\w+) -->(.*?)^<!-- /\1 -->", page, re.M | re.S)
    assert len(re.findall(ratio, summary)) > 10
    assert {*re.findall(ratio, summary)} <= {*re.findall(ratio, str(tables))}


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_tables_from_the_records_are_those_published(headwise, monkeypatch, tmp_path, table):
    monkeypatch.chdir(ROOT)  # the text names runs by the paths that the command was given
    monkeypatch.setattr("headwise.runs.archive.archived", read_once)
    headwise.ok("table", f"study={table}", *TABLES[table], f"output={tmp_path}")
    for name in (f"{table}.md", f"{table}.tex"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert_golden(published_table(name), text)

"""What studies show of runs: tables as text, names, values of heads, figures, attention."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from omegaconf import OmegaConf

from command_line import train_small
from figures_drawn import density_rows, layer_rows
from headwise.analysis.quantities import effective_heads
from headwise.analysis.tables import DENSITY, FOLDER, HEADS, LAYERS, OTHERS, SETTINGS, TRAJECTORIES
from headwise.commands.figures import draw_attention
from headwise.config.register import composed, typed
from headwise.errors import DataError
from headwise.runs.record import Record
from headwise.studies.figures import draw_figures, figures_of
from headwise.studies.heads import head_tables
from headwise.studies.names import choice_name, class_word
from headwise.studies.record import TaskRecord
from headwise.studies.render import (
    TextTable,
    interval,
    latex,
    latex_comment,
    mean_and_deviation,
    signed,
)
from headwise.studies.study import Column, Row, Study

# -- tables as text -------------------------------------------------------------------------------


NASTY = r"50 % of a_b & c{d} #1 $x$ ~ ^ \emph|y| <α ± 1> → Δ×"


@pytest.fixture
def table():
    heads = [("one|two", "paper"), ("one|two", "ours"), ("alone", "")]
    rows = [["1.0", "2.0 ± 0.1", NASTY], ["–", "3", "4\n5"]]
    frame = pd.DataFrame(rows, index=["α_1", "b"], columns=pd.MultiIndex.from_tuples(heads))
    return TextTable("A title with 100 %", frame, ["a note & more"])


def cells(line):
    return re.split(r"(?<!\\)\|", line)[1:-1]


def test_markdown_has_one_cell_per_column_in_every_line(table):
    lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
    assert [len(cells(line)) for line in lines] == [4] * 4
    assert [cell.strip() for cell in cells(lines[0])] == [
        "", r"one\|two: paper", r"one\|two: ours", "alone",
    ]  # fmt: skip
    assert cells(lines[3])[3].strip() == "4 5"
    assert "\n- a note & more\n" in table.markdown()


def unescaped(text):
    """The text that LaTeX prints."""
    printed = {
        r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^",
        "$|$": "|", "$<$": "<", "$>$": ">", r"$\alpha$": "α",
        r"$\pm$": "±", r"$\rightarrow$": "→", r"$\Delta$": "Δ", r"$\times$": "×",
    }  # fmt: skip
    pattern = "|".join(map(re.escape, printed))
    return re.sub(rf"({pattern})|\\([%_&{{}}#$])", lambda m: printed[m[1]] if m[1] else m[2], text)


def test_latex_is_escaped():
    assert unescaped(latex(NASTY)) == NASTY
    bare = re.sub(r"\\[%_&{}#$]|\\text\w+\{\}|\$(\\\w+|[<>|])\$", "", latex(NASTY))
    assert not set(bare) & set("%_&{}#$~^\\")


def test_latex_rows_have_one_cell_per_column(table):
    text = table.latex("tab:x")
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    assert [len(re.findall(r"(?<!\\)&", line)) for line in body] == [3, 3]
    assert all(line.endswith(r"\\") for line in body)
    assert r"\begin{tabular}{lrrr}" in text
    assert r"\multicolumn{2}{c}{one$|$two}" in text
    for name in ("table", "adjustbox", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1


def test_every_line_of_a_latex_comment_is_commented():
    assert latex_comment("a\nb % c") == "% a\n% b % c\n"


def test_bold_cells_are_bold_in_both_formats(table):
    table.bold = np.array([[False, True, False], [False, False, False]])
    assert table.markdown().count("**") == 2
    assert "**2.0 ± 0.1**" in table.markdown()
    assert r"\textbf{2.0 $\pm$ 0.1}" in table.latex("tab:x")
    assert table.latex("tab:x").count("textbf") == 1


def test_numbers_follow_their_definitions():
    assert [mean_and_deviation(x) for x in ([10, 14], [10])] == ["12.00 ± 2.83", "10.00"]
    assert [signed(0.0123, 4), signed(-0.0123, 4)] == ["+0.0123", "−0.0123"]
    assert [signed(-0.001), signed(1.0)] == ["0.00", "+1.00"]
    assert [interval(x, 1) for x in (None, (-0.25, 1.0))] == ["–", "[−0.2 to +1.0]"]


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "name"),
    [
        ((), "softmax"),
        (("attention=alpha_entmax", "scaling=length"), "alpha_entmax, scaling length"),
        (("attention@sites.cross=linear",), "softmax (cross linear)"),
        (
            ("pattern=strided", "repulsion=svgd", "gates=hard_concrete"),
            "softmax, pattern strided, repulsion svgd, gates hard_concrete",
        ),
    ],
)
def test_run_is_named_by_its_overrides(chosen, name):
    assert choice_name(typed(composed("attention=softmax", *chosen))) == name


def test_user_class_is_named_by_its_class_name():
    assert class_word("mine.attention.Tempered") == "Tempered"
    assert class_word("Tempered") == "Tempered"


# -- heads ----------------------------------------------------------------------------------------

STUDY = Study(
    name="tiny",
    title="",
    rows={"softmax": Row(), "sparse": Row(), "no": Row("none")},
    columns={"x": Column("Corpus"), "y": Column("Nothing yet")},
)


def analysed_heads(folder, density, alpha, n_previous=0, seed=1):
    """A run and its analysis, of two encoder heads."""
    analysis = folder / FOLDER
    analysis.mkdir(parents=True)
    place = {"site": "encoder_self", "layer": 1}
    shared = {**place, "density": density, "alpha": alpha}
    roles = ["previous" if head <= n_previous else "" for head in (1, 2)]
    heads = [
        {**shared, "head": head, "previous_share": 0.1, "previous_weight": 0.5, "roles": role}
        for head, role in enumerate(roles, start=1)
    ]
    HEADS.path(analysis).write_text(HEADS.text(heads), encoding="utf-8")
    layer = {**place, "diversity_heads": 0.25, "diversity_keys": 0.75}
    LAYERS.path(analysis).write_text(LAYERS.text([layer]), encoding="utf-8")
    for table in (DENSITY, OTHERS, TRAJECTORIES):
        table.path(analysis).write_text(table.text([]), encoding="utf-8")
    run = TaskRecord(folder)
    run.settings = {"seed": seed}
    return run


def heads_of(runs, study=STUDY):
    """Facts and tables of runs in column x, by row; every run folder holds its analysis."""
    rows = [
        {"row": row, "column": "x", "seed": run.seed, "run": str(run.folder), "saved": run}
        for row, row_runs in runs.items()
        for run in row_runs
    ]
    frame = pd.DataFrame(rows, columns=["row", "column", "seed", "run", "saved"])
    analysed = {run.folder for row_runs in runs.values() for run in row_runs}
    return head_tables(study, frame, analysed)


def test_values_are_means_over_the_seeds_that_have_them(tmp_path):
    runs = {
        "softmax": [
            analysed_heads(tmp_path / "a", 1.0, None),
            analysed_heads(tmp_path / "b", 1.0, None),
        ],
        "sparse": [
            analysed_heads(tmp_path / name, density, alpha, n)
            for name, density, alpha, n in (
                ("c", 0.2, 1.4, 1),
                ("d", 0.4, 1.6, 2),
                ("e", 0.9, 1.5, 2),
            )
        ],
        "no": [],
    }
    facts, (table,) = heads_of(runs)
    assert table.title == "Heads, Corpus"
    assert table.headers == ["softmax", "sparse"]
    rows = dict(table.rows)
    assert rows["density, mean, encoder self-attention"] == ["1.00", "0.50 [0.00, 1.00]"]
    assert rows["α, mean, encoder self-attention"] == ["–", "1.50 [1.25, 1.75]"]
    assert rows["heads at -1"] == ["0", "1.7 [0.2, 3.1]"]
    assert rows["their weight at -1, median"] == ["–", "50 %"]
    assert rows["diversity, encoder self-attention layer 1"] == ["0.25", "0.25"]
    assert "softmax 2, sparse 3" in table.notes[0]
    alphas = facts[facts.quantity == "alpha"].set_index("run").value.to_dict()
    assert alphas == {str(tmp_path / name): a for name, a in (("c", 1.4), ("d", 1.6), ("e", 1.5))}
    of_layers = facts[facts.layer.notna()][["quantity", "site", "layer"]].drop_duplicates()
    assert of_layers.values.tolist() == [["diversity", "encoder_self", 1]]


def test_analyses_of_other_texts_are_noted(tmp_path):
    runs = {row: [analysed_heads(tmp_path / row, 1.0, None)] for row in ("softmax", "sparse")}
    for row, text in (("softmax", "1" * 16), ("sparse", "2" * 16)):
        (tmp_path / row / FOLDER / SETTINGS).write_text(json.dumps({"text": text}))
    _, (table,) = heads_of(runs)
    assert table.notes[1].startswith("The analysed text, or its tokens, differ (by their hash): ")
    assert f"{'2' * 16} in {tmp_path / 'sparse'}" in table.notes[1]
    (tmp_path / "sparse" / FOLDER / SETTINGS).write_text("{}")  # version 0.1.0: it is not known
    _, (table,) = heads_of(runs)
    assert len(table.notes) == 1


def test_differences_to_the_baseline_are_paired_by_seed(tmp_path):
    def runs(name, densities):
        return [
            analysed_heads(tmp_path / f"{name}{seed}", density, None, seed=seed)
            for seed, density in enumerate(densities, start=1)
        ]

    of_rows = {"softmax": runs("a", [0.9, 0.8, 0.7]), "sparse": runs("b", [0.6, 0.4, 0.5])}
    _, (_, differences) = heads_of(of_rows, replace(STUDY, baseline="softmax"))
    assert differences.title == "Heads, Corpus: differences to softmax"
    assert differences.headers == ["sparse"]
    # mean -0.3 of -0.3, -0.4, -0.2; deviation 0.1, so 4.303 * 0.1 / sqrt(3)
    assert dict(differences.rows)["density, mean, encoder self-attention"] == [
        "-0.30 [-0.55, -0.05]"
    ]


def test_effective_heads_are_left_before_the_first_significant_loss(tmp_path):
    assert effective_heads(Record(tmp_path)) is None
    steps = ((0, 1.0), (0.3, 0.01), (-0.2, 0.3), (-0.4, 0.04), (-0.1, 0.5))  # difference, p-value
    rows = [
        {"cross": 4 - n, "encoder_self": 4, "difference": difference, "p_value": p_value}
        for n, (difference, p_value) in enumerate(steps)
    ]
    (tmp_path / "pruning").mkdir()
    content = {"sites": ["cross", "encoder_self"], "rows": rows}
    (tmp_path / "pruning" / "curve.json").write_text(json.dumps(content), encoding="utf-8")
    assert effective_heads(Record(tmp_path)) == 6


# -- figures --------------------------------------------------------------------------------------

ENTMAX15 = "headwise.attention.entmax15.Entmax15"
SOFTMAX = "headwise.attention.softmax.Softmax"


def text_of(figure):
    return " ".join(" ".join(t.get_text().split()) for t in figure.findobj(Text) if t.get_text())


# -- folders --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_small(tmp_path_factory.mktemp("run"), "model.n_heads=4")


def copy_run(run, to, **changes):
    """Copy the folder of a run and change its configuration."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("figures", "*.pt"))
    config = OmegaConf.load(to / "config.yaml")
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, merge=False)
    OmegaConf.save(config, to / "config.yaml")
    return to


def analysed(run, rule):
    folder = run / FOLDER
    folder.mkdir()
    for table, rows in ((DENSITY, density_rows(rule)), (LAYERS, layer_rows())):
        table.path(folder).write_text(table.text(rows))
    (folder / SETTINGS).write_text(
        json.dumps({"sentences": 6, "unit": "sentences", "split": "valid"})
    )
    (run / "pruning").mkdir()
    curve = {
        "sites": ["cross"],
        "metric": "bleu",
        "rows": [{"removed": 0.0, "bleu": 30.0}, {"removed": 1.0, "bleu": 2.0}],
    }
    (run / "pruning" / "curve-cross.json").write_text(json.dumps(curve))
    return run


@pytest.fixture
def saved(monkeypatch):
    """The figures that are written to files; drawing one takes a second."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **_: figures.append(figure))
    return figures


@pytest.mark.slow
def test_only_measured_values_are_drawn(trained, tmp_path, saved):
    run = copy_run(trained, tmp_path / "run")
    files = draw_figures([TaskRecord(run)], run / "figures")
    assert {path.parent for path in files} == {run / "figures"}
    stems = {path.stem for path in files}
    assert stems == {"alpha", "alpha_histograms", "alpha_start_end", "diversity", "curves"}
    assert len(saved) == len(files) == sum(path.is_file() for path in files)
    (run / "heads.jsonl").unlink()
    (run / "metrics.jsonl").unlink()
    (run / "results.json").unlink()
    assert draw_figures([TaskRecord(run)], tmp_path / "nothing") == []
    assert not (tmp_path / "nothing").exists()


@pytest.mark.slow
def test_figures_of_several_runs(trained, tmp_path):
    softmax, entmax15 = {"_target_": SOFTMAX}, {"_target_": ENTMAX15}
    runs = [
        analysed(copy_run(trained, tmp_path / "a1", seed=1), "alpha_entmax"),
        analysed(copy_run(trained, tmp_path / "a2", seed=2), "alpha_entmax"),
        copy_run(trained, tmp_path / "e1", attention=entmax15),
        analysed(copy_run(trained, tmp_path / "s1", attention=softmax), "softmax"),
    ]
    for run in runs[2:]:  # which have no α
        (run / "heads.jsonl").unlink()
        (run / "results.json").unlink()
    figures = figures_of([*map(TaskRecord, runs)])
    expected = {
        "alpha_histograms", "alpha_start_end", "density_violins", "diversity_heads", "pruning",
        "score_curves",
    }  # fmt: skip
    assert set(figures) == expected
    assert [axes.get_title() for axes in figures["pruning"].axes] == ["softmax", "α-entmax"]
    assert "8 heads" in text_of(figures["alpha_start_end"])  # of both seeds, where α was learned
    assert "Measured on 6 sentences of valid." in text_of(figures["density_violins"])
    figures = figures_of(
        [*map(TaskRecord, [*runs, copy_run(trained, tmp_path / "ja", data__source="ja")])]
    )
    assert {f"{name}-files_de_en" for name in expected - {"score_curves"}} < set(figures)
    assert "alpha_histograms-files_ja_en" in figures
    assert len(figures["score_curves"].axes) == 2


# -- attention ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_attention_of_every_head_is_drawn(trained, tmp_path, saved):
    files = draw_attention(trained, "Hund sieht Haus", tmp_path / "out", device="cpu")
    sites = [path.stem.removeprefix("attention_") for path in files if path.suffix == ".svg"]
    assert sites == ["encoder_self", "decoder_self", "cross"]
    figures = dict(zip(sites, saved[:: len(files) // len(sites)], strict=True))
    axes_of = {site: figure.axes[:-1] for site, figure in figures.items()}  # the last is the scale

    def tokens(site):
        texts = axes_of[site][0].get_yticklabels(), axes_of[site][0].get_xticklabels()
        return [[text.get_text() for text in of_axis] for of_axis in texts]

    (source, _), (target, _) = tokens("encoder_self"), tokens("decoder_self")
    assert tokens("cross") == [[*target[1:], "…"], source]  # it reaches the length limit
    titles = {site: text_of(figure).split(": ", 1)[1] for site, figure in figures.items()}
    translation = titles["decoder_self"].partition(" ")[0]
    assert titles["cross"].startswith(f"Hund sieht Haus → {translation}")
    for site, maps in axes_of.items():
        assert [re.sub("α 1.[0-9]+", "α", axes.get_title()) for axes in maps] == [
            f"layer 1 head {head}, α" for head in (1, 2, 3, 4)
        ]
        for axes in maps:
            masked, weights = (image.get_array() for image in axes.images)
            assert weights.filled(0).sum(-1) == pytest.approx(1.0)
            assert masked.mask.all() == (site != "decoder_self"), "nothing else is masked"
            assert not weights.filled(0)[~masked.mask].any()
    with pytest.raises(DataError, match="empty"):
        draw_attention(trained, "  ", tmp_path)

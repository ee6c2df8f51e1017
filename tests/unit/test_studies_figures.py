"""Figures of runs: runs grouped to lines, figures of folders, attention of a sentence."""

import json
import shutil

import pytest
from omegaconf import OmegaConf

from command_line import train_small
from figures_drawn import density_rows, layer_rows
from headwise.analysis.tables import DENSITY, FOLDER, LAYERS, SETTINGS
from headwise.errors import DataError
from headwise.plots.style import save
from headwise.studies.figures import draw_figures, figures_of
from headwise.studies.figures_attention import draw_attention
from headwise.studies.match import SavedRun

ENTMAX15 = "headwise.attention.entmax15.Entmax15"
SOFTMAX = "headwise.attention.softmax.Softmax"

pytestmark = pytest.mark.slow


def text_of(figure):
    from matplotlib.text import Text

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
def vector_only(monkeypatch):
    """Figures in one format, which takes a third of the time."""
    for module in ("figures", "figures_attention"):
        monkeypatch.setattr(f"headwise.studies.{module}.save", lambda f, out: save(f, out, ["svg"]))


@pytest.mark.usefixtures("vector_only")
def test_only_measured_values_are_drawn(trained, tmp_path):
    run = copy_run(trained, tmp_path / "run")
    files = draw_figures([SavedRun(run)], run / "figures")
    assert {path.parent for path in files} == {run / "figures"}
    stems = {path.stem for path in files}
    assert stems == {"alpha", "alpha_histograms", "alpha_start_end", "diversity", "curves"}
    assert all(path.is_file() for path in files)
    (run / "heads.jsonl").unlink()
    (run / "metrics.jsonl").unlink()
    (run / "results.json").unlink()
    assert draw_figures([SavedRun(run)], tmp_path / "nothing") == []
    assert not (tmp_path / "nothing").exists()


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
    figures = figures_of([*map(SavedRun, runs)])
    expected = {
        "alpha_histograms", "alpha_start_end", "density_violins", "diversity_heads", "pruning",
        "score_curves",
    }  # fmt: skip
    assert set(figures) == expected
    assert [axes.get_title() for axes in figures["pruning"].axes] == ["softmax", "α-entmax"]
    assert "8 heads" in text_of(figures["alpha_start_end"])  # of both seeds, where α was learned
    assert "Measured on 6 sentences of valid." in text_of(figures["density_violins"])
    figures = figures_of(
        [*map(SavedRun, [*runs, copy_run(trained, tmp_path / "ja", data__source="ja")])]
    )
    assert {f"{name}-files_de_en" for name in expected - {"score_curves"}} < set(figures)
    assert "alpha_histograms-files_ja_en" in figures
    assert len(figures["score_curves"].axes) == 2


# -- attention ------------------------------------------------------------------------------------


def test_attention_maps(trained, tmp_path, monkeypatch):
    calls = {}

    def maps(site, layers, queries, keys, title, about):
        calls[site] = (layers, list(queries), list(keys), title)

    monkeypatch.setattr("headwise.studies.figures_attention.attention_maps", maps)
    assert draw_attention(trained, "Hund sieht Haus", tmp_path, device="cpu") == []
    assert list(calls) == ["encoder_self", "decoder_self", "cross"]
    source, tokens, title = calls["encoder_self"][1], calls["decoder_self"][1], calls["cross"][3]
    assert calls["cross"][1:3] == ([*tokens[1:], "…"], source)  # it reaches the length limit
    assert title == f"Hund sieht Haus → {calls['decoder_self'][3]}"
    for layers, queries, keys, _ in calls.values():
        (layer,) = layers
        assert list(layer.heads) == [1, 2, 3, 4]
        assert layer.weights_HQK.shape == (4, len(queries), len(keys)) == layer.allowed_HQK.shape
        assert layer.weights_HQK.sum(-1) == pytest.approx(1.0)
        assert not layer.weights_HQK[~layer.allowed_HQK].any()
        assert all(1 < alpha < 2 for alpha in layer.alphas)
    with pytest.raises(DataError, match="empty"):
        draw_attention(trained, "  ", tmp_path)


@pytest.mark.usefixtures("vector_only")
def test_attention_figures_are_written(trained, tmp_path):
    files = draw_attention(trained, "Hund", tmp_path / "out", device="cpu")
    sites = ("encoder_self", "decoder_self", "cross")
    assert [path.name for path in files] == [f"attention_{site}.svg" for site in sites]
    assert all(path.stat().st_size > 1000 for path in files)

"""Runs with sparse and sharp weights, and their page in a real browser."""

import os
import shutil

import numpy as np
import pytest
import torch

import headwise as package
from command_line import train_small
from headwise.analysis.observe import observations
from headwise.tasks.translation.batches import evaluation_batches
from headwise.tasks.translation.corpus import EncodedSplit
from headwise.train.checkpoint import load_checkpoint, save_checkpoint

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: make browser")


def sharp_runs(folder):
    """An α-entmax run and a smaller softmax run, both sharp: zeros here, tiny weights there."""
    settings = ("attention=alpha_entmax", "scaling=length", "model.encoder_layers=2")
    entmax = train_small(folder, *settings)
    softmax = train_small(folder, "attention=softmax", "tokenizer.vocab_size=50")
    for run, factor in ((entmax, 60), (softmax, 30)):
        sharpen(run / "checkpoints" / "best.pt", factor)
    return entmax, softmax


def sharpen(path, factor):
    """Multiply the scores of a checkpoint by a factor."""
    weights = load_checkpoint(path)["model"]
    for name, value in weights.items():
        if name.endswith(".query.weight"):
            value *= factor
    save_checkpoint(path, {"model": weights})


def started_browser():
    """A browser that is closed at the end."""
    with sync_api.sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # it does not work for root
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield started
        started.close()


class OpenedPage:
    """A page in a browser, with its console messages and requests."""

    def __init__(self, browser, path, shown="table.weights", **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.console_messages = []
        self.requests = []
        self.page.on("console", lambda message: self.console_messages.append(message.text))
        self.page.on("pageerror", lambda error: self.console_messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(shown)

    def head(self, site, layer, head, run=0):
        """A cell of the grid of heads."""
        grid = self.page.locator("#grids .run").nth(run)
        return grid.locator(f'[data-key="{site} {layer} {head}"]')

    def choose(self, site, layer, head):
        """Click a head and wait for its weights."""
        self.head(site, layer, head).click()
        title = {"encoder_self": "encoder self", "decoder_self": "decoder self", "cross": "cross"}
        place = f"{title[site]}-attention, layer {layer}, head {head}"
        self.page.wait_for_selector(f'table.weights[aria-label^="Weights of {place}"]')

    def cells(self, run=0):
        """Weights of the selected head, and which cells of its heat map have a colour."""
        weights = self.page.evaluate(
            """async (run) => {
                 const content = data.runs[run].readings[state.item];
                 const { rows, columns, values } = await headWeights(content, state);
                 return [[rows, columns], [...values]];
               }""",
            run,
        )
        cells = self.page.locator("#maps figure").nth(run).locator("table.weights tr + tr td")
        colours = cells.evaluate_all(
            "(all) => all.map((cell) => getComputedStyle(cell).backgroundColor)"
        )
        shape, values = weights
        has_colour = [colour != "rgba(0, 0, 0, 0)" for colour in colours]
        return np.array(values).reshape(shape), np.array(has_colour).reshape(shape)


def observed_weights(run, sentence):
    """(site, layer) -> weights and allowed (H, Q, K), with the model's translation as target."""
    loaded = package.load(str(run), device="cpu")
    (translation,) = loaded.translate([sentence])
    split = EncodedSplit.from_lists(
        loaded.tokenizers.source.encode([sentence]), [list(translation.hypotheses[0].ids)]
    )
    batches = evaluation_batches(split, 1000)
    ((_, layers),) = observations(loaded.model, batches, torch.device("cpu"))
    return {
        (layer.site, layer.layer): (layer.weights_BHQK[0].numpy(), layer.allowed_BHQK[0].numpy())
        for layer in layers
    }

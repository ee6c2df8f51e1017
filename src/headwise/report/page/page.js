// The page itself: what stands at its head, what a choice changes, and the beginning.

function drawRuns() {
  byId("runs").replaceChildren(
    ...data.runs.map((run) => {
      const facts = run.facts.map(([name, fact]) =>
        make("div", {}, make("dt", { text: name }), make("dd", {}, isolated(fact))),
      );
      return make(
        "article",
        {},
        make("h1", {}, isolated(`${run.attention} on ${run.corpus}`)),
        make("p", { class: "hint" }, "run ", isolated(run.name)),
        scoreTable(run),
        make("dl", { class: "facts" }, ...facts),
        ...(run.findings.length ? [findings(run)] : []),
      );
    }),
  );
  byId("settings").replaceChildren(
    ...data.runs.map((run) =>
      make(
        "details",
        {},
        make("summary", { text: `All settings of ${run.name}` }),
        make("pre", { tabindex: "0", text: run.settings }),
      ),
    ),
  );
}

/** BLEU of every set; the signature says how it was counted. */
function scoreTable(run) {
  if (!run.scores.length) return make("p", { class: "hint", text: "Not scored yet." });
  const signatures = new Set(run.scores.map(({ signature }) => signature));
  return make(
    "div",
    { class: "scores" },
    ...run.scores.map(({ split, score }) =>
      make(
        "div",
        {},
        make("b", { text: score.toFixed(2) }),
        make("span", { text: `BLEU ${split}` }),
      ),
    ),
    make("p", { class: "signature", text: [...signatures].join("; ") }),
  );
}

/** What the measures mean, below what the page itself explains. */
function drawWords() {
  const words = knownMeasures().filter(({ id }) => id !== "role");
  const sentence = (says) => `${says[0].toUpperCase()}${says.slice(1)}.`;
  byId("words").append(
    ...words.flatMap(({ name, says }) => [
      make("dt", { text: name }),
      make("dd", { text: sentence(says) }),
    ]),
  );
}

function prepareMeasures() {
  const known = knownMeasures();
  const choice = byId("measure");
  choice.replaceChildren(...known.map(({ id, name }) => make("option", { value: id, text: name })));
  choice.value = state.measure;
  choice.addEventListener("change", () => {
    state.measure = choice.value;
    rememberChoice();
    showMeasure();
  });
}

/** Colours the heads by the chosen measure. */
function showMeasure() {
  byId("measure").value = state.measure;
  showUpdate();
  paintHeads();
  markUpdate();
}

/** Shows a head; where the view is out of sight, it comes into it. */
function chooseHead(site, layer, head, scrolls = true) {
  Object.assign(state, { site, layer, head });
  markHead();
  drawPlace();
  const isPressed = document.activeElement?.closest(".overview") !== null;
  drawMaps().then(() => {
    if (isPressed) document.querySelector('.overview [aria-pressed="true"]')?.focus();
  });
  redrawCharts(["alpha"]);
  rememberChoice();
  if (scrolls && byId("maps").getBoundingClientRect().top > 0.7 * innerHeight) {
    byId("texts").scrollIntoView({ block: "start" });
  }
}

function chooseSentence(place) {
  state.sentence = place;
  drawTexts();
  drawMaps();
  rememberChoice();
}

// -- the choice in the address, so that a view can be linked to ----------------------------------

function rememberChoice() {
  const { sentence, site, layer, head, measure } = state;
  const choice = new URLSearchParams({
    sentence: sentence + 1,
    head: `${site}.${layer}.${head}`,
    by: measure,
  });
  history.replaceState(null, "", `#${choice}`);
}

/** Takes what the address asks for, as far as the page has it. */
function recallChoice() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const [site, layer, head] = (asked.get("head") ?? "").split(".");
  const rows = data.runs.flatMap((run) => run.heads);
  const found = rows.find(
    (row) => headKey(row.site, row.layer, row.head) === headKey(site, layer, head),
  );
  if (found) ({ site: state.site, layer: state.layer, head: state.head } = found);
  const sentence = Number(asked.get("sentence")) - 1;
  if (data.sentences[sentence]) state.sentence = sentence;
  if (knownMeasures().some(({ id }) => id === asked.get("by"))) state.measure = asked.get("by");
}

/** Follows an address that was changed while the page is open. */
function followAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  // other fragments, as of the link past the heads, ask for a place of the page
  if (!["sentence", "head", "by"].some((name) => asked.has(name))) return;
  recallChoice();
  showMeasure();
  drawTexts();
  const { site, layer, head } = state;
  chooseHead(site, layer, head, false);
}

/** The head to begin with: the first that has a role, else the most confident. */
function firstHead(rows) {
  const confidence = (row) => row.confidence ?? 0;
  return (
    rows.find((row) => rolesOf(row).length) ??
    rows.reduce((most, row) => (confidence(row) > confidence(most) ? row : most))
  );
}

function begin() {
  state.measure = firstMeasure();
  const { site, layer, head } = firstHead(data.runs.flatMap((run) => run.heads));
  Object.assign(state, { site, layer, head });
  recallChoice();
  drawRuns();
  drawGrids();
  prepareMeasures();
  prepareSlider();
  showUpdate();
  paintHeads();
  drawSentences();
  drawTexts();
  drawInkLegend();
  drawWords();
  markHead();
  preparePlace();
  drawPlace();
  drawMaps();
  addEventListener("load", () => setTimeout(drawCharts, 30));
  darkModeChange.addEventListener("change", () => {
    paintHeads();
    drawInkLegend();
    drawMaps();
    document
      .querySelectorAll(".key")
      .forEach((key) => key.replaceWith(layerKey(Number(key.dataset.layers))));
    redrawCharts();
  });
  addEventListener("scroll", placeTip, { capture: true, passive: true });
  addEventListener("mousemove", rememberPointer, { passive: true }); // after those of its target
  addEventListener("resize", sizeMaps);
  addEventListener("hashchange", followAddress);
}

begin();

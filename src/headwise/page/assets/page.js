// The page itself: what stands at its head, what a choice changes, and the beginning.

function drawRuns() {
  const articles = data.runs.map((run) => {
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
  });
  byId("runs").replaceChildren(...articles);
  const settings = data.runs.map((run) => {
    const summary = make("summary", { text: `All settings of ${run.name}` });
    return make("details", {}, summary, make("pre", { tabindex: "0", text: run.settings }));
  });
  byId("settings").replaceChildren(...settings);
}

/** BLEU of every set; the signature says how it was counted. */
function scoreTable(run) {
  if (!run.scores.length) return make("p", { class: "hint", text: "Not scored yet." });
  const signatures = new Set(run.scores.map(({ signature }) => signature));
  const scores = run.scores.map(({ split, score }) => {
    const number = make("b", { text: score.toFixed(2) });
    return make("div", {}, number, make("span", { text: `BLEU ${split}` }));
  });
  const signature = make("p", { class: "signature", text: [...signatures].join("; ") });
  return make("div", { class: "scores" }, ...scores, signature);
}

/** What the measures mean, below what the page itself explains. */
function drawWords() {
  for (const { id, name, says } of knownMeasures()) {
    if (id === "role") continue;
    const text = `${says[0].toUpperCase()}${says.slice(1)}.`;
    byId("words").append(make("dt", { text: name }), make("dd", { text }));
  }
}

function prepareMeasures() {
  const choice = byId("measure");
  choice.replaceChildren(...options(knownMeasures().map(({ id, name }) => [id, name])));
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
}

/** Shows a head; where the view is out of sight, it comes into it. */
function chooseHead(site, layer, head, scrolls = true) {
  Object.assign(state, { site, layer, head });
  markHead();
  drawPlace();
  const isPressed = Boolean(document.activeElement?.closest(".overview"));
  drawMaps().then(() => {
    if (isPressed) document.querySelector('.overview [aria-pressed="true"]')?.focus();
  });
  rememberChoice();
  if (scrolls && byId("maps").getBoundingClientRect().top > 0.7 * innerHeight)
    byId("texts").scrollIntoView({ block: "start" });
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
  const choice = { sentence: sentence + 1, head: `${site}.${layer}.${head}`, by: measure };
  history.replaceState(null, "", `#${new URLSearchParams(choice)}`);
}

/** Takes what the address asks for, as far as the page has it. */
function recallChoice() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const key = (asked.get("head") ?? "").replaceAll(".", " ");
  const found = allHeads().find((row) => keyOf(row) === key);
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
  chooseHead(state.site, state.layer, state.head, false);
}

/** The head to begin with: the first that has a role, else the most confident. */
function firstHead(rows) {
  const surest = (most, row) => ((row.confidence ?? 0) > (most.confidence ?? 0) ? row : most);
  return rows.find((row) => rolesOf(row).length) ?? rows.reduce(surest);
}

function begin() {
  state.measure = firstMeasure();
  const { site, layer, head } = firstHead(allHeads());
  Object.assign(state, { site, layer, head });
  recallChoice();
  drawRuns();
  drawGrids();
  prepareMeasures();
  prepareSlider();
  preparePlace();
  showMeasure();
  drawSentences();
  drawTexts();
  drawInkLegend();
  drawWords();
  chooseHead(state.site, state.layer, state.head, false);
  darkModeChange.addEventListener("change", () => {
    paintHeads();
    drawInkLegend();
    drawMaps();
  });
  addEventListener("scroll", hideTip, { capture: true, passive: true });
  addEventListener("resize", sizeMaps);
  addEventListener("hashchange", followAddress);
}

begin();

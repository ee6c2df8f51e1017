// The page: its header, the choice of a head, and the start.

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
      findings(run),
    );
  });
  byId("runs").replaceChildren(...articles);
}

/** The main score of every split with its signature; then all other scores. */
function scoreTable(run) {
  if (!run.scores.length) return make("p", { class: "hint", text: "No scores yet." });
  const mains = run.scores.filter(({ is_main }) => is_main);
  const scores = mains.map(({ split, metric, score, decimals }) => {
    const number = make("b", { text: score.toFixed(decimals) });
    return make("div", {}, number, make("span", { text: `${metric} ${split}` }));
  });
  const signatures = new Set(mains.map(({ signature }) => signature));
  const signature = make("p", { class: "signature", text: [...signatures].join("; ") });
  const others = run.scores
    .filter(({ is_main }) => !is_main)
    .map(({ split, metric, score, decimals }) => `${metric} ${split} ${score.toFixed(decimals)}`);
  const summary = make("summary", { text: "Other scores" });
  const rest = make("details", {}, summary, make("p", { class: "hint", text: others.join(" · ") }));
  return make("div", { class: "scores" }, ...scores, signature, others.length ? rest : "");
}

function chooseHead({ site, layer, head }) {
  Object.assign(state, { site, layer, head });
  markHead();
  drawMaps();
}

/** Chooses a head and scrolls to the attention view. */
function showHead(row) {
  chooseHead(row);
  byId("texts").scrollIntoView({ block: "nearest" });
}

/** The initial head: the first with a role, else the most confident. */
function firstHead(rows) {
  const higher = (top, row) => ((row.confidence ?? 0) > (top.confidence ?? 0) ? row : top);
  return rows.find((row) => rolesOf(row).length) ?? rows.reduce(higher);
}

function start() {
  drawRuns();
  state.measure = MEASURES[0].id;
  offer("measure", MEASURES.map(({ id, name }) => [id, name]), (measure) => {
    state.measure = measure;
    drawGrids();
  });
  const items = data.items.chosen.map(({ number, texts }, index) => {
    const [text] = Object.values(texts);
    return [index, `${number} ${text}`];
  });
  offer("item", items, (index) => {
    state.item = Number(index);
    drawTexts();
    offerQueries();
    drawMaps();
  });
  byId("query").addEventListener("change", () => chooseQuery(byId("query").value));
  // a view has the colours of the theme
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMaps);
  byId("origin").textContent = originOf();
  drawGrids();
  drawTexts();
  offerQueries();
  chooseHead(firstHead(allHeads));
}

start();

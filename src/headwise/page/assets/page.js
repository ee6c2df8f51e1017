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
      findings(run),
    );
  });
  byId("runs").replaceChildren(...articles);
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

function chooseHead({ site, layer, head }) {
  Object.assign(state, { site, layer, head });
  markHead();
  drawMaps();
}

/** Chooses a head from above the view, and brings that into sight. */
function showHead(row) {
  chooseHead(row);
  byId("texts").scrollIntoView({ block: "nearest" });
}

/** The head to begin with: the first that has a role, else the most confident. */
function firstHead(rows) {
  const surest = (most, row) => ((row.confidence ?? 0) > (most.confidence ?? 0) ? row : most);
  return rows.find((row) => rolesOf(row).length) ?? rows.reduce(surest);
}

function begin() {
  drawRuns();
  state.measure = MEASURES[0].id;
  offer("measure", MEASURES.map(({ id, name }) => [id, name]), (measure) => {
    state.measure = measure;
    drawGrids();
  });
  const sources = data.sentences.map(({ line, source }, place) => [place, `${line} ${source}`]);
  offer("sentence", sources, (place) => {
    state.sentence = Number(place);
    drawTexts();
    drawMaps();
  });
  byId("origin").textContent = originOf();
  drawGrids();
  drawTexts();
  chooseHead(firstHead(allHeads));
}

begin();

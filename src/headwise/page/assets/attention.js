// The attention view: one head's weights on a sentence as a heat map, beside its whole layer.

const READINGS = {
  encoder_self: "A row is a token of the source, a column a token it looks at.",
  decoder_self:
    "A row is the token of the translation just read, a column a token looked at: " +
    "itself or an earlier one.",
  cross:
    "A row is the token of the translation about to be written, a column a token of the source.",
};
const [LEAST_CELL, MOST_CELL] = [14, 32]; // px
const LABELS = 96; // px, of the names of rows and columns
const MOST_LETTERS = 12; // of a name

/** What stands at the rows and columns of a site. */
function labelsOf(content, site) {
  if (site === "encoder_self") return [content.source_pieces, content.source_pieces];
  if (site === "decoder_self") return [content.read_pieces, content.read_pieces];
  return [content.written_pieces, content.source_pieces];
}

const allHeads = () => data.runs.flatMap((run) => run.heads);

const options = (choices) =>
  choices.map(([value, text]) => make("option", { value, text: String(text) }));

/** The choice of a site and layer beside the view, for who has scrolled past the grids. */
function preparePlace() {
  const sites = Object.entries(data.sites).filter(([id]) => allHeads().some((r) => r.site === id));
  byId("site").replaceChildren(...options(sites));
  const choose = (site, layer) => {
    const rows = allHeads().filter((row) => row.site === site);
    const there = rows.filter((row) => row.layer === layer);
    const row = there.find((one) => one.head === state.head) ?? there[0] ?? rows[0];
    chooseHead(site, row.layer, row.head, false);
  };
  byId("site").addEventListener("change", () => choose(byId("site").value, state.layer));
  byId("layer").addEventListener("change", () => choose(state.site, Number(byId("layer").value)));
}

/** Shows in these choices which head is chosen. */
function drawPlace() {
  const rows = allHeads().filter((row) => row.site === state.site);
  const layers = [...new Set(rows.map((row) => row.layer))].sort((one, other) => one - other);
  byId("layer").replaceChildren(...options(layers.map((layer) => [layer, layer])));
  [byId("site").value, byId("layer").value] = [state.site, state.layer];
}

/** The chosen head on the chosen sentence, in every run. */
async function drawMaps() {
  const { sentence, site, layer, head } = state;
  const figures = await Promise.all(data.runs.map((run) => mapFigure(run, state)));
  // another choice may have been made while bytes were unpacked
  if (sentence !== state.sentence || headKey(site, layer, head) !== chosenKey()) return;
  hideTip();
  byId("maps").replaceChildren(...figures);
  sizeMaps();
}

async function mapFigure(run, { sentence, site, layer, head }) {
  const content = run.sentences[sentence];
  const row = run.heads.find((one) => keyOf(one) === headKey(site, layer, head));
  const weights = await headWeights(content, site, layer, head);
  const place = `${data.sites[site]}, layer ${layer}, head ${head}`;
  const parts = [make("p", { class: "place", text: place }), make("p", { class: "facts" })];
  if (data.runs.length > 1) parts.unshift(make("h3", {}, isolated(run.label)));
  parts.at(-1).append(...headFacts(row));
  const figure = make("figure", { class: "map" }, make("figcaption", {}, ...parts));
  figure.append(await overview(run, content, site, layer, head));
  const hint = (text) => make("p", { class: "hint", text });
  if (!row) figure.append(hint("This run has no such head."));
  else if (!weights) figure.append(hint("This head has no weights that could be shown."));
  else {
    figure.append(hint(READINGS[site]));
    if (weights.scale !== 1)
      figure.append(hint(`The fullest ink stands for ${weights.scale.toPrecision(3)}.`));
    const canvas = heatMap(labelsOf(content, site), weights, `Weights of ${place}, ${run.label}`);
    figure.append(make("div", { class: "scroll" }, canvas));
  }
  return figure;
}

/** What was measured of a head, in words. */
function headFacts(row) {
  if (!row) return [];
  const numbers = MEASURES.filter(({ id }) => row[id] !== undefined).map(({ id, name, says }) =>
    make("span", { title: says, text: `${name} ${shown(row[id])}` }),
  );
  return [...numbers, ...rolesOf(row).map((name) => make("strong", { text: roleOf(name)[1] }))];
}

/** Every head of the layer as a small picture, to choose from. */
async function overview(run, content, site, layer, chosen) {
  const rows = run.heads.filter((row) => row.site === site && row.layer === layer);
  const pictures = rows.map(async ({ head }) => {
    const weights = await headWeights(content, site, layer, head);
    const about = {
      type: "button",
      "aria-pressed": String(head === chosen),
      "aria-label": `head ${head} of layer ${layer}`,
      onclick: () => chooseHead(site, layer, head, false),
    };
    const button = make("button", about, make("span", { text: `head ${head}` }));
    if (weights) button.prepend(thumbnail(weights));
    return button;
  });
  const about = { class: "overview", role: "group", "aria-label": `All heads of layer ${layer}` };
  return make("div", about, ...(await Promise.all(pictures)));
}

/** A point a weight. */
function thumbnail(weights) {
  const about = { width: weights.columns, height: weights.rows, "aria-hidden": "true" };
  const canvas = make("canvas", about);
  paintWeights(canvas.getContext("2d"), weights, 1);
  return canvas;
}

// -- the heat map ---------------------------------------------------------------------------------

const short = (name) => {
  const letters = [...name];
  return letters.length > MOST_LETTERS ? `${letters.slice(0, MOST_LETTERS - 1).join("")}…` : name;
};

/** A canvas of one head's weights; the pointer or the arrow keys choose a cell, the tip tells it. */
function heatMap(labels, weights, label) {
  const canvas = make("canvas", { class: "weights", tabindex: "0", role: "img" });
  canvas.setAttribute("aria-label", label);
  Object.assign(canvas, { labels, weights, cell: LEAST_CELL });
  let at = [0, 0];
  const show = (row, column) => {
    if (row < 0 || column < 0 || row >= weights.rows || column >= weights.columns) return;
    at = [row, column];
    showTip(canvas, row, column);
  };
  canvas.addEventListener("mousemove", ({ offsetX, offsetY }) => {
    const [row, column] = [offsetY, offsetX].map((to) => Math.floor((to - LABELS) / canvas.cell));
    if (row < 0 || column < 0) hideTip();
    else show(row, column);
  });
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("focus", () => show(...at));
  canvas.addEventListener("blur", hideTip);
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hideTip();
    const [down, right] = step(event.key) ?? [0, 0];
    if (!down && !right) return undefined;
    event.preventDefault();
    return show(at[0] + down, at[1] + right);
  });
  return canvas;
}

/** Draws a heat map in cells as large as there is room for. */
function paintMap(canvas) {
  const [[queries, keys], { rows, columns }] = [canvas.labels, canvas.weights];
  const room = Math.floor((canvas.closest("figure").clientWidth - LABELS - 8) / columns);
  const cell = Math.max(LEAST_CELL, Math.min(MOST_CELL, room));
  canvas.cell = cell;
  const [width, height] = [LABELS + columns * cell + 1, LABELS + rows * cell + 1];
  [canvas.width, canvas.height] = [width, height].map((size) => size * devicePixelRatio);
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const brush = canvas.getContext("2d");
  brush.scale(devicePixelRatio, devicePixelRatio);
  brush.translate(LABELS, LABELS);
  paintWeights(brush, canvas.weights, cell);
  brush.fillStyle = styleOf("--grid");
  for (let row = 0; row <= rows; row += 1) brush.fillRect(0, row * cell, columns * cell, 1);
  for (let column = 0; column <= columns; column += 1)
    brush.fillRect(column * cell, 0, 1, rows * cell);
  Object.assign(brush, { font: "12px system-ui, sans-serif", textBaseline: "middle" });
  brush.fillStyle = styleOf("--ink");
  brush.textAlign = "right";
  queries.forEach((name, row) => brush.fillText(short(name), -6, (row + 0.5) * cell, LABELS - 8));
  brush.rotate(-Math.PI / 2);
  brush.textAlign = "left";
  keys.forEach((name, column) => brush.fillText(short(name), 6, (column + 0.5) * cell, LABELS - 8));
}

function sizeMaps() {
  hideTip();
  document.querySelectorAll("canvas.weights").forEach(paintMap);
}

/** The weight of a cell, beside it. */
function showTip(canvas, row, column) {
  const { labels, weights, cell } = canvas;
  const [query, key] = [labels[0][row], labels[1][column]];
  const text = shownWeight(weights.values[row * weights.columns + column]);
  const tip = byId("tip");
  tip.replaceChildren(make("b", { text }), " ", isolated(query), " → ", isolated(key));
  tip.hidden = false;
  const box = canvas.getBoundingClientRect();
  const [x, y] = [box.left + LABELS + column * cell, box.top + LABELS + row * cell];
  const above = y - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, Math.min(x, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${above > 0 ? above : y + cell + 6}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

/** What the ink of a weight means. */
function drawInkLegend() {
  const stops = [...Array(11).keys()].map((place) => inkColour(place / 10));
  const marks = [0, 0.05, 0.25, 0.5, 1].map((weight) => {
    const mark = make("span", { text: weight === 0 ? "> 0" : weight });
    mark.style.left = `${100 * Math.sqrt(weight)}%`;
    return mark;
  });
  const scale = make("span", { class: "entry scale" }, ramp(stops, "ink of weights from 0 to 1"));
  scale.append(make("span", { class: "marks" }, ...marks));
  byId("ink-legend").replaceChildren(
    swatch(styleOf("--paper"), "exactly 0"),
    scale,
    swatch(styleOf("--unseen"), "out of the query's sight"),
  );
  const blocks = data.runs.flatMap((run) => run.sentences.flatMap((sentence) => sentence.blocks));
  if (blocks.some(({ signed }) => signed))
    byId("ink-legend").append(swatch(inkColour(0.7, true), "− below 0"));
}

// The heads as a grid: one table per run and site, one row per layer, one cell per head.

// Columns of the analysis: [column, name, meaning, ends of the scale (null: those of the values)].
const KNOWN_MEASURES = [
  ["alpha", "α", "α-entmax: softmax (1, no weight is 0), 1.5-entmax (1.5), sparsemax (2)", 1, 2],
  ["density", "density", "share of the visible keys whose weight is not 0", 0, 1],
  ["entropy", "entropy", "Shannon entropy of the weights, in nats", 0, null],
  ["confidence", "confidence", "largest weight of a query, on average", 0, 1],
  ["importance_normalised", "importance",
    "gradient of the loss at the head (Michel et al. 2019), divided by the norm of its layer: "
    + "near 0 the loss hardly depends on the head", 0, 1],
  ...["query", "key", "value"].map((part) => [
    `${part}_gradient`, `gradient of the ${part} projection`,
    "norm of the loss gradient divided by that of the head's weights, often about 1e-3", 0, null,
  ]),
  ["previous_weight", "weight on the token before",
    "weight of a token on the one before it, on average", 0, 1],
  ["next_weight", "weight on the token after",
    "weight of a token on the one after it, on average", 0, 1],
  ["merge_score", "merge score",
    "highest weight of a word's tokens on its other tokens, on average (Correia et al. 2019)", 0, 1],
  ["question_weight", "weight on ? at question words",
    "weight of question words on the question mark that ends the sentence, on average", 0, 1],
];
const OTHER = "reported by the attention, or measured on the same text";
const isKnown = (other) => KNOWN_MEASURES.some(([id]) => id === other);
const others = [...new Set(data.runs.flatMap((run) => run.others))].filter((id) => !isKnown(id));
const allHeads = data.runs.flatMap((run) => run.heads);

/** Measures that some head has: known ones, those that attentions report, then the roles. */
const MEASURES = [
  ...KNOWN_MEASURES,
  ...others.map((id) => [id, id.replaceAll("_", " "), OTHER, null, null]),
  ["role", "role", "pattern that the analysis recognised", null, null],
]
  .map(([id, name, meaning, low, high]) => ({ id, name, meaning, low, high }))
  .filter(({ id }) => id === "role" || allHeads.some((row) => row[id] !== undefined));

const ROLES = {
  previous: ["P", "attends to the previous token"],
  current: ["C", "attends to the current token"],
  next: ["N", "attends to the next token"],
  merging: ["M", "merges the tokens of a word"],
  interrogation: ["Q", "attends to the question mark from question words"],
  rare: ["R", "attends to the rarest token"],
  local: ["L", "attends to neighbouring values"],
  row: ["H", "attends to the same row"],
  column: ["V", "attends to the same column"],
  global: ["G", "attends to values further away"],
  data_dependent: ["D", "attends to other places in other inputs"],
};

/** Letter and meaning of a role, such as `offset+2`. */
function roleOf(name) {
  const offset = name.replace("offset", "").replace("-", "−");
  return ROLES[name] ?? [offset, `attends to the token at offset ${offset}`];
}

const rolesOf = (row) => (row.roles ? row.roles.split(";") : []);

/** The grids of all runs, one table per site, coloured by the chosen measure. */
function drawGrids() {
  const measure = MEASURES.find(({ id }) => id === state.measure);
  const values = allHeads.map((row) => row[measure.id]).filter((value) => value !== undefined);
  const low = measure.low ?? Math.min(...values);
  const scale = { low, high: Math.max(measure.high ?? low, ...values) };
  const grids = data.runs.map((run) => {
    const tables = Object.entries(data.sites).map(([site, name]) => {
      const rows = run.heads.filter((row) => row.site === site);
      const table = make("div", { class: "scroll" }, headTable(rows, measure, scale));
      return rows.length ? make("div", {}, make("h4", { text: name }), table) : "";
    });
    const grid = make("div", { class: "run" }, make("div", { class: "sites" }, ...tables));
    if (data.runs.length > 1) grid.prepend(make("h3", {}, isolated(run.label)));
    return grid;
  });
  byId("grids").replaceChildren(...grids);
  byId("legend").replaceChildren(...legend(measure, scale));
  markHead();
}

/** The table of a site. */
function headTable(rows, measure, scale) {
  const layers = [...new Set(rows.map((row) => row.layer))];
  const nHeads = Math.max(0, ...rows.map((row) => row.head));
  const numbers = Array.from({ length: nHeads }, (_, index) => index + 1);
  const cellOf = (layer, head) => {
    const row = rows.find((other) => other.layer === layer && other.head === head);
    return row ? make("td", {}, headButton(row, measure, scale)) : make("td", { class: "gone" });
  };
  const lines = layers.map((layer) => {
    const heading = make("th", { scope: "row", text: layer });
    return make("tr", {}, heading, ...numbers.map((head) => cellOf(layer, head)));
  });
  const headings = ["layer \\ head", ...numbers].map((text) => make("th", { scope: "col", text }));
  return make("table", { class: "heads" }, make("tr", {}, ...headings), ...lines);
}

function headButton(row, measure, scale) {
  const [text, meaning, share] =
    measure.id === "role" ? shownRoles(row) : shownValue(row[measure.id], measure, scale);
  return make("button", {
    type: "button",
    class: share === null ? "" : "shade",
    style: `--share: ${share}`,
    "data-key": keyOf(row),
    "aria-label": `layer ${row.layer}, head ${row.head}: ${meaning}`,
    onclick: () => showHead(row),
    text,
  });
}

/** Text, meaning and share of the scale of a cell. */
function shownValue(value, { name }, { low, high }) {
  if (value === undefined) return ["–", `${name} not measured`, null];
  return [shown(value), `${name} ${shown(value)}`, (value - low) / (high - low || 1)];
}

function shownRoles(row) {
  const [letters, meaning] = [0, 1].map((part) => rolesOf(row).map((name) => roleOf(name)[part]));
  if (!letters.length) return ["·", "no role", null];
  return [letters.join(" "), meaning.join(" and "), 0.85];
}

/** The meaning of colours or letters. */
function legend(measure, scale) {
  if (measure.id !== "role") {
    const ends = [scale.low, scale.high].map((end) => make("span", { text: shown(end) }));
    const meaning = make("span", { text: `${measure.name}: ${measure.meaning}` });
    return [ends[0], make("span", { class: "ramp" }), ends[1], meaning];
  }
  const entries = [...new Set(allHeads.flatMap(rolesOf))].map((name) => {
    const [letter, meaning] = roleOf(name);
    return make("span", {}, make("b", { text: letter }), ` ${meaning}`);
  });
  return [...entries, make("span", { text: "· no role" })];
}

/** Outline the chosen head in the grid of every run. */
function markHead() {
  for (const button of document.querySelectorAll("[data-key]"))
    button.setAttribute("aria-pressed", String(button.dataset.key === keyOf(state)));
}

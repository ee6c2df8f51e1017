// The heads as a grid: a table a run and site, a row a layer, a cell a head.

// What the analysis measures: [column, name, meaning, ends of the scale (null: of the values)].
const KNOWN_MEASURES = [
  ["alpha", "α", "the head's rule: softmax (1, no weight is 0), 1.5-entmax, sparsemax (2)", 1, 2],
  ["density", "density", "share of the keys in sight whose weight is not 0", 0, 1],
  ["entropy", "entropy", "how widely the weights are spread, in nats", 0, null],
  ["confidence", "confidence", "largest weight of a query, on average", 0, 1],
  ["importance_normalised", "importance",
    "how much the loss depends on the head (Michel et al. 2019), normalised in its layer", 0, 1],
  ["previous_weight", "weight on the token before",
    "weight of a token on the one before it, on average", 0, 1],
  ["next_weight", "weight on the token behind",
    "weight of a token on the one behind it, on average", 0, 1],
  ["merge_score", "merge score",
    "highest weight of a word's tokens on its other tokens, on average (Correia et al. 2019)", 0, 1],
  ["question_weight", "weight on ? at question words",
    "weight of question words on the question mark that ends the sentence, on average", 0, 1],
];
const OTHER = "as the attention reports it, or measured on the same text";
const others = [...new Set(data.runs.flatMap((run) => run.others))];
const allHeads = data.runs.flatMap((run) => run.heads);

/** What some head has: known measures, what attentions report of themselves, and roles at last. */
const MEASURES = [
  ...KNOWN_MEASURES,
  ...others.map((id) => [id, id.replaceAll("_", " "), OTHER, null, null]),
  ["role", "role", "what the head was found to do", null, null],
]
  .map(([id, name, says, low, high]) => ({ id, name, says, low, high }))
  .filter(({ id }) => id === "role" || allHeads.some((row) => row[id] !== undefined));

const ROLES = {
  previous: ["P", "looks at the previous token"],
  current: ["C", "looks at the current token"],
  next: ["N", "looks at the next token"],
  merging: ["M", "merges the tokens of a word"],
  interrogation: ["Q", "looks at the question mark from question words"],
  rare: ["R", "points at the rarest token"],
};

/** Letter and meaning of a role; `offset+2` and the like say how far away. */
function roleOf(name) {
  const offset = name.replace("offset", "").replace("-", "−");
  return ROLES[name] ?? [offset, `looks at the token at offset ${offset}`];
}

const rolesOf = (row) => (row.roles ? row.roles.split(";") : []);

/** One run's heads, one table a site, by the chosen measure. */
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

/** The heads of a site. */
function headTable(rows, measure, scale) {
  const layers = [...new Set(rows.map((row) => row.layer))];
  const nHeads = Math.max(0, ...rows.map((row) => row.head));
  const numbers = Array.from({ length: nHeads }, (_, place) => place + 1);
  const cellOf = (layer, head) => {
    const row = rows.find((one) => one.layer === layer && one.head === head);
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
  const [text, says, share] =
    measure.id === "role" ? shownRoles(row) : shownValue(row[measure.id], measure, scale);
  return make("button", {
    type: "button",
    class: share === null ? "" : "shade",
    style: `--share: ${share}`,
    "data-key": keyOf(row),
    "aria-label": `layer ${row.layer}, head ${row.head}: ${says}`,
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
  const [letters, says] = [0, 1].map((part) => rolesOf(row).map((name) => roleOf(name)[part]));
  if (!letters.length) return ["·", "no role found", null];
  return [letters.join(" "), says.join(" and "), 0.85];
}

/** What the colours or letters mean. */
function legend(measure, scale) {
  if (measure.id !== "role") {
    const ends = [scale.low, scale.high].map((end) => make("span", { text: shown(end) }));
    const says = make("span", { text: `${measure.name}: ${measure.says}` });
    return [ends[0], make("span", { class: "ramp" }), ends[1], says];
  }
  const entries = [...new Set(allHeads.flatMap(rolesOf))].map((name) => {
    const [letter, says] = roleOf(name);
    return make("span", {}, make("b", { text: letter }), ` ${says}`);
  });
  return [...entries, make("span", { text: "· no role found" })];
}

/** Outlines the chosen head in every run's grid. */
function markHead() {
  for (const button of document.querySelectorAll("[data-key]"))
    button.setAttribute("aria-pressed", String(button.dataset.key === keyOf(state)));
}

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

/** What is known, what attentions report of themselves, and roles at last. */
const MEASURES = [
  ...KNOWN_MEASURES,
  ...others.map((id) => [id, id.replaceAll("_", " "), OTHER, null, null]),
  ["role", "role", "what the head was found to do", null, null],
].map(([id, name, says, low, high]) => ({ id, name, says, low, high }));

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

const headKey = (site, layer, head) => `${site} ${layer} ${head}`;
const keyOf = ({ site, layer, head }) => headKey(site, layer, head);
const chosenKey = () => keyOf(state);

/** Measures that some head has; a role was looked for in every head. */
function knownMeasures() {
  const rows = allHeads();
  return MEASURES.filter(({ id }) => id === "role" || rows.some((row) => row[id] !== undefined));
}

/** The measure to begin with: the first in which heads differ. */
function firstMeasure() {
  const valuesOf = (id) => allHeads().map((row) => row[id]).filter((value) => value !== undefined);
  const known = knownMeasures();
  return (known.find(({ id }) => new Set(valuesOf(id)).size > 1) ?? known[0]).id;
}

/** Both ends of a measure's scale. */
function scaleOf(measure) {
  const found = data.runs
    .flatMap((run) => [
      ...run.heads.map((row) => row[measure.id]),
      ...Object.values(run.trajectories[measure.id]?.values ?? {}).flat(),
    ])
    .filter((value) => value !== undefined && value !== null);
  const low = measure.low ?? Math.min(...found);
  return { low, high: Math.max(measure.high ?? low, ...found) };
}

/** A head's measure at the chosen update: the last that was measured until then. */
function valueOf(run, row, id) {
  if (state.update === Infinity) return row[id];
  const { updates, values } = run.trajectories[id] ?? {};
  const place = updates?.findLastIndex((update) => update <= state.update);
  return values?.[keyOf(row)]?.[place] ?? undefined;
}

/** One run's heads, one table a site. */
function drawGrids() {
  const grids = data.runs.map((run, number) => {
    run.cells = new Map();
    const sites = Object.keys(data.sites).filter((id) => run.heads.some((row) => row.site === id));
    const tables = sites.map((site) => {
      const table = make("div", { class: "scroll" }, headTable(run, site));
      return make("div", { class: "site" }, make("h4", { text: data.sites[site] }), table);
    });
    const hint = make("p", { class: "hint unmeasured", "data-run": number });
    const grid = make("div", { class: "run" }, hint, make("div", { class: "sites" }, ...tables));
    if (data.runs.length > 1) grid.prepend(make("h3", {}, isolated(run.label)));
    return grid;
  });
  byId("grids").replaceChildren(...grids);
}

function headTable(run, site) {
  const rows = run.heads.filter((row) => row.site === site);
  const layers = [...new Set(rows.map((row) => row.layer))].sort((one, other) => one - other);
  const nHeads = Math.max(...rows.map((row) => row.head));
  const numbers = [...Array(nHeads).keys()].map((place) => place + 1);
  const cellOf = (layer, head) => {
    const key = headKey(site, layer, head);
    if (!rows.some((row) => keyOf(row) === key))
      return make("td", { class: "gone", "aria-label": "removed" });
    const cell = make("td", {
      role: "gridcell",
      tabindex: -1,
      "data-key": key,
      onclick: () => chooseHead(site, layer, head),
    });
    run.cells.set(key, cell);
    return cell;
  };
  const label = `Heads of ${data.sites[site]}, ${run.label}`;
  const headings = numbers.map((number) => make("th", { scope: "col", text: number }));
  headings.unshift(make("th", { class: "corner", scope: "col", text: "layer \\ head" }));
  const lines = layers.map((layer) => {
    const heading = make("th", { scope: "row", text: layer });
    return make("tr", {}, heading, ...numbers.map((head) => cellOf(layer, head)));
  });
  const table = make(
    "table",
    { class: "heads", role: "grid", "aria-label": label },
    make("thead", {}, make("tr", {}, ...headings)),
    make("tbody", {}, ...lines),
  );
  table.style.setProperty("--heads", nHeads);
  table.querySelector("td:not(.gone)").tabIndex = 0;
  table.addEventListener("focusin", ({ target }) => {
    // one tab stop a grid
    table.querySelector('[tabindex="0"]').tabIndex = -1;
    target.tabIndex = 0;
  });
  table.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ")
      return moveFocus(event, [...table.querySelectorAll("td")], nHeads);
    event.preventDefault();
    return event.target.click();
  });
  return table;
}

/** Colours and numbers of all cells, after a change of the measure or the update. */
function paintHeads() {
  const measure = MEASURES.find(({ id }) => id === state.measure);
  const scale = measure.id === "role" ? null : scaleOf(measure);
  for (const run of data.runs) {
    for (const row of run.heads) {
      const [text, says, share] = scale
        ? shownValue(valueOf(run, row, measure.id), measure, scale)
        : shownRoles(row);
      const cell = run.cells.get(keyOf(row));
      cell.textContent = text;
      cell.style.background = share === null ? "" : scaleColour(share);
      cell.style.color = share === null ? "" : textOn(share);
      cell.setAttribute("aria-label", `layer ${row.layer}, head ${row.head}: ${says}`);
    }
  }
  for (const hint of document.querySelectorAll("#grids .unmeasured")) {
    const { heads } = data.runs[hint.dataset.run];
    hint.hidden = measure.id === "role" || heads.some((row) => row[measure.id] !== undefined);
    hint.textContent = `No head of this run has ${measure.name}.`;
  }
  drawLegend(measure, scale);
}

/** Text, meaning and share of the scale of a cell. */
function shownValue(value, { name }, { low, high }) {
  if (value === undefined) return ["–", `${name} not measured`, null];
  const share = Math.min(1, Math.max(0, (value - low) / (high - low || 1)));
  return [shown(value), `${name} ${shown(value)}`, share];
}

function shownRoles(row) {
  const [letters, says] = [0, 1].map((part) => rolesOf(row).map((name) => roleOf(name)[part]));
  if (!letters.length) return ["·", "no role found", null];
  return [letters.join(" "), says.join(" and "), 0.85];
}

/** What the colours or letters mean. */
function drawLegend(measure, scale) {
  const legend = byId("legend");
  if (measure.id === "role") {
    const entries = [...new Set(allHeads().flatMap(rolesOf))].map((name) => {
      const [letter, says] = roleOf(name);
      return make("span", { class: "entry" }, make("b", { text: letter }), ` ${says}`);
    });
    legend.replaceChildren(...entries, make("span", { class: "entry", text: "· no role found" }));
    return;
  }
  const [low, high] = [scale.low, scale.high].map((end) => shown(end));
  const stops = [...Array(11).keys()].map((place) => scaleColour(place / 10));
  legend.replaceChildren(
    make("span", { text: low }),
    ramp(stops, `colours from ${low} to ${high}`),
    make("span", { text: high }),
    make("span", { class: "says", text: `${measure.name}: ${measure.says}` }),
  );
}

/** Outlines the chosen head in every run's grid. */
function markHead() {
  for (const run of data.runs)
    for (const [known, cell] of run.cells)
      cell.setAttribute("aria-selected", String(known === chosenKey()));
}

// -- the slider -----------------------------------------------------------------------------------

/** Stops at every update some head was measured at, and at the weights shown. */
function prepareSlider() {
  const slider = byId("update");
  const trajectories = data.runs.flatMap((run) => Object.values(run.trajectories));
  const updates = new Set(trajectories.flatMap((trajectory) => trajectory.updates));
  const stops = [...updates].sort((one, other) => one - other).concat(Infinity);
  slider.max = stops.length - 1;
  slider.value = stops.length - 1;
  slider.addEventListener("input", () => {
    state.update = stops[slider.value];
    showUpdate();
    paintHeads();
  });
}

/** Whether the slider moves the chosen measure, and where it stands. */
function showUpdate() {
  const isOverTime = data.runs.some((run) => run.trajectories[state.measure]);
  const slider = byId("update");
  slider.disabled = !isOverTime;
  if (!isOverTime) [state.update, slider.value] = [Infinity, slider.max];
  let text = `update ${state.update.toLocaleString("en")}`;
  if (state.update === Infinity)
    text = isOverTime ? "at its end: the weights shown" : "measured on the weights shown alone";
  byId("update-shown").textContent = text;
  slider.setAttribute("aria-valuetext", text);
}

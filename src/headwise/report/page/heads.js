// The heads as a grid: a table a run and site, a row a layer, a cell a head.

const KNOWN_MEASURES = [
  {
    id: "alpha",
    name: "α",
    says: "the head's rule: softmax (1, no weight is 0), 1.5-entmax, sparsemax (2, most are)",
    low: 1,
    high: 2,
  },
  {
    id: "density",
    name: "density",
    says: "share of the keys in sight whose weight is not 0",
    low: 0,
    high: 1,
  },
  {
    id: "entropy",
    name: "entropy",
    says: "how widely the weights are spread, in nats",
    low: 0,
    high: null,
  },
  {
    id: "confidence",
    name: "confidence",
    says: "largest weight of a query, on average",
    low: 0,
    high: 1,
  },
  {
    id: "importance_normalised",
    name: "importance",
    says: "how much the loss depends on the head (Michel et al. 2019), normalised in its layer",
    low: 0,
    high: 1,
  },
  {
    id: "previous_weight",
    name: "weight on the token before",
    says: "weight of a token on the one before it, on average",
    low: 0,
    high: 1,
  },
  {
    id: "next_weight",
    name: "weight on the token behind",
    says: "weight of a token on the one behind it, on average",
    low: 0,
    high: 1,
  },
  {
    id: "merge_score",
    name: "merge score",
    says: "highest weight of a word's pieces on its other pieces, on average (Correia et al. 2019)",
    low: 0,
    high: 1,
  },
  {
    id: "question_weight",
    name: "weight on ? at question words",
    says: "weight of question words on the question mark that ends the sentence, on average",
    low: 0,
    high: 1,
  },
];

/** What the analysis measures, what attentions report of themselves, and roles at last. */
const MEASURES = [
  ...KNOWN_MEASURES,
  ...[...new Set(data.runs.flatMap((run) => run.others))].map((id) => ({
    id,
    name: id.replaceAll("_", " "),
    says: "as the attention reports it, or measured on the same text",
    low: null,
    high: null,
  })),
  { id: "role", name: "role", says: "what the head was found to do" },
];

const ROLES = {
  previous: ["P", "looks at the previous piece"],
  current: ["C", "looks at the current piece"],
  next: ["N", "looks at the next piece"],
  merging: ["M", "merges the pieces of a word"],
  interrogation: ["Q", "looks at the question mark from question words"],
  rare: ["R", "points at the rarest piece"],
};

/** Letter and meaning of a role; `offset+2` and the like say how far away. */
function roleOf(name) {
  if (ROLES[name]) return ROLES[name];
  const offset = name.replace("offset", "").replace("-", "−");
  return [offset, `looks at the piece at offset ${offset}`];
}

const rolesOf = (row) => (row.roles ? row.roles.split(";") : []);

const measureOf = (id) => MEASURES.find((measure) => measure.id === id);

const headKey = (site, layer, head) => `${site} ${layer} ${head}`;

/** Measures that some head has; a role was looked for in every head. */
function knownMeasures() {
  const rows = data.runs.flatMap((run) => run.heads);
  return MEASURES.filter(({ id }) => id === "role" || rows.some((row) => row[id] !== undefined));
}

/** The measure to begin with: the first in which heads differ. */
function firstMeasure() {
  const rows = data.runs.flatMap((run) => run.heads);
  const differs = ({ id }) =>
    new Set(rows.map((row) => row[id]).filter((value) => value !== undefined)).size > 1;
  return (knownMeasures().find(differs) ?? knownMeasures()[0]).id;
}

/** Both ends of a measure's scale; one that is not given is that of the values. */
function scaleOf(measure) {
  const found = data.runs
    .flatMap((run) => [
      ...run.heads.map((row) => row[measure.id]),
      ...(run.trajectories[measure.id]?.lines ?? []).flatMap((line) => line.values),
    ])
    .filter((value) => value !== undefined && value !== null);
  const low = measure.low ?? Math.min(...found);
  return { low, high: Math.max(measure.high ?? low, ...found) };
}

/** A head's measure at the chosen update: the last that was measured until then. */
function valueOf(run, row, id) {
  if (state.update === Infinity) return row[id];
  const trajectory = run.trajectories[id];
  const line = run.lineOf.get(`${id} ${headKey(row.site, row.layer, row.head)}`);
  if (!line) return undefined;
  const place = trajectory.updates.findLastIndex((update) => update <= state.update);
  return place < 0 ? undefined : (line.values[place] ?? undefined);
}

/** One run's heads, one table a site, with a place for the chart of the site's α. */
function drawGrids() {
  byId("grids").replaceChildren(
    ...data.runs.map((run, number) => {
      run.lineOf = new Map();
      for (const [id, { lines }] of Object.entries(run.trajectories)) {
        for (const line of lines)
          run.lineOf.set(`${id} ${headKey(line.site, line.layer, line.head)}`, line);
      }
      run.cells = new Map();
      const sites = Object.keys(data.sites).filter((site) =>
        run.heads.some((row) => row.site === site),
      );
      const parts = sites.map((site) =>
        make(
          "div",
          { class: "site" },
          make("h4", { text: data.sites[site] }),
          make("div", { class: "scroll" }, headTable(run, site)),
          run.alpha_charts[site]
            ? make("div", { class: "chart alpha", id: `alpha-${number}-${site}` })
            : "",
        ),
      );
      const title =
        data.runs.length > 1
          ? make("h3", { class: `run-name run-${number + 1}` }, isolated(run.label))
          : "";
      const hint = make("p", { class: "hint unmeasured", "data-run": number });
      return make("div", { class: "run" }, title, hint, make("div", { class: "sites" }, ...parts));
    }),
  );
}

function headTable(run, site) {
  const rows = run.heads.filter((row) => row.site === site);
  const nHeads = Math.max(...rows.map((row) => row.head));
  const layers = [...new Set(rows.map((row) => row.layer))].sort((one, other) => one - other);
  const table = make("table", {
    class: "heads",
    role: "grid",
    "aria-label": `Heads of ${data.sites[site]}, ${run.label}`,
  });
  const numbers = [...Array(nHeads).keys()].map((place) => place + 1);
  table.style.setProperty("--heads", nHeads);
  table.append(
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        make("th", { class: "corner", scope: "col", text: "layer \\ head" }),
        ...numbers.map((number) => make("th", { scope: "col", text: number })),
      ),
    ),
    make(
      "tbody",
      {},
      ...layers.map((layer) =>
        make(
          "tr",
          {},
          make("th", { scope: "row", text: layer }),
          ...numbers.map((number) => {
            const row = rows.find((one) => one.layer === layer && one.head === number);
            if (!row) return make("td", { class: "gone", "aria-label": "removed" });
            const cell = make("td", { role: "gridcell" });
            cell.dataset.key = headKey(site, layer, number);
            run.cells.set(cell.dataset.key, cell);
            return cell;
          }),
        ),
      ),
    ),
  );
  table.querySelector("td:not(.gone)").tabIndex = 0;
  const choose = (cell) => {
    const [, layer, head] = cell.dataset.key.split(" ").map(Number);
    chooseHead(site, layer, head);
  };
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("td:not(.gone)");
    if (cell) {
      focusCell(table, cell);
      choose(cell);
    }
  });
  table.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td:not(.gone)");
    if (cell && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      choose(cell);
    } else moveInGrid(event, table);
  });
  return table;
}

/** Colours and numbers of all cells, after a change of the measure or the update. */
function paintHeads() {
  const measure = measureOf(state.measure);
  const scale = measure.id === "role" ? null : scaleOf(measure);
  for (const run of data.runs) {
    for (const row of run.heads) {
      const cell = run.cells.get(headKey(row.site, row.layer, row.head));
      if (measure.id === "role") paintRoles(cell, row);
      else paintValue(cell, valueOf(run, row, measure.id), measure, scale);
      cell.setAttribute("aria-label", `layer ${row.layer}, head ${row.head}: ${cell.dataset.says}`);
    }
  }
  for (const hint of document.querySelectorAll("#grids .unmeasured")) {
    const run = data.runs[hint.dataset.run];
    hint.hidden = measure.id === "role" || run.heads.some((row) => row[measure.id] !== undefined);
    hint.textContent = `No head of this run has ${measure.name}.`;
  }
  drawLegend(measure, scale);
}

function paintValue(cell, value, measure, { low, high }) {
  const isKnown = value !== undefined;
  const share = isKnown
    ? Math.min(1, Math.max(0, (value - low) / (high - low || 1)))
    : 0;
  cell.textContent = shown(value);
  cell.classList.toggle("unknown", !isKnown);
  cell.style.background = isKnown ? scaleColour(share) : "";
  cell.style.color = isKnown ? textOn(share) : "";
  cell.dataset.says = isKnown ? `${measure.name} ${shown(value)}` : `${measure.name} not measured`;
}

function paintRoles(cell, row) {
  const roles = rolesOf(row);
  cell.textContent = roles.map((name) => roleOf(name)[0]).join(" ") || "·";
  cell.classList.remove("unknown");
  cell.style.background = roles.length ? scaleColour(0.85) : "";
  cell.style.color = roles.length ? textOn(0.85) : "";
  cell.dataset.says = roles.map((name) => roleOf(name)[1]).join(" and ") || "no role found";
}

/** What the colours or letters mean. */
function drawLegend(measure, scale) {
  const legend = byId("legend");
  if (measure.id === "role") {
    const found = new Set(data.runs.flatMap((run) => run.heads.flatMap(rolesOf)));
    const entries = [...found].map((name) =>
      make("span", { class: "entry" }, make("b", { text: roleOf(name)[0] }), ` ${roleOf(name)[1]}`),
    );
    legend.replaceChildren(...entries, make("span", { class: "entry", text: "· no role found" }));
    return;
  }
  const { low, high } = scale;
  const bar = make("span", {
    class: "ramp",
    role: "img",
    "aria-label": `colours from ${measure.low ?? shown(low)} to ${shown(high)}`,
  });
  const stops = [...Array(11).keys()].map((place) => scaleColour(place / 10));
  bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  legend.replaceChildren(
    make("span", { text: measure.low ?? shown(low) }),
    bar,
    make("span", { text: measure.high === high ? high : shown(high) }),
    make("span", { class: "says", text: `${measure.name}: ${measure.says}` }),
  );
}

/** Outlines the chosen head in every run's grid. */
function markHead() {
  const key = headKey(state.site, state.layer, state.head);
  for (const run of data.runs) {
    for (const [known, cell] of run.cells) {
      cell.setAttribute("aria-selected", String(known === key));
    }
  }
}

// -- the slider -----------------------------------------------------------------------------------

/** The slider's stops: every update some head was measured at, and the weights shown. */
function allUpdates() {
  const found = data.runs.flatMap((run) =>
    Object.values(run.trajectories).flatMap(({ updates }) => updates),
  );
  return [...new Set(found)].sort((one, other) => one - other).concat(Infinity);
}

function prepareSlider() {
  const slider = byId("update");
  const stops = allUpdates();
  slider.max = stops.length - 1;
  slider.value = stops.length - 1;
  slider.addEventListener("input", () => {
    state.update = stops[slider.value];
    showUpdate();
    paintHeads();
    markUpdate();
  });
  state.stops = stops;
}

/** Whether the slider moves the chosen measure, and where it stands. */
function showUpdate() {
  const isOverTime = data.runs.some((run) => run.trajectories[state.measure]);
  const slider = byId("update");
  slider.disabled = !isOverTime;
  if (!isOverTime) {
    state.update = Infinity;
    slider.value = slider.max;
  }
  const text =
    state.update === Infinity
      ? isOverTime
        ? "at its end: the weights shown"
        : "measured on the weights shown alone"
      : `update ${state.update.toLocaleString("en")}`;
  byId("update-shown").textContent = text;
  slider.setAttribute("aria-valuetext", text);
}

// The attention view: one head's weights on a sentence, query by query, beside its whole layer.

const READINGS = {
  encoder_self: "A row is a piece of the source, a column a piece it looks at.",
  decoder_self:
    "A row is the piece of the translation just read, " +
    "a column a piece looked at: itself or an earlier one.",
  cross:
    "A row is the piece of the translation about to be written, " +
    "a column a piece of the source looked at.",
};

/** What stands at the rows and columns of a site. */
function labelsOf(content, site) {
  if (site === "encoder_self") return [content.source_pieces, content.source_pieces];
  if (site === "decoder_self") return [content.read_pieces, content.read_pieces];
  return [content.written_pieces, content.source_pieces];
}

const siteHeads = (site) =>
  data.runs.flatMap((run) => run.heads).filter((row) => row.site === site);

/** The choice of a site and layer beside the view, for who has scrolled past the grids. */
function preparePlace() {
  const sites = Object.keys(data.sites).filter((site) => siteHeads(site).length);
  byId("site").replaceChildren(
    ...sites.map((site) => make("option", { value: site, text: data.sites[site] })),
  );
  const choose = (site, layer) => {
    const rows = siteHeads(site);
    const there = rows.filter((row) => row.layer === layer);
    const row = there.find((one) => one.head === state.head) ?? there[0] ?? rows[0];
    chooseHead(site, row.layer, row.head, false);
  };
  byId("site").addEventListener("change", () => choose(byId("site").value, state.layer));
  byId("layer").addEventListener("change", () => choose(state.site, Number(byId("layer").value)));
}

/** Shows in these choices which head is chosen. */
function drawPlace() {
  const layers = [...new Set(siteHeads(state.site).map((row) => row.layer))].sort(
    (one, other) => one - other,
  );
  byId("layer").replaceChildren(
    ...layers.map((layer) => make("option", { value: layer, text: layer })),
  );
  [byId("site").value, byId("layer").value] = [state.site, state.layer];
}

/** The chosen head on the chosen sentence, in every run. */
async function drawMaps() {
  const { sentence, site, layer, head } = state;
  const figures = await Promise.all(
    data.runs.map((run) => mapFigure(run, sentence, site, layer, head)),
  );
  // another choice may have been made while bytes were unpacked
  if (
    sentence !== state.sentence ||
    headKey(site, layer, head) !== headKey(state.site, state.layer, state.head)
  )
    return;
  hideTip();
  byId("maps").replaceChildren(...figures);
  sizeMaps();
  scrollTogether([...document.querySelectorAll("#maps .frame .scroll")]);
}

async function mapFigure(run, sentence, site, layer, head) {
  const content = run.sentences[sentence];
  const row = run.heads.find(
    (one) => one.site === site && one.layer === layer && one.head === head,
  );
  const weights = await headWeights(content, site, layer, head);
  const place = `${data.sites[site]}, layer ${layer}, head ${head}`;
  const caption = make(
    "figcaption",
    {},
    data.runs.length > 1 ? make("h3", {}, isolated(run.label)) : "",
    make("p", { class: "place", text: place }),
    make("p", { class: "facts" }, ...headFacts(row)),
  );
  const figure = make(
    "figure",
    { class: "map" },
    caption,
    await overview(run, content, site, layer, head),
  );
  if (!row) figure.append(make("p", { class: "hint", text: "This run has no such head." }));
  else if (!weights)
    figure.append(
      make("p", { class: "hint", text: "This head has no weights that could be shown." }),
    );
  else figure.append(mapTable(content, site, weights, `Weights of ${place}, ${run.label}`));
  return figure;
}

/** What was measured of a head, in words. */
function headFacts(row) {
  if (!row) return [];
  const numbers = MEASURES.filter(({ id }) => row[id] !== undefined).map(({ id, name, says }) =>
    make("span", { title: says, text: `${name} ${shown(row[id])}` }),
  );
  const roles = rolesOf(row).map((name) => make("strong", { text: roleOf(name)[1] }));
  return [...numbers, ...roles];
}

// -- the layer at a glance ------------------------------------------------------------------------

/** Every head of the layer as a small picture, to choose from. */
async function overview(run, content, site, layer, chosen) {
  const heads = run.heads
    .filter((row) => row.site === site && row.layer === layer)
    .map((row) => row.head);
  const pictures = await Promise.all(
    heads.map(async (head) => {
      const weights = await headWeights(content, site, layer, head);
      const button = make(
        "button",
        {
          type: "button",
          "aria-pressed": String(head === chosen),
          "aria-label": `head ${head} of layer ${layer}`,
          onclick: () => chooseHead(site, layer, head, false),
        },
        make("span", { text: `head ${head}` }),
      );
      button.dataset.head = head;
      if (weights) button.prepend(picture(weights));
      return button;
    }),
  );
  return make(
    "div",
    { class: "overview", role: "group", "aria-label": `All heads of layer ${layer}` },
    ...pictures,
  );
}

/** A point a weight; nothing is painted where it is 0. */
function picture({ rows, columns, codes, isSigned }) {
  const canvas = make("canvas", { width: columns, height: rows, "aria-hidden": "true" });
  const brush = canvas.getContext("2d");
  const image = brush.createImageData(columns, rows);
  const table = inkTable(isSigned);
  codes.forEach((code, place) => {
    if (table[code]) image.data.set([...table[code], 255], 4 * place);
  });
  brush.putImageData(image, 0, 0);
  return canvas;
}

// -- one head -------------------------------------------------------------------------------------

/** The weights as a table: a row a query, a column a key, ink where the weight is not 0. */
function mapTable(content, site, weights, label) {
  const [queries, keys] = labelsOf(content, site);
  const table = make("table", { class: "weights", role: "grid", "aria-label": label });
  const colours = inkTable(weights.isSigned).map((ink) => (ink ? `rgb(${ink})` : ""));
  table.style.setProperty("--columns", weights.columns);
  table.append(
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        make("td", { class: "corner" }),
        ...keys.map((piece) => make("th", { scope: "col" }, make("span", {}, isolated(piece)))),
      ),
    ),
  );
  const body = make("tbody");
  for (let row = 0; row < weights.rows; row += 1) {
    const line = make(
      "tr",
      {},
      make("th", { scope: "row" }, make("span", {}, isolated(queries[row]))),
    );
    for (let column = 0; column < weights.columns; column += 1) {
      const code = weights.codes[row * weights.columns + column];
      const cell = document.createElement("td");
      cell.setAttribute("data-code", code);
      if (code === BARRED) cell.className = "barred";
      else if (code !== 0) {
        cell.className = isBelowZero(code, weights.isSigned) ? "ink below" : "ink";
        cell.style.background = colours[code];
      }
      line.append(cell);
    }
    body.append(line);
  }
  table.append(body);
  table.querySelector("td[data-code]").tabIndex = 0;
  const tell = (event) => {
    isTipOfKeys = event.type === "focusin";
    const cell = event.target.closest("td[data-code]");
    if (!cell) return hideTip();
    const [row, column] = placeOf(cell);
    const text = [queries[row], keys[column], shownWeight(Number(cell.dataset.code), weights)];
    cell.setAttribute("aria-label", `${text[0]} to ${text[1]}: ${text[2]}`);
    markRowAndColumn(table, row, column);
    showTip(cell, text);
  };
  table.addEventListener("mouseover", (event) => isOfScrolling(event) || tell(event));
  table.addEventListener("mouseleave", (event) => isOfScrolling(event) || leave(table));
  table.addEventListener("mousemove", (event) => {
    if (isTipOfKeys && !isOfScrolling(event)) tell(event);
  });
  table.addEventListener("focusin", tell);
  table.addEventListener("focusout", () => leave(table));
  table.addEventListener("keydown", (event) =>
    event.key === "Escape" ? hideTip() : moveInGrid(event, table),
  );
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("td[data-code]");
    if (cell) focusCell(table, cell);
  });
  return make(
    "div",
    { class: "frame" },
    make("p", { class: "hint", text: READINGS[site] }),
    weights.scale === 1 ? "" : make("p", { class: "hint", text: scaleNote(weights.scale) }),
    make("p", { class: "hint cut", hidden: "" }),
    make("div", { class: "scroll" }, table),
  );
}

const scaleNote = (scale) =>
  `Its largest weight is of size ${scale.toPrecision(3)}; the fullest ink stands for that.`;

function markRowAndColumn(table, row, column) {
  table.querySelectorAll("th.on").forEach((heading) => heading.classList.remove("on"));
  table.tBodies[0].rows[row].cells[0].classList.add("on");
  table.tHead.rows[0].cells[column + 1].classList.add("on");
}

function leave(table) {
  table.querySelectorAll("th.on").forEach((heading) => heading.classList.remove("on"));
  hideTip();
}

let isTipOfKeys = false; // it tells of the cell that has the focus
let pointer = ""; // where it moved last

function rememberPointer({ screenX, screenY }) {
  pointer = `${screenX} ${screenY}`;
}

/** Whether the page moved and not the pointer, while a tip is of who types: that one stays. */
function isOfScrolling({ screenX, screenY }) {
  return isTipOfKeys && pointer === `${screenX} ${screenY}`;
}

let tipCell = null; // whose weight the tip tells

function showTip(cell, [query, key, weight]) {
  tipCell = cell;
  byId("tip").replaceChildren(
    make("b", { text: weight }),
    " ",
    isolated(query),
    " → ",
    isolated(key),
  );
  placeTip();
}

/** Beside its cell, also while something scrolls; gone with a cell that is out of the window. */
function placeTip() {
  if (!tipCell) return;
  const tip = byId("tip");
  const box = tipCell.getBoundingClientRect();
  tip.hidden = box.bottom < 0 || box.top > innerHeight;
  const above = box.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${above > 0 ? above : box.bottom + 6}px`;
}

function hideTip() {
  tipCell = null;
  byId("tip").hidden = true;
}

const LEAST_CELL = 14; // px: never too small to be hit
const MOST_CELL = 32;

/** How large the cells of a table may be in its figure, px. */
function roomOf(table) {
  const columns = table.tHead.rows[0].cells.length - 1;
  return Math.floor((table.closest("figure").clientWidth - 112) / columns);
}

/** Cells as large as there is room for; two runs one below the other where one does not fit. */
function sizeMaps() {
  const tables = [...document.querySelectorAll("table.weights")];
  byId("maps").classList.remove("stacked");
  const fits = tables.every((table) => roomOf(table) >= LEAST_CELL);
  byId("maps").classList.toggle("stacked", !fits);
  for (const table of tables) {
    const size = Math.max(LEAST_CELL, Math.min(MOST_CELL, roomOf(table)));
    table.style.setProperty("--cell", `${size}px`);
  }
  for (const table of tables) tellCut(table);
}

/** Says where a matrix goes on that is larger than its frame. */
function tellCut(table) {
  const scroll = table.parentElement;
  const ways = [];
  if (scroll.scrollWidth > scroll.clientWidth) ways.push("to the right");
  if (scroll.scrollHeight > scroll.clientHeight) ways.push("below");
  const note = scroll.previousElementSibling;
  note.hidden = !ways.length;
  if (note.hidden) return;
  note.textContent =
    `The matrix goes on ${ways.join(" and ")}: scroll in it. ` +
    `It has ${table.tBodies[0].rows.length} rows and ` +
    `${table.tHead.rows[0].cells.length - 1} columns.`;
}

/** What one of several matrices shows, the others show too: the same share of the way. */
function scrollTogether(frames) {
  let led = null; // the frame that moves by itself, until the others have followed
  for (const frame of frames) {
    frame.addEventListener("scroll", () => {
      if (led && led !== frame) return;
      led = frame;
      for (const other of frames) if (other !== frame) follow(frame, other);
      setTimeout(() => (led = null), 100);
    });
  }
}

function follow(frame, other) {
  const share = (at, whole, seen) => (whole > seen ? at / (whole - seen) : 0);
  const across = share(frame.scrollLeft, frame.scrollWidth, frame.clientWidth);
  const down = share(frame.scrollTop, frame.scrollHeight, frame.clientHeight);
  other.scrollTo({
    left: across * (other.scrollWidth - other.clientWidth),
    top: down * (other.scrollHeight - other.clientHeight),
    behavior: "instant",
  });
}

/** What the ink of a weight means. */
function drawInkLegend() {
  const ramp = make("span", {
    class: "ramp",
    role: "img",
    "aria-label": "ink from the smallest weight to 1",
  });
  const stops = [...Array(11).keys()].map((place) => inkColour(place / 10));
  ramp.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  const marks = [0, 0.05, 0.25, 0.5, 1].map((weight) => {
    const mark = make("span", { text: weight === 0 ? "> 0" : weight });
    mark.style.left = `${100 * Math.sqrt(weight)}%`;
    return mark;
  });
  const entries = [
    make("span", { class: "entry" }, make("i", { class: "swatch empty" }), " exactly 0"),
    make("span", { class: "entry scale" }, ramp, make("span", { class: "marks" }, ...marks)),
    make(
      "span",
      { class: "entry" },
      make("i", { class: "swatch barred" }),
      " out of the query's sight",
    ),
  ];
  if (
    data.runs.some((run) =>
      run.sentences.some(({ blocks }) => blocks.some(({ signed }) => signed.some(Boolean))),
    )
  ) {
    const below = make("i", { class: "swatch" });
    below.style.background = inkColour(0.7, true);
    entries.push(make("span", { class: "entry" }, below, " − below 0"));
  }
  byId("ink-legend").replaceChildren(...entries);
}

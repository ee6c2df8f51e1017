// The weights of one query over an image, or over a sequence of values.
// A cell is a pixel, whose weights are the sums over its channels, or a value of a sequence. If keys
// are patches, the weight of a cell is that of its patch.

const MARKS = { size: 384, height: 120, bins: 1024 }; // of a picture, of a strip, in CSS pixels

/** Rows, columns and channels; a sequence has one row. */
const gridOf = ({ shape }) => (shape.length > 1 ? shape : [1, shape[0], 1]);

/** Row, column and channel of a value. */
function placeOf(view, value) {
  const [, columns, channels] = gridOf(view);
  const cell = Math.floor(value / channels);
  return [Math.floor(cell / columns), cell % columns, value % channels];
}

/** The cell in the middle of the patch of a cell. */
function middleOf(view, cell) {
  const [, columns] = gridOf(view);
  const middle = (n) => n - (n % view.patch) + Math.floor(view.patch / 2);
  return middle(Math.floor(cell / columns)) * columns + middle(cell % columns);
}

/** Weights of cells, from those of patches. */
function cellWeights(view, weights) {
  if (view.patch === 1) return weights;
  const [rows, columns] = gridOf(view);
  const place = (n) => Math.floor(n / view.patch);
  const patchOf = (row, column) => place(row) * place(columns) + place(column);
  const cell = (_, i) => weights[patchOf(Math.floor(i / columns), i % columns)];
  return Float32Array.from({ length: rows * columns }, cell);
}

/** The index of the query nearest to the chosen value, preferably of the same channel. */
function queryOf(view) {
  const [row, column, channel] = placeOf(view, state.query);
  const distances = view.queries.map((value) => {
    const [otherRow, otherColumn, otherChannel] = placeOf(view, value);
    return Math.hypot(row - otherRow, column - otherColumn) + Math.abs(channel - otherChannel) / 99;
  });
  return distances.indexOf(Math.min(...distances));
}

/** Weights of the query: {start: on start tokens, rows, columns, values: of the cells, scale}. */
function queryWeights(view, { columns: width, values }) {
  const first = queryOf(view) * width;
  const cells = cellWeights(view, values.subarray(first + view.start, first + width));
  const scale = cells.reduce((top, weight) => Math.max(top, Math.abs(weight) || 0), 0) || 1;
  const [rows, columns] = gridOf(view);
  const start = values.subarray(first, first + view.start);
  return { start, rows, columns, values: cells, scale };
}

/** Weights of the query for a thumbnail; those of a sequence are the largest of each bin. */
function thumbnailWeights(view, weights) {
  const query = queryWeights(view, weights);
  if (query.rows > 1) return query;
  const bins = Array.from({ length: 72 }, (_, bin) => binOf(query.values, bin, 72));
  return { ...query, columns: 72, values: bins.map((bin) => largest(bin)) };
}

/** Part `bin` of `n` equal parts of an array, at least one entry. */
function binOf(values, bin, n) {
  const [from, to] = [bin, bin + 1].map((edge) => Math.floor((edge * values.length) / n));
  return values.subarray(from, Math.max(to, from + 1));
}

/** The weight of a part that is furthest from 0; NaN if all are masked. */
const largest = (part) =>
  part.reduce((top, weight) => (Math.abs(weight) > Math.abs(top) || Number.isNaN(top) ? weight : top), NaN);

/** The picture and the weights over it, or one strip; a click chooses the nearest query. */
function viewFigure({ queries, keys, view }, weights, label) {
  view.bytes ??= Uint8Array.from(atob(view.values), (letter) => letter.charCodeAt(0));
  const query = queryWeights(view, weights);
  const named = (weight, i) => `${shownWeight(weight)} on ${keys[i] ?? "the start token"}. `;
  const start = [...query.start].map(named);
  const hint =
    `Weights of ${queries[queryOf(view)]}: ${start.join("")}` +
    `The strongest colour is ${query.scale.toPrecision(2)}.`;
  const line = make("output", { class: "hint", text: hint });
  const canvas = make("canvas", { role: "img", "aria-label": label });
  const plain = make("canvas", { role: "img", "aria-label": "The image without weights" });
  const isImage = view.shape.length > 1;
  (isImage ? drawImage : drawStrip)(canvas, view, query);
  if (isImage) drawImage(plain, view, null);
  const cellAt = ({ offsetX, offsetY }) => {
    const column = Math.floor((offsetX / canvas.clientWidth) * query.columns);
    return Math.floor((offsetY / canvas.clientHeight) * query.rows) * query.columns + column;
  };
  canvas.addEventListener("mousemove", (event) => {
    const [row, column] = [Math.floor(cellAt(event) / query.columns), cellAt(event) % query.columns];
    const place = isImage ? `row ${row + 1}, column ${column + 1}` : `sample ${column + 1}`;
    line.textContent = `${shownWeight(query.values[cellAt(event)] ?? NaN)}: ${place}`;
  });
  canvas.addEventListener("mouseleave", () => (line.textContent = hint));
  canvas.addEventListener("click", (event) => {
    const [, , channels] = gridOf(view);
    const channel = state.query < 0 ? 0 : placeOf(view, state.query)[2];
    chooseQuery(middleOf(view, cellAt(event)) * channels + channel);
  });
  return [line, make("div", { class: "view" }, canvas, isImage ? plain : "")];
}

/** A colour of the style sheet, as red, green and blue. */
function themeColour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((first) => parseInt(text.slice(first, first + 2), 16));
}

const css = (colour) => `rgb(${colour.map(Math.round).join(" ")})`;
const mixed = (one, other, share) => one.map((part, i) => part + (other[i] - part) * share);

/** An image in its colours, or in grey with the weights over it; the queries have marks. */
function drawImage(canvas, view, query) {
  const [rows, columns, channels] = gridOf(view);
  const size = Math.max(1, Math.round(MARKS.size / columns));
  Object.assign(canvas, { width: columns * size, height: rows * size });
  const context = canvas.getContext("2d");
  const [paper, ink, accent] = ["--paper", "--unseen", "--accent"].map(themeColour);
  for (let cell = 0; cell < rows * columns; cell++) {
    const values = [...view.bytes.subarray(cell * channels, (cell + 1) * channels)];
    let colour = channels === 3 ? values : Array(3).fill(values[0]);
    if (query) {
      const grey = colour.reduce((sum, part) => sum + part / 3, 0);
      const weight = query.values[cell];
      colour = mixed(paper, Array(3).fill(grey), 0.5);
      if (Number.isNaN(weight)) colour = mixed(colour, ink, 0.8);
      else if (weight) colour = mixed(colour, accent, 0.1 + 0.75 * inkOf(weight, query.scale));
    }
    context.fillStyle = css(colour);
    context.fillRect((cell % columns) * size, Math.floor(cell / columns) * size, size, size);
  }
  for (const value of view.queries) {
    const [row, column] = placeOf(view, value);
    const isChosen = value === view.queries[queryOf(view)];
    context.strokeStyle = context.fillStyle = css(themeColour("--chosen"));
    context.lineWidth = 3;
    const [left, top] = [column, row].map((n) => (n - Math.floor(view.patch / 2)) * size - 1);
    const width = view.patch * size + 2;
    if (isChosen) context.strokeRect(left, top, width, width);
    else if (query) context.fillRect((column + 0.4) * size, (row + 0.4) * size, size / 5, size / 5);
  }
}

/** Values over time, with the weights behind them. */
function drawStrip(canvas, view, query) {
  const width = Math.min(query.columns, MARKS.bins);
  Object.assign(canvas, { width, height: MARKS.height });
  const context = canvas.getContext("2d");
  const [paper, unseen, accent, soft] = ["--paper", "--unseen", "--accent", "--soft"].map(themeColour);
  const place = (value) => MARKS.height * (1 - value / 255);
  let previous = view.bytes[0];
  for (let bin = 0; bin < width; bin++) {
    const top = largest(binOf(query.values, bin, width));
    const share = top ? 0.1 + 0.9 * inkOf(top, query.scale) : 0;
    context.fillStyle = css(Number.isNaN(top) ? unseen : mixed(paper, accent, share));
    context.fillRect(bin, 0, 1, MARKS.height);
    const values = [previous, ...binOf(view.bytes, bin, width)];
    previous = values.at(-1);
    const [low, high] = [place(Math.max(...values)), place(Math.min(...values))];
    context.fillStyle = css(soft);
    context.fillRect(bin, low, 1, Math.max(1, high - low));
  }
  view.queries.forEach((value, index) => {
    const isChosen = index === queryOf(view);
    context.fillStyle = css(themeColour("--chosen"));
    const height = isChosen ? MARKS.height : MARKS.height / 12;
    context.fillRect((value * width) / query.columns - 1, 0, 3, height);
  });
}

/** The view of the current item, if it has one. */
const viewAxes = () => Object.values(data.runs[0].readings[state.item].axes).find(({ view }) => view);

function chooseQuery(value) {
  state.query = Number(value);
  const axes = viewAxes();
  byId("query").value = axes.view.queries[queryOf(axes.view)];
  drawMaps();
}

/** Offers the queries of the current item; the first choice is a CLS token, or in its middle. */
function offerQueries() {
  const axes = viewAxes();
  byId("query").parentElement.hidden = !axes;
  if (!axes) return;
  const { queries } = axes.view;
  state.query ??= queries.find((value) => value < 0) ?? queries[Math.floor(queries.length / 2)];
  const options = queries.map((value, i) => make("option", { value, text: axes.queries[i] }));
  byId("query").replaceChildren(...options);
  byId("query").value = queries[queryOf(axes.view)];
}

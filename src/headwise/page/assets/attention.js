// The attention view: the weights of one head on a text as a heat map, or over an image, with its
// layer.

/** The chosen head on the chosen text, in every run. */
async function drawMaps() {
  const chosen = { ...state };
  const figures = await Promise.all(data.runs.map((run) => mapFigure(run, chosen)));
  // the choice may have changed while weights were unpacked
  if (chosen.item !== state.item || keyOf(chosen) !== keyOf(state)) return;
  const isPressed = Boolean(document.activeElement?.closest(".overview"));
  byId("maps").replaceChildren(...figures);
  if (isPressed) document.querySelector('.overview [aria-pressed="true"]')?.focus();
}

async function mapFigure(run, chosen) {
  const { item, site, layer, head } = chosen;
  const content = run.readings[item];
  const row = run.heads.find((other) => keyOf(other) === keyOf(chosen));
  const weights = await headWeights(content, chosen);
  const place = `${data.sites[site]}, layer ${layer}, head ${head}`;
  const parts = [make("p", { class: "place", text: place }), make("p", { class: "facts" })];
  if (data.runs.length > 1) parts.unshift(make("h3", {}, isolated(run.label)));
  parts.at(-1).append(...headFacts(row));
  const figure = make("figure", { class: "map" }, make("figcaption", {}, ...parts));
  figure.append(await overview(run, content, chosen));
  const hint = (text) => make("p", { class: "hint", text });
  if (!row) figure.append(hint("This run has no such head."));
  else if (!weights) figure.append(hint("This head has no valid weights."));
  else if (content.axes[site].view)
    figure.append(...viewFigure(content.axes[site], weights, `Weights of ${place}, ${run.label}`));
  else {
    if (weights.scale !== 1)
      figure.append(hint(`The darkest colour is a weight of ${weights.scale.toPrecision(3)}.`));
    figure.append(...heatMap(content.axes[site], weights, `Weights of ${place}, ${run.label}`));
  }
  return figure;
}

/** The statistics and roles of a head. */
function headFacts(row) {
  if (!row) return [];
  const numbers = MEASURES.filter(({ id }) => row[id] !== undefined).map(({ id, name, meaning }) =>
    make("span", { title: meaning, text: `${name} ${shown(row[id])}` }),
  );
  return [...numbers, ...rolesOf(row).map((name) => make("strong", { text: roleOf(name)[1] }))];
}

/** Buttons for all heads of the layer, each with a thumbnail of its weights. */
async function overview(run, content, chosen) {
  const { site, layer } = chosen;
  const rows = run.heads.filter((row) => row.site === site && row.layer === layer);
  const pictures = rows.map(async (row) => {
    const weights = await headWeights(content, row);
    const attributes = {
      type: "button",
      "aria-pressed": String(keyOf(row) === keyOf(chosen)),
      onclick: () => chooseHead(row),
    };
    const button = make("button", attributes, make("span", { text: `head ${row.head}` }));
    const { view } = content.axes[site];
    if (weights) button.prepend(thumbnail(view ? thumbnailWeights(view, weights) : weights));
    return button;
  });
  const attributes = { class: "overview", role: "group", "aria-label": `All heads of layer ${layer}` };
  return make("div", attributes, ...(await Promise.all(pictures)));
}

/** One pixel per weight. */
function thumbnail({ rows, columns, values, scale }) {
  const canvas = make("canvas", { width: columns, height: rows, "aria-hidden": "true" });
  const image = new ImageData(columns, rows);
  values.forEach((weight, index) => {
    if (weight) image.data[4 * index + 3] = 40 + 215 * inkOf(weight, scale); // opacity of black
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** A line with the weight under the pointer, and a table with empty cells for weights of 0. */
function heatMap({ queries, keys, hint }, { columns, values, scale }, label) {
  const line = make("output", { class: "hint", text: hint });
  const name = (scope, text) => make("th", { scope, title: text }, isolated(text));
  const rows = queries.map((query, row) => {
    const cells = keys.map((key, column) => {
      const weight = values[row * columns + column];
      return weightCell(weight, scale, `${shownWeight(weight)}: ${query} → ${key}`);
    });
    return make("tr", {}, name("row", query), ...cells);
  });
  const head = make("tr", {}, make("td"), ...keys.map((key) => name("col", key)));
  const table = make("table", { class: "weights", "aria-label": label }, head, ...rows);
  table.addEventListener("mouseover", ({ target }) => {
    line.textContent = target.title || hint;
  });
  table.addEventListener("mouseleave", () => {
    line.textContent = hint;
  });
  return [line, make("div", { class: "scroll" }, table)];
}

function weightCell(weight, scale, title) {
  if (Number.isNaN(weight)) return make("td", { class: "unseen", title });
  if (weight === 0) return make("td", { title });
  const style = `--share: ${inkOf(weight, scale)}`;
  if (weight > 0) return make("td", { class: "shade", style, title });
  return make("td", { class: "shade below", style, title, text: "−" });
}

// The charts: plotly draws what Python made; colours and sizes are the page's.

const charts = []; // that are drawn: { element, figure, kind, and of α the site }

const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false, scrollZoom: false };

/** A figure in the page's colours. */
function dressed({ figure, kind, site }) {
  const [faint, line] = ["--soft", "--line"].map((name) => asRgb(styleOf(name)));
  const axis = {
    gridcolor: line,
    zerolinecolor: line,
    linecolor: line,
    tickcolor: line,
    automargin: true,
    fixedrange: true,
  };
  const { layout } = figure;
  const nLayers = Math.max(1, ...figure.data.map(({ meta }) => meta?.layer ?? 1));
  return {
    data: figure.data.map((trace) => ({ ...trace, ...strokeOf(trace.meta, kind, site, nLayers) })),
    layout: {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: faint },
      hoverlabel: { font: { family: "system-ui, sans-serif", size: 13 } },
      margin: { l: 8, r: 12, t: 8, b: 36 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      xaxis: { ...layout.xaxis, ...axis, showgrid: false, nticks: 5 },
      yaxis: { ...layout.yaxis, ...axis },
      shapes: shapesOf(figure, kind),
    },
  };
}

/** How a line is drawn: layers by colour, the chosen head above all others, training dotted. */
function strokeOf(meta, kind, site, nLayers) {
  if (kind === "alpha") {
    const isChosen =
      headKey(site, meta.layer, meta.head) === headKey(state.site, state.layer, state.head);
    const color = asRgb(isChosen ? styleOf("--ink") : layerColour(meta.layer, nLayers));
    return { line: { color, width: isChosen ? 3 : 1.2 }, opacity: isChosen ? 1 : 0.8 };
  }
  const color = asRgb(styleOf(`--run-${meta.run + 1}`));
  const isTraining = meta.split === "train";
  return {
    line: { color, width: isTraining ? 1.5 : 2.2, dash: isTraining ? "dot" : "solid" },
    marker: { color, size: 6 },
  };
}

/** Lines at the named rules, and one at the slider's update unless it is at the weights shown. */
function shapesOf({ layout }, kind) {
  const shapes = (layout.shapes ?? []).map((shape) => ({
    ...shape,
    layer: "below",
    line: { ...shape.line, color: asRgb(styleOf("--soft")) },
  }));
  if (kind === "alpha" && state.update !== Infinity) {
    const line = { color: asRgb(styleOf("--ink")), width: 1.5 };
    shapes.push({
      type: "line",
      yref: "paper",
      y0: 0,
      y1: 1,
      x0: state.update,
      x1: state.update,
      line,
    });
  }
  return shapes;
}

/** Runs plotly, then draws one chart after the other; what is asked meanwhile is not held up. */
async function drawCharts() {
  document.head.append(make("script", { text: byId("plotly").textContent }));
  const found = data.runs.flatMap((run, number) =>
    Object.entries(run.alpha_charts)
      .filter(([, figure]) => figure)
      .map(([site, figure]) => alphaChart(byId(`alpha-${number}-${site}`), figure, site)),
  );
  byId("curves").replaceChildren(
    ...data.curves.map(({ title, figure }) => {
      const element = make("div", {
        class: "chart curve",
        role: "img",
        "aria-label": `${title} over the updates`,
      });
      found.push({ element, figure, kind: "curve" });
      return make("div", {}, make("h3", { text: title }), element);
    }),
  );
  for (const chart of found) {
    const { data: traces, layout } = dressed(chart);
    await Plotly.newPlot(chart.element, traces, layout, CONFIG);
    charts.push(chart);
    if (chart.kind === "alpha")
      chart.element.on("plotly_click", ({ points }) => {
        const { layer, head } = points[0].data.meta;
        chooseHead(chart.site, layer, head);
      });
    await new Promise(requestAnimationFrame);
  }
}

/** A place for the chart of a site's α, with the key of its colours above it. */
function alphaChart(element, figure, site) {
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", `α of every head of ${data.sites[site]} over the updates`);
  element.before(layerKey(Math.max(...figure.data.map(({ meta }) => meta.layer))));
  return { element, figure, kind: "alpha", site };
}

/** Which colour is which layer. */
function layerKey(nLayers) {
  const entries = [...Array(nLayers).keys()].map((place) => {
    const swatch = make("i", { class: "swatch" });
    swatch.style.background = layerColour(place + 1, nLayers);
    return make("span", { class: "entry" }, swatch, ` ${place + 1}`);
  });
  return make(
    "p",
    { class: "key", "data-layers": nLayers },
    "α over training, by layer: ",
    ...entries,
  );
}

/** Draws charts anew: colours or the chosen head have changed. */
function redrawCharts(kinds = ["alpha", "curve"]) {
  for (const chart of charts.filter(({ kind }) => kinds.includes(kind))) {
    const { data: traces, layout } = dressed(chart);
    Plotly.react(chart.element, traces, layout, CONFIG);
  }
}

let isWaiting = false;

/** Moves the line at the slider's update, once a frame at most. */
function markUpdate() {
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(() => {
    isWaiting = false;
    for (const { element, figure, kind } of charts.filter((chart) => chart.kind === "alpha")) {
      Plotly.relayout(element, { shapes: shapesOf(figure, kind) });
    }
  });
}

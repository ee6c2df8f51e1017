// The data of the page, and the current choice.

const data = JSON.parse(document.getElementById("data").textContent);

const state = { item: 0, site: "", layer: 1, head: 1, measure: "alpha", query: null };

/** An element with properties (`text`, `on…`, attributes) and children. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Text of a run, isolated because it may be right-to-left. */
const isolated = (text, language) => make("bdi", { text, lang: language, dir: "auto" });

const byId = (name) => document.getElementById(name);

const isSmall = (value) => value !== 0 && Math.abs(value) < 0.005;
const shown = (value) =>
  (isSmall(value) ? value?.toExponential(1) : value?.toFixed(2)) ?? "–";

const keyOf = ({ site, layer, head }) => `${site} ${layer} ${head}`;

/** Fills a `select` with choices and calls `choose` on change. */
function offer(name, choices, choose) {
  const options = choices.map(([value, text]) => make("option", { value, text, dir: "auto" }));
  byId(name).replaceChildren(...options);
  byId(name).addEventListener("change", () => choose(byId(name).value));
}

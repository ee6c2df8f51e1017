// What the page was given, and what of it is chosen.

const data = JSON.parse(document.getElementById("data").textContent);

const state = {
  sentence: 0,
  site: "",
  layer: 1,
  head: 1,
  measure: "alpha",
  update: Infinity, // Infinity stands for the checkpoint whose weights are shown
};

/** An element with properties (`class`, `text`, `on…`, attributes) and children. */
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

/** Text of a run, which may run from right to left, kept apart from what is around it. */
const isolated = (text, language) => make("bdi", { text, lang: language, dir: "auto" });

const byId = (name) => document.getElementById(name);

const shown = (value, digits = 2) =>
  value === undefined || value === null ? "–" : value.toFixed(digits);

/** Where the arrow keys lead in a grid; null for other keys. */
function step(key) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  return steps[key] ?? null;
}

/**
 * Moves the focus by the arrow keys among elements in rows of so many, over heads that were
 * removed.
 */
function moveFocus(event, elements, nColumns = 1) {
  const [down, right] = step(event.key) ?? [0, 0];
  const by = down * nColumns + right;
  if (!by) return;
  let at = elements.indexOf(event.target) + by;
  while (elements[at]?.matches(".gone")) at += by;
  if (!elements[at]) return;
  event.preventDefault();
  // at once: of smooth scrolls in quick succession a browser may give up the last
  elements[at].focus({ preventScroll: true });
  elements[at].scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
}

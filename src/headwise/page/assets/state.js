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

/** Row and column of a cell of a grid, whose first row and column are headings. */
const placeOf = (cell) => [cell.parentElement.rowIndex - 1, cell.cellIndex - 1];

/** The cell of a grid at a row and column; undefined where there is none, or a head is gone. */
function cellAt(table, row, column) {
  const cell = row < 0 || column < 0 ? undefined : table.tBodies[0].rows[row]?.cells[column + 1];
  return cell?.className === "gone" ? undefined : cell;
}

/** Arrow keys, Home and End within a grid. */
function moveInGrid(event, table) {
  const cell = event.target.closest("td");
  if (!cell) return;
  let next = null;
  const [down, right] = step(event.key) ?? [0, 0];
  if (down || right) {
    let [row, column] = placeOf(cell);
    const [nRows, nColumns] = [table.tBodies[0].rows.length, cell.parentElement.cells.length];
    do {
      // over gaps: heads that were removed
      [row, column] = [row + down, column + right];
      next = cellAt(table, row, column);
    } while (!next && row >= 0 && column >= 0 && row < nRows && column < nColumns);
  } else if (event.key === "Home" || event.key === "End") {
    const cells = [...cell.parentElement.querySelectorAll("td:not(.gone)")];
    next = event.key === "Home" ? cells[0] : cells.at(-1);
  } else return;
  event.preventDefault();
  if (next) focusCell(table, next);
}

/** Gives a cell the focus; it alone of its grid is a tab stop. */
function focusCell(table, cell) {
  table.querySelector("td[tabindex]")?.removeAttribute("tabindex");
  cell.tabIndex = 0;
  // at once: of smooth scrolls in quick succession a browser may give up the last
  cell.focus({ preventScroll: true });
  cell.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
}

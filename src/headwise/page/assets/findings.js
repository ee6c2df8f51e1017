// The table of findings; the name of a head is a button that selects it.

const FINDING_COLUMNS = ["finding", "site", "outcome", "value", "threshold", "heads", "head", "reason"];

/** A button for the head of a finding, if the run has this head. */
function headLink(row, run) {
  if (!run.heads.some((head) => keyOf(head) === keyOf(row))) return "";
  const text = `layer ${row.layer} head ${row.head}`;
  return make("button", { type: "button", class: "link", text, onclick: () => showHead(row) });
}

function findingRow(row, run) {
  const cells = [
    row.finding,
    data.sites[row.site] ?? "",
    row.outcome ?? "",
    shown(row.value),
    shown(row.threshold),
    row.n_measured === undefined ? "" : `${row.n_heads} of ${row.n_measured}`,
    headLink(row, run),
    row.reason ?? "",
  ];
  return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
}

/** All findings of a run, collapsed. */
function findings(run) {
  const head = make("tr", {}, ...FINDING_COLUMNS.map((text) => make("th", { text })));
  const rows = run.findings.map((row) => findingRow(row, run));
  const table = make("table", { class: "plain" }, head, ...rows);
  const n = run.findings.filter(({ outcome }) => outcome === "seen").length;
  return make(
    "details",
    { class: "findings" },
    make("summary", { text: `All findings (${n} of ${run.findings.length} seen)` }),
    make("div", { class: "scroll" }, table),
  );
}

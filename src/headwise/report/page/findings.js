// The findings: the little Markdown that they are written in, made into elements.
// Text is put in as text, so that nothing a sentence holds is taken for markup of the page.

/** Words in which **strong**, *emphasised* and `literal` ones are marked. */
function marked(text) {
  return text
    .split(/(\*\*[^*]+\*\*|\*[^*]+\*|`[^`]+`)/)
    .filter(Boolean)
    .map((part) => {
      if (part.startsWith("**") && part.length > 4) return make("b", { text: part.slice(2, -2) });
      if (part.startsWith("*") && part.length > 2)
        return make("i", { class: "quoted", text: part.slice(1, -1), dir: "auto" });
      if (part.startsWith("`") && part.length > 2) return make("code", { text: part.slice(1, -1) });
      return document.createTextNode(part);
    });
}

const cellsOf = (line) =>
  line
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => cell.trim());

/** Paragraphs, headings, lists and tables, in order. */
function blocks(text) {
  const found = [];
  for (const line of text
    .split("\n")
    .map((one) => one.trim())
    .filter(Boolean)) {
    const last = found.at(-1);
    if (/^#+ /.test(line)) found.push(make("h3", { text: line.replace(/^#+ /, "") }));
    else if (/^[-*] /.test(line)) {
      const list = last?.tagName === "UL" ? last : make("ul");
      if (list !== last) found.push(list);
      list.append(make("li", {}, ...marked(line.slice(2))));
    } else if (line.startsWith("|")) {
      const cells = cellsOf(line);
      if (cells.every((cell) => /^[-: ]*$/.test(cell))) continue; // the rule below the heads
      const isNew = last?.className !== "scroll";
      if (isNew) found.push(make("div", { class: "scroll" }, make("table", { class: "plain" })));
      found
        .at(-1)
        .firstChild.append(
          make("tr", {}, ...cells.map((cell) => make(isNew ? "th" : "td", {}, ...marked(cell)))),
        );
    } else found.push(make("p", {}, ...marked(line)));
  }
  return found;
}

/** What stands above the first section, and all sections behind a lid. */
function findings(text) {
  const parts = blocks(text).slice(1); // the title says whose they are, which the page does
  const first = parts.findIndex(({ tagName }) => tagName === "H3");
  const [lead, rest] = first < 0 ? [parts, []] : [parts.slice(0, first), parts.slice(first)];
  return [
    make("div", { class: "findings" }, ...lead),
    rest.length
      ? make("details", { class: "findings" }, make("summary", { text: "All findings" }), ...rest)
      : "",
  ];
}

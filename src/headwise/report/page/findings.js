// The findings: the little Markdown that they are written in, made into elements.
// Text is put in as text, so that nothing a sentence holds is taken for markup of the page.

const SITES_NAMED = { encoder: "encoder_self", decoder: "decoder_self", cross: "cross" };
const HEADS_NAMED =
  /(?:\b(encoder|decoder|cross)(?: self)?(?:-attention)? )?\blayer (\d+) head (\d+)\b/gi;
const SITE_AT_HEAD = /^(?:[-*] )?\*\*(encoder|decoder|cross)[ -][^*]*\*\*/;

/** The site that a line is about: the one it begins with. */
const siteOfLine = (line) => SITES_NAMED[SITE_AT_HEAD.exec(line)?.[1]];

/** Text in which each head of the run is a button that chooses it, where its site is told. */
function linked(text, run, site) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(HEADS_NAMED)) {
    const [name, told, ...numbers] = found;
    const [layer, head] = numbers.map(Number);
    const key = headKey(SITES_NAMED[told?.toLowerCase()] ?? site, layer, head);
    const row = run.heads.find((one) => headKey(one.site, one.layer, one.head) === key);
    if (!row) continue;
    const choose = () => chooseHead(row.site, layer, head);
    parts.push(text.slice(end, found.index));
    parts.push(make("button", { type: "button", class: "link", text: name, onclick: choose }));
    end = found.index + name.length;
  }
  return [...parts, text.slice(end)].filter(Boolean);
}

/** Without the backslashes before signs that would have marked something. */
const unescaped = (text) => text.replace(/\\([\\*_`[\]<])/g, "$1");

/** Words in which **strong**, *emphasised* and `literal` ones are marked, and heads linked. */
function marked(text, run, site) {
  return text
    .split(/(\*\*(?:\\.|[^*\\])+\*\*|\*(?:\\.|[^*\\])+\*|`[^`]+`)/)
    .filter(Boolean)
    .flatMap((part) => {
      if (part.startsWith("**") && part.length > 4)
        return make("b", { text: unescaped(part.slice(2, -2)) });
      if (part.startsWith("*") && part.length > 2)
        return make("i", { class: "quoted", text: unescaped(part.slice(1, -1)), dir: "auto" });
      if (part.startsWith("`") && part.length > 2) return make("code", { text: part.slice(1, -1) });
      return linked(unescaped(part), run, site);
    });
}

const cellsOf = (line) =>
  line
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => cell.trim());

/** Paragraphs, headings, lists and tables, in order. */
function blocks(text, run) {
  const found = [];
  for (const line of text
    .split("\n")
    .map((one) => one.trim())
    .filter(Boolean)) {
    const last = found.at(-1);
    const site = siteOfLine(line);
    if (/^#+ /.test(line)) found.push(make("h3", { text: line.replace(/^#+ /, "") }));
    else if (/^[-*] /.test(line)) {
      const list = last?.tagName === "UL" ? last : make("ul");
      if (list !== last) found.push(list);
      list.append(make("li", {}, ...marked(line.slice(2), run, site)));
    } else if (line.startsWith("|")) {
      const cells = cellsOf(line);
      if (cells.every((cell) => /^[-: ]*$/.test(cell))) continue; // the rule below the heads
      const isNew = last?.className !== "scroll";
      if (isNew) found.push(make("div", { class: "scroll" }, make("table", { class: "plain" })));
      found
        .at(-1)
        .firstChild.append(
          make(
            "tr",
            {},
            ...cells.map((cell) => make(isNew ? "th" : "td", {}, ...marked(cell, run))),
          ),
        );
    } else found.push(make("p", {}, ...marked(line, run, site)));
  }
  return found;
}

/** What stands above the first section, and all sections behind a lid. */
function findings(run) {
  const parts = blocks(run.findings, run).slice(1); // the title says whose they are, which the page does
  const first = parts.findIndex(({ tagName }) => tagName === "H3");
  const [lead, rest] = first < 0 ? [parts, []] : [parts.slice(0, first), parts.slice(first)];
  return [
    make("div", { class: "findings" }, ...lead),
    rest.length
      ? make("details", { class: "findings" }, make("summary", { text: "All findings" }), ...rest)
      : "",
  ];
}

// The texts: where the items are from, and the chosen item in full.

/** The origin of the items, as a sentence. */
function originOf() {
  const { origin, unit, chosen, n_all, note } = data.items;
  const [n, total] = [chosen.length, n_all].map((count) => count.toLocaleString("en"));
  const share = chosen.length < n_all ? `${n} of ${total}` : n;
  return [`${share} ${unit} of ${origin}`, note].filter(Boolean).join(", ");
}

/** The texts of the chosen item, and the output of every run for it. */
function drawTexts() {
  const lines = Object.entries(data.items.chosen[state.item].texts);
  for (const run of data.runs) {
    for (const [name, text] of Object.entries(run.readings[state.item].texts))
      lines.push([data.runs.length > 1 ? `${name}, ${run.label}` : name, text]);
  }
  // the first text is in the source language, the others in the target language
  const { languages } = data.runs[0];
  const terms = lines.flatMap(([name, text], index) => [
    make("dt", { text: name }),
    make("dd", { lang: languages.at(index && -1), dir: "auto", text: text || "(empty)" }),
  ]);
  byId("texts").replaceChildren(make("dl", {}, ...terms));
}

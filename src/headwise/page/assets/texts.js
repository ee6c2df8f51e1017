// The texts: a list of items to choose from, and the chosen one in full.

/** Where the items come from. */
function originOf() {
  const { origin, unit, chosen, n_all, note } = data.items;
  const [n, most] = [chosen.length, n_all].map((count) => count.toLocaleString("en"));
  const share = chosen.length < n_all ? `${n} of ${most}` : n;
  return [`${share} ${unit} of ${origin}`, note].filter(Boolean).join(", ");
}

/** The texts of the chosen item, and what every run wrote for it. */
function drawTexts() {
  const lines = Object.entries(data.items.chosen[state.item].texts);
  for (const run of data.runs) {
    for (const [name, text] of Object.entries(run.readings[state.item].texts))
      lines.push([data.runs.length > 1 ? `${name}, ${run.label}` : name, text]);
  }
  // the first text is in the language that is read, the others in the one that is written
  const { languages } = data.runs[0];
  const terms = lines.flatMap(([name, text], place) => [
    make("dt", { text: name }),
    make("dd", { lang: languages.at(place && -1), dir: "auto", text: text || "(empty)" }),
  ]);
  byId("texts").replaceChildren(make("dl", {}, ...terms));
}

// The sentences: a list to choose from, and the chosen one in full.

/** Where the sentences come from. */
function originOf() {
  const [n, most] = [data.sentences.length, data.n_lines].map((count) => count.toLocaleString("en"));
  const share = data.sentences.length < data.n_lines ? `${n} of ${most}` : n;
  const questions = data.n_questions ? ", some of them questions" : "";
  return `${share} sentences of ${data.origin}${questions}`;
}

/** The chosen sentence: source, reference, and what every run made of it. */
function drawTexts() {
  const { source, reference } = data.sentences[state.sentence];
  const [from, into] = data.runs[0].languages;
  const lines = [["source", source, from]];
  if (reference !== null) lines.push(["reference", reference, into]);
  for (const run of data.runs) {
    const name = data.runs.length > 1 ? `translation, ${run.label}` : "translation";
    lines.push([name, run.sentences[state.sentence].translation, into]);
  }
  const terms = lines.flatMap(([name, text, lang]) => [
    make("dt", { text: name }),
    make("dd", { lang, dir: "auto", text: text || "(empty)" }),
  ]);
  byId("texts").replaceChildren(make("dl", {}, ...terms));
}

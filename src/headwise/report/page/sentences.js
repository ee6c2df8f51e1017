// The sentences: a list that can be searched, and the chosen one in full.

/** All that is known of a sentence, in small letters, for the search. */
function wordsOf(place) {
  const { source, reference } = data.sentences[place];
  const translations = data.runs.map((run) => run.sentences[place].translation);
  return [source, reference ?? "", ...translations].join("\n").normalize().toLowerCase();
}

function drawSentences() {
  const buttons = data.sentences.map((sentence, place) => {
    const button = make(
      "button",
      { type: "button", onclick: () => chooseSentence(place) },
      make("span", { class: "number", text: sentence.line }),
      isolated(sentence.source, data.runs[0].languages[0]),
    );
    button.dataset.words = wordsOf(place);
    return button;
  });
  byId("sentences").replaceChildren(...buttons.map((button) => make("li", {}, button)));
  byId("sentences").addEventListener("keydown", (event) => {
    const [down] = step(event.key) ?? [0];
    const shownButtons = buttons.filter((button) => !button.parentElement.hidden);
    const next = shownButtons[shownButtons.indexOf(event.target) + down];
    if (!down || !next) return;
    event.preventDefault();
    next.focus();
  });
  byId("search").addEventListener("input", () => search(buttons));
  search(buttons);
}

/** Hides the sentences in which the searched text does not occur. */
function search(buttons) {
  const wanted = byId("search").value.normalize().toLowerCase().trim();
  let found = 0;
  for (const button of buttons) {
    const fits = button.dataset.words.includes(wanted);
    button.parentElement.hidden = !fits;
    found += fits;
  }
  byId("found").textContent = wanted
    ? `${found} of ${buttons.length} sentences`
    : `${buttons.length} sentences of ${data.origin}, with their line numbers`;
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
  const list = make(
    "dl",
    {},
    ...lines.flatMap(([name, text, language]) => [
      make("dt", { text: name }),
      make("dd", { lang: language, dir: "auto", text: text || "(empty)" }),
    ]),
  );
  byId("texts").replaceChildren(list);
  byId("sentences")
    .querySelectorAll("button")
    .forEach((button, place) => {
      button.setAttribute("aria-current", String(place === state.sentence));
    });
}

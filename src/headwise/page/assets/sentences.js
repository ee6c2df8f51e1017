// The sentences: a list that can be searched, and the chosen one in full.

/** All that is known of a sentence, in small letters, for the search. */
function wordsOf(place) {
  const { source, reference } = data.sentences[place];
  const translations = data.runs.map((run) => run.sentences[place].translation);
  return plainLetters([source, reference ?? "", ...translations].join("\n"));
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
    button.dataset.line = sentence.line;
    return button;
  });
  byId("sentences").replaceChildren(...buttons.map((button) => make("li", {}, button)));
  byId("sentences").addEventListener("keydown", (event) => {
    moveFocus(event, buttons.filter((button) => !button.parentElement.hidden));
  });
  byId("search").addEventListener("input", () => search(buttons));
  search(buttons);
}

/** Where the sentences come from. */
function originOf() {
  const [n, most] = [data.sentences.length, data.n_lines].map((count) => count.toLocaleString("en"));
  const share = data.sentences.length < data.n_lines ? `${n} of ${most}` : n;
  const questions = data.n_questions ? ", some of them questions" : "";
  return `${share} sentences of ${data.origin}${questions}`;
}

/** Small letters without accents, so that who has no ö finds it as o. */
function plainLetters(text) {
  const bare = text.normalize("NFD").replace(/[\u0300-\u036f]/g, "");
  return bare.normalize().toLowerCase();
}

/** Hides the sentences in which the searched text does not occur, nor begins their line number. */
function search(buttons) {
  const wanted = plainLetters(byId("search").value).trim();
  let found = 0;
  for (const button of buttons) {
    const fits =
      button.dataset.words.includes(wanted) || button.dataset.line.startsWith(wanted);
    button.parentElement.hidden = !fits;
    found += fits;
  }
  if (!wanted) byId("found").textContent = originOf();
  else if (found) byId("found").textContent = `${found} of ${buttons.length} sentences`;
  else
    byId("found").textContent =
      `none of the ${buttons.length} sentences on this page; ` +
      "n_sentences= and sentences=FILE show others";
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

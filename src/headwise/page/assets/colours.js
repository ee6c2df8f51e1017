// Colours: two scales whose lightness only rises or only falls, light on dark and dark on light.
// Lightness alone tells their steps apart, so that they survive grey print and colour blindness.

const darkMode = matchMedia("(prefers-color-scheme: dark)");
// Told of a change and never asked: Chromium tells nothing of a change that was seen by asking.
const darkModeChange = matchMedia("(prefers-color-scheme: dark)");

const mix = (from, to, share) => from + (to - from) * share;

/** Lightness in [0, 1] of the scale of measures at share in [0, 1]. */
function scaleLightness(share) {
  return darkMode.matches ? mix(0.3, 0.92, share) : mix(0.96, 0.36, share);
}

/** The scale of measures, pale yellow to dark blue; in the dark, dark blue to bright yellow. */
function scaleColour(share) {
  const hue = darkMode.matches ? mix(265, 105, share) : mix(105, 265, share);
  return `oklch(${scaleLightness(share)} 0.09 ${hue})`;
}

/** What is written on a cell of that scale. */
function textOn(share) {
  return scaleLightness(share) > 0.64 ? "#111" : "#fff";
}

/** Ink of a weight that is not 0: the least is already visible. Below 0 it is of another hue. */
function inkColour(share, isNegative = false) {
  const hue = isNegative ? 50 : 255;
  if (darkMode.matches) {
    return `oklch(${mix(0.4, 0.93, share)} ${mix(0.1, 0.06, share)} ${hue})`;
  }
  return `oklch(${mix(0.86, 0.32, share)} ${mix(0.06, 0.14, share)} ${hue})`;
}

/** A property of the style sheet. */
const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A bar of colours, low to high. */
function ramp(stops, label) {
  const bar = make("span", { class: "ramp", role: "img", "aria-label": label });
  bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  return bar;
}

/** A colour and what it stands for. */
function swatch(colour, text) {
  const patch = make("i", { class: "swatch" });
  patch.style.background = colour;
  return make("span", { class: "entry" }, patch, ` ${text}`);
}

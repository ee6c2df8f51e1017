// The weights of all heads on a sentence: a byte each, unpacked when a sentence is first shown.
// 0 is exactly 0, 255 a key that the query may not see; between them stands the square root.

const BARRED = 255;
const LEVELS = 254;
const SIGNED_LEVELS = 127;

const unpacked = new Map(); // content of a sentence -> its bytes

/** The bytes of a run's sentence. */
async function weightBytes(content) {
  if (!unpacked.has(content)) {
    const packed = Uint8Array.from(atob(content.weights), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked.set(content, new Uint8Array(await new Response(stream).arrayBuffer()));
  }
  return unpacked.get(content);
}

/**
 * The weights of one head: {rows, columns, codes, scale, isSigned}, or null where the run has no
 * such head or it has none that can be shown.
 */
async function headWeights(content, site, layer, head) {
  const bytes = await weightBytes(content);
  let start = 0;
  for (const block of content.blocks) {
    const [rows, columns] = block.shape;
    const place = block.heads.indexOf(head);
    if (block.site === site && block.layer === layer && place >= 0) {
      const first = start + place * rows * columns;
      const codes = bytes.subarray(first, first + rows * columns);
      return { rows, columns, codes, scale: block.scales[place], isSigned: block.signed[place] };
    }
    start += block.heads.length * rows * columns;
  }
  return null;
}

/** How far up the scale of ink a code stands, in (0, 1]. */
function inkShare(code, isSigned) {
  if (!isSigned) return code / LEVELS;
  return (code > SIGNED_LEVELS ? code - SIGNED_LEVELS : code) / SIGNED_LEVELS;
}

const isBelowZero = (code, isSigned) => isSigned && code > SIGNED_LEVELS && code !== BARRED;

/** The weight that a code stands for. */
function weightOf(code, { scale, isSigned }) {
  if (code === 0 || code === BARRED) return 0;
  const size = scale * inkShare(code, isSigned) ** 2;
  return isBelowZero(code, isSigned) ? -size : size;
}

/** A weight with as many digits as its byte is good for. */
function shownWeight(code, weights) {
  if (code === BARRED) return "out of sight";
  if (code === 0) return "exactly 0";
  const weight = weightOf(code, weights);
  const size = Math.abs(weight);
  const least = weights.isSigned ? SIGNED_LEVELS : LEVELS;
  if (inkShare(code, weights.isSigned) * least < 1.5) {
    return `below ${((weights.isSigned ? 2e-4 : 1e-4) * weights.scale).toPrecision(1)}`;
  }
  return weight.toFixed(size >= 0.1 ? 2 : size >= 0.01 ? 3 : 4);
}

/** Colours of all 256 codes as [red, green, blue]; null where there is no ink. */
function inkTable(isSigned) {
  const codes = [...Array(256).keys()];
  const table = asBytes(
    codes.map((code) =>
      inkColour(inkShare(Math.max(code, 1), isSigned), isBelowZero(code, isSigned)),
    ),
  );
  table[0] = table[BARRED] = null;
  return table;
}

// The weights of all heads on a text, unpacked when the text is first shown.
// 0 is exactly 0, NaN a masked key.

const unpacked = new Map(); // reading of a text -> its weights

/** All weights of a run on a text, concatenated by head. */
async function allWeights(content) {
  if (!unpacked.has(content)) {
    const packed = Uint8Array.from(atob(content.weights), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked.set(content, new Float32Array(await new Response(stream).arrayBuffer()));
  }
  return unpacked.get(content);
}

/**
 * The weights of one head: {rows, columns, values, scale}, or null if the run has no such head or
 * the head has no valid weights. The scale is the weight of the darkest colour.
 */
async function headWeights(content, { site, layer, head }) {
  const all = await allWeights(content);
  let start = 0;
  for (const block of content.blocks) {
    const [rows, columns] = block.shape;
    const index = block.heads.indexOf(head);
    if (block.site === site && block.layer === layer && index >= 0) {
      const first = start + index * rows * columns;
      const values = all.subarray(first, first + rows * columns);
      const scale = values.reduce((top, value) => Math.max(top, Math.abs(value) || 0), 1);
      return { rows, columns, values, scale };
    }
    start += block.heads.length * rows * columns;
  }
  return null;
}

/** The colour depth of a weight, 0 to 1; the square root keeps small weights visible. */
const inkOf = (weight, scale) => Math.sqrt(Math.abs(weight) / scale);

function shownWeight(weight) {
  if (Number.isNaN(weight)) return "masked";
  return weight === 0 ? "exactly 0" : weight.toPrecision(2);
}

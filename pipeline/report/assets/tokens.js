// A reply as its tokens, coloured by one number of each. Blue is below zero, orange above: a pair that
// the colour-blind tell apart, on a scale that is the same all over the page.

const MOST_TOKENS = 4000; // of one reply before its "show all" button
const MODES = {
  plain: { name: 'plain text' },
  gap: { name: 'logprob gap', unit: 'nats', scale: 0.3, about: 'trainer’s logprob minus sampler’s',
    of: (tokens, i) => minus(tokens.old_logprobs?.[i], tokens.behaviour?.[i]) },
  behaviour: { name: 'logprob', unit: 'nats', scale: 5, about: 'of the sampler: the darker, the less likely it was',
    of: (tokens, i) => minus(0, tokens.behaviour?.[i]), low: '0', high: '−5' },
  advantage: { name: 'advantage', unit: '', scale: 1, about: 'what the token is trained towards',
    of: (tokens, i, turn) => tokens.advantages?.[i] ?? turn.advantage },
};
let mode = 'plain';

const minus = (a, b) => (a === undefined || a === null || b === undefined || b === null ? null : a - b);

// The modes that this report has numbers for; the first one but plain text is shown at first.
function modesHere() {
  const sizes = turns.map((t) => Math.abs(t.advantage ?? 0));
  MODES.advantage.scale = sizes.reduce((a, b) => Math.max(a, b), 0) || 1;
  const here = ['plain'];
  if (!turns.some((t) => t.chunk !== undefined)) return here;
  if (turns.some((t) => t.gap !== undefined)) here.push('gap');
  here.push('behaviour');
  if (turns.some((t) => t.advantage !== undefined)) here.push('advantage');
  return here;
}

function legend() {
  const { unit, scale, about: what, low, high } = MODES[mode];
  if (mode === 'plain') return el('span', { class: 'dim' }, 'tokens are not coloured');
  const ends = [low ?? `−${short(scale)}`, high ?? `+${short(scale)}`];
  const steps = low ? [0, 0.25, 0.5, 0.75, 1] : [-1, -0.5, 0, 0.5, 1];
  const swatches = steps.map((s) => el('i', { class: 'swatch', style: { background: colour(s) } }));
  return el('span', { class: 'legend', title: what }, ends[0], swatches, `${ends[1]} ${unit}`, el('span', { class: 'dim' }, ` ${what}`));
}

// Of a share from -1 to 1.
function colour(share) {
  const strength = Math.min(1, Math.abs(share)) * 0.72;
  return share < 0 ? `rgb(0 114 178 / ${strength})` : `rgb(230 120 0 / ${strength})`;
}

// Fills `block` with the reply's tokens, if their texts are here; until then, and else, it shows the text.
async function colourTokens(block, turn) {
  const tokens = await tokensOf(turn);
  if (tokens === null) return;
  const { of, scale } = MODES[mode];
  const hits = hitTokens(tokens.texts);
  const span = (piece, i) => {
    const value = of(tokens, i, turn);
    const style = value === null || value === undefined ? {} : { background: colour(value / scale) };
    const text = piece === '' ? '·' : piece;
    const classes = `token${hits.has(i) ? ' hit' : ''}${piece === '' ? ' dim' : ''}`;
    return el('span', { class: classes, style, title: describe(tokens, i, turn) }, text);
  };
  const fill = (count) => block.replaceChildren(...tokens.texts.slice(0, count).map(span));
  fill(MOST_TOKENS);
  if (tokens.texts.length > MOST_TOKENS) {
    const more = `… show all ${short(tokens.texts.length)} tokens`;
    block.append(el('button', { type: 'button', class: 'more', on: { click: () => fill(Infinity) } }, more));
  }
}

const KNOWN = { behaviour: 'sampler’s logprob', old_logprobs: 'trainer’s logprob', reference_logprobs: 'reference’s logprob',
  values: 'value', advantages: 'advantage', importance_weights: 'importance weight' };

function describe(tokens, i, turn) {
  const lines = [`token ${i + 1} of ${tokens.texts.length}: ${JSON.stringify(tokens.texts[i])}`];
  for (const [key, name] of Object.entries(KNOWN)) {
    const value = tokens[key]?.[i];
    if (value !== undefined && value !== null) lines.push(`${name} ${short(value)}`);
  }
  const gap = MODES.gap.of(tokens, i);
  if (gap !== null) lines.push(`gap ${signed(gap)}`);
  if (!tokens.advantages && turn.advantage !== undefined) lines.push(`advantage ${signed(turn.advantage)} (the turn’s)`);
  return lines.join('\n');
}

// Numbers of the tokens that hold a part of what is searched for.
function hitTokens(pieces) {
  const found = new Set();
  if (!searched()) return found;
  const matches = [...pieces.join('').matchAll(searched())].map((m) => [m.index, m.index + m[0].length]);
  let at = 0;
  pieces.forEach((piece, i) => {
    const end = at + piece.length;
    if (matches.some(([from, to]) => from < end && to > at)) found.add(i);
    at = end;
  });
  return found;
}

// What the page knows: unpacked once, and then only read.

let about, roles, texts, prompts, tasks, episodes, turns;
let unpackedCharacters = 0;
let pageCharacters = 0; // of the file; it is next to all ASCII

async function unpack(id) {
  const packed = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  const text = await new Response(stream).text();
  unpackedCharacters += text.length;
  return JSON.parse(text);
}

async function load() {
  pageCharacters = document.documentElement.outerHTML.length;
  const data = await unpack('data');
  ({ about, roles, texts, prompts, tasks, episodes, turns } = data);
  for (const episode of episodes) episode.turns = [];
  turns.forEach((turn, number) => {
    turn.number = number;
    episodes[turn.episode].turns.push(turn);
  });
  const groups = new Map();
  episodes.forEach((episode, number) => {
    episode.number = number;
    const means = ['return', 'reward', 'gap'].map((name) => mean(episode.turns.map((t) => t[name])));
    [episode.return, episode.reward, episode.gap] = means;
    // what orders and colours it: the score of an evaluation, else its return, else its reward
    episode.value = episode.scores ? episode.scores[0][1] : episode.return ?? episode.reward;
    if (!groups.has(episode.group_id)) groups.set(episode.group_id, []);
    groups.get(episode.group_id).push(episode);
    episode.group = groups.get(episode.group_id);
  });
  return data;
}

const chunks = new Map();

// Tokens of a turn: {texts, behaviour, old_logprobs, …}, or null where they have no text here.
async function tokensOf(turn) {
  if (turn.chunk === undefined) return null;
  if (!chunks.has(turn.chunk)) chunks.set(turn.chunk, unpack(`chunk-${turn.chunk}`));
  const chunk = await chunks.get(turn.chunk);
  const { pieces, ...lists } = chunk.turns[turn.number];
  return { texts: pieces.map((p) => chunk.pieces[p]), ...lists };
}

function mean(values) {
  const known = values.filter((v) => v !== undefined && v !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : undefined;
}

function short(value) {
  if (value === undefined || value === null) return '–';
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString('en');
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString('en');
  return size >= 1e-4 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}

const signed = (value) => (value > 0 ? '+' : '') + short(value);
const seconds = (value) => (value === undefined ? '–' : `${value < 10 ? value.toFixed(2) : value.toFixed(1)} s`);
const many = (count, word) => `${short(count)} ${word}${count === 1 ? '' : 's'}`;

// Filters: an episode is shown if one of its turns passes all of them; that turn is marked.

const filters = { text: '', status: '', ended: '', role: '', step: '', model: '', excluded: '', iteration: '',
  measure: 'reward', low: '', high: '', order: 'played' };
const TRAINED = 'trained on';
const ORDERS = { played: 'as played', low: 'lowest first', high: 'highest first', tokens: 'most tokens',
  time: 'longest time', gap: 'largest logprob gap' };
const MEASURES = { reward: 'reward', return: 'return', advantage: 'advantage', value: 'score of the episode' };

let pattern = null;
const searched = () => pattern;

function setPattern(text) {
  pattern = text ? new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'), 'giu') : null;
}

// The shown episodes in order, each with the turns that pass: [{episode, turns}].
function found() {
  setPattern(filters.text.trim());
  const hits = pattern && new Set();
  if (pattern) texts.forEach((text, i) => matches(text) && hits.add(i));
  const promptHits = pattern && prompts.map((prompt) => prompt.some(([, text]) => hits.has(text)));
  const low = filters.low === '' ? null : Number(filters.low);
  const high = filters.high === '' ? null : Number(filters.high);
  const shown = [];
  for (const episode of episodes) {
    if (filters.iteration !== '' && episode.iteration !== Number(filters.iteration)) continue;
    if (filters.ended && endOf(episode) !== filters.ended) continue;
    const inEpisode = pattern && episodeMatches(episode, hits);
    const passing = episode.turns.filter((turn) =>
      turnPasses(turn, episode, low, high) && (!pattern || inEpisode || turnMatches(turn, hits, promptHits)));
    const bare = !episode.turns.length && !turnFilters() && (!pattern || inEpisode);
    if (passing.length || bare) shown.push({ episode, turns: passing });
  }
  return sorted(shown);
}

const turnFilters = () => ['status', 'role', 'step', 'model', 'excluded', 'low', 'high'].some((n) => filters[n] !== '');

function turnPasses(turn, episode, low, high) {
  if (filters.status && turn.status !== filters.status) return false;
  if (filters.role && turn.role !== filters.role) return false;
  if (filters.step && turn.step !== filters.step) return false;
  if (filters.model && turn.model_id !== filters.model) return false;
  if (filters.excluded === TRAINED ? !trainedOn(turn) : filters.excluded && turn.excluded !== filters.excluded) return false;
  if (low === null && high === null) return true;
  const value = filters.measure === 'value' ? episode.value : turn[filters.measure];
  return value !== undefined && value !== null && (low === null || value >= low) && (high === null || value <= high);
}

const trainedOn = (turn) => turn.excluded === undefined && turn.return !== undefined;
const endOf = (episode) => episode.stop_reason && ![episode.status, 'finished'].includes(episode.stop_reason)
  ? `${episode.status}: ${episode.stop_reason}` : episode.status;

const matchesSearch = (text) => pattern !== null && matches(text);

function matches(text) {
  pattern.lastIndex = 0;
  return pattern.test(text);
}

function episodeMatches(episode, hits) {
  const task = tasks[episode.task];
  return matches(episode.episode_id) || hits.has(task.inputs) || hits.has(task.gold) ||
    (episode.error && matches(episode.error));
}

const TEXTS_OF_A_TURN = ['response_text', 'parsed', 'cut', 'tool_request', 'tool_result', 'status_detail'];
const turnMatches = (turn, hits, promptHits) =>
  TEXTS_OF_A_TURN.some((name) => hits.has(turn[name])) || (turn.prompt !== undefined && promptHits[turn.prompt]);

function sorted(shown) {
  const by = (key, sign) => shown.sort((a, b) => {
    const [x, y] = [key(a.episode), key(b.episode)];
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined); // those without, last
    return sign * (x - y);
  });
  switch (filters.order) {
    case 'low': return by((e) => e.value, 1);
    case 'high': return by((e) => e.value, -1);
    case 'tokens': return by((e) => e.num_response_tokens, -1);
    case 'time': return by((e) => e.seconds, -1);
    case 'gap': return by((e) => e.gap, -1);
    default: return shown;
  }
}

function countsOf(values) {
  const counts = new Map();
  for (const value of values) if (value !== undefined && value !== null) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

// The form: a select for each filter that has something to choose from, with counts.
function makeFilters(changed) {
  const form = byId('filters');
  const field = (label, input) => el('label', {}, el('span', {}, label), input);
  const set = (name) => ({ input: (event) => { filters[name] = event.target.value; changed(); } });
  const select = (name, label, any, choices) => {
    if (choices.length < 1) return null;
    const options = choices.map(([value, count]) =>
      el('option', { value }, count === undefined ? value : `${value} (${short(count)})`));
    return field(label, el('select', { id: `filter-${name}`, on: set(name) }, el('option', { value: '' }, any), options));
  };
  const named = (name, label, choices) =>
    field(label, el('select', { id: `filter-${name}`, on: set(name) },
      Object.entries(choices).map(([value, text]) => el('option', { value }, text))));
  const trained = turns.filter(trainedOn).length;
  const reasons = countsOf(turns.map((t) => t.excluded));
  const iterations = countsOf(episodes.map((e) => e.iteration)).sort((a, b) => a[0] - b[0]);
  const measures = Object.fromEntries(Object.entries(MEASURES).filter(([name]) =>
    name === 'value' ? episodes.some((e) => e.scores) : turns.some((t) => t[name] !== undefined)));
  if (!(filters.measure in measures)) filters.measure = Object.keys(measures)[0] ?? 'reward';
  const number = (name, label) => el('input', { id: `filter-${name}`, type: 'number', step: 'any', placeholder: label,
    'aria-label': label, on: set(name) });
  form.replaceChildren(...[
    field('text', el('input', { id: 'filter-text', type: 'search', placeholder: 'in prompts, replies, tools, ids  ( / )', on: set('text') })),
    iterations.length > 1 && select('iteration', 'iteration', 'all', iterations),
    select('ended', 'episode', 'any end', countsOf(episodes.map(endOf))),
    select('status', 'turn', 'any status', countsOf(turns.map((t) => t.status))),
    select('role', 'role', 'all', countsOf(turns.map((t) => t.role))),
    select('step', 'step', 'all', countsOf(turns.map((t) => t.step))),
    countsOf(turns.map((t) => t.model_id)).length > 1 && select('model', 'model', 'all', countsOf(turns.map((t) => t.model_id))),
    select('excluded', 'training', 'all', [...(trained ? [[TRAINED, trained]] : []), ...reasons]),
    Object.keys(measures).length > 0 && el('span', { class: 'range' }, named('measure', 'between', measures),
      number('low', 'from'), number('high', 'to')),
    named('order', 'order', Object.fromEntries(Object.entries(ORDERS).filter(([name]) => name !== 'gap' || turns.some((t) => t.gap !== undefined)))),
    el('button', { type: 'button', id: 'clear', on: { click: () => { clearFilters(); changed(); } } }, 'Clear'),
  ].filter(Boolean));
  form.addEventListener('submit', (event) => event.preventDefault());
}

function clearFilters() {
  byId('filters').reset();
  for (const input of byId('filters').querySelectorAll('input, select')) filters[input.id.replace('filter-', '')] = input.value;
}

function setFilter(name, value) {
  const input = byId(`filter-${name}`);
  if (!input) return;
  input.value = value;
  filters[name] = input.value;
}

// The list of episodes: only the rows in sight exist, so ten thousand cost what twenty do.

const ROW = 58; // pixels, as in the style sheet
let shown = [];
let current = null; // the episode that is open

function drawList() {
  const list = byId('list');
  const rows = byId('rows');
  rows.style.setProperty('height', `${shown.length * ROW}px`);
  const from = Math.max(0, Math.floor(list.scrollTop / ROW) - 6);
  const to = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 6);
  const made = [];
  for (let i = from; i < to; i += 1) made.push(listRow(shown[i], i));
  rows.replaceChildren(...made);
  const selected = made.find((row) => row.getAttribute('aria-selected') === 'true');
  if (selected) list.setAttribute('aria-activedescendant', selected.id);
  else list.removeAttribute('aria-activedescendant');
}

function listRow({ episode, turns: passing }, i) {
  const selected = episode === current;
  const share = valueShare(episode.value);
  const passes = passing.length < episode.turns.length ? `${passing.length} of ${many(episode.turns.length, 'turn')}` : many(episode.turns.length, 'turn');
  const at = about.places.length > 1 ? `iteration ${episode.iteration} · ` : '';
  return el('div', { class: `row ${selected ? 'on' : ''}`, role: 'option', id: `row-${i}`, 'aria-selected': String(selected),
    'aria-setsize': shown.length, 'aria-posinset': i + 1, style: { top: `${i * ROW}px` }, on: { click: () => select(i, true) } },
  el('div', { class: 'line' }, el('b', {}, headline(episode)), el('span', { class: 'value-number' }, short(episode.value))),
  el('div', { class: 'line dim' }, el('span', { class: `dot ${episode.status === 'ok' ? 'good' : 'bad'}` }, episode.status === 'ok' ? '' : `${endOf(episode)} `),
    el('span', {}, `${at}#${episode.sample} · ${passes}`),
    el('span', { class: 'meter' }, share === null ? null : el('i', { style: { width: `${100 * share}%` } }))));
}

const headlines = new Map();

// The first text of the task's inputs, which is what people know it by.
function headline(episode) {
  if (!headlines.has(episode.task)) headlines.set(episode.task, firstText(tasks[episode.task]));
  return headlines.get(episode.task);
}

function firstText(task) {
  try {
    const inputs = JSON.parse(texts[task.inputs]);
    const text = inputs.question ?? inputs.problem ?? inputs.prompt ?? Object.values(inputs).find((v) => typeof v === 'string');
    return typeof text === 'string' ? text.slice(0, 160).replace(/\s+/g, ' ') : task.task_id;
  } catch {
    return task.task_id;
  }
}

let range = null;

// Where a value stands between the lowest and the highest of the report.
function valueShare(value) {
  if (value === undefined || value === null) return null;
  if (!range) {
    const known = episodes.map((e) => e.value).filter((v) => v !== undefined && v !== null);
    range = known.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
  }
  return range[1] > range[0] ? (value - range[0]) / (range[1] - range[0]) : 0.5;
}

function select(i, focus = false) {
  const entry = shown[i];
  current = entry?.episode ?? null;
  drawList();
  showEpisode(entry);
  if (current) history.replaceState(null, '', `#${encodeURIComponent(current.episode_id)}`);
  if (focus) byId('list').focus({ preventScroll: true });
}

function move(steps) {
  if (!shown.length) return;
  const at = shown.findIndex((entry) => entry.episode === current);
  const to = Math.min(shown.length - 1, Math.max(0, at < 0 ? 0 : at + steps));
  bringIntoSight(to);
  select(to);
}

function bringIntoSight(i) {
  const list = byId('list');
  if (i * ROW < list.scrollTop) list.scrollTop = i * ROW;
  else if ((i + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (i + 1) * ROW - list.clientHeight;
}

// Opens an episode even where the filters hide it: then they are cleared.
function goTo(episode) {
  let at = shown.findIndex((entry) => entry.episode === episode);
  if (at < 0) {
    clearFilters();
    applyFilters();
    at = shown.findIndex((entry) => entry.episode === episode);
  }
  bringIntoSight(at);
  select(at);
}

function applyFilters() {
  shown = found();
  const passing = shown.reduce((sum, entry) => sum + entry.turns.length, 0);
  byId('count').textContent = `${short(shown.length)} of ${many(episodes.length, 'episode')}, ${short(passing)} of ${many(turns.length, 'turn')}`;
  byId('list').scrollTop = 0;
  const at = shown.findIndex((entry) => entry.episode === current);
  if (at >= 0) bringIntoSight(at);
  select(Math.max(0, at));
}

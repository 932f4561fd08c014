// The first part: what came out, what was left out and why, and the settings it was made with.

function showOverview() {
  byId('name').textContent = visible(`${about.run}: ${about.title}`);
  byId('where').textContent = visible([about.where, about.created && `started ${about.created}`].filter(Boolean).join(' · '));
  showNotes();
  byId('drawing-note').textContent = observed
    ? 'Read off the turns: who read whose output, and how often. Numbers are turns of what is chosen above; choose a step to see them.'
    : 'As it was declared: dashed where a condition decides, a double frame where it runs in branches. Numbers are turns of what is chosen above; choose a step to see them.';
  for (const step of document.querySelectorAll('.graph .step')) {
    const act = () => { filterScope(); setFilter('step', step.dataset.step); openTab('episodes'); applyFilters(); };
    step.addEventListener('click', act);
    step.addEventListener('keydown', (event) => event.key === 'Enter' && act());
  }
  showPlace(about.places.at(-1));
  showSettings();
}

// What the overview is of: one iteration, or all of them. All of it has the same scope, and the top says which.
let scope = null;
const inScope = () => episodes.filter((e) => scope.index === null || e.iteration === scope.index);

function filterScope() {
  clearFilters();
  if (scope.index !== null && about.places.length > 1) setFilter('iteration', scope.index);
}

function showScope() {
  const what = about.kind === 'evaluation' ? 'evaluation' : 'iteration';
  const ofAll = `all ${about.places.length} ${what}s`;
  if (about.places.length < 2) {
    byId('scope').hidden = true;
    return;
  }
  const choose = el('select', { id: 'iteration', on: { input: (event) => showPlace(event.target.value === '' ? wholeRun()
    : about.places.find((p) => p.index === Number(event.target.value))) } },
  el('option', { value: '', selected: scope.index === null }, ofAll),
  about.places.map((p) => el('option', { value: p.index, selected: p.index === scope.index }, `${what} ${p.index}`)));
  byId('scope').replaceChildren(el('label', {}, 'All numbers, the graph and the histogram on this page are of ', choose),
    scope.index === null ? el('span', { class: 'dim' }, ' means are over episodes, counts and times are sums') : '');
}

// All iterations as one: what adds up is added, means are over episodes.
function wholeRun() {
  const sums = ['rollout/episodes', 'rollout/turns', 'rollout/response_tokens', 'rollout/status/ok', 'time/total_seconds'];
  const metrics = {};
  const names = new Set(about.places.flatMap((p) => Object.keys(p.metrics)));
  for (const name of names) {
    const having = about.places.filter((p) => p.metrics[name] !== undefined);
    const add = (of) => having.reduce((sum, p) => sum + of(p), 0);
    const weight = (p) => p.metrics['rollout/episodes'] ?? 0;
    if (sums.includes(name)) metrics[name] = add((p) => p.metrics[name]);
    else if (/^(return|reward)\/mean$|^role\//.test(name) && add(weight) > 0) metrics[name] = add((p) => p.metrics[name] * weight(p)) / add(weight);
  }
  const accounts = new Map();
  for (const a of about.places.flatMap((p) => p.accounts)) {
    const sum = accounts.get(a.boundary) ?? { ...a, rows_in: 0, rows_out: 0, excluded: {} };
    const excluded = { ...sum.excluded };
    for (const [why, n] of Object.entries(a.excluded)) excluded[why] = (excluded[why] ?? 0) + n;
    accounts.set(a.boundary, { ...sum, rows_in: sum.rows_in + a.rows_in, rows_out: sum.rows_out + a.rows_out, excluded });
  }
  const times = {};
  for (const [name, s] of about.places.flatMap((p) => Object.entries(p.seconds))) times[name] = (times[name] ?? 0) + s;
  return { index: null, metrics, accounts: [...accounts.values()], seconds: times, notes: [], scores: [], stops: [],
    updates: about.places.flatMap((p) => p.updates ?? []) };
}

// Turns of each step, of the scope.
function countSteps() {
  const counts = new Map(countsOf(inScope().flatMap((e) => e.turns).map((t) => t.step)));
  for (const step of document.querySelectorAll('.graph .step')) {
    const count = step.querySelector('.count');
    if (count) count.textContent = short(counts.get(step.dataset.step) ?? 0);
  }
}

let observed = false;

function showNotes() {
  const notes = [];
  if (about.how) notes.push(`${short(about.shown)} of ${many(about.total, 'episode')} are in this report, ${about.how}. Numbers of an iteration are of all its episodes.`);
  if (about.texts_only.length) {
    notes.push(`Tokens of ${about.texts_only.join(', ')} are shown as text only: the tokenizer that ${about.texts_only.length > 1 ? 'they were' : 'it was'} read with is not on the machine that made this page.`);
  }
  byId('notes').replaceChildren(...notes.map((note) => el('p', { class: 'note' }, note)));
}

function showPlace(place) {
  scope = place;
  showScope();
  countSteps();
  const { metrics } = place;
  const value = (name) => metrics[name];
  const tile = (name, number, below = '') => number !== undefined && el('div', { class: 'tile' }, el('b', {}, typeof number === 'string' ? number : short(number)), el('span', {}, name), below && el('small', { class: 'dim' }, below));
  const ok = value('rollout/status/ok');
  const trained = (place.updates ?? []).reduce((sum, u) => sum + (u.num_rows ?? 0), 0);
  const rolled = about.kind !== 'evaluation';
  byId('tiles').replaceChildren(...[
    ...place.scores.map((s) => tile(s.name, s.mean, s.low === null ? '' : `95 %: ${short(s.low)} to ${short(s.high)}`)),
    ...place.scores.flatMap((s) => Object.entries(s.by_source ?? {}).map(([source, of]) => tile(`${s.name} of ${source}`, of.mean,
      `${many(of.tasks, 'task')}${of.low === null ? '' : `, 95 %: ${short(of.low)} to ${short(of.high)}`}`))),
    tile('mean return', value('return/mean')), rolled && tile('mean reward', value('reward/mean')),
    tile('episodes', value('rollout/episodes'), ok === undefined || ok === value('rollout/episodes') ? 'all ok' : `${short(ok)} ok`),
    tile('turns', value('rollout/turns')), rolled && tile('turns trained on', trained),
    tile('response tokens', value('rollout/response_tokens')),
    tile('tokens/s', value('rollout/tokens_per_second')), tile('seconds', value('time/total_seconds')),
  ].filter(Boolean));
  byId('cards').replaceChildren(...[
    place.notes.length > 0 && card('Notes', el('ul', {}, place.notes.map((note) => el('li', {}, note)))),
    el('div', { class: 'two' }, curveCard(), spreadCard(), roleCard(metrics), stopCard(place.stops)),
    accountsCard(place.accounts), updatesCard(place.updates), shiftCard(place), timeCard(place.seconds),
    place.index !== null && metricsCard(metrics),
  ].filter(Boolean));
}

function curveCard() {
  if (about.kind !== 'run' || about.places.length < 2) return null;
  const names = [...new Set(about.places.flatMap((p) => Object.keys(p.metrics)))].sort();
  const place = el('div', {});
  const draw = (name) => {
    const models = new Set(about.curve.map((p) => p.name).filter((n) => n.startsWith('model/')));
    // one model's mean is the mean of all
    const points = about.curve.filter((p) => models.size > 1 || !models.has(p.name));
    const lines = name === '' ? [...groupBy(points, (p) => p.name)].map(([n, its]) => ({ name: n, points: its }))
      : [{ name, points: about.places.filter((p) => name in p.metrics).map((p) => ({ step: p.index + 1, value: p.metrics[name] })) }];
    place.replaceChildren(lineChart(lines.slice(0, 12), 'iterations', about.changes));
  };
  const choose = el('select', { id: 'metric', 'aria-label': 'Metric', on: { input: (event) => draw(event.target.value) } },
    about.curve.length && el('option', { value: '' }, 'returns and scores'), names.map((n) => el('option', { value: n }, n)));
  draw(about.curve.length ? '' : names[0]);
  return card('Learning curve', choose, place);
}

function spreadCard() {
  const known = inScope().map((e) => e.value).filter((v) => v !== undefined && v !== null);
  if (!known.length) return null;
  const label = episodes.some((e) => e.scores) ? episodes.find((e) => e.scores).scores[0][0] : 'return';
  const choose = (from, to) => {
    filterScope();
    openTab('episodes');
    setFilter('measure', episodes.some((e) => e.scores) ? 'value' : 'return');
    setFilter('low', Number(from.toPrecision(6)));
    setFilter('high', Number(to.toPrecision(6)));
    applyFilters();
  };
  return card(`Episodes by ${label}`, histogram(known, label, choose));
}

// Stopping by each rule on the same traces: what it costs, and how well the team answers then.
function stopCard(rows) {
  if (!rows?.length) return null;
  const drawn = rows.filter((r) => !['calibration', 'return'].includes(r.rule));
  const lines = [...groupBy(drawn, (r) => r.rule)].map(([name, its]) => ({ name: `${name}${its.length === 1 ? ` ${short(its[0].score)}` : ''}`,
    points: its.map((r) => ({ step: r.cost, value: r.score })).sort((a, b) => a.step - b.step) }));
  const [chosen, best] = ['policy', 'hindsight'].map((rule) => drawn.find((r) => r.rule === rule));
  return card('Stopping: score over cost', lines.length > 0 && el('div', { class: 'narrow' }, lineChart(lines, 'cost until the stop')),
    chosen && best && el('p', { class: 'dim' }, `chosen: score ${short(chosen.score)} at cost ${short(chosen.cost)}; best in hindsight: ${short(best.score)} at ${short(best.cost)}`));
}

function roleCard(metrics) {
  const rows = new Map();
  for (const [name, value] of Object.entries(metrics)) {
    const [kind, role, metric] = name.split('/');
    if (kind === 'role' && metric) rows.set(role, { ...rows.get(role), [metric]: value });
  }
  if (!rows.size) return null;
  const percent = (v) => (v === undefined ? '–' : `${Math.round(100 * v)} %`);
  const columns = [['>return', 'return_mean', short], ['>reward', 'reward_mean', short], ['>|advantage|', 'advantage_abs_mean', short],
    ['>format ok', 'format_valid_rate', percent], ['>cut off', 'truncated_rate', percent], ['>tokens', 'response_tokens_mean', short]]
    .filter(([, name]) => [...rows.values()].some((m) => m[name] !== undefined));
  return card('By role', table(['role', ...columns.map(([head]) => head)], [...rows].sort().map(([role, m]) => [
    el('span', { class: `role ${roleClass(role)}` }, role), ...columns.map(([, name, show]) => show(m[name]))])));
}

function accountsCard(accounts) {
  if (!accounts.length) return null;
  return card('Rows', table(['at', 'unit', '>in', '>out', 'left out, and why'], accounts.map((a) => [
    a.boundary, `${a.unit}s`, short(a.rows_in), short(a.rows_out),
    Object.entries(a.excluded).filter(([, n]) => n).sort((x, y) => y[1] - x[1]).map(([why, n]) => `${short(n)} ${why}`).join(', ') || '–'])));
}

function updatesCard(updates) {
  if (!updates?.length) return null;
  return card('Updates', table(['model', 'version', '>rows', '>tokens', '>loss', '>KL', '>clipped', '>entropy', '>gap', '>grad norm', 'note'], updates.map((u) => [
    u.model_id, `${short(u.version_before)} → ${short(u.version_after)}`, short(u.num_rows), short(u.num_tokens), short(u.loss), short(u.kl_old),
    short(u.clip_fraction), short(u.entropy), short(u.sampler_gap_mean), short(u.gradient_norm), u.skipped ?? ''])));
}

function timeCard(times) {
  const entries = Object.entries(times);
  const total = entries.reduce((sum, [, s]) => sum + s, 0);
  if (!(total > 0)) return null;
  return card(`Time: ${seconds(total)}`, el('div', { class: 'stages' }, entries.map(([name, s], i) => el('span', { title: `${name}: ${seconds(s)}`,
    style: { 'flex-grow': s / total, background: COLOURS[i % COLOURS.length] } }))),
  el('ul', { class: 'keys' }, entries.map(([name, s], i) => el('li', {}, el('i', { class: 'swatch', style: { background: COLOURS[i % COLOURS.length] } }), `${name} ${seconds(s)}`))));
}

function metricsCard(metrics) {
  const names = Object.keys(metrics).sort();
  if (!names.length) return null;
  return el('div', { class: 'card' }, opener(`All ${names.length} metrics`, () => table(['metric', '>value'], names.map((n) => [n, short(metrics[n])]))));
}

function showSettings() {
  const pairs = (rows) => el('dl', { class: 'facts-list' }, rows.map(([k, v]) => [el('dt', {}, k), el('dd', {}, v)]));
  byId('settings').replaceChildren(
    card('In short', pairs(about.facts)), card('Versions', pairs(Object.entries(about.versions))),
    card('This page', pairs([['size', `${(pageCharacters / 1e6).toFixed(2)} MB, with ${(unpackedCharacters / 1e6).toFixed(2)} MB of data unpacked so far`],
      ['episodes', `${short(about.shown)} of ${short(about.total)}${about.how ? `, ${about.how}` : ''}`], ['turns', short(turns.length)],
      ['texts', `${short(texts.length)} different ones`]])),
    about.settings && card('settings.toml', el('pre', {}, about.settings)));
}

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return groups;
}

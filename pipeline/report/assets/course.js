// An episode as a graph in time: a lane for each agent, its turns as bars, and arrows for what leads to what.

const LEFT = 128; // of the bars: names of lanes
const WIDE = 1000;
const LANE = 24;
const MOST_ARROWS = 400;
let clockTime = false; // by the clock of the machine, or modelled
let paint = 'role'; // or the number that bars are coloured by

// Numbers that turns have: each can colour the bars.
function paints(episode) {
  const names = ['reward', 'advantage'].filter((name) => episode.turns.some((t) => t[name] !== undefined));
  return ['role', ...names, ...new Set(episode.turns.flatMap((t) => (t.channels ?? []).map(([name]) => name)))];
}

const paintOf = (turn) => turn[paint] ?? (turn.channels ?? []).find(([name]) => name === paint)?.[1];

function course(entry) {
  const { episode } = entry;
  const known = episode.course;
  if (!known || episode.turns.length < 2) return null;
  const clocked = episode.turns.some((t) => t.ended_at !== undefined);
  const choices = paints(episode);
  if (!choices.includes(paint)) paint = 'role';
  const button = (on, name, act) => el('button', { type: 'button', class: on ? 'on' : '', 'aria-pressed': String(on), on: { click: () => { act(); showEpisode(entry); } } }, name);
  const times = clocked && el('span', { class: 'modes', role: 'group', 'aria-label': 'Time' },
    button(!clockTime, known.unit === 'seconds' ? 'modelled time' : 'order', () => { clockTime = false; }), button(clockTime, 'clock', () => { clockTime = true; }));
  const colours = choices.length > 1 && el('label', {}, 'colour ', el('select', { id: 'paint', on: { input: (e) => { paint = e.target.value; showEpisode(entry); } } },
    choices.map((name) => el('option', { value: name, selected: name === paint }, name))));
  return el('div', { class: 'course' }, courseDrawing(episode, clockTime && clocked), el('p', { class: 'toolbar-line dim' }, times, colours, courseNote(known, clockTime && clocked)));
}

function courseNote(known, byClock) {
  const kinds = [...new Set(known.arrows.map(([, , kind]) => kind))].filter((kind) => kind !== 'read');
  const keys = kinds.map((kind) => el('span', { class: `arrow-key of-${kind}` }, kind));
  if (byClock) return [keys, el('span', {}, 'by the clock: pale while they waited')];
  const size = (v) => (known.unit === 'seconds' ? seconds(v) : many(v, 'turn'));
  return [keys, el('span', { class: 'critical-key' }, `critical path ${size(known.span)}`),
    el('span', {}, `of ${size(known.work)} work, at most ${known.width} at a time`),
    known.unit === 'seconds' && el('span', {}, about.rates)];
}

// When a turn was, by the clock or modelled; without a clock it is where its sources ended.
function timeOf(turn, byClock) {
  if (!byClock) return turn.at;
  const end = turn.ended_at ?? turn.started_at ?? turn.queued_at ?? 0;
  return [turn.started_at ?? turn.queued_at ?? end, end];
}

function courseDrawing(episode, byClock) {
  const { lanes, arrows } = episode.course;
  const byIndex = new Map(episode.turns.map((t) => [t.turn_index, t]));
  const end = Math.max(...episode.turns.map((t) => timeOf(t, byClock)[1]), 1e-9);
  const x = scale(0, end, LEFT, WIDE - 10);
  const y = (turn) => turn.lane * LANE + LANE / 2 + 4;
  const height = lanes.length * LANE + 24;
  const most = Math.max(...episode.turns.map((t) => Math.abs(paintOf(t) ?? 0)), 1e-9);
  const marker = (kind) => svg('marker', { id: `head-${kind}`, class: `head of-${kind}`, viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: 'userSpaceOnUse', orient: 'auto' }, svg('path', { d: 'M0 0L8 4L0 8z' }));
  const rows = lanes.map((name, i) => [svg('rect', { class: 'lane-back', x: LEFT, width: WIDE - LEFT, y: i * LANE + 5, height: LANE - 2 }),
    svg('text', { class: 'lane-name', x: LEFT - 8, y: i * LANE + LANE / 2 + 8, 'text-anchor': 'end' }, svg('title', {}, name), name.length > 19 ? `${name.slice(0, 18)}…` : name)]);
  const drawn = arrows.slice(0, MOST_ARROWS).map(([source, target, kind, critical]) => {
    const [a, b] = [byIndex.get(source), byIndex.get(target)];
    if (kind === 'read' && a.lane === b.lane && !critical) return null;
    const [x1, x2, y1, y2] = [x(timeOf(a, byClock)[1]), x(timeOf(b, byClock)[0]), y(a), y(b)];
    const bend = Math.max(14, Math.abs(x2 - x1) / 2);
    return svg('path', { class: `arrow of-${kind} ${critical && !byClock ? 'critical' : ''}`, 'marker-end': `url(#head-${kind})`,
      d: a.lane === b.lane ? `M${x1} ${y1}L${x2} ${y2}` : `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` });
  });
  return svg('svg', { class: 'lanes', viewBox: `0 0 ${WIDE} ${height}`, role: 'group', 'aria-label': 'Turns in time, a lane for each agent' },
    svg('defs', {}, ['spawn', 'message', 'return', 'read'].map(marker)), rows, drawn, episode.turns.map((t) => courseBar(t, byClock, x, y, most)),
    svg('text', { class: 'tick', x: LEFT, y: height - 4 }, '0'),
    svg('text', { class: 'tick', x: WIDE - 10, y: height - 4, 'text-anchor': 'end' }, byClock || episode.course.unit === 'seconds' ? seconds(end) : many(end, 'turn')));
}

function courseBar(turn, byClock, x, y, most) {
  const [from, to] = timeOf(turn, byClock);
  const value = paint === 'role' ? undefined : paintOf(turn);
  const fill = paint === 'role' ? null : { fill: value === undefined || value === null ? 'var(--line)' : value < 0 ? 'var(--accent)' : 'var(--bad)',
    'fill-opacity': value ? 0.2 + (0.8 * Math.abs(value)) / most : 0.15 };
  const words = [`${turn.turn_index} ${turn.act ?? turn.step ?? ''}${turn.role ? `, ${turn.role}` : ''}`, `${short(from)} to ${short(to)}`,
    turn.slack ? `could end ${short(turn.slack)} later` : 'on the critical path',
    turn.advantage !== undefined && `advantage ${signed(turn.advantage)}`, ...(turn.channels ?? []).map(([name, v]) => `${name} ${short(v)}`)].filter(Boolean);
  const go = () => byId(`turn-${turn.turn_index}`)?.scrollIntoView({ block: 'center', behavior: 'smooth' });
  const shape = { class: `mark ${turn.role ? roleClass(turn.role) : 'role-none'} event-of-${turn.event} ${!turn.slack && !byClock ? 'critical' : ''} ${turn.interventions ? 'changed' : ''}`,
    on: { click: go }, style: fill ?? {} };
  const title = svg('title', {}, words.join('\n'));
  const queued = turn.queued_at ?? from;
  const waiting = byClock && queued < from && svg('rect', { class: `mark waiting ${turn.role ? roleClass(turn.role) : 'role-none'}`, x: x(queued), width: x(from) - x(queued), y: y(turn) - 6, height: 12 });
  if (to > from) return [waiting, svg('rect', { ...shape, x: x(from), width: Math.max(3, x(to) - x(from)), y: y(turn) - 7, height: 14, rx: 2 }, title)];
  return [waiting, svg('path', { ...shape, d: `M${x(from)} ${y(turn) - 7}l6 7l-6 7l-6 -7z` }, title)];
}

// Small charts as SVG: lines over iterations with bands, and a histogram.

const COLOURS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#8a8a8a'];
const SIZE = { width: 560, height: 220, left: 52, right: 12, top: 12, bottom: 30 };

const svg = (name, options, ...children) => el(name, { svg: true, ...options }, ...children);

function axes(x, y, xs, ys, label) {
  const { width, height, left, right, top, bottom } = SIZE;
  return [
    ys.map((v) => [svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(v), y2: y(v) }),
      svg('text', { class: 'tick', x: left - 6, y: y(v) + 4, 'text-anchor': 'end' }, short(v))]),
    xs.map((v) => svg('text', { class: 'tick', x: x(v), y: height - bottom + 16, 'text-anchor': 'middle' }, short(v))),
    svg('text', { class: 'tick', x: (left + width - right) / 2, y: height - 1, 'text-anchor': 'middle' }, label),
    svg('line', { class: 'axis', x1: left, x2: left, y1: top, y2: height - bottom }),
  ];
}

// `lines`: [{name, points: [{step, value, low, high}]}]. `marks`: [[step, text]], dotted lines.
function lineChart(lines, label, marks = []) {
  const points = lines.flatMap((line) => line.points);
  const all = points.flatMap((p) => [p.value, p.low, p.high]).filter((v) => v !== null && v !== undefined);
  const [y0, y1] = padded(Math.min(...all), Math.max(...all));
  const steps = points.map((p) => p.step);
  const [x0, x1] = [Math.min(...steps), Math.max(...steps, Math.min(...steps) + 1)];
  const x = scale(x0, x1, SIZE.left + 8, SIZE.width - SIZE.right - 8);
  const y = scale(y0, y1, SIZE.height - SIZE.bottom, SIZE.top);
  const drawn = lines.map(({ name, points: its }, i) => {
    const colour = COLOURS[i % COLOURS.length];
    const dash = i >= COLOURS.length ? '5 3' : null;
    const banded = its.filter((p) => p.low !== null && p.low !== undefined);
    const edge = [...banded.map((p) => `${x(p.step)},${y(p.high)}`), ...[...banded].reverse().map((p) => `${x(p.step)},${y(p.low)}`)];
    return [
      banded.length > 1 && svg('polygon', { points: edge.join(' '), fill: colour, opacity: 0.18 }),
      svg('polyline', { points: its.map((p) => `${x(p.step)},${y(p.value)}`).join(' '), fill: 'none', stroke: colour, 'stroke-width': 2, 'stroke-dasharray': dash }),
      its.length <= 60 && its.map((p) => svg('circle', { cx: x(p.step), cy: y(p.value), r: 3, fill: colour },
        svg('title', {}, `${name} at ${short(p.step)}: ${short(p.value)}`))),
    ];
  });
  const marked = marks.filter(([step]) => step >= x0 && step <= x1).map(([step, what]) => svg('line',
    { class: 'mark', x1: x(step), x2: x(step), y1: SIZE.top, y2: SIZE.height - SIZE.bottom }, svg('title', {}, `settings changed from iteration ${step} on: ${what}`)));
  const ends = [...new Set([x0, Math.round((x0 + x1) / 2), x1])];
  const chart = svg('svg', { class: 'chart', viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: 'img', 'aria-label': `${lines.map((l) => l.name).join(', ')} over ${label}` },
    axes(x, y, ends, ticks(y0, y1), label), marked, drawn);
  const keys = lines.map(({ name }, i) => el('li', {}, el('i', { class: 'swatch', style: { background: COLOURS[i % COLOURS.length] } }), name));
  return el('figure', {}, chart, el('ul', { class: 'keys' }, keys));
}

// How the episodes' values are spread; a bar is a button that filters to its range.
function histogram(values, label, choose) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const count = low === high ? 1 : Math.min(20, Math.max(5, Math.ceil(Math.sqrt(values.length))));
  const width = (high - low) / count || 1;
  const bins = new Array(count).fill(0);
  for (const value of values) bins[Math.min(count - 1, Math.floor((value - low) / width))] += 1;
  const top = Math.max(...bins);
  const x = scale(low, low + width * count, SIZE.left, SIZE.width - SIZE.right);
  const y = scale(0, top, SIZE.height - SIZE.bottom, SIZE.top);
  const bars = bins.map((n, i) => {
    const [from, to] = [low + i * width, low + (i + 1) * width];
    const act = () => n && choose(from, i === count - 1 ? high : to);
    return svg('rect', { class: 'bin', x: x(from) + 1, width: Math.max(1, x(to) - x(from) - 2), y: y(n), height: Math.max(0, y(0) - y(n)), tabindex: n ? 0 : null,
      role: 'button', 'aria-label': `${many(n, 'episode')} with ${label} ${short(from)} to ${short(to)}`,
      on: { click: act, keydown: (event) => event.key === 'Enter' && act() } },
    svg('title', {}, `${many(n, 'episode')}: ${label} ${short(from)} to ${short(to)}`));
  });
  const middle = low + (width * count) / 2;
  return el('figure', {}, svg('svg', { class: 'chart', viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: 'group', 'aria-label': `Episodes by ${label}` },
    axes(x, y, count === 1 ? [middle] : [low, middle, high], [0, top], label), bars));
}

const scale = (from, to, low, high) => (v) => low + ((v - from) / (to - from || 1)) * (high - low);

function padded(low, high) {
  const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

// Three to six round numbers within the range.
function ticks(low, high) {
  const rough = (high - low) / 4;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * size).find((s) => s >= rough);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high; v += step) found.push(Number(v.toPrecision(6)));
  return found;
}
